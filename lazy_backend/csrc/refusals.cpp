#include "refusals.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

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
bool is_fractional(c10::ScalarType dtype) { return !is_integral(dtype); }
constexpr Refuses fractions = any_tensor<is_fractional>, booleans = any_tensor<is_bool>,
                  integers = any_tensor<is_integral>, complexes = any_tensor<c10::isComplexType>;

// Bool, integer, float and complex: what a result's dtype is must be of no later kind than what it is written into.
int kind_of(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? 3 : c10::isFloatingType(dtype) ? 2 : dtype == c10::ScalarType::Bool ? 0 : 1;
}

bool true_factor(const OpEntry&, const c10::IValue* args) {  // of add and sub
  return args[2].isScalar() && args[2].toScalar().isBoolean();
}

bool booleans_alone(const OpEntry& op, const c10::IValue* args) {
  return std::all_of(args, args + op.nargs, [](const c10::IValue& v) { return !v.isTensor() || is_bool(v.toTensor().scalar_type()); });
}

bool no_integers(const OpEntry& op, const c10::IValue* args) { return fractions(op, args) || booleans_alone(op, args); }

template <size_t Dim>
bool dim_out_of_range(const OpEntry&, const c10::IValue* args) {
  const int64_t rank = std::max<int64_t>(args[0].toTensor().dim(), 1), dim = args[Dim].toInt();
  return dim < -rank || dim >= rank;
}

bool is_true(const c10::IValue& v) { return v.isScalar() && v.toScalar().isBoolean(); }

bool booleans_subtracted(const OpEntry& op, const c10::IValue* args) { return booleans(op, args) || true_factor(op, args); }

bool booleans_subtracted_from(const OpEntry& op, const c10::IValue* args) {  // of rsub: a number too
  return booleans_subtracted(op, args) || is_true(args[1]);
}

// Of what eager's CPU has for numbers that are ordered only.
bool truths_or_pairs(const OpEntry& op, const c10::IValue* args) { return booleans(op, args) || complexes(op, args); }

bool no_product(const OpEntry& op, const c10::IValue* args) { return two_dtypes(op, args) || booleans(op, args); }

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

