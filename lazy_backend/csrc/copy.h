// Moving data between host and device, and waiting for it.
#pragma once

#include <ATen/ATen.h>

#include "ops.h"
#include "window.h"

namespace lazy {

// A new lazy tensor with the contents and strides of a CPU tensor.
at::Tensor upload(const at::Tensor& host, int device);

// Cuts, runs everything recorded and waits for the device. Raises a pending device error.
void wait_all(int device, Cut cause);

// What a conjugate or negative view shows, in memory of its own; any other tensor itself.
at::Tensor resolved(const at::Tensor& t);

// A CPU tensor over (host visible) or with a copy of the storage of `t`; the device is idle for it.
at::Tensor host_image(const at::Tensor& t);

// A CPU tensor over the memory of `t`, after a read; later work of the device shows in it once that has run.
// Raises where memory is not host visible.
at::Tensor host_view(const at::Tensor& t);

// Once per op: a warning that names the user's line, by LAZY_FALLBACK; raises under "error".
void announce_host_op(OpEntry& op, const std::string& line);
enum class Fallback { kWarn, kError, kSilent };
void set_fallback(Fallback policy);

}  // namespace lazy
