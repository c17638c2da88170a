// Registration: the boxed recorder for everything, and the few ops that make or alias storage.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/addr_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "buffer.h"
#include "ops.h"
#include "runtime.h"
#include "stream.h"

namespace lazy {

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst);
at::Scalar local_scalar_dense(const at::Tensor& self);

namespace {

std::vector<int64_t> contiguous(at::IntArrayRef sizes) {
  const auto strides = c10::contiguous_strides(sizes);
  return {strides.begin(), strides.end()};
}

int device_index(std::optional<c10::Device> device) {
  TORCH_CHECK(!device || device->is_privateuseone(), "expected a lazy device, got ", device ? device->str() : "none");
  return resolve_device(device ? device->index() : -1);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "the lazy device holds dense (strided) tensors only, not ", *layout);
  at::detail::check_size_nonnegative(sizes);
  at::Tensor fresh = make_tensor(device_index(device), dtype.value_or(c10::get_default_dtype_as_scalartype()), sizes, strides);
  const at::Context& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(fresh);
  return fresh;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(sizes);
  const auto memory_format = format.value_or(c10::MemoryFormat::Contiguous);
  std::vector<int64_t> strides = contiguous(sizes);
  const bool last = memory_format == c10::MemoryFormat::ChannelsLast, last_3d = memory_format == c10::MemoryFormat::ChannelsLast3d;
  TORCH_CHECK(!last || sizes.size() == 4, "required rank 4 tensor to use channels_last format");
  TORCH_CHECK(!last_3d || sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
  if (last) strides = c10::get_channels_last_strides_2d(sizes);
  if (last_3d) strides = c10::get_channels_last_strides_3d(sizes);
  return empty_strided(sizes, strides, dtype, layout, device, pinned);
}

at::Tensor alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  for (int64_t stride : strides)
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  const int64_t start = offset.value_or(self.storage_offset());
  TORCH_CHECK(start >= 0, "Tensor: invalid storage offset ", start);
  const auto needed = at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), start);
  TORCH_CHECK(needed == 0 || needed <= self.storage().nbytes() || c10::multiply_integers(sizes) == 0,
              "setStorage: sizes ", sizes, ", strides ", strides, ", storage offset ", start, ", and itemsize ", self.itemsize(),
              " requiring a storage size of ", needed, " are out of bounds for storage of size ", self.storage().nbytes());
  return alias(self, sizes, strides, start);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  const auto sizes = at::infer_size_dv(size, self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
  TORCH_CHECK(strides.has_value(),
              "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
              "contiguous subspaces). Use .reshape(...) instead.");
  return alias(self, sizes, *strides, self.storage_offset());
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return alias(self, sizes, strides, self.storage_offset());
}

// A larger storage is a new buffer with the old contents; a smaller size leaves the storage as it is.
void grow_storage(const c10::Storage& storage, size_t nbytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  const size_t old = impl->nbytes();
  if (nbytes == old) return;
  const c10::DeviceGuard there(storage.device());  // the allocator's device is the current one
  c10::DataPtr fresh = deferred_allocator()->allocate(nbytes);
  if (const auto bytes = static_cast<int64_t>(std::min(old, nbytes))) {
    const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
    c10::Storage moved(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(fresh),
                                                             deferred_allocator(), true));
    auto source = at::empty({0}, options).set_(storage, 0, {bytes}, {1});
    auto target = at::empty({0}, options).set_(moved, 0, {bytes}, {1});
    target.copy_(source);
    fresh = std::move(moved.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
  }
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(nbytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  at::detail::check_size_nonnegative(sizes);
  if (!self.sizes().equals(sizes)) {
    const auto nbytes = at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), static_cast<size_t>(self.storage_offset()));
    if (c10::multiply_integers(sizes) && nbytes > self.storage().nbytes()) grow_storage(self.storage(), nbytes);
    impl->set_sizes_contiguous(sizes);
  }
  if (format && *format != c10::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  TORCH_CHECK(storage.device().type() == c10::DeviceType::PrivateUse1 || storage.nbytes() == 0,
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", storage.device(), "\".  This is no longer allowed; the devices must match.");
  const auto steps = strides.empty() && !sizes.empty() ? contiguous(sizes) : strides.vec();
  const auto needed = at::detail::computeStorageNbytes(sizes, steps, self.itemsize(), static_cast<size_t>(offset));
  if (c10::multiply_integers(sizes) && needed > storage.nbytes()) grow_storage(storage, needed);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(sizes, steps, offset);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {n}, {1});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const c10::DeviceGuard there(self.device());
  c10::Storage empty_storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, deferred_allocator()->allocate(0), deferred_allocator(), true));
  return set_storage(self, std::move(empty_storage), 0, {0}, {1});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes().equals(other.sizes()) && self.strides().equals(other.strides());
}

