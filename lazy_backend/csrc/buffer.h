// A Buffer is the memory behind one storage: a size and, once something has been
// written to it, a block of device memory. The storage's DataPtr owns a reference, so
// "can anything outside still see it" is exactly `storage_alive`.
#pragma once

#include <ATen/ATen.h>

#include <atomic>

#include "allocator.h"

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
  bool has_data = false;   // something submitted or recorded has written it
  uint64_t ticket = 0;     // last submitted job that touches it

  // Owned by whoever runs jobs (the executor).
  Block* block = nullptr;
  void allocate();         // throws DriverError (LAZY_OUT_OF_MEMORY)
};

using BufferPtr = c10::intrusive_ptr<Buffer>;

// The deferred allocator behind every lazy storage.
c10::Allocator* deferred_allocator();

inline Buffer* buffer_of(const c10::StorageImpl& storage) {
  return static_cast<Buffer*>(storage.data_ptr().get_context());
}
inline Buffer* buffer_of(const at::Tensor& t) {
  return buffer_of(*t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// A fresh tensor whose storage is deferred. Strides as given; storage exactly large enough.
at::Tensor make_tensor(int device, c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace lazy
