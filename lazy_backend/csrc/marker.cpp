// Markers: points in a device's order of work, behind events and timing; and synchronize.
#include <mutex>
#include <vector>

#include "copy.h"
#include "executor.h"
#include "runtime.h"

namespace lazy {

struct Marker {
  const int device;
  uint64_t ticket = 0;
  lazy_event event = nullptr;  // once the ticket has been handed to the driver

  explicit Marker(int device) : device(device) {}
  Marker(const Marker&) = delete;
  ~Marker();
};

namespace {

// Events of markers that nobody holds any more, by device. The next marker's job destroys them: the last holder may be
// Python shutting down, when a driver must not be called.
std::mutex retired_mutex;
std::vector<std::pair<int, lazy_event>> retired;

void destroy_retired(Device& device) {
  std::vector<lazy_event> events;
  {
    std::lock_guard lock(retired_mutex);
    std::erase_if(retired, [&](const auto& entry) {
      if (entry.first == device.index) events.push_back(entry.second);
      return entry.first == device.index;
    });
  }
  for (const lazy_event event : events) device.destroy(event);
}

}  // namespace

Marker::~Marker() {
  if (event == nullptr) return;
  std::lock_guard lock(retired_mutex);
  retired.emplace_back(device, event);
}

MarkerPtr submit_marker(int index) {
  auto marker = std::make_shared<Marker>(index);
  marker->ticket = submit_action(index, Cut::kEvent, true, [marker](Device& d) {
    destroy_retired(d);
    if (marker->event) d.destroy(marker->event);  // a graph that is replayed records it again
    marker->event = d.record();
  });
  return marker;
}

bool marker_done(const Marker& marker) {
  if (!executor(marker.device).submitted_to_driver(marker.ticket)) return false;
  return !marker.event || device(marker.device).query(marker.event);
}

void marker_wait(const Marker& marker) {
  Executor& ex = executor(marker.device);
  {
    GilRelease free;
    ex.wait(marker.ticket);
    if (marker.event) device(marker.device).wait(marker.event);
  }
  ex.raise_pending();
}

uint64_t marker_ns(const Marker& marker) {
  TORCH_CHECK(marker.event, "this event could not be recorded by the driver");
  GilRelease free;
  return device(marker.device).time_ns(marker.event);
}

void synchronize(int index) { wait_all(index, Cut::kSync); }

}  // namespace lazy
