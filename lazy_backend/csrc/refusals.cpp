#include "refusals.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "arguments.h"

namespace lazy {
namespace {

// Small enough to ask the CPU for its opinion on the error path; beyond, the Meta kernel's error stands.
constexpr int64_t kMaxErrorProbe = 1 << 24;

// Calls that Meta kernels let through and eager refuses.
using Refuses = bool (*)(const OpEntry& op, const c10::IValue* args);

bool two_dtypes(const OpEntry& op, const c10::IValue* args) {
  auto first = c10::ScalarType::Undefined;
  for (size_t i = 0; i < op.nargs; ++i) {
    if (!args[i].isTensor() || !args[i].toTensor().defined()) continue;
    const auto dtype = args[i].toTensor().scalar_type();
    if (first == c10::ScalarType::Undefined) first = dtype;
    if (dtype != first) return true;
  }
  return false;
}

template <bool (*Wrong)(c10::ScalarType)>
bool any_tensor(const OpEntry& op, const c10::IValue* args) {
  for (size_t i = 0; i < op.nargs; ++i)
    if (args[i].isTensor() && args[i].toTensor().defined() && Wrong(args[i].toTensor().scalar_type())) return true;
  return false;
}

bool is_bool(c10::ScalarType dtype) { return dtype == c10::ScalarType::Bool; }
bool is_integral(c10::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true); }
constexpr Refuses bits_of_floats = any_tensor<c10::isFloatingType>, booleans = any_tensor<is_bool>,
                  integers = any_tensor<is_integral>, complexes = any_tensor<c10::isComplexType>;

bool dim_out_of_range(const OpEntry&, const c10::IValue* args) {
  const int64_t rank = std::max<int64_t>(args[0].toTensor().dim(), 1), dim = args[1].toInt();
  return dim < -rank || dim >= rank;
}

bool nothing_in(const OpEntry&, const c10::IValue* args) { return args[0].toTensor().numel() == 0; }

bool empty_range(const OpEntry&, const c10::IValue* args) {
  return args[2].isInt() && args[1].toInt() >= args[2].toInt();  // random_(from, to); no `to`: up to the dtype's largest
}

bool below(const c10::IValue& list, int64_t least) {
  if (!list.isIntList()) return false;
  const auto numbers = list.toIntVector();
  return std::any_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n < least; });
}

bool no_window(const OpEntry&, const c10::IValue* args) {  // stride, padding, dilation
  return below(args[3], 1) || below(args[4], 0) || below(args[5], 1);
}

// Eager casts into the out= of most ops; a few take one dtype only, of their operands too.
bool other_out(const OpEntry& op, const c10::IValue* args) {
  const auto own = args[0].toTensor().scalar_type();
  const auto wanted = op.name == "aten.multinomial.out" ? at::kLong : op.name == "aten.complex.out" ? c10::toComplexType(own) : own;
  for (size_t i = 1; i < op.nargs; ++i) {
    const auto* alias = op.handle.schema().arguments()[i].alias_info();
    if (args[i].isTensor() && args[i].toTensor().scalar_type() != (alias && alias->isWrite() ? wanted : own)) return true;
  }
  return false;
}

bool two_shapes(const OpEntry&, const c10::IValue* args) {
  const auto &self = args[0].toTensor(), &target = args[1].toTensor();
  return self.dim() > 1 ? !self.sizes().equals(target.sizes()) : self.numel() != target.numel();
}

// Of index_add: self, dim, index, source.
bool other_source(const OpEntry&, const c10::IValue* args) {
  const auto &self = args[0].toTensor(), &source = args[3].toTensor();
  if (self.dim() != source.dim()) return true;
  const int64_t dim = self.dim() ? c10::maybe_wrap_dim(args[1].toInt(), self.dim()) : 0;
  for (int64_t i = 0; i < self.dim(); ++i)
    if (i != dim && self.size(i) != source.size(i)) return true;
  return false;
}

// Of nll_loss and nll_loss2d: self, target, weight.
bool no_classes(const OpEntry&, const c10::IValue* args) {
  const auto &self = args[0].toTensor(), &target = args[1].toTensor();
  const bool other_weight = args[2].isTensor() && args[2].toTensor().defined() && args[2].toTensor().scalar_type() != self.scalar_type();
  return target.scalar_type() != at::kLong || !self.is_floating_point() || other_weight;
}

