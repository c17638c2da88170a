// The hooks through which torch reaches the device outside of ops: availability, current device, generators, pinned
// host memory, memory statistics; and the registrations that a renamed PrivateUse1 device needs (ATEN_SURFACE.md 5).
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <pybind11/pybind11.h>

namespace lazy {

// Chooses the driver on first need (Python: lazy_backend.driver.discovery) and returns its number of devices.
// Takes the GIL on the first call only. Throws c10::Error, with what was tried, where no driver can be opened.
int open_driver();

// The driver's number of devices, of which none is opened; 0 where there is no driver. torch asks in scripts of the
// CPU's too, at the first backward pass and in each step of an optimizer.
int count_devices() noexcept;

// In a child made by fork after the device was opened.
bool forked();

// Pinned memory: page-aligned, kept for reuse. A copy from or to it may be asynchronous.
bool is_pinned(const void* pointer);
at::HostAllocator* pinned_allocator();

// The statistics half of a device allocator; the deferred storage allocator is the other half.
struct DeviceMemory : c10::DeviceAllocator {
  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

void init_hooks(pybind11::module_& m);

}  // namespace lazy
