// The host's side of lazy_driver.h: loads a driver's table, opens its devices,
// and turns a lazy_status into an exception with the driver's own text.
//
// Never call a Device while holding the GIL: a Python driver takes it inside.
#pragma once

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "../driver/lazy_driver.h"

namespace lazy {

class DriverError : public std::runtime_error {
 public:
  DriverError(lazy_status status, const std::string& text) : std::runtime_error(text), status(status) {}
  const lazy_status status;
};

// "OUT_OF_MEMORY" for LAZY_OUT_OF_MEMORY; the same name for an unknown status as "STATUS_n".
std::string status_name(lazy_status status);

// One opened device with its in-order queue. Every method throws DriverError. Calls are
// serialised here, as the contract promises the driver; events are waited for without the lock.
class Device {
 public:
  Device(const lazy_driver_api* api, int index);
  ~Device();
  Device(const Device&) = delete;

  const lazy_driver_api* const api;  // missing entries are null
  const int index;
  lazy_device handle = nullptr;
  lazy_queue queue = nullptr;
  lazy_properties props{};

  void check(lazy_status status, const char* what) const;

  lazy_mem alloc(uint64_t bytes);
  void free(lazy_mem mem);
  char* host_pointer(lazy_mem mem);  // null where memory is not host visible

  void copy_h2d(lazy_mem dst, uint64_t dst_offset, const void* src, uint64_t bytes, bool blocking);
  void copy_d2h(void* dst, lazy_mem src, uint64_t src_offset, uint64_t bytes, bool blocking);
  void copy_d2d(lazy_mem dst, uint64_t dst_offset, lazy_mem src, uint64_t src_offset, uint64_t bytes);

  lazy_event record();
  bool query(lazy_event event);
  void wait(lazy_event event);
  uint64_t time_ns(lazy_event event);
  void destroy(lazy_event event);
  void flush();
  void synchronize();

  lazy_program load_program(const std::string& text, bool is_binary, const std::string& options);
  std::string program_binary(lazy_program program);  // empty where the driver offers none
  void destroy(lazy_program program);
  lazy_kernel kernel(lazy_program program, const std::string& name);
  void destroy(lazy_kernel kernel);
  void launch(lazy_kernel kernel, const uint64_t global[3], const uint64_t local[3], uint32_t nargs,
              const lazy_arg* args);
  // False where the driver does not offer this op on these tensors.
  bool core_op(const char* name, uint32_t n_outputs, uint32_t n_tensors, const lazy_tensor* tensors,
               const char* attrs);
  // task(items[i]) for each, on the threads that run kernels; nothing may be queued. False where the driver has no way.
  // Not serialised: other threads may use the device meanwhile.
  bool run_tasks(lazy_task task, const std::vector<void*>& items);

 private:
  template <class... Params, class... Args>
  void call(const char* what, lazy_status (*entry)(lazy_device, Params...), Args... args);
  std::mutex mutex_;
};

// Chooses the process's driver, once, before the first device is opened. Throws DriverError
// (LAZY_UNSUPPORTED) on another major version or a missing required entry.
void use_driver(const lazy_driver_api* table);
void use_driver(const std::string& shared_library);

int device_count();          // 0 while no driver is chosen
Device& device(int index);   // opened on first use; lives until the process ends

}  // namespace lazy