bool integers_among(const OpEntry&, const c10::IValue* args) {
  return std::ranges::any_of(args[0].toTensorVector(), [](const at::Tensor& t) { return is_integral(t.scalar_type()); });
}

bool no_mask(const OpEntry&, const c10::IValue* args) { return args[1].toTensor().scalar_type() != c10::ScalarType::Bool; }

}  // namespace

bool too_lenient(const OpEntry& op, const c10::IValue* args) {
  static const std::unordered_map<std::string, Refuses> refusals = {
      {"aten.mm.default", two_dtypes},          {"aten.bmm.default", two_dtypes},
      {"aten.addmm.default", two_dtypes},       {"aten.baddbmm.default", two_dtypes},
      {"aten.mv.default", two_dtypes},          {"aten.dot.default", two_dtypes},
      {"aten._softmax.default", dim_out_of_range}, {"aten._log_softmax.default", dim_out_of_range},
      {"aten.max.default", nothing_in},         {"aten.min.default", nothing_in},
      {"aten.nll_loss_forward.default", no_classes}, {"aten.nll_loss2d_forward.default", no_classes},
      {"aten._foreach_norm.Scalar", integers_among}, {"aten._foreach_mul_.Tensor", integers_among},
      {"aten.random_.from", empty_range},        {"aten.convolution.default", no_window},
      {"aten.complex.out", other_out},           {"aten.aminmax.out", other_out},
      {"aten.multinomial.out", other_out},
      {"aten.multilabel_margin_loss_forward.default", two_shapes},
      {"aten.index_add.default", other_source},  {"aten.index_add_.default", other_source},
      {"aten.index_add.out", other_source},
      {"aten.masked_scatter.default", no_mask},  {"aten.masked_scatter_.default", no_mask},
      {"aten.sub.Tensor", booleans},             {"aten.sub_.Tensor", booleans},
      {"aten.rsub.Tensor", booleans},            {"aten.rsub.Scalar", booleans},
      {"aten.sub.out", booleans},                {"aten.relu.default", booleans},
      {"aten.relu_.default", booleans},
      {"aten.floor.default", booleans},          {"aten.ceil.default", booleans},
      {"aten.trunc.default", booleans},          {"aten.round.default", booleans},
      {"aten.argmax.default", booleans},         {"aten.argmin.default", booleans},
      {"aten.var.correction", integers},         {"aten.std.correction", integers},
      {"aten.var_mean.correction", integers},    {"aten.std_mean.correction", integers},
      {"aten.sign.default", complexes},          {"aten.sign_.default", complexes}};
  if (op.name.rfind("aten.bitwise_", 0) == 0) return bits_of_floats(op, args);
  const auto found = refusals.find(op.name);
  return found != refusals.end() && found->second(op, args);
}

bool no_distribution(const OpEntry& op, const c10::IValue* args) {
  using Wrong = bool (*)(double first, double second);
  static const std::unordered_map<std::string, Wrong> table = {
      {"aten.uniform_.default", [](double from, double to) { return from > to; }},
      {"aten.exponential_.default", [](double lambda, double) { return lambda <= 0; }},
      {"aten.cauchy_.default", [](double, double sigma) { return sigma <= 0; }},
      {"aten.geometric_.default", [](double p, double) { return p <= 0 || p >= 1; }},
      {"aten.log_normal_.default", [](double, double std) { return std <= 0; }}};
  const auto found = table.find(op.name);
  if (found == table.end()) return false;
  const auto number = [&](size_t i) { return args[i].isScalar() ? args[i].toScalar().toDouble() : 0.0; };
  return found->second(number(1), number(2));
}

void raise_as_eager(const OpEntry& op, const c10::IValue* args, std::exception_ptr error) {
  const auto dummy = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined() || !t.device().is_privateuseone()) return t;
    if (t.numel() > kMaxErrorProbe && error) std::rethrow_exception(error);
    return at::empty_strided(t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type())).zero_();
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.nargs; ++i) stack.push_back(moved(args[i], c10::DeviceType::CPU, dummy));
  at::AutoDispatchBelowADInplaceOrView guard;
  op.handle.callBoxed(&stack);
}

}  // namespace lazy
