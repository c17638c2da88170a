// Markers: points in a device's order of work, behind events and timing; and synchronize.
#include <map>
#include <mutex>

#include "copy.h"
#include "executor.h"
#include "runtime.h"

namespace lazy {
namespace {

struct Marker {
  int device;
  uint64_t ticket;
  lazy_event event = nullptr;
};

// Kept for as long as anyone may ask; the oldest finished ones go first.
constexpr size_t kMaxMarkers = 16384;
std::mutex mutex;
std::map<uint64_t, std::shared_ptr<Marker>> markers;
uint64_t next_marker = 1;

std::shared_ptr<Marker> find(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = markers.find(id);
  return found == markers.end() ? nullptr : found->second;
}

}  // namespace

uint64_t submit_marker(int index) {
  auto marker = std::make_shared<Marker>();
  marker->device = index;
  marker->ticket = submit_action(index, Cut::kEvent, true, [marker](Device& d) { marker->event = d.record(); });
  std::lock_guard<std::mutex> lock(mutex);
  if (markers.size() >= kMaxMarkers) {
    auto oldest = markers.begin();
    if (oldest->second->event) device(oldest->second->device).destroy(oldest->second->event);
    markers.erase(oldest);
  }
  markers.emplace(next_marker, marker);
  return next_marker++;
}

bool marker_done(uint64_t id) {
  const auto marker = find(id);
  if (!marker) return true;
  if (!executor(marker->device).submitted_to_driver(marker->ticket)) return false;
  return !marker->event || device(marker->device).query(marker->event);
}

void marker_wait(uint64_t id) {
  const auto marker = find(id);
  if (!marker) return;
  Executor& ex = executor(marker->device);
  {
    GilRelease free;
    ex.wait(marker->ticket);
    if (marker->event) device(marker->device).wait(marker->event);
  }
  ex.raise_pending();
}

uint64_t marker_ns(uint64_t id) {
  const auto marker = find(id);
  TORCH_CHECK(marker && marker->event, "this event has not been recorded, or too long ago");
  GilRelease free;
  return device(marker->device).time_ns(marker->event);
}

void synchronize(int index) { wait_all(index, Cut::kSync); }

}  // namespace lazy
