#include "python_plan.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace py = pybind11;

namespace lazy {
namespace {

ArgRecipe::Type scalar_type(const std::string& type) {
  static const std::unordered_map<std::string, ArgRecipe::Type> types = {
      {"f64", ArgRecipe::kF64}, {"f32", ArgRecipe::kF32}, {"i64", ArgRecipe::kI64}, {"i32", ArgRecipe::kI32}, {"bool", ArgRecipe::kBool}};
  return types.at(type);
}

uint32_t scalar_bytes(ArgRecipe::Type type) {
  return type == ArgRecipe::kF64 || type == ArgRecipe::kI64 ? 8 : type == ArgRecipe::kBool ? 1 : 4;
}

void set_value(ArgRecipe& arg, const py::handle& value) {
  if (arg.type == ArgRecipe::kF64) {
    const auto v = value.cast<double>();
    std::memcpy(&arg.bits, &v, 8);
  } else if (arg.type == ArgRecipe::kF32) {
    const auto v = static_cast<float>(value.cast<double>());
    std::memcpy(&arg.bits, &v, 4);
  } else {
    const auto v = value.cast<int64_t>();
    std::memcpy(&arg.bits, &v, arg.type == ArgRecipe::kI64 ? 8 : 4);
  }
}

// temps: piece and offset of each.
ArgRecipe arg_from_python(const py::tuple& arg, const std::vector<std::pair<uint32_t, uint64_t>>& temps) {
  const auto kind = arg[0].cast<std::string>();
  ArgRecipe out{};
  out.address = arg[2].cast<std::string>() == "address";
  if (kind == "slot") {
    out.kind = ArgRecipe::kSlot;
    out.index = arg[1].cast<uint32_t>();
  } else if (kind == "temp") {
    out.kind = ArgRecipe::kTemp;
    std::tie(out.index, out.bits) = temps.at(arg[1].cast<size_t>());
  } else if (kind == "local") {
    out.kind = ArgRecipe::kLocal;
    out.size = arg[1].cast<uint32_t>();
  } else {
    out.type = scalar_type(arg[2].cast<std::string>());
    out.size = scalar_bytes(out.type);
    if (kind == "scalar") {
      out.kind = ArgRecipe::kScalar;
      out.index = arg[1].cast<uint32_t>();
      return out;
    }
    out.kind = ArgRecipe::kBytes;
    set_value(out, arg[1]);
  }
  return out;
}

// A number of a plan that is another for other sizes.
struct Spot {
  enum Kind : uint8_t { kGlobal, kLocal, kArg, kPiece, kCheck, kOffset, kSize, kStride } kind;
  uint32_t step, index;  // of a piece or check: its number, and 0; of a size or stride: LAZY_MAX_RANK of them for each tensor
};

void put(Plan& plan, const Spot& spot, const py::handle& value) {
  switch (spot.kind) {
    case Spot::kGlobal: plan.steps[spot.step].global[spot.index] = value.cast<uint64_t>(); break;
    case Spot::kLocal: plan.steps[spot.step].local[spot.index] = value.cast<uint64_t>(); break;
    case Spot::kPiece: plan.pieces[spot.step] = value.cast<uint64_t>(); break;
    case Spot::kCheck: plan.checks[spot.step].size = value.cast<int64_t>(); break;
    case Spot::kOffset: plan.steps[spot.step].tensors[spot.index].offset = value.cast<uint64_t>(); break;
    case Spot::kSize:
      plan.steps[spot.step].tensors[spot.index / LAZY_MAX_RANK].sizes[spot.index % LAZY_MAX_RANK] = value.cast<int64_t>();
      break;
    case Spot::kStride:
      plan.steps[spot.step].tensors[spot.index / LAZY_MAX_RANK].strides[spot.index % LAZY_MAX_RANK] = value.cast<int64_t>();
      break;
    case Spot::kArg: {
      ArgRecipe& arg = plan.steps[spot.step].args[spot.index];
      if (arg.kind == ArgRecipe::kLocal) arg.size = value.cast<uint32_t>();
      else set_value(arg, value);
    }
  }
}

// The numbers of a window are its dims, then the bytes of its slots.
class TracedPlan final : public Sized {
 public:
  TracedPlan(const py::dict& source, const Plan& plan)
      : plan_(plan),
        count_(source["count"].cast<size_t>()),
        fixed_(source["fixed"].cast<Pairs>()),
        alike_(source["alike"].cast<Pairs>()),
        symbols_(source["symbols"].cast<std::vector<uint32_t>>()),
        evaluate_(source["evaluate"].cast<py::object>().release().ptr()) {
    static const std::unordered_map<std::string, Spot::Kind> kinds = {
        {"global", Spot::kGlobal}, {"local", Spot::kLocal}, {"arg", Spot::kArg}, {"piece", Spot::kPiece},
        {"check", Spot::kCheck}, {"offset", Spot::kOffset}, {"size", Spot::kSize}, {"stride", Spot::kStride}};
    for (const auto& [kind, step, index] : source["spots"].cast<std::vector<std::tuple<std::string, uint32_t, uint32_t>>>())
      spots_.push_back({kinds.at(kind), step, index});
  }
  ~TracedPlan() override {
    py::gil_scoped_acquire gil;
    Py_DECREF(evaluate_);
  }

