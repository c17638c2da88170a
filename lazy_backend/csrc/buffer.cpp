#include "buffer.h"

#include "hooks.h"
#include "stream.h"

namespace lazy {
namespace {

// Above any host mapping that Linux hands out by default; a touch faults.
constexpr uint64_t kAddressBase = 0x4000'0000'0000'0000ull;
constexpr uint64_t kAddressAlignment = 512;
std::atomic<uint64_t> next_address{kAddressBase};

uint64_t reserve_address(uint64_t nbytes) {
  const uint64_t rounded = (nbytes / kAddressAlignment + 1) * kAddressAlignment;
  return next_address.fetch_add(rounded, std::memory_order_relaxed);
}

void storage_died(void* context) {
  auto* buffer = static_cast<Buffer*>(context);
  buffer->storage_alive.store(false, std::memory_order_release);
  c10::raw::intrusive_ptr::decref(buffer);
}

struct DeferredAllocator final : DeviceMemory {
  c10::DataPtr allocate(size_t nbytes) override {
    const int device = current_device();
    auto buffer = c10::make_intrusive<Buffer>(device, nbytes);
    auto* raw = buffer.release();
    return {reinterpret_cast<void*>(raw->address), raw, &storage_died,
            c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a lazy storage cannot be copied through its address; copy the tensor instead");
  }
};

}  // namespace

Buffer::Buffer(int device_index, uint64_t bytes)
    : device(device_index), nbytes(bytes), address(reserve_address(bytes)) {}

Buffer::~Buffer() {
  if (block) allocator(device).free(block);
}

void Buffer::allocate() {
  if (!block) block = allocator(device).allocate(std::max<uint64_t>(nbytes, 1));
}

c10::Allocator* deferred_allocator() {
  static DeferredAllocator allocator;
  return &allocator;
}

at::Tensor make_tensor(int device, c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const auto type = c10::scalarTypeToTypeMeta(dtype);
  const uint64_t nbytes = at::detail::computeStorageNbytes(sizes, strides, type.itemsize());
  auto buffer = c10::make_intrusive<Buffer>(device, nbytes);
  auto* raw = buffer.release();
  c10::DataPtr data(reinterpret_cast<void*>(raw->address), raw, &storage_died,
                    c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data),
                                                       deferred_allocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace lazy
