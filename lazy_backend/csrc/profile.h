// The device's rows on torch.profiler's timeline (a kineto plugin): windows, and in them kernels with ops and lines.
#pragma once

#include <atomic>

#include "driver.h"

namespace lazy {

extern std::atomic<bool> tracing;  // whether a trace is being taken

// A kernel of window `serial` was launched between the event `start` and now; takes the event over.
void trace_launch(Device& device, uint64_t serial, lazy_kernel kernel, lazy_event start);

void init_profiler();

}  // namespace lazy
