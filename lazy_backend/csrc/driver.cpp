#include "driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

namespace lazy {
namespace {

constexpr const char* kStatusNames[] = {"OK",          "OUT_OF_MEMORY",    "BUILD_FAILED", "LAUNCH_FAILED", "DEVICE_LOST",
                                        "INVALID_ARGUMENT", "TIMEOUT",     "UNSUPPORTED",  "MEMORY_FAULT",  "NOT_READY"};

struct Registry {
  std::mutex mutex;
  lazy_driver_api api{};  // our copy: entries that the driver does not have stay null
  std::atomic<uint32_t> count{0};
  std::vector<std::unique_ptr<Device>> devices;
};

// Never destroyed: a driver's own static state may be gone before ours at process exit.
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

std::string driver_text(const lazy_driver_api& api) {
  const char* text = api.last_error ? api.last_error() : nullptr;
  return text && *text ? text : "the driver gave no text";
}

void require_complete(const lazy_driver_api& api) {
  const std::pair<const char*, bool> required[] = {
      {"device_count", api.device_count}, {"open", api.open},
      {"close", api.close},               {"properties", api.properties},
      {"alloc", api.alloc},               {"free", api.free},
      {"queue_create", api.queue_create}, {"queue_destroy", api.queue_destroy},
      {"copy_h2d", api.copy_h2d},         {"copy_d2h", api.copy_d2h},
      {"copy_d2d", api.copy_d2d},         {"event_record", api.event_record},
      {"event_query", api.event_query},   {"event_wait", api.event_wait},
      {"event_destroy", api.event_destroy}, {"synchronize", api.synchronize},
  };
  for (const auto& [name, present] : required) {
    if (!present) throw DriverError(LAZY_UNSUPPORTED, std::string("the driver lacks the entry ") + name);
  }
}

}  // namespace

std::string status_name(lazy_status status) {
  const bool known = status >= 0 && static_cast<size_t>(status) < std::size(kStatusNames);
  return known ? kStatusNames[status] : "STATUS_" + std::to_string(status);
}

void Device::check(lazy_status status, const char* what) const {
  if (status == LAZY_OK) return;
  throw DriverError(status, std::string(api->name ? api->name : "driver") + ":" + std::to_string(index) + ": " + what +
                                " failed (" + status_name(status) + "): " + driver_text(*api));
}

template <class... Params, class... Args>
void Device::call(const char* what, lazy_status (*entry)(lazy_device, Params...), Args... args) {
  if (!entry) throw DriverError(LAZY_UNSUPPORTED, std::string("the driver has no entry ") + what);
  std::lock_guard<std::mutex> lock(mutex_);
  check(entry(handle, args...), what);
}

Device::Device(const lazy_driver_api* api, int index) : api(api), index(index) {
  check(api->open(static_cast<uint32_t>(index), &handle), "open");
  props.struct_size = sizeof(props);
  call("properties", api->properties, &props);
  call("queue_create", api->queue_create, &queue);
}

Device::~Device() {
  api->queue_destroy(handle, queue);
  api->close(handle);
}

lazy_mem Device::alloc(uint64_t bytes) {
  lazy_mem mem = nullptr;
  call("alloc", api->alloc, bytes, &mem);
  return mem;
}

void Device::free(lazy_mem mem) { call("free", api->free, mem); }

char* Device::host_pointer(lazy_mem mem) {
  void* pointer = nullptr;
  if (props.host_visible) call("host_pointer", api->host_pointer, mem, &pointer);
  return static_cast<char*>(pointer);
}

void Device::copy_h2d(lazy_mem dst, uint64_t dst_offset, const void* src, uint64_t bytes, bool blocking) {
  call("copy_h2d", api->copy_h2d, queue, dst, dst_offset, src, bytes, blocking);
}

void Device::copy_d2h(void* dst, lazy_mem src, uint64_t src_offset, uint64_t bytes, bool blocking) {
  call("copy_d2h", api->copy_d2h, queue, dst, src, src_offset, bytes, blocking);
}

void Device::copy_d2d(lazy_mem dst, uint64_t dst_offset, lazy_mem src, uint64_t src_offset, uint64_t bytes) {
  call("copy_d2d", api->copy_d2d, queue, dst, dst_offset, src, src_offset, bytes);
}

lazy_event Device::record() {
  lazy_event event = nullptr;
  call("event_record", api->event_record, queue, &event);
  return event;
}

bool Device::query(lazy_event event) {
  const lazy_status status = api->event_query(handle, event);
  if (status != LAZY_NOT_READY) check(status, "event_query");
  return status == LAZY_OK;
}

void Device::wait(lazy_event event) { check(api->event_wait(handle, event), "event_wait"); }

uint64_t Device::time_ns(lazy_event event) {
  uint64_t ns = 0;
  call("event_time_ns", api->event_time_ns, event, &ns);
  return ns;
}

void Device::destroy(lazy_event event) { call("event_destroy", api->event_destroy, event); }

void Device::flush() {
  if (api->flush) call("flush", api->flush, queue);
}

void Device::synchronize() { call("synchronize", api->synchronize, queue); }

lazy_program Device::load_program(const std::string& text, bool is_binary, const std::string& options) {
  lazy_program program = nullptr;
  call("program_load", api->program_load, text.data(), text.size(), is_binary, options.c_str(), &program);
  return program;
}

std::string Device::program_binary(lazy_program program) {
  std::string binary;
  if (!api->program_binary) return binary;
  uint64_t bytes = 0;
  call("program_binary", api->program_binary, program, nullptr, &bytes);
  binary.resize(bytes);
  if (bytes) call("program_binary", api->program_binary, program, binary.data(), &bytes);
  return binary;
}

void Device::destroy(lazy_program program) { call("program_destroy", api->program_destroy, program); }

lazy_kernel Device::kernel(lazy_program program, const std::string& name) {
  lazy_kernel kernel = nullptr;
  call("kernel_create", api->kernel_create, program, name.c_str(), &kernel);
  return kernel;
}

void Device::destroy(lazy_kernel kernel) { call("kernel_destroy", api->kernel_destroy, kernel); }

void Device::launch(lazy_kernel kernel, const uint64_t global[3], const uint64_t local[3], uint32_t nargs,
                    const lazy_arg* args) {
  call("launch", api->launch, queue, kernel, global, local, nargs, args);
}

bool Device::core_op(const char* name, uint32_t n_outputs, uint32_t n_tensors, const lazy_tensor* tensors,
                     const char* attrs) {
  if (!api->core_op) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const lazy_status status = api->core_op(handle, queue, name, n_outputs, n_tensors, tensors, attrs);
  if (status != LAZY_UNSUPPORTED) check(status, name);
  return status == LAZY_OK;
}

bool Device::run_tasks(lazy_task task, const std::vector<void*>& items) {
  if (!api->run_tasks) return false;
  const lazy_status status = api->run_tasks(handle, queue, task, items.data(), static_cast<uint32_t>(items.size()));
  if (status != LAZY_UNSUPPORTED) check(status, "run_tasks");
  return status == LAZY_OK;
}

void use_driver(const lazy_driver_api* table) {
  if (!table) throw DriverError(LAZY_UNSUPPORTED, "the driver does not serve contract version " +
                                    std::to_string(LAZY_DRIVER_MAJOR) + "." + std::to_string(LAZY_DRIVER_MINOR));
  if (table->major != LAZY_DRIVER_MAJOR) {
    throw DriverError(LAZY_UNSUPPORTED, "the driver was built for contract version " + std::to_string(table->major) +
                          ", this host serves version " + std::to_string(LAZY_DRIVER_MAJOR));
  }
  lazy_driver_api api{};
  std::memcpy(&api, table, std::min<size_t>(table->struct_size, sizeof(api)));
  require_complete(api);

  uint32_t count = 0;
  if (const lazy_status status = api.device_count(&count)) {
    throw DriverError(status, "device_count failed (" + status_name(status) + "): " + driver_text(api));
  }
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  for (const auto& opened : r.devices) {
    if (opened) throw DriverError(LAZY_INVALID_ARGUMENT, "the driver cannot change: a device is already open");
  }
  r.api = api;
  r.count = count;
  r.devices.clear();
  r.devices.resize(count);
}

void use_driver(const std::string& shared_library) {
  void* library = dlopen(shared_library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw DriverError(LAZY_UNSUPPORTED, dlerror());
  const auto get = reinterpret_cast<lazy_driver_get_fn>(dlsym(library, "lazy_driver_get"));
  if (!get) throw DriverError(LAZY_UNSUPPORTED, shared_library + " exports no lazy_driver_get");
  use_driver(get(LAZY_DRIVER_MAJOR, LAZY_DRIVER_MINOR));
}

// Without the lock: torch asks with the GIL, which a driver in Python waits for while one of its devices is opened.
int device_count() { return static_cast<int>(registry().count); }

Device& device(int index) {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  if (index < 0 || static_cast<uint32_t>(index) >= r.count) {
    throw DriverError(LAZY_INVALID_ARGUMENT,
                      "no device " + std::to_string(index) + ": the driver has " + std::to_string(r.count));
  }
  auto& slot = r.devices[static_cast<size_t>(index)];
  if (!slot) slot = std::make_unique<Device>(&r.api, index);
  return *slot;
}

}  // namespace lazy
