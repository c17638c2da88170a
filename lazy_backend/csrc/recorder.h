// Appending to a device's current window.
#pragma once

#include <utility>
#include <vector>

#include "ops.h"
#include "window.h"

namespace lazy {

// Adds one node: patches the buffers' slot numbers into `code`, extends the window's key,
// and cuts where a window must end. Any thread.
void append(const OpEntry& op, int device, std::vector<int64_t>& code, const std::vector<int64_t>& dims,
            const std::vector<Use>& uses, const std::vector<uint64_t>& scalars, const Keys& keys);

// Window length in ops: torch.lazy.window(n).
void set_window_length(uint64_t ops);
uint64_t window_length();

}  // namespace lazy
