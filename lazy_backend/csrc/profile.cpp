#include "profile.h"

#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "executor.h"
#include "runtime.h"
#include "stream.h"

namespace py = pybind11;

namespace lazy {

std::atomic<bool> tracing{false};

namespace {

enum Row : int32_t { kKernelRow = 0, kWindowRow = 1 };

// Launches whose events are kept before the oldest half of them is looked at: a script may run for hours.
constexpr size_t kMaxLaunches = 1 << 13;

struct Launch {
  Device* device;
  uint64_t serial;
  lazy_kernel kernel;
  std::vector<uint32_t> numbers;
  lazy_event start, end;
};

struct Span {
  Device* device;
  uint64_t serial;
  lazy_kernel kernel;
  int64_t start, end;  // ns: the device's clock, then, as kineto counts, since the epoch
};

std::mutex profile_mutex;  // guards what follows
bool in_session = false, profiling = false;
std::deque<Launch> launches;
std::vector<Span> spans;  // of a session
std::unordered_map<uint32_t, LaunchTime> times;

// Takes the times of the first `count` launches, once they are over.
void look(size_t count) {
  for (; count > 0; --count) {
    const Launch launch = std::move(launches.front());
    launches.pop_front();
    Device& device = *launch.device;
    try {
      device.wait(launch.end);
      const uint64_t start = device.time_ns(launch.start), end = device.time_ns(launch.end);
      if (in_session && launch.kernel != nullptr)
        spans.push_back({&device, launch.serial, launch.kernel, static_cast<int64_t>(start), static_cast<int64_t>(end)});
      for (const uint32_t number : launch.numbers) {
        if (!profiling) break;
        times[number].count++;
        times[number].ns += (end - start) / launch.numbers.size();
      }
      device.destroy(launch.start);
      device.destroy(launch.end);
    } catch (const DriverError&) {
      // A launch that failed has no time; who reads its result is told.
    }
  }
}

void want(bool& what, bool on) {
  what = on;
  tracing = in_session || profiling;
}

int64_t host_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// What must be added to the device's clock to make it the host's: an event is recorded between two looks at the clock.
int64_t clock_offset(Device& device) {
  const int64_t before = host_ns();
  const lazy_event event = device.record();
  device.flush();
  device.wait(event);
  const int64_t middle = before + (host_ns() - before) / 2;
  const int64_t offset = middle - static_cast<int64_t>(device.time_ns(event));
  device.destroy(event);
  return offset;
}

// "mul+add (train.py:12 in forward)", as the compiler noted it when it built the kernel.
std::string describe(lazy_kernel kernel) {
  const py::dict described = py::module_::import("lazy_backend.compiler").attr("described");
  const py::int_ handle(reinterpret_cast<uintptr_t>(kernel));
  return described.contains(handle) ? described[handle].cast<std::string>() : "kernel";
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard lock(profile_mutex);
    want(in_session, true);
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    GilRelease free;  // drivers in Python take it
    for (int i = 0; i < device_count(); ++i) {
      synchronize(i);
    }
    std::lock_guard lock(profile_mutex);
    look(launches.size());
    want(in_session, false);
    spans_.swap(spans);
    std::map<Device*, int64_t> offsets;
    for (Span& span : spans_) {
      const auto [found, is_new] = offsets.try_emplace(span.device, 0);
      if (is_new) found->second = clock_offset(*span.device);
      span.start += found->second;
      span.end += found->second;
    }
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    py::gil_scoped_acquire gil;
    std::map<std::pair<int, uint64_t>, libkineto::GenericTraceActivity*> windows;
    for (const Span& span : spans_) {
      add(libkineto::ActivityType::CONCURRENT_KERNEL, describe(span.kernel), kKernelRow, span);
      auto& window = windows[{span.device->index, span.serial}];
      if (window == nullptr) {
        window = add(libkineto::ActivityType::GPU_USER_ANNOTATION, "window " + std::to_string(span.serial), kWindowRow,
                     span);
      }
      window->endTime = span.end;
    }
    for (const auto& activity : buffer_->activities) {
      activity->log(logger);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::unique_ptr<libkineto::DeviceInfo>(
        new libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "lazy", "lazy device"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {{kKernelRow, 1, 0, "kernels"}, {kWindowRow, 0, 0, "windows"}};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

 private:
  libkineto::GenericTraceActivity* add(libkineto::ActivityType type, const std::string& name, Row row,
                                       const Span& span) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto* activity = buffer_->activities.back().get();
    activity->startTime = span.start;
    activity->endTime = span.end;
    activity->device = span.device->index;
    activity->resource = row;
    activity->id = static_cast<int32_t>(buffer_->activities.size());
    return activity;
  }

  std::vector<Span> spans_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = [] {
    auto buffer = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer->span = libkineto::TraceSpan(0, 0, "lazy");
    buffer->gpuOpCount = 0;
    return buffer;
  }();
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<libkineto::ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<libkineto::ActivityType>& types,
                                                                 const libkineto::Config&) override {
    const bool wanted = types.count(libkineto::ActivityType::CONCURRENT_KERNEL) != 0;
    return wanted ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                 const std::set<libkineto::ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "lazy";
  const std::set<libkineto::ActivityType> types_ = {libkineto::ActivityType::CONCURRENT_KERNEL,
                                                    libkineto::ActivityType::GPU_USER_ANNOTATION};
};

// What torch.autograd.profiler.profile(use_device="lazy") asks: the device's time between the begin and the end of each op.
// Each op becomes a window of its own meanwhile; torch.profiler leaves the windows as they are.
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;

  bool enabled() const override { return true; }
  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_ns) const override {
    const c10::DeviceIndex index = resolve_device(-1);
    if (device != nullptr) *device = index;
    if (cpu_ns != nullptr) *cpu_ns = host_ns();
    *event = submit_marker(index);
  }
  float elapsed(const Event* start, const Event* end) const override {  // microseconds
    uint64_t times[2];
    for (int i = 0; i < 2; ++i) {
      const auto& marker = *static_cast<const Marker*>((i == 0 ? start : end)->get());
      marker_wait(marker);
      times[i] = marker_ns(marker);
    }
    return static_cast<float>((static_cast<double>(times[1]) - static_cast<double>(times[0])) * 1e-3);
  }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int i = 0; i < device_count(); ++i) op(i);
  }
  void synchronize() const override {
    onEachDevice([](int index) { lazy::synchronize(index); });
  }
  // Marks are for a vendor's own tracing tool; there is none.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
};

}  // namespace

void trace_launch(Device& device, uint64_t serial, lazy_kernel kernel, const std::vector<uint32_t>& numbers,
                  lazy_event start) {
  const lazy_event end = device.record();
  std::lock_guard lock(profile_mutex);
  launches.push_back({&device, serial, kernel, numbers, start, end});
  if (launches.size() >= kMaxLaunches) look(kMaxLaunches / 2);
}

void set_profiling(bool on) {
  GilRelease free;
  std::lock_guard lock(profile_mutex);
  look(launches.size());
  if (on) times.clear();
  want(profiling, on);
}

std::unordered_map<uint32_t, LaunchTime> launch_times() {
  GilRelease free;
  for (int i = 0; i < device_count(); ++i) {
    synchronize(i);
  }
  std::lock_guard lock(profile_mutex);
  look(launches.size());
  return times;
}

void init_profiler() {
  static Stubs stubs;  // torch keeps the pointer for ever
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

}  // namespace lazy
