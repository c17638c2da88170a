#include "stream.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <mutex>

#include "executor.h"
#include "hooks.h"
#include "runtime.h"

namespace lazy {

namespace {

using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
using c10::StreamId;

// A pool as CUDA's: enough for every pattern seen, and ids stay small.
constexpr StreamId kPoolSize = 32;
constexpr size_t kMaxDevices = 64;

thread_local DeviceIndex tls_device = 0;
thread_local std::array<StreamId, kMaxDevices> tls_stream{};  // 0 is the default stream

struct StreamEvent {
  MarkerPtr marker;
  DeviceIndex device = 0;
};

uint64_t completion_ns(const StreamEvent* event) {
  TORCH_CHECK(event != nullptr, "elapsed_time: both events must be recorded first");
  TORCH_CHECK(marker_done(*event->marker), "elapsed_time: both events must have completed; synchronize first");
  return marker_ns(*event->marker);
}

// Whether the device has done everything recorded, without waiting: a marker is put behind the last job, once.
bool all_done(DeviceIndex index) {
  struct Probe {
    uint64_t ticket = 0;
    MarkerPtr marker;
  };
  static std::mutex mutex;
  static std::array<Probe, kMaxDevices> probes;
  const uint64_t last = cut(index, Cut::kEvent);
  if (executor(index).idle()) {
    return true;
  }
  std::lock_guard lock(mutex);
  Probe& probe = probes[index];
  if (probe.ticket < last) {
    probe.marker = submit_marker(index);
    probe.ticket = last + 1;  // the marker's own job, if no other thread came between
  }
  return marker_done(*probe.marker);
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {DeviceType::PrivateUse1, tls_device}; }
  void setDevice(c10::Device device) const override {
    if (device.index() != tls_device) {
      tls_device = resolve_device(device.index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { tls_device = device.index(); }

  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(count_devices()); }

  // Every dense dtype works, natively or through another.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const c10::ScalarTypeIndex dtype :
         {c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int, c10::kIndex_Long, c10::kIndex_UInt16,
          c10::kIndex_UInt32, c10::kIndex_UInt64, c10::kIndex_Half, c10::kIndex_BFloat16, c10::kIndex_Float,
          c10::kIndex_Double, c10::kIndex_ComplexFloat, c10::kIndex_ComplexDouble, c10::kIndex_Bool}) {
      capability.capability_data.capability_bits |= 1ULL << dtype;
    }
    return capability;
  }

  Stream getStream(c10::Device device) const override {
    const DeviceIndex index = resolve_device(device.index());
    return make(tls_stream[index], index);
  }
  Stream getDefaultStream(c10::Device device) const override { return make(0, resolve_device(device.index())); }
  Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<StreamId> next{0};
    return make(1 + next++ % kPoolSize, resolve_device(device.index()));
  }
  Stream exchangeStream(Stream next) const override {
    const DeviceIndex index = resolve_device(next.device_index());
    return make(std::exchange(tls_stream[index], next.id()), index);
  }
  // Streams have no object behind them; the id serves as the handle.
  void* getStreamNativeHandle(const Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }

  bool queryStream(const Stream& stream) const override { return all_done(stream.device_index()); }
  void synchronizeStream(const Stream& stream) const override { lazy::synchronize(stream.device_index()); }
  bool isStreamCapturing(const Stream& stream) const override { return capturing(stream.device_index()); }
  void synchronizeDevice(const DeviceIndex index) const override { lazy::synchronize(resolve_device(index)); }

  void record(void** event, const Stream& stream, const DeviceIndex index, const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of lazy:", static_cast<int>(index),
                " cannot be recorded on a stream of lazy:", static_cast<int>(stream.device_index()));
    if (*event == nullptr) {
      *event = new StreamEvent;
    }
    *static_cast<StreamEvent*>(*event) = {submit_marker(stream.device_index()), stream.device_index()};
  }
  // One queue per device, so only another device's event needs waiting for.
  void block(void* handle, const Stream& stream) const override {
    const auto* event = static_cast<StreamEvent*>(handle);
    if (event != nullptr && event->device != stream.device_index()) {
      marker_wait(*event->marker);
    }
  }
  bool queryEvent(void* handle) const override {
    const auto* event = static_cast<StreamEvent*>(handle);
    return event == nullptr || marker_done(*event->marker);
  }
  void synchronizeEvent(void* handle) const override {
    if (const auto* event = static_cast<StreamEvent*>(handle)) {
      marker_wait(*event->marker);
    }
  }
  void destroyEvent(void* handle, const DeviceIndex) const noexcept override { delete static_cast<StreamEvent*>(handle); }

  // Milliseconds on the device's clock.
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    const uint64_t from = completion_ns(static_cast<StreamEvent*>(start));
    const uint64_t to = completion_ns(static_cast<StreamEvent*>(end));
    return (static_cast<double>(to) - static_cast<double>(from)) * 1e-6;
  }

 private:
  static Stream make(StreamId id, DeviceIndex index) {
    return Stream(Stream::UNSAFE, c10::Device(DeviceType::PrivateUse1, index), id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

DeviceIndex current_device() noexcept { return tls_device; }

DeviceIndex resolve_device(DeviceIndex index) {
  const int count = open_driver();
  if (index == -1) {
    return tls_device;
  }
  TORCH_CHECK(index >= 0 && index < count, "lazy:", static_cast<int>(index), " does not exist: the driver has ", count,
              count == 1 ? " device" : " devices");
  return index;
}

}  // namespace lazy
