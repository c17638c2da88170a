// Why the device cut, read or fell back: how often for each reason, and the Python line of the first time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frame.h"

namespace lazy {

enum class Event : uint8_t { kCut, kRead, kFallback };

// Counts; the first time of a reason its line is looked up, which may take the GIL: not under a lock.
void note(Event event, const std::string& code);
void note(Event event, const std::string& code, const Frame& frame);

struct Cause {
  const char* event;
  std::string code;
  uint64_t count;
  Frame first;
};
std::vector<Cause> causes();
void reset_causes();

}  // namespace lazy