// Of index_add and index_reduce: self, dim, index, source.
bool other_source(const OpEntry&, const c10::IValue* args) {
  const auto &self = args[0].toTensor(), &source = args[3].toTensor();
  if (self.dim() != source.dim() || self.scalar_type() != source.scalar_type()) return true;
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

// Of a list written in place, and a number, a tensor or another list.
bool too_narrow_among(const OpEntry&, const c10::IValue* args) {
  const auto written = args[0].toTensorVector();
  const auto others = args[1].isTensorList() ? args[1].toTensorVector() : std::vector<at::Tensor>();
  if (args[1].isTensorList() && others.size() != written.size()) return true;
  for (size_t i = 0; i < written.size(); ++i) {
    const int own = kind_of(written[i].scalar_type());
    if (args[1].isScalar() && kind_of(args[1].toScalar().type()) > own) return true;
    if (args[1].isTensor() && kind_of(args[1].toTensor().scalar_type()) > own) return true;
    if (!others.empty() && kind_of(others[i].scalar_type()) > own) return true;
  }
  return false;
}

bool whole_chances(const OpEntry&, const c10::IValue* args) { return is_integral(args[1].toTensor().scalar_type()); }

// Of put: self, index, source.
bool nothing_put(const OpEntry&, const c10::IValue* args) {
  const auto &self = args[0].toTensor(), &index = args[1].toTensor(), &source = args[2].toTensor();
  if (self.scalar_type() != source.scalar_type() || index.scalar_type() != at::kLong) return true;
  return index.numel() != source.numel() || (self.numel() == 0 && index.numel() != 0);
}

bool other_selected(const OpEntry&, const c10::IValue* args) {  // of select_scatter: self, source, dim
  const auto &self = args[0].toTensor(), &source = args[1].toTensor();
  if (self.dim() == 0) return true;
  auto sizes = self.sizes().vec();
  const int64_t rank = self.dim(), dim = args[2].toInt();
  if (dim < -rank || dim >= rank) return true;
  sizes.erase(sizes.begin() + (dim < 0 ? dim + rank : dim));
  return !source.sizes().equals(sizes);
}

bool other_diagonal(const OpEntry&, const c10::IValue* args) {  // of diagonal_scatter: self, source, offset, two dims
  const auto& self = args[0].toTensor();
  if (self.dim() < 2) return true;
  const at::Tensor meta = at::detail::empty_strided_meta(self.sizes(), self.strides(), self.scalar_type());
  return !meta.diagonal(args[2].toInt(), args[3].toInt(), args[4].toInt()).sizes().equals(args[1].toTensor().sizes());
}

template <size_t Index>
bool no_places(const OpEntry&, const c10::IValue* args) { return args[Index].toTensor().scalar_type() != at::kLong; }

bool no_copy_at_places(const OpEntry& op, const c10::IValue* args) {
  return no_places<2>(op, args) || args[0].toTensor().scalar_type() != args[3].toTensor().scalar_type();
}

// Of index_add: its index may be of int32 too.
bool nothing_added(const OpEntry& op, const c10::IValue* args) {
  const auto index = args[2].toTensor().scalar_type();
  return other_source(op, args) || (index != at::kLong && index != at::kInt);
}

bool other_size_written(const OpEntry& op, const c10::IValue* args) {
  return !args[0].toTensor().sizes().equals(args[op.nargs - 1].toTensor().sizes());
}

// Of results in their operand's dtype, and a second one of where they lie.
template <c10::ScalarType Second>
bool other_results(const OpEntry& op, const c10::IValue* args) {
  const auto dtype = [&](size_t i) { return args[i].toTensor().scalar_type(); };
  return dtype(op.nargs - 2) != dtype(0) || dtype(op.nargs - 1) != Second;
}

// Of a table to search, and what is looked for in it: either one row for all, or one each.
bool no_table(const at::Tensor& table, const at::Tensor& sought) {
  if (table.dim() == 1) return false;
  const auto rows = [](const at::Tensor& t) { return t.sizes().slice(0, t.dim() - 1); };
  return table.dim() == 0 || table.dim() != sought.dim() || !rows(table).equals(rows(sought));
}

// table, sought, whether places are int32, whether the right one, the side by its name, an order of the table
bool nothing_to_search(const OpEntry& op, const c10::IValue* args) {
  if (args[1].isTensor() && no_table(args[0].toTensor(), args[1].toTensor())) return true;
  const auto side = args[4].isString() ? args[4].toStringRef() : "";
  if (!side.empty() && side != "right" && (side != "left" || args[3].toBool())) return true;
  const bool ordered = args[5].isTensor() && args[5].toTensor().defined();
  return truths_or_pairs(op, args) || (ordered && args[5].toTensor().scalar_type() != at::kLong);
}

// An out= for places.
bool other_places(const OpEntry& op, const c10::IValue* args) {
  return args[op.nargs - 1].toTensor().scalar_type() != (args[2].toBool() ? at::kInt : at::kLong);
}

bool no_buckets(const OpEntry&, const c10::IValue* args) { return args[1].toTensor().dim() != 1; }

bool negative_beta(const OpEntry&, const c10::IValue* args) { return args[3].toDouble() < 0; }

bool integers_among(const OpEntry&, const c10::IValue* args) {
  return std::ranges::any_of(args[0].toTensorVector(), [](const at::Tensor& t) { return is_integral(t.scalar_type()); });
}

template <size_t Mask>
bool no_mask(const OpEntry&, const c10::IValue* args) { return args[Mask].toTensor().scalar_type() != c10::ScalarType::Bool; }

template <size_t First, size_t Second>
bool differ(const OpEntry&, const c10::IValue* args) {
  return args[First].toTensor().scalar_type() != args[Second].toTensor().scalar_type();
}

// Of norms: the parameters and statistics of an input in half precision may be float32.
bool other_parameters(const OpEntry& op, const c10::IValue* args) {
  const auto own = args[0].toTensor().scalar_type();
  for (size_t i = 1; i < op.nargs; ++i) {
    if (!args[i].isTensor() || !args[i].toTensor().defined()) continue;
    const auto dtype = args[i].toTensor().scalar_type();
    if (dtype != own && !(c10::isReducedFloatingType(own) && dtype == at::kFloat)) return true;
  }
  return false;
}

// Whether a transposed convolution's output padding is no smaller than its stride or its dilation.
bool padded_beyond_stride(const c10::IValue* args) {
  const auto stride = args[3].toIntVector(), dilation = args[5].toIntVector(), padding = args[7].toIntVector();
  const auto of = [](const std::vector<int64_t>& list, size_t i) { return list[std::min(i, list.size() - 1)]; };
  if (stride.empty() || dilation.empty()) return true;
  for (size_t i = 0; i < padding.size(); ++i)
    if (padding[i] >= std::max(of(stride, i), of(dilation, i))) return true;
  return false;
}

// input, weight, bias, stride, padding, dilation, transposed, output padding, groups
bool no_convolution(const OpEntry& op, const c10::IValue* args) {
  if (no_window(op, args) || no_product(op, args)) return true;
  const auto spatial = static_cast<size_t>(std::max<int64_t>(args[1].toTensor().dim() - 2, 1));
  for (const size_t list : {3, 4, 5, 7})
    if (const size_t n = args[list].toIntVector().size(); n != 1 && n != spatial) return true;
  const int64_t groups = args[8].toInt();
  if (groups <= 0 || args[1].toTensor().size(0) % groups != 0) return true;
  if (args[6].toBool() && (args[0].toTensor().size(1) != args[1].toTensor().size(0) || padded_beyond_stride(args))) return true;
  if (!args[2].isTensor() || !args[2].toTensor().defined()) return false;
  const auto &weight = args[1].toTensor(), &bias = args[2].toTensor();
  const int64_t channels = args[6].toBool() ? weight.size(1) * groups : weight.size(0);
  return bias.dim() != 1 || bias.size(0) != channels;
}

// Of addmm: what is added, and the two matrices.
bool no_sum_of_products(const OpEntry& op, const c10::IValue* args) {
  const auto &self = args[0].toTensor(), &a = args[1].toTensor(), &b = args[2].toTensor();
  if (no_product(op, args)) return true;
  return a.dim() == 2 && b.dim() == 2 && !at::is_expandable_to(self.sizes(), {a.size(0), b.size(1)});
}

// Of an integer or float tensor, and a number that is neither.
template <size_t Number>
bool complex_number(const OpEntry&, const c10::IValue* args) {
  return args[Number].isScalar() && args[Number].toScalar().isComplex() && !args[0].toTensor().is_complex();
}

bool no_masked_fill(const OpEntry& op, const c10::IValue* args) { return no_mask<1>(op, args) || complex_number<2>(op, args); }

bool no_fill_at_places(const OpEntry& op, const c10::IValue* args) { return no_places<2>(op, args) || complex_number<3>(op, args); }

bool no_reduction(const OpEntry& op, const c10::IValue* args) {  // of index_reduce: .., its name
  static const std::unordered_set<std::string> known = {"prod", "mean", "amax", "amin"};
  return other_source(op, args) || !known.contains(args[4].toStringRef());
}

bool no_index(const OpEntry&, const c10::IValue* args) {  // of index_select: self, dim, index
  const auto& index = args[2].toTensor();
  return index.dim() > 1 || (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt);
}

bool nothing_along(const OpEntry&, const c10::IValue* args) {
  const auto& self = args[0].toTensor();
  return args[1].isInt() && self.numel() == 0;
}

bool nothing_to_find(const OpEntry& op, const c10::IValue* args) { return booleans(op, args) || nothing_along(op, args); }

bool negative_power_of_integers(const OpEntry&, const c10::IValue* args) {
  const auto& exponent = args[1].toScalar();
  return is_integral(args[0].toTensor().scalar_type()) && exponent.isIntegral(true) && exponent.toLong() < 0;
}

// Of in-place ops element by element.
bool too_narrow(const OpEntry& op, const c10::IValue* args) {
  const int own = kind_of(args[0].toTensor().scalar_type());
  for (size_t i = 1; i < op.nargs; ++i) {
    if (args[i].isScalar() && kind_of(args[i].toScalar().type()) > own) return true;
    if (args[i].isTensor() && args[i].toTensor().defined() && kind_of(args[i].toTensor().scalar_type()) > own) return true;
  }
  return false;
}

// Integers in ops that take floats: the CPU says which do, on tensors up to so many elements (4 ms of adding), once a key.
constexpr int64_t kAskedElements = 1 << 22;

bool whole_numbers(const OpEntry& op, const c10::IValue* args) {
  bool some = false, all = true;
  const auto look = [&](const at::Tensor& t) {
    some |= t.defined();
    all &= !t.defined() || (is_integral(t.scalar_type()) && t.numel() <= kAskedElements);
  };
  for (size_t i = 0; i < op.nargs; ++i) {
    if (args[i].isTensor()) look(args[i].toTensor());
    if (args[i].isTensorList())
      for (const at::Tensor& t : args[i].toTensorList()) look(t);
  }
  return some && all;
}

// What is in no table of pointwise ops, and that eager's CPU has for floats only, or for some integers.
bool no_floats(const OpEntry&, const c10::IValue* args) {
  const auto& self = args[0].toTensor();
  return !c10::isFloatingType(self.scalar_type()) && self.numel() <= kAskedElements;
}

bool no_image(const OpEntry& op, const c10::IValue* args) {  // bytes are one
  return no_floats(op, args) && args[0].toTensor().scalar_type() != at::kByte;
}

bool asked(const OpEntry&, const c10::IValue* args) { return args[0].toTensor().numel() <= kAskedElements; }

bool no_pool(const OpEntry& op, const c10::IValue* args) { return nothing_in(op, args) || no_floats(op, args); }

bool no_softmax(const OpEntry& op, const c10::IValue* args) { return dim_out_of_range<1>(op, args) || no_floats(op, args); }

bool no_middle(const OpEntry& op, const c10::IValue* args) { return nothing_along(op, args) || truths_or_pairs(op, args); }

bool no_middle_written(const OpEntry& op, const c10::IValue* args) {
  return args[0].toTensor().numel() == 0 || truths_or_pairs(op, args) || other_results<at::kLong>(op, args);
}

bool no_grid(const OpEntry& op, const c10::IValue* args) { return differ<0, 1>(op, args) || no_floats(op, args); }

bool no_batch_norm(const OpEntry& op, const c10::IValue* args) { return other_parameters(op, args) || no_floats(op, args); }

// An out= of another dtype than the first operand's: many ops cast into it, some do not. Matrices of zeros are refused for
// what they are.
bool other_result(const OpEntry& op, const c10::IValue* args) {
  if (op.seeded || op.name.find("linalg") != std::string::npos || op.name.find("cholesky") != std::string::npos) return false;
  const auto& out = args[op.nargs - 1];
  return args[0].isTensor() && out.isTensor() && out.toTensor().scalar_type() != args[0].toTensor().scalar_type() &&
         args[0].toTensor().numel() <= kAskedElements;
}

// Names without the overload and without an in-place op's underscore: all of these have the same first arguments.
// Rows or columns of a matrix lie side by side, and begin at multiples of 16 bytes.
bool lies_apart(const at::Tensor& t) {
  const auto rows = t.size(-2), columns = t.size(-1), down = t.stride(-2), along = t.stride(-1);
  const auto whole = [&](int64_t step) { return step * t.element_size() % 16 == 0; };
  if (down == 1 && along >= std::max<int64_t>(1, rows)) return !whole(along);
  return along != 1 || down < std::max<int64_t>(1, columns) || !whole(down);
}

bool no_product_of_groups(const OpEntry&, const c10::IValue* args) {
  if (!args[3].isNone() || !args[4].isNone()) return true;
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  const auto dtype = a.scalar_type();
  const auto odd = [](const at::Tensor& t) { return t.dim() < 2 || t.dim() > 3 || t.numel() == 0 || lies_apart(t); };
  const bool known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (!known || b.scalar_type() != dtype || odd(a) || odd(b)) return true;
  const bool both = a.dim() == 2 && b.dim() == 2, neither = a.dim() == 3 && b.dim() == 3;
  if (a.size(-1) != b.size(-2) || (neither && a.size(0) != b.size(0))) return true;
  if (args[2].isNone()) return !neither;
  const at::Tensor& ends = args[2].toTensor();
  if (neither || ends.scalar_type() != at::kInt || ends.dim() != 1) return true;
  return !both && ends.size(0) != (a.dim() == 3 ? a : b).size(0);
}

const std::unordered_map<std::string, Refuses>& refusals_of_all_faces() {
  static const std::unordered_map<std::string, Refuses> table = {
      {"aten.masked_fill", no_masked_fill},       {"aten.masked_scatter", no_mask<1>},
      {"aten.scatter", complex_number<3>},
      {"aten._index_put_impl", differ<0, 2>},
      {"aten.put", nothing_put},                 {"aten.index_copy", no_copy_at_places},
      {"aten.index_add", nothing_added},         {"aten.index_reduce", no_reduction},
      {"aten._foreach_mul", too_narrow_among},   {"aten._foreach_add", too_narrow_among},
      {"aten._foreach_sub", too_narrow_among},   {"aten._foreach_div", too_narrow_among},
      {"aten.uniform", integers},                {"aten.normal", integers},
      {"aten.exponential", integers},            {"aten.cauchy", integers},
      {"aten.log_normal", integers},             {"aten.heaviside", differ<0, 1>},
      {"aten.fill", complex_number<1>},          {"aten.index_fill", no_fill_at_places},
      {"aten.histogram", asked},                 {"aten.histc", truths_or_pairs},
      {"aten.bernoulli", complexes},
      {"aten.fmod", booleans_alone},             {"aten.remainder", booleans_alone},
      {"aten.gcd", no_integers},                 {"aten.lcm", no_integers},
      {"aten.cumsum", booleans},                 {"aten.cumprod", booleans},
      {"aten.hypot", integers},
      {"aten.gelu", integers},                   {"aten.silu", integers},
      {"aten.mish", integers},                   {"aten.hardswish", integers},
      {"aten.hardsigmoid", integers},            {"aten.hardshrink", integers},
      {"aten.glu", integers},                    {"aten.softplus", integers},
      {"aten.log_sigmoid_forward", integers}};
  return table;
}

std::string without_face(const std::string& name) {
  std::string base = name.substr(0, name.rfind('.'));
  if (base.ends_with('_')) base.pop_back();
  return base;
}

}  // namespace

