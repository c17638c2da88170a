// What the plumbing of torch (guard, hooks, streams, events) asks of the executor.
// Any thread may call, with or without the GIL; none of these takes it, all that wait release it.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>

namespace lazy {

// A marker is a point in a device's order of work: everything recorded before it, by any thread, comes before it.
// Submitting one cuts the pending window. It is never null, and its driver's event lives as long as anyone holds it.
struct Marker;
using MarkerPtr = std::shared_ptr<Marker>;
MarkerPtr submit_marker(int device);
bool marker_done(const Marker& marker);
void marker_wait(const Marker& marker);    // throws a pending device error of the work before it
uint64_t marker_ns(const Marker& marker);  // completion time on the device's clock, ns; the marker is done

// Cuts, and waits until the device has finished everything; throws a pending device error.
void synchronize(int device);

// Makes a storage exactly `bytes` long, keeping its contents.
void resize_storage(c10::StorageImpl& storage, uint64_t bytes);

}  // namespace lazy
