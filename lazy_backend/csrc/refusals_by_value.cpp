// What is refused for its numbers, which are no part of a call's key: asked at each call.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "refusals.h"

namespace lazy {
namespace {

// The least and the greatest finite number of a dtype, of a complex one's parts.
std::pair<double, double> range_of(c10::ScalarType dtype) {
  return AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, c10::toRealValueType(dtype), "range", [] {
    using limits = std::numeric_limits<scalar_t>;
    return std::pair(static_cast<double>(limits::lowest()), static_cast<double>(limits::max()));
  });
}

bool has_range(c10::ScalarType dtype) {
  return !c10::isFloat8Type(dtype) && dtype != at::kUInt16 && dtype != at::kUInt32 && dtype != at::kUInt64 &&
         (is_integral(dtype) || c10::isFloatingType(dtype) || dtype == at::kComplexFloat || dtype == at::kComplexDouble);
}

// Whether integers are drawn up to, or from, one that the dtype does not hold: of random_(to) and random_(from, to).
bool beyond_dtype(const OpEntry& op, const c10::IValue* args) {
  const auto dtype = args[0].toTensor().scalar_type();
  if (!has_range(dtype)) return false;
  const auto [least, greatest] = range_of(dtype);
  const bool starts = op.name == "aten.random_.from";
  if (starts && static_cast<double>(args[1].toInt()) < least) return true;
  const auto& end = args[starts ? 2 : 1];
  return end.isInt() && ((!starts && end.toInt() <= 0) || static_cast<double>(end.toInt() - 1) > greatest);
}

bool no_uniform(const c10::IValue* args) {
  const auto dtype = args[0].toTensor().scalar_type();
  if (!has_range(dtype)) return false;
  const auto [least, greatest] = range_of(dtype);
  const double from = args[1].toScalar().toDouble(), to = args[2].toScalar().toDouble();
  return !(least <= from && from <= to && to <= greatest && to - from <= greatest);
}

// Whether not all of so many numbers differ in the dtype of where they are written: the last argument.
bool no_permutation(const OpEntry& op, const c10::IValue* args) {
  const auto dtype = args[op.nargs - 1].toTensor().scalar_type();
  const double n = static_cast<double>(args[0].toInt());
  const double most = dtype == at::kHalf ? 2049 : dtype == at::kBFloat16 ? 257 : dtype == at::kFloat ? (1 << 24) + 1 : 0x1p53 + 1;
  return dtype == at::kBool || n > most || (is_integral(dtype) && dtype != at::kLong && n - 1 > range_of(dtype).second);
}

}  // namespace

bool no_distribution(const OpEntry& op, const c10::IValue* args) {
  if (op.name == "aten.random_.from" || op.name == "aten.random_.to") return beyond_dtype(op, args);
  if (op.name == "aten.uniform_.default") return no_uniform(args);
  if (op.name.starts_with("aten.randperm.") && args[op.nargs - 1].isTensor()) return no_permutation(op, args);
  using Wrong = bool (*)(double first, double second);
  static const std::unordered_map<std::string, Wrong> table = {
      {"aten.exponential_.default", [](double lambda, double) { return lambda <= 0; }},
      {"aten.cauchy_.default", [](double, double sigma) { return sigma <= 0; }},
      {"aten.bernoulli_.float", [](double p, double) { return p < 0 || p > 1; }},
      {"aten.geometric_.default", [](double p, double) { return p <= 0 || p >= 1; }},
      {"aten.log_normal_.default", [](double, double std) { return std <= 0; }}};
  const auto found = table.find(op.name);
  if (found == table.end()) return false;
  const auto number = [&](size_t i) { return args[i].isScalar() ? args[i].toScalar().toDouble() : 0.0; };
  return found->second(number(1), number(2));
}

bool beyond_range(const OpEntry& op, const c10::IValue* args) {
  const auto dtype = args[0].toTensor().scalar_type();
  if (dtype == at::kBool || !has_range(dtype)) return false;
  for (size_t i = 1; i < op.nargs; ++i) {
    if (!args[i].isScalar()) continue;
    const at::Scalar number = args[i].toScalar();
    if (is_integral(dtype) && number.isFloatingPoint() && op.pointwise && op.name.starts_with("aten.clamp")) continue;  // promoted
    if (number.isComplex() || number.isBoolean() || number.type() == at::kUInt64) continue;
    const double value = number.toDouble();
    if (!is_integral(dtype) && !std::isfinite(value)) continue;
    auto [least, greatest] = range_of(dtype);
    if (least == 0) least = -greatest;  // bytes: eager wraps numbers below 0
    if (!(least <= value && value <= greatest)) return true;
  }
  return false;
}

bool divides_by_zero(const c10::IValue* args) {
  const auto zero = [](const at::Scalar& number) { return number.isIntegral(/*includeBool=*/true) && number.toLong() == 0; };
  if (!args[0].isTensor() || !is_integral(args[0].toTensor().scalar_type())) return false;
  if (args[1].isScalar()) return zero(args[1].toScalar());
  const bool number = args[1].isTensor() && args[1].toTensor().device().is_cpu() && args[1].toTensor().dim() == 0;
  return number && zero(args[1].toTensor().item());
}

}  // namespace lazy