void record_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) { record(op, stack); }

// Ops that torch would serve through another of their faces first (functional and in-place faces of
// structured ops): recorded whole instead, which halves the host cost of the commonest ops.
void record_structured_faces() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) continue;
    if (op->hasTag(at::Tag::view_copy) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) continue;
    library.impl(c10::toString(name).c_str() + sizeof("aten::") - 1, torch::CppFunction::makeFromBoxedFunction<&record_boxed>());
  }
}

// torch's composite, which does not look at the factors as eager's kernel does.
at::Tensor addr(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  const auto dtype = c10::promoteTypes(c10::promoteTypes(self.scalar_type(), a.scalar_type()), b.scalar_type());
  for (const auto& [factor, name] : {std::pair(beta, "beta"), std::pair(alpha, "alpha")}) {
    TORCH_CHECK(!factor.isBoolean() || dtype == at::kBool, "Boolean ", name, " only supported for Boolean results.");
    TORCH_CHECK(c10::isFloatingType(dtype) || c10::isComplexType(dtype) || factor.isIntegral(true), "For integral input tensors, argument ",
                name, " must not be a floating point number.");
  }
  return at::native::math_addr(self, a, b, beta, alpha);
}

// nn.TransformerEncoder asks before it makes a nested tensor of a padded batch; "no" keeps the batch dense.
bool nested_tensor_from_mask_left_aligned(const at::Tensor&, const at::Tensor&) { return false; }

// torch's own asks a stub that only its devices fill.
at::Tensor& conj_physical_(at::Tensor& self) { return self.is_complex() ? self.copy_(at::conj_physical(self)) : self; }

// A tensor of numbers, one for each in the lists: they are read, as eager reads them.
std::vector<c10::Scalar> listed(const at::Tensor& scalars, at::TensorList lists) {
  return at::native::convert_tensor_to_scalar_list(scalars.cpu(), static_cast<int64_t>(lists.size()));
}
template <class Op>
std::vector<at::Tensor> scaled_each(at::TensorList self, at::TensorList a, at::TensorList b, const at::Tensor& scalars) {
  return Op::call(self, a, b, listed(scalars, self));
}
template <class Op>
void scale_each(at::TensorList self, at::TensorList a, at::TensorList b, const at::Tensor& scalars) {
  Op::call(self, a, b, listed(scalars, self));
}

template <const char* kind>
void refuse_boxed(const c10::OperatorHandle&, torch::jit::Stack*) {
  refuse_layout(kind);
}

constexpr char kSparse[] = "sparse", kNested[] = "nested", kQuantized[] = "quantized";

// `x.to("cpu", non_blocking=True)` waits: nothing tells the host when a result that it can read at once is there. Who wants
// the overlap copies into pinned memory of their own (`device_to_pinned`).
at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format) {
  const bool leaves = device && !device->is_privateuseone();
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking && !leaves, memory_format);
}

}  // namespace

void refuse_layout(const char* kind) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the device \"lazy\" has no ", kind, " tensors, only dense ones: keep ", kind,
                              " tensors on the CPU (tensor.cpu())");
}

void record_overloads(const std::vector<std::string>& names) {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : names) {
    const auto at = name.find('.');
    const auto op = dispatcher.findOp({"aten::" + name.substr(0, at), at == std::string::npos ? "" : name.substr(at + 1)});
    if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&record_boxed>());
  }
}

void resize_storage(c10::StorageImpl& storage, uint64_t bytes) {
  grow_storage(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)), bytes);
}

void register_ops() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, deferred_allocator());
  record_unboxed();
  record_structured_faces();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_boxed>()); }

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_boxed<kSparse>>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_boxed<kSparse>>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_boxed<kNested>>()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_boxed<kQuantized>>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("addr", TORCH_FN(addr));
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("is_set_to", TORCH_FN(is_set_to));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_to_copy", TORCH_FN(to_copy));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_tensor_from_mask_left_aligned));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("conj_physical_", TORCH_FN(conj_physical_));
  m.impl("_foreach_addcmul.Tensor", TORCH_FN(scaled_each<at::_ops::_foreach_addcmul_ScalarList>));
  m.impl("_foreach_addcdiv.Tensor", TORCH_FN(scaled_each<at::_ops::_foreach_addcdiv_ScalarList>));
  m.impl("_foreach_addcmul_.Tensor", TORCH_FN(scale_each<at::_ops::_foreach_addcmul__ScalarList>));
  m.impl("_foreach_addcdiv_.Tensor", TORCH_FN(scale_each<at::_ops::_foreach_addcdiv__ScalarList>));
}

}  // namespace lazy
