#include "causes.h"

#include <map>
#include <mutex>

namespace lazy {
namespace {

constexpr const char* kEvents[] = {"cut", "read", "fallback"};

struct Seen {
  uint64_t count = 0;
  Frame first;
};
std::mutex mutex;
std::map<std::pair<Event, std::string>, Seen> seen;

// Whether the reason was known, and is now counted.
bool counted(Event event, const std::string& code) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = seen.find({event, code});
  if (found == seen.end()) return false;
  found->second.count++;
  return true;
}

}  // namespace

void note(Event event, const std::string& code) {
  if (!counted(event, code)) note(event, code, current_frame());
}

void note(Event event, const std::string& code, const Frame& frame) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = seen[{event, code}];
  if (entry.count++ == 0) entry.first = frame;
}

std::vector<Cause> causes() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<Cause> all;
  for (const auto& [key, entry] : seen)
    all.push_back({kEvents[static_cast<size_t>(key.first)], key.second, entry.count, entry.first});
  return all;
}

void reset_causes() {
  std::lock_guard<std::mutex> lock(mutex);
  seen.clear();
}

}  // namespace lazy
