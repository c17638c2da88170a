// What the plumbing of torch (guard, hooks, streams, events) asks of the executor.
// Any thread may call, with or without the GIL; none of these takes it, all that wait release it.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace lazy {

// A marker is a point in a device's order of work: everything recorded before it, by any thread, comes before it.
// Submitting one cuts the pending window. Markers are never 0 and need no release.
uint64_t submit_marker(int device);
bool marker_done(uint64_t marker);
void marker_wait(uint64_t marker);    // throws a pending device error of the work before it
uint64_t marker_ns(uint64_t marker);  // completion time on the device's clock, ns; the marker is done

// Cuts, and waits until the device has finished everything; throws a pending device error.
void synchronize(int device);

// Makes a storage exactly `bytes` long, keeping its contents.
void resize_storage(c10::StorageImpl& storage, uint64_t bytes);

}  // namespace lazy
