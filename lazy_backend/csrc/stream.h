// Devices, streams and events. A device has one queue and runs it in order, whichever thread or stream recorded, so a
// stream is a number: its order holds trivially, and waiting for another stream of the same device costs nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lazy {

// The calling thread's current device.
c10::DeviceIndex current_device() noexcept;

// `device`'s index, or the current device's where it has none. Throws for an index that no device has.
c10::DeviceIndex resolve_device(c10::DeviceIndex index);

}  // namespace lazy
