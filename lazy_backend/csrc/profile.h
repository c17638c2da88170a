// Launches on the device's own clock: for torch.profiler's timeline (a kineto plugin: windows, and in them kernels with
// ops and lines), and summed up by step of a plan for `python -m lazy_backend profile`.
#pragma once

#include <atomic>
#include <unordered_map>
#include <vector>

#include "driver.h"

namespace lazy {

extern std::atomic<bool> tracing;  // whether anybody wants launches noted

// What window `serial` launched between the event `start` and now; takes the event over. kernel: as profiles name it,
// null for what has no name there. numbers: the steps' (`Step::number`), several for calls that ran side by side.
void trace_launch(Device& device, uint64_t serial, lazy_kernel kernel, const std::vector<uint32_t>& numbers, lazy_event start);

// Time by number of a step, while switched on; calls that ran side by side have equal parts.
struct LaunchTime {
  uint64_t count = 0, ns = 0;
};
void set_profiling(bool on);
std::unordered_map<uint32_t, LaunchTime> launch_times();  // waits for what was launched

void init_profiler();

}  // namespace lazy
