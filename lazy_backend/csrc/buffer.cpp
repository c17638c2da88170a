#include "buffer.h"

#include <algorithm>
#include <cstdio>
#include <map>

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

struct DeferredAllocator final : DeviceMemory {
  c10::DataPtr allocate(size_t nbytes) override {
    const int device = resolve_device(-1);
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

// Lines named where memory is out.
constexpr size_t kMaxNamed = 8;

}  // namespace

void storage_died(void* context) {
  auto* buffer = static_cast<Buffer*>(context);
  buffer->storage_alive.store(false, std::memory_order_release);
  c10::raw::intrusive_ptr::decref(buffer);
}

void foreign_storage() {
  TORCH_CHECK(false, "a lazy tensor over memory that the lazy device did not allocate (made by at::from_blob or from a DLPack "
                     "capsule): take that memory as a CPU tensor and copy it with .to(\"lazy\")");
}

Buffer::Buffer(int device_index, uint64_t bytes)
    : device(device_index), nbytes(bytes), address(reserve_address(bytes)) {}

Buffer::~Buffer() {
  if (block) allocator(device).free(block);
}

void Buffer::allocate() {
  if (!block) block = allocate_block(device, std::max<uint64_t>(nbytes, 1), this);
}

std::vector<Holding> holdings(int device) {
  std::vector<std::pair<Frame, uint64_t>> live;
  std::map<std::string, Holding> by_line;
  allocator(device).each_live([&](const Buffer* owner, uint64_t bytes) {
    if (owner)
      live.emplace_back(owner->born, bytes);
    else
      by_line["intermediate results of a window"].bytes += bytes;
  });
  for (const auto& [frame, bytes] : live) {  // without the allocator's lock: describing takes the GIL
    auto& entry = by_line[describe(frame)];
    entry.bytes += bytes;
    entry.count++;
  }
  std::vector<Holding> sorted;
  for (auto& [line, entry] : by_line) sorted.push_back({line, entry.bytes, entry.count});
  std::stable_sort(sorted.begin(), sorted.end(), [](const Holding& a, const Holding& b) { return a.bytes > b.bytes; });
  return sorted;
}

Block* allocate_block(int device, uint64_t bytes, const Buffer* owner) {
  try {
    return allocator(device).allocate(bytes, owner);
  } catch (const DriverError& error) {
    if (error.status != LAZY_OUT_OF_MEMORY) throw;
    std::string text = error.what();
    if (owner) text += "; wanted by " + describe(owner->born);
    const auto live = holdings(device);
    text += live.empty() ? "\nNothing lives on the device." : "\nThe largest of what lives on the device, by the line that made it:";
    for (size_t i = 0; i < std::min(live.size(), kMaxNamed); ++i) {
      char line[64];
      std::snprintf(line, sizeof line, "\n  %10.2f MiB in %4llu  ", static_cast<double>(live[i].bytes) / (1 << 20),
                    static_cast<unsigned long long>(live[i].count));
      text += line + live[i].line;
    }
    throw DriverError(error.status, text);
  }
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