bool too_lenient(const OpEntry& op, const c10::IValue* args) {
  static const std::unordered_map<std::string, Refuses> refusals = {
      {"aten.mm.default", no_product},          {"aten.bmm.default", no_product},
      {"aten.addmm.default", no_sum_of_products}, {"aten.baddbmm.default", no_product},
      {"aten._grouped_mm.default", no_product_of_groups},
      {"aten.mv.default", no_product},          {"aten.dot.default", two_dtypes},
      {"aten._softmax.default", no_softmax},    {"aten._log_softmax.default", no_softmax},
      {"aten._logcumsumexp.default", no_floats}, {"aten.logcumsumexp.default", no_floats},
      {"aten._adaptive_avg_pool2d.default", no_pool}, {"aten._adaptive_avg_pool3d.default", no_pool},
      {"aten.adaptive_max_pool2d.default", no_floats}, {"aten.adaptive_max_pool3d.default", no_floats},
      {"aten.avg_pool2d.default", no_floats},   {"aten.avg_pool3d.default", no_floats},
      {"aten.max_pool2d_with_indices.default", no_floats}, {"aten.max_pool3d_with_indices.default", no_floats},
      {"aten.im2col.default", no_floats},       {"aten.mse_loss.default", complexes},
      {"aten.upsample_nearest1d.default", no_image}, {"aten.upsample_nearest2d.default", no_image},
      {"aten.upsample_nearest3d.default", no_image}, {"aten.upsample_linear1d.default", no_image},
      {"aten.upsample_bilinear2d.default", no_image}, {"aten.upsample_trilinear3d.default", no_image},
      {"aten.upsample_bicubic2d.default", no_image},
      {"aten.reflection_pad1d.default", booleans}, {"aten.reflection_pad2d.default", booleans},
      {"aten.reflection_pad3d.default", booleans},
      {"aten.median.default", truths_or_pairs}, {"aten.nanmedian.default", truths_or_pairs},
      {"aten.mode.default", no_middle},         {"aten.topk.default", truths_or_pairs},
      {"aten.nansum.default", complexes},
      {"aten.select_scatter.default", other_selected}, {"aten.diagonal_scatter.default", other_diagonal},
      {"aten.searchsorted.Tensor_out", other_places}, {"aten.searchsorted.Scalar_out", other_places},
      {"aten.bucketize.Tensor_out", other_places}, {"aten.bucketize.Scalar", no_buckets},
      {"aten.searchsorted.Scalar", nothing_to_search},
      {"aten.sort.values_stable", other_results<at::kLong>}, {"aten.kthvalue.values", no_middle_written},
      {"aten.median.dim_values", no_middle_written}, {"aten.nanmedian.dim_values", no_middle_written},
      {"aten.mode.values", other_results<at::kLong>}, {"aten.frexp.Tensor_out", other_results<at::kInt>},
      {"aten.normal.Tensor_float_out", other_size_written},
      {"aten._histogramdd_from_bin_cts.default", asked}, {"aten._histogramdd_bin_edges.default", asked},
      {"aten.sort.default", dim_out_of_range<1>},   {"aten.sort.stable", dim_out_of_range<2>},
      {"aten.max.default", nothing_in},         {"aten.min.default", nothing_in},
      {"aten.nll_loss_forward.default", no_classes}, {"aten.nll_loss2d_forward.default", no_classes},
      {"aten._foreach_norm.Scalar", integers_among}, {"aten._foreach_mul_.Tensor", integers_among},
      {"aten.random_.from", empty_range},        {"aten.convolution.default", no_convolution},
      {"aten.complex.out", other_out},           {"aten.aminmax.out", other_out},
      {"aten.multinomial.out", other_out},
      {"aten.multilabel_margin_loss_forward.default", two_shapes},
      {"aten.where.self", no_mask<0>},           {"aten.index_select.default", no_index},
      {"aten._cdist_forward.default", differ<0, 1>}, {"aten.linalg_cross.default", no_product},
      {"aten.grid_sampler_2d.default", no_grid}, {"aten.grid_sampler_3d.default", no_grid},
      {"aten.native_layer_norm.default", other_parameters}, {"aten.native_group_norm.default", other_parameters},
      {"aten.native_batch_norm.default", no_batch_norm},
      {"aten.max.dim", nothing_along},           {"aten.min.dim", nothing_along},
      {"aten.pow.Tensor_Scalar", negative_power_of_integers}, {"aten.pow_.Scalar", negative_power_of_integers},
      {"aten.sub.Tensor", booleans_subtracted},  {"aten.sub_.Tensor", booleans_subtracted},
      {"aten.add.Tensor", true_factor},          {"aten.add_.Tensor", true_factor},
      {"aten.searchsorted.Tensor", nothing_to_search}, {"aten.bucketize.Tensor", no_buckets},
      {"aten.smooth_l1_loss.default", negative_beta}, {"aten.bernoulli_.Tensor", whole_chances},
      {"aten.rsub.Tensor", booleans_subtracted}, {"aten.rsub.Scalar", booleans_subtracted_from},
      {"aten.sub.out", booleans},                {"aten.relu.default", booleans},
      {"aten.relu_.default", booleans},
      {"aten.floor.default", booleans},          {"aten.ceil.default", booleans},
      {"aten.trunc.default", booleans},          {"aten.round.default", booleans},
      {"aten.argmax.default", nothing_to_find},  {"aten.argmin.default", nothing_to_find},
      {"aten.var.correction", integers},         {"aten.std.correction", integers},
      {"aten.var_mean.correction", integers},    {"aten.std_mean.correction", integers},
      {"aten.sign.default", complexes},          {"aten.sign_.default", complexes}};
  if (op.name.rfind("aten.bitwise_", 0) == 0) return no_integers(op, args);
  if ((op.pointwise || op.name.starts_with("aten._foreach_")) && !op.divides && whole_numbers(op, args)) return true;
  if (op.pointwise && op.mutates && args[0].isTensor() && too_narrow(op, args)) return true;
  if (!op.pointwise && op.name.ends_with(".out") && other_result(op, args)) return true;
  const auto asks = [&](const auto& table, const std::string& name) {
    const auto found = table.find(name);
    return found != table.end() && found->second(op, args);
  };
  return asks(refusals, op.name) || asks(refusals_of_all_faces(), without_face(op.name));
}

void check_apart(const OpEntry& op, const at::Tensor& written, const c10::IValue* args, int alias) {
  const auto look = [&](const at::Tensor& t) {
    if (!t.defined() || t.device() != written.device()) return;
    if (op.overlap == Overlap::kNone) at::assert_no_overlap(written, t);
    else at::assert_no_partial_overlap(written, t);
  };
  for (size_t i = 0; i < op.nargs; ++i) {
    if (static_cast<int>(i) == alias) continue;
    if (args[i].isTensor()) look(args[i].toTensor());
    if (!args[i].isOptionalTensorList()) continue;
    for (const std::optional<at::Tensor>& t : args[i].toOptionalTensorList()) {
      if (!t) continue;
      // A mask and one number: eager fills, where these may be part of what is filled.
      if (t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) return;
      look(*t);
    }
  }
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
