// Running ops on the host's CPU kernels over device memory: the last rung.
#pragma once

#include "ops.h"
#include "window.h"

namespace lazy {

// One recorded node of a window, on the executor's turn. The device is idle. `fallback`: counted as an op
// that the device could not run.
void run_host_step(const Window& window, uint32_t node, bool fallback);

}  // namespace lazy
