#include "placed.h"

#include <ATen/ops/empty_ops.h>
#include <ATen/ops/resize_ops.h>
#include <torch/library.h>

#include <utility>

#include "stats.h"

namespace lazy {
namespace {

// Torch's own key for what a thread asks of ops for a while; no kernel of torch has it, and no other thread sees it.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local const at::Tensor* wanted = nullptr;
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

// Where a tensor of such sizes is to lie, if the next one is. Strides are told by their format.
std::optional<at::Tensor> place_for(at::IntArrayRef sizes, at::ScalarType dtype, std::optional<at::MemoryFormat> format) {
  if (!wanted || wanted->sizes() != sizes || wanted->scalar_type() != dtype ||
      !wanted->is_contiguous(format.value_or(at::MemoryFormat::Contiguous)))
    return std::nullopt;
  const at::Tensor& to = *std::exchange(wanted, nullptr);
  return at::from_blob(to.data_ptr(), sizes, to.strides(), to.options());
}

at::Tensor empty(c10::DispatchKeySet keys, at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  const bool strided = layout.value_or(at::kStrided) == at::kStrided && device.value_or(at::kCPU).is_cpu();
  if (strided && dtype)
    if (const auto placed = place_for(sizes, *dtype, format)) return *placed;
  return at::_ops::empty_memory_format::redispatch(keys & kBelow, c10::fromIntArrayRefSlow(sizes), dtype, layout, device,
                                                   pinned, format);
}

// How the library makes results whose channels lie last: an empty tensor that grows.
const at::Tensor& resize_(c10::DispatchKeySet keys, const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  if (self.numel() == 0 && self.is_cpu() && self.layout() == at::kStrided)
    if (const auto placed = place_for(sizes, self.scalar_type(), format)) return at::Tensor(self).set_(*placed), self;
  return at::_ops::resize_::redispatch(keys & kBelow, self, c10::fromIntArrayRefSlow(sizes), format);
}

}  // namespace

Placing::Placing() : on_(kKey) {}

void place(const at::Tensor& to, const std::function<at::Tensor()>& make) {
  wanted = &to;
  at::Tensor made;
  try {
    made = make();
  } catch (...) {
    wanted = nullptr;
    throw;
  }
  wanted = nullptr;
  if (made.data_ptr() == to.data_ptr() && made.strides() == to.strides()) return;
  stats().extern_copies++;
  at::Tensor(to).copy_(made);
}

}  // namespace lazy

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  m.impl("empty.memory_format", TORCH_FN(lazy::empty));
  m.impl("resize_", TORCH_FN(lazy::resize_));
}
