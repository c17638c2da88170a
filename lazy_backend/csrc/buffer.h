// A Buffer is the memory behind one storage: a size and, once something has been
// written to it, a block of device memory. The storage's DataPtr owns a reference, so
// "can anything outside still see it" is exactly `storage_alive`.
#pragma once

#include <ATen/ATen.h>

#include <atomic>

#include "allocator.h"
#include "frame.h"

namespace lazy {

struct Buffer final : c10::intrusive_ptr_target {
  Buffer(int device, uint64_t nbytes);
  ~Buffer() override;

  const int device;
  const uint64_t nbytes;
  // A unique, untouchable address range: what data_ptr() shows. Aliasing checks in torch
  // compare addresses, so deferred storages must not all look like null.
  const uint64_t address;
  std::atomic<bool> storage_alive{true};

  // Guarded by the device's recorder lock.
  uint64_t window = 0;     // serial of the window that holds it now
  uint32_t slot = 0;       // its number there
  uint64_t written = 0;    // how often the host had waited for the device when this was recorded or uploaded last
  bool has_data = false;   // something submitted or recorded has written it
  Frame born;              // what wrote it first
  uint64_t ticket = 0;     // last submitted job that touches it

  // Owned by whoever runs jobs (the executor).
  Block* block = nullptr;
  void allocate();         // as allocate_block
};

// Device memory; `owner` may be null. Throws DriverError: where memory is out, with the largest live tensors by line.
Block* allocate_block(int device, uint64_t bytes, const Buffer* owner);

// What lives on the device, the largest first: bytes, number of tensors, and the Python line that made them.
struct Holding {
  std::string line;
  uint64_t bytes = 0, count = 0;
};
std::vector<Holding> holdings(int device);

using BufferPtr = c10::intrusive_ptr<Buffer>;

// The deferred allocator behind every lazy storage.
c10::Allocator* deferred_allocator();

// The deleter by which a storage of ours is known, and what is said of another.
void storage_died(void* context);
[[noreturn]] void foreign_storage();

inline Buffer* buffer_of(const c10::StorageImpl& storage) {
  if (C10_UNLIKELY(storage.data_ptr().get_deleter() != &storage_died)) foreign_storage();
  return static_cast<Buffer*>(storage.data_ptr().get_context());
}
inline Buffer* buffer_of(const at::Tensor& t) {
  return buffer_of(*t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// A fresh tensor whose storage is deferred. Strides as given; storage exactly large enough.
at::Tensor make_tensor(int device, c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace lazy
