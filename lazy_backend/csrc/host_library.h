// Extern entries for devices that are the host's own processor: core ops through torch's CPU library (oneDNN).
#pragma once

#include <string>
#include <vector>

#include "driver.h"

namespace lazy {

// Those of `names` that a tuned device has beside generated kernels: from its driver, or from here, where it is a CPU
// whose memory the host sees.
std::vector<std::string> extern_ops(Device& device, const std::vector<std::string>& names);

// Runs one, in full, on memory that no queued command touches. tensors: outputs first; attrs: JSON.
void run_library_op(Device& device, const std::string& name, const std::vector<lazy_tensor>& tensors,
                    const std::string& attrs);

}  // namespace lazy
