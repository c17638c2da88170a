// Extern entries for devices that are the host's own processor: core ops through torch's CPU library (oneDNN).
#pragma once

#include <string>
#include <vector>

#include "driver.h"

namespace lazy {

// Those of `names` that a tuned device has beside generated kernels: from its driver, or from here, where it is a CPU
// whose memory the host sees.
std::vector<std::string> extern_ops(Device& device, const std::vector<std::string>& names);

struct LibraryCall {
  std::string name;
  std::vector<lazy_tensor> tensors;  // outputs first; one output
  std::string attrs;                 // JSON

  // Whether it may run beside `earlier`: neither writes what the other reads or writes.
  bool independent(const LibraryCall& earlier) const;
};

// Runs calls that are independent of each other, in full, on memory that no queued command touches.
void run_library(Device& device, const std::vector<LibraryCall>& calls);

// Lets the threads of the script's own CPU ops sleep when they have nothing to do. Called once, on a thread that stays.
void spare_cores();

}  // namespace lazy
