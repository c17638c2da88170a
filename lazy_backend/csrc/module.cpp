// The Python face of the core: windows as Python objects for the compiler, plans back, counters.
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include "call.h"
#include "causes.h"
#include "copy.h"
#include "executor.h"
#include "graph.h"
#include "hooks.h"
#include "host_library.h"
#include "profile.h"
#include "python_plan.h"
#include "recorder.h"
#include "runtime.h"
#include "stats.h"

namespace py = pybind11;

namespace lazy {
namespace {

py::tuple ints(const int64_t* p, size_t n) {
  py::tuple t(n);
  for (size_t i = 0; i < n; ++i) t[i] = p[i];
  return t;
}

// Walks a window's streams into Python objects. Formats: see lazy_backend/compiler.py.
struct PythonReader {
  const Window& window;
  const int64_t* code;
  const int64_t* dims;
  uint32_t scalar;
  std::vector<int64_t>& kinds;

  py::object read_scalar() {
    const int64_t kind = *code++;
    const uint32_t index = scalar++;
    kinds[index] = kind;
    if (kind == kC128) kinds[scalar++] = kind;
    return py::make_tuple("scalar", index, kind);
  }

  py::object read() {
    switch (*code++) {
      case kNone: return py::none();
      case kTensor: {
        const int64_t slot = *code++, dtype = *code++;
        const auto rank = static_cast<size_t>(*code++);
        ++code;
        auto t = py::make_tuple("tensor", slot, dtype, ints(dims, rank), ints(dims + rank, rank), dims[2 * rank]);
        dims += 2 * rank + 1;
        return t;
      }
      case kHostScalar: {
        const int64_t dtype = *code++, wrapped = *code++;
        ++code;
        return py::make_tuple("host_scalar", dtype, bool(wrapped), read_scalar());
      }
      case kScalar: return read_scalar();
      case kInt: return py::int_(*dims++);
      case kBool: return py::bool_(*code++ != 0);
      case kDouble: {
        double d;
        std::memcpy(&d, code++, 8);
        return py::float_(d);
      }
      case kString: return py::str(interned_string(*code++));
      case kDtype: return py::make_tuple("enum", *code++);
      case kDevice: return py::make_tuple("device", *code++);
      case kList: {
        const int64_t n = *code++;
        py::list list;
        for (int64_t i = 0; i < n; ++i) list.append(read());
        return list;
      }
      case kOut: {
        const int64_t slot = *code++, dtype = *code++;
        const auto rank = static_cast<size_t>(*code++);
        auto t = py::make_tuple("tensor", slot, dtype, ints(dims, rank), ints(dims + rank, rank), 0);
        dims += 2 * rank;
        return t;
      }
      default: throw std::runtime_error("unknown tag in a window");
    }
  }
};

py::list scalar_values(const std::vector<uint64_t>& scalars, const std::vector<int64_t>& kinds) {
  py::list values;
  for (size_t i = 0; i < scalars.size(); ++i) {
    double d;
    std::memcpy(&d, &scalars[i], 8);
    if (kinds[i] == kI64) values.append(static_cast<int64_t>(scalars[i]));
    else if (kinds[i] == kB1) values.append(scalars[i] != 0);
    else values.append(d);
  }
  return values;
}

py::dict window_to_python(const Window& w, const std::vector<uint8_t>& alive, std::vector<int64_t>& kinds) {
  kinds.assign(w.scalars.size(), kF64);
  py::list nodes;
  for (size_t i = 0; i < w.nodes.size(); ++i) {
    const Node& node = w.nodes[i];
    const size_t end = i + 1 < w.nodes.size() ? w.nodes[i + 1].code : w.code.size();
    PythonReader reader{w, w.code.data() + node.code + 1, w.dims.data() + node.dims, node.scalars, kinds};
    py::list args, outs;
    for (size_t a = 0; a < node.op->nargs; ++a) args.append(reader.read());
    py::object seed = py::none();
    if (node.op->seeded) {
      auto first = reader.read();
      seed = py::make_tuple(first, reader.read());
    }
    while (reader.code < w.code.data() + end) outs.append(reader.read());
    nodes.append(py::make_tuple(node.op->name, args, outs, seed, describe(node.frame)));
  }
  py::list slots;
  for (size_t i = 0; i < w.slots.size(); ++i)
    slots.append(py::make_tuple(w.parts[i].nbytes, bool(alive[i]), bool(w.had_data[i])));
  py::dict out;
  out["device"] = w.device;
  out["ordered"] = w.ordered;
  out["nodes"] = nodes;
  out["slots"] = slots;
  out["scalars"] = scalar_values(w.scalars, kinds);
  return out;
}

// The Python callable, kept for the life of the process: the executor's threads outlive module teardown.
PyObject* compile_callable = nullptr;

// kinds: of the window's scalars.
py::dict source_of(const Window& window, const std::vector<uint8_t>& alive, uint32_t generic_runs, std::vector<int64_t>& kinds) {
  py::dict source = window_to_python(window, alive, kinds);
  Hash structure = window.structure;
  for (size_t i = 0; i < alive.size(); ++i) structure.mix(alive[i]);
  source["sizes"] = std::to_string(window.sizes.a) + "-" + std::to_string(window.sizes.b);
  source["structure"] = std::to_string(structure.a) + "-" + std::to_string(structure.b);
  source["generic_runs"] = generic_runs;
  return source;
}

std::unique_ptr<Plan> compile(const Window& window, const std::vector<uint8_t>& alive, uint32_t generic_runs) {
  py::gil_scoped_acquire gil;
  std::vector<int64_t> kinds;
  const py::dict source = source_of(window, alive, generic_runs, kinds);
  const uint64_t built = stats().kernels_built;
  const auto made = py::reinterpret_borrow<py::object>(compile_callable)(source).cast<py::dict>();
  auto plan = plan_from_python(made);
  plan->scalar_kinds = std::move(kinds);
  plan->find_last_uses(window);
  if (made.contains("sized")) plan->sized = sized_from_python(made["sized"].cast<py::dict>(), *plan);
  plan->built_kernels = stats().kernels_built != built;
  return plan;
}

// Of a device's queue, as its executor's compiler may ask: the first windows without a plan that are to have one.
py::list waiting_windows(int index, size_t most) {
  py::list sources;
  executor(index).each_unplanned(most, [&](const Job& job) {
    std::vector<int64_t> kinds;
    sources.append(source_of(*job.window, job.alive, 0, kinds));
  });
  return sources;
}

py::dict stats_to_python() {
  const auto& s = stats();
  py::dict out, by_name, by_cause;
  out["ops"] = s.ops.load();
  out["windows"] = s.windows.load();
  out["windows_op_by_op"] = s.windows_op_by_op.load();
  out["reads"] = s.reads.load();
  out["plans_compiled"] = s.plans_compiled.load();
  out["plans_assembled"] = s.plans_assembled.load();
  out["ops_interpreted"] = s.ops_interpreted.load();
  out["plans_hit"] = s.plans_hit.load();
  out["kernels_built"] = s.kernels_built.load();
  out["kernels_launched"] = s.kernels_launched.load();
  out["extern_calls"] = s.extern_calls.load();
  out["extern_copies"] = s.extern_copies.load();
  out["host_ops"] = s.host_ops.load();
  out["host_bytes"] = s.host_bytes.load();
  out["compile_seconds"] = static_cast<double>(s.compile_ns.load()) * 1e-9;
  out["meta_misses"] = s.meta_misses.load();
  for (const auto* op : op_entries())
    if (op->host_calls) by_name[py::str(op->name)] = op->host_calls.load();
  for (size_t i = 0; i < s.cuts.size(); ++i)
    if (s.cuts[i]) by_cause[cut_name(static_cast<Cut>(i))] = s.cuts[i].load();
  out["host_ops_by_name"] = by_name;
  out["cuts_by_cause"] = by_cause;
  return out;
}

uintptr_t build_program(int index, const py::bytes& text, bool is_binary, const std::string& options) {
  const std::string source = text;
  py::gil_scoped_release free;
  return reinterpret_cast<uintptr_t>(device(index).load_program(source, is_binary, options));
}

uintptr_t create_kernel(int index, uintptr_t program, const std::string& name) {
  py::gil_scoped_release free;
  return reinterpret_cast<uintptr_t>(device(index).kernel(reinterpret_cast<lazy_program>(program), name));
}

// Destroys kernels and programs, and the plans of the device, which may launch them.
void forget_kernels(int index, const std::vector<uintptr_t>& kernels, const std::vector<uintptr_t>& programs) {
  py::gil_scoped_release free;
  executor(index).forget_plans();
  Device& d = device(index);
  d.synchronize();
  for (const uintptr_t kernel : kernels) d.destroy(reinterpret_cast<lazy_kernel>(kernel));
  for (const uintptr_t program : programs) d.destroy(reinterpret_cast<lazy_program>(program));
}

py::bytes program_binary(int index, uintptr_t program) {
  std::string binary;
  {
    py::gil_scoped_release free;
    binary = device(index).program_binary(reinterpret_cast<lazy_program>(program));
  }
  return binary;
}

}  // namespace

void record_overloads(const std::vector<std::string>& names);

}  // namespace lazy

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace lazy;
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const DriverError& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    }
  });
  set_compiler(compile);
  m.def("register_ops", &register_ops);
  m.def("register_graphs", &register_graphs);
  m.def("record_overloads", &record_overloads);
  m.def("mark_static_scalars", &mark_static_scalars);
  m.def("mark_host", &mark_host);
  m.def("announce_host_op", torch::wrap_pybind_function([](const std::string& name, const std::string& line) {
    for (auto* op : op_entries())
      if (op->name == name) announce_host_op(*op, line);
  }));
  m.def("set_compile_callback", [](py::object f) { compile_callable = f.release().ptr(); });
  m.def("set_window", &set_window_length);
  m.def("window", &window_length);
  m.attr("FILLS_APART") = kFills;
  m.def("set_fallback", [](const std::string& policy) {
    set_fallback(policy == "error" ? Fallback::kError : policy == "silent" ? Fallback::kSilent : Fallback::kWarn);
  });
  m.def("stats", &stats_to_python);
  m.def("causes", [] {
    py::list rows;
    for (const auto& cause : causes()) rows.append(py::make_tuple(cause.event, cause.code, cause.count, describe(cause.first)));
    return rows;
  });
  m.def("host_view", &host_view);
  m.def("reset_stats", &reset_stats);
  m.def("cut", [](int index) { cut(index, Cut::kBoundary); });
  m.def("set_profiling", &set_profiling);
  m.def("compile_all", &compile_all);
  m.def("launch_times", [] {
    py::dict out;
    for (const auto& [number, time] : launch_times()) out[py::int_(number)] = py::make_tuple(time.count, time.ns);
    return out;
  });
  m.def("waiting_windows", &waiting_windows);
  m.def("forget_plans", [](int index) { executor(index).forget_plans(); });
  m.def("count_built", [] { stats().kernels_built++; });
  m.def("build_program", &build_program);
  m.def("create_kernel", &create_kernel);
  m.def("program_binary", &program_binary);
  m.def("forget_kernels", &forget_kernels);
  m.def("extern_ops", [](int index, const std::vector<std::string>& names) {
    py::gil_scoped_release free;
    return extern_ops(device(index), names);
  });
  m.def("add_library_folders", &add_library_folders);
  m.def("user_line", [] { return describe(current_frame()); });
  m.def("stop", &stop_executors);
  init_hooks(m);
}