  std::shared_ptr<Plan> plan_for(const Window& window) const override {
    std::vector<int64_t> numbers = window.dims;
    for (const auto& part : window.parts) numbers.push_back(static_cast<int64_t>(part.nbytes));
    const auto holds = [&](const auto& pair) { return numbers[pair.first] == pair.second; };
    const auto equal = [&](const auto& pair) { return numbers[pair.first] == numbers[static_cast<size_t>(pair.second)]; };
    if (numbers.size() != count_ || !std::ranges::all_of(fixed_, holds) || !std::ranges::all_of(alike_, equal)) return nullptr;
    py::gil_scoped_acquire gil;
    py::tuple sizes(symbols_.size());
    for (size_t i = 0; i < symbols_.size(); ++i) sizes[i] = numbers[symbols_[i]];
    const auto values = py::reinterpret_borrow<py::object>(evaluate_)(*sizes);
    if (values.is_none()) return nullptr;
    auto plan = std::make_shared<Plan>(plan_);
    size_t i = 0;
    for (const auto& value : values) put(*plan, spots_[i++], value);
    return plan;
  }

 private:
  using Pairs = std::vector<std::pair<uint32_t, int64_t>>;
  const Plan plan_;
  const size_t count_;
  const Pairs fixed_;                    // a number that does not vary, and what it is
  const Pairs alike_;                    // a number, and another that it is equal to
  const std::vector<uint32_t> symbols_;  // the numbers that vary, each once
  std::vector<Spot> spots_;
  PyObject* const evaluate_;             // of the symbols: what stands at the spots, or None where a guard does not hold
};

}  // namespace

std::unique_ptr<Plan> plan_from_python(const py::dict& source) {
  auto plan = std::make_unique<Plan>();
  plan->pieces = source["pieces"].cast<std::vector<uint64_t>>();
  const auto temps = source["temps"].cast<std::vector<std::pair<uint32_t, uint64_t>>>();
  plan->once = source["once"].cast<bool>();
  if (source.contains("varying")) {
    plan->varying = source["varying"].cast<std::vector<uint32_t>>();
    plan->runs_each = source["runs_each"].cast<uint32_t>();
  }
  for (const auto& item : source["checks"].cast<py::list>()) {
    const auto t = item.cast<py::tuple>();
    plan->checks.push_back({t[0].cast<uint32_t>(), t[1].cast<std::string>() == "IndexError",
                            std::make_shared<const std::string>(t[2].cast<std::string>()), t[3].cast<int64_t>()});
  }
  for (const auto& item : source["steps"].cast<py::list>()) {
    const auto t = item.cast<py::tuple>();
    const auto kind = t[0].cast<std::string>();
    Step step;
    if (kind == "host" || kind == "interpret") {
      step.kind = Step::kHost;
      step.fallback = kind == "host";
      step.node = t[1].cast<uint32_t>();
    } else if (kind == "launch") {
      step.kind = Step::kLaunch;
      step.kernel = reinterpret_cast<lazy_kernel>(t[1].cast<uintptr_t>());
      step.global = t[2].cast<std::array<uint64_t, 3>>();
      step.local = t[3].cast<std::array<uint64_t, 3>>();
      for (const auto& arg : t[4].cast<py::list>()) step.args.push_back(arg_from_python(arg.cast<py::tuple>(), temps));
    } else {
      step.kind = Step::kCoreOp;
      step.name = t[1].cast<std::string>();
      step.attrs = t[2].cast<std::string>();
      step.outputs = t[3].cast<uint32_t>();
      step.kernel = reinterpret_cast<lazy_kernel>(t[5].cast<uintptr_t>());
      for (const auto& entry : t[4].cast<py::list>()) {
        const auto tensor = entry.cast<py::tuple>();
        step.args.push_back(arg_from_python(tensor[0].cast<py::tuple>(), temps));
        lazy_tensor desc{};
        desc.dtype = tensor[1].cast<uint32_t>();
        desc.offset = tensor[2].cast<uint64_t>();
        const auto sizes = tensor[3].cast<std::vector<int64_t>>(), strides = tensor[4].cast<std::vector<int64_t>>();
        TORCH_CHECK(sizes.size() <= LAZY_MAX_RANK, "a tensor of rank ", sizes.size(), " for a driver that takes ", LAZY_MAX_RANK);
        desc.rank = static_cast<uint32_t>(sizes.size());
        std::copy(sizes.begin(), sizes.end(), desc.sizes);
        std::copy(strides.begin(), strides.end(), desc.strides);
        step.tensors.push_back(desc);
      }
    }
    plan->steps.push_back(std::move(step));
  }
  if (source.contains("numbers")) {
    const auto numbers = source["numbers"].cast<std::vector<uint32_t>>();
    for (size_t i = 0; i < plan->steps.size(); ++i) plan->steps[i].number = numbers.at(i);
  }
  return plan;
}

std::shared_ptr<const Sized> sized_from_python(const py::dict& source, const Plan& plan) {
  return std::make_shared<TracedPlan>(source, plan);
}

}  // namespace lazy
