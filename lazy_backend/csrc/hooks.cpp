#include "hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/error.h>
#include <pthread.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>

#include "allocator.h"
#include "buffer.h"
#include "distributed.h"
#include "generator.h"
#include "profile.h"
#include "runtime.h"
#include "stream.h"

namespace py = pybind11;

namespace lazy {

namespace {

std::atomic<bool> in_child{false};  // in a child made by fork after the driver was asked: no threads, no queue

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return device_count() > 0; }
  void init() const override { open_driver(); }

  c10::DeviceIndex deviceCount() const override {
    return c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->deviceCount();
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { guard().setDevice(lazy_device(device)); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return guard().exchangeDevice(lazy_device(device)).index();
  }
  // Switching between devices costs nothing here, so "maybe" is always.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }

  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void*) const override { return lazy_device(current_device()); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(resolve_device(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<PhiloxGenerator>(resolve_device(device));
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }

 private:
  static const c10::impl::DeviceGuardImplInterface& guard() {
    return *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
  }
  static c10::Device lazy_device(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }
};

void mark_children() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { in_child = true; });
  TORCH_INTERNAL_ASSERT(registered == 0);
}

// torch lists the device types between which `tensor.data = other` (hence Module.to) may keep the tensor's identity;
// PrivateUse1 is not among them. Lazy tensors are plain TensorImpls (all state lies with the storage), so it is sound.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& t) { return t.layout() == c10::kStrided && !t.is_nested(); };
  return dense(self) && dense(from);
}

// Memory that one stream frees cannot be reused before another's earlier work: one queue runs all in order.
void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("record_stream", record_stream);
}

// The Conjugate and Negative fallbacks resolve an argument by a copy, which is _copy_from again: without end.
// It looks at the bits itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace

bool forked() { return in_child; }

int open_driver() {
  TORCH_CHECK(!in_child, "a process that was forked after the lazy device had been used cannot use it; start workers "
                         "with multiprocessing.set_start_method('spawn')");
  if (device_count() == 0) {
    py::gil_scoped_acquire gil;
    try {
      py::module_::import("lazy_backend.opening").attr("open_device")();
    } catch (const py::error_already_set& error) {
      TORCH_CHECK(false, error.what());
    }
    mark_children();
  }
  return device_count();
}

int count_devices() noexcept {
  if (in_child || device_count() > 0) return in_child ? 0 : device_count();
  py::gil_scoped_acquire gil;
  try {
    const int count = py::module_::import("lazy_backend.driver.discovery").attr("count")().cast<int>();
    mark_children();  // the driver's library is loaded
    return count;
  } catch (const std::exception&) {
    return 0;
  }
}

void init_hooks(py::module_& m) {
  init_distributed(m);
  init_profiler();
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // torch keeps the pointer for ever
  at::setHostAllocator(c10::DeviceType::PrivateUse1, pinned_allocator());

  m.def("_is_in_bad_fork", &forked);
  m.def("use_driver", [](uintptr_t table) { use_driver(reinterpret_cast<const lazy_driver_api*>(table)); },
        "Choose the process's driver by the address of its lazy_driver_api; once.");
  m.def("device_count", open_driver, py::call_guard<py::gil_scoped_release>(),
        "Number of devices of the driver, which is opened if none is.");
  m.def("count_devices", &count_devices, py::call_guard<py::gil_scoped_release>(), "Number of devices; opens none.");
  m.def("default_generator", [](int index) { return default_generator(resolve_device(static_cast<c10::DeviceIndex>(index))); });
  m.def("seed_all", &seed_all);
  m.def("driver_opened", [] { return device_count() > 0; });
  m.def("device_properties", [](int index) {
    py::gil_scoped_release no_gil;
    const lazy_properties props = device(resolve_device(static_cast<c10::DeviceIndex>(index))).props;
    py::gil_scoped_acquire gil;
    return py::bytes(reinterpret_cast<const char*>(&props), sizeof props);
  }, "The bytes of the device's lazy_properties.");
  m.def("synchronize", [](int index) { synchronize(resolve_device(static_cast<c10::DeviceIndex>(index))); },
        py::call_guard<py::gil_scoped_release>());

  // Memory: everything recorded is run first, so that the numbers are those of the program, not of the queue.
  m.def("memory_stats", [](int index) {
    std::vector<std::pair<std::string, int64_t>> rows;
    {
      py::gil_scoped_release no_gil;
      synchronize(resolve_device(static_cast<c10::DeviceIndex>(index)));
      rows = allocator(index).stats().flatten();
    }
    py::dict result;
    for (const auto& [name, value] : rows) {
      result[py::str(name)] = value;
    }
    return result;
  });
  m.def("memory_holdings", [](int index) {
    std::vector<Holding> live;
    {
      py::gil_scoped_release no_gil;
      synchronize(resolve_device(static_cast<c10::DeviceIndex>(index)));
      live = holdings(index);
    }
    py::list rows;
    for (const auto& entry : live) rows.append(py::make_tuple(entry.line, entry.bytes, entry.count));
    return rows;
  }, "(line, bytes, tensors) of what lives on the device, the largest first.");
  m.def("reset_peak_memory_stats", [](int index) {
    synchronize(resolve_device(static_cast<c10::DeviceIndex>(index)));
    allocator(index).reset_peak_stats();
  }, py::call_guard<py::gil_scoped_release>());
  m.def("reset_accumulated_memory_stats", [](int index) {
    synchronize(resolve_device(static_cast<c10::DeviceIndex>(index)));
    allocator(index).reset_accumulated_stats();
  }, py::call_guard<py::gil_scoped_release>());
  m.def("empty_cache", [](int index) {
    synchronize(resolve_device(static_cast<c10::DeviceIndex>(index)));
    allocator(index).empty_cache();
  }, py::call_guard<py::gil_scoped_release>());
  m.def("segments", [](int index) { return allocator(index).segments(); }, py::call_guard<py::gil_scoped_release>(),
        "Bytes of each piece of memory that the allocator has from the driver.");
  m.def("reserve", [](int index, const std::vector<uint64_t>& segments) { allocator(index).reserve(segments); },
        py::call_guard<py::gil_scoped_release>(), "Takes such pieces from the driver, as long as it has them.");
  m.def("touch", [](int index) { allocator(index).touch(); }, py::call_guard<py::gil_scoped_release>(),
        "Has pages put under what was reserved, where it is the host's memory.");
  m.def("set_memory_limit", [](int index, uint64_t bytes) {
    allocator(resolve_device(static_cast<c10::DeviceIndex>(index))).set_limit(bytes);
  },
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace lazy
