#include "shapes.h"

#include <ATen/ATen.h>
#include <ATen/MetaFunctions.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <unordered_map>

namespace lazy {
namespace {

at::Tensor relu(const at::Tensor& self) { return at::meta::neg(self); }

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  auto iterator = at::TensorIteratorConfig()
                      .check_all_same_dtype(false)
                      .declare_static_dtype(at::result_type(self, other))
                      .add_owned_output(at::Tensor())
                      .add_input(condition)
                      .add_input(self)
                      .add_input(other)
                      .build();
  return iterator.output();
}

at::Tensor safe_softmax(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(!dtype || *dtype == self.scalar_type(), "the Meta kernel knows");
  return at::meta::_softmax(self, dim, false);
}

bool known_gelu(std::string_view approximate) { return approximate == "none" || approximate == "tanh"; }

at::Tensor gelu(const at::Tensor& self, std::string_view approximate) {
  TORCH_CHECK(known_gelu(approximate), "the Meta kernel says what is wrong");
  return at::meta::gelu(self, approximate);
}

at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& self, std::string_view approximate) {
  TORCH_CHECK(known_gelu(approximate), "the Meta kernel says what is wrong");
  return at::meta::gelu_backward(gradient, self, approximate);
}

// torch's reference, which its Meta kernel asks, makes int64 of a power of bool by bool; eager makes bool.
std::vector<at::Tensor> foreach_pow(at::TensorList self, const at::Scalar& exponent) {
  std::vector<at::Tensor> results;
  for (const auto& base : self) results.push_back(at::meta::pow(base, exponent));
  return results;
}

std::vector<at::Tensor> foreach_sqrt(at::TensorList self) {
  std::vector<at::Tensor> results;
  for (const auto& x : self) results.push_back(at::meta::sqrt(x));
  return results;
}

// In place on lists that are alike there is nothing to infer. All others are the Meta kernel's, with its errors.
void alike(at::TensorList self, at::ArrayRef<at::TensorList> others, at::ArrayRef<at::Scalar> values) {
  bool fit = !self.empty() && std::ranges::none_of(values, [](const at::Scalar& value) { return value.isComplex(); });
  for (const auto& other : others)
    fit = fit && std::ranges::equal(self, other, [](const at::Tensor& a, const at::Tensor& b) {
            return a.scalar_type() == b.scalar_type() && a.sizes().equals(b.sizes());
          });
  TORCH_CHECK_NOT_IMPLEMENTED(fit, "the Meta kernel knows");
}

void each_(at::TensorList self, at::TensorList other) { alike(self, {other}, {}); }
void each_(at::TensorList self, const at::Scalar& value) { alike(self, {}, {value}); }
void each_(at::TensorList self, at::TensorList other, const at::Scalar& value) { alike(self, {other}, {value}); }
void each_(at::TensorList self, at::TensorList a, at::TensorList b, const at::Scalar& value) { alike(self, {a, b}, {value}); }

void each_(at::TensorList self, at::ArrayRef<at::Scalar> values) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.size() == values.size(), "the Meta kernel says what is wrong");
  alike(self, {}, values);
}

void each_(at::TensorList self, at::TensorList a, at::TensorList b, at::ArrayRef<at::Scalar> values) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.size() == values.size(), "the Meta kernel says what is wrong");
  alike(self, {a, b}, values);
}

void each_(at::TensorList self, const at::Tensor& value) {
  TORCH_CHECK_NOT_IMPLEMENTED(value.dim() == 0, "the Meta kernel says what is wrong");
  for (const auto& x : self) TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() == value.scalar_type(), "the Meta kernel knows");
  alike(self, {}, {});
}

std::vector<at::Tensor> foreach_norm(at::TensorList self, const at::Scalar& order, std::optional<at::ScalarType> dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.empty(), "the Meta kernel says what is wrong");
  std::vector<at::Tensor> results;
  for (const auto& x : self) {
    TORCH_CHECK_NOT_IMPLEMENTED(x.is_floating_point() && x.numel(), "the Meta kernel knows");
    results.push_back(at::meta::linalg_vector_norm(x, order, {}, false, dtype));
  }
  return results;
}

// The tensors that are there, dense and of one dtype: what is inferred is exactly so, too.
void plain(std::initializer_list<at::Tensor> tensors) {
  for (const auto& t : tensors)
    TORCH_CHECK_NOT_IMPLEMENTED(!t.defined() || (t.is_contiguous() && t.numel() && t.scalar_type() == tensors.begin()->scalar_type()),
                                "the Meta kernel knows");
}

at::Tensor optional(const std::optional<at::Tensor>& t) { return t.value_or(at::Tensor()); }

// How many dims a layer norm has before those that it is over.
size_t rows(const at::Tensor& input, at::IntArrayRef normalized, std::initializer_list<at::Tensor> parameters) {
  const auto sizes = input.sizes();
  bool fits = !normalized.empty() && sizes.size() >= normalized.size() && sizes.slice(sizes.size() - normalized.size()).equals(normalized);
  for (const auto& t : parameters) fits = fits && (!t.defined() || t.sizes().equals(normalized));
  TORCH_CHECK_NOT_IMPLEMENTED(fits, "the Meta kernel says what is wrong");
  return sizes.size() - normalized.size();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double) {
  const auto w = optional(weight), b = optional(bias);
  const auto normalized = C10_AS_INTARRAYREF_SLOW(shape);
  plain({input, w, b});
  auto sizes = input.sizes().vec();
  std::fill(sizes.begin() + static_cast<std::ptrdiff_t>(rows(input, normalized, {w, b})), sizes.end(), 1);
  return {at::empty_like(input), at::empty(sizes, input.options()), at::empty(sizes, input.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input, c10::SymIntArrayRef shape,
                                                                   const at::Tensor& mean, const at::Tensor& rstd, const std::optional<at::Tensor>& weight,
                                                                   const std::optional<at::Tensor>& bias, std::array<bool, 3> wanted) {
  const auto w = optional(weight), b = optional(bias);
  const auto normalized = C10_AS_INTARRAYREF_SLOW(shape);
  plain({input, gradient, mean, rstd, w, b});
  const auto count = input.numel() / c10::multiply_integers(normalized);
  const bool fits = gradient.sizes().equals(input.sizes()) && mean.numel() == count && rstd.numel() == count;
  rows(input, normalized, {w, b});
  TORCH_CHECK_NOT_IMPLEMENTED(fits, "the Meta kernel says what is wrong");
  const auto like = [](bool is, const at::Tensor& t) { return is && t.defined() ? at::empty_like(t) : at::Tensor(); };
  return {like(wanted[0], input), like(wanted[1], w), like(wanted[2], b)};
}

// Buffers are eager's on the CPU, where CUDA has none.
std::tuple<at::Tensor, at::Tensor> log_sigmoid(const at::Tensor& self) {
  plain({self});
  return {at::empty_like(self), at::empty_like(self)};
}

void equal_sizes(const at::Tensor& a, const at::Tensor& b) {
  plain({a, b});
  TORCH_CHECK_NOT_IMPLEMENTED(a.sizes().equals(b.sizes()), "the Meta kernel knows");
}

at::Tensor log_sigmoid_backward(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& buffer) {
  equal_sizes(gradient, self);
  equal_sizes(buffer, self);
  return at::empty_like(self);
}

at::Tensor mse_loss_backward(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  equal_sizes(self, target);
  plain({self, gradient});
  const bool fits = reduction == at::Reduction::None ? gradient.sizes().equals(self.sizes()) : gradient.dim() == 0;
  TORCH_CHECK_NOT_IMPLEMENTED(fits, "the Meta kernel says what is wrong");
  return at::empty_like(self);
}

at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  plain({self});
  return at::meta::amax(self, dim, keepdim);
}

at::Tensor dot(const at::Tensor& self, const at::Tensor& other) {
  equal_sizes(self, other);
  TORCH_CHECK_NOT_IMPLEMENTED(self.dim() == 1, "the Meta kernel says what is wrong");
  return at::empty({}, self.options());
}

at::Tensor mv(const at::Tensor& self, const at::Tensor& vector) {
  plain({vector});
  const bool fits = self.dim() == 2 && vector.dim() == 1 && self.size(1) == vector.size(0) && self.scalar_type() == vector.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(fits, "the Meta kernel says what is wrong");
  return at::empty({self.size(0)}, self.options());
}

// Channels of a batch in training, of which there are `count`.
int64_t channels(const at::Tensor& input, bool train, std::initializer_list<at::Tensor> each) {
  TORCH_CHECK_NOT_IMPLEMENTED(train && input.dim() >= 2 && (input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble),
                              "the Meta kernel knows");
  for (const auto& t : each)
    TORCH_CHECK_NOT_IMPLEMENTED(!t.defined() || (t.dim() == 1 && t.size(0) == input.size(1)), "the Meta kernel says what is wrong");
  return input.size(1);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                                                          const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var, bool train, double,
                                                          double) {
  const auto w = optional(weight), b = optional(bias), m = optional(mean), v = optional(var);
  plain({input, w, b, m, v});
  const auto count = channels(input, train, {w, b, m, v});
  return {at::empty_like(input), at::empty({count}, input.options()), at::empty({count}, input.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm_backward(const at::Tensor& gradient, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                                                   const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var,
                                                                   const std::optional<at::Tensor>& saved_mean, const std::optional<at::Tensor>& saved_scale,
                                                                   bool train, double, std::array<bool, 3> wanted) {
  const auto w = optional(weight), m = optional(mean), v = optional(var), sm = optional(saved_mean), ss = optional(saved_scale);
  equal_sizes(gradient, input);
  plain({input, w, m, v, sm, ss});
  const auto count = channels(input, train, {w, m, v, sm, ss});
  TORCH_CHECK_NOT_IMPLEMENTED(w.defined() && sm.defined() && ss.defined(), "the Meta kernel knows");
  const auto each = [&](bool is) { return is ? at::empty({count}, input.options()) : at::Tensor(); };
  return {wanted[0] ? at::empty_like(input) : at::Tensor(), each(wanted[1]), each(wanted[2])};
}

// Classes of a batch. All else is the Meta kernel's.
void check_classes(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight) {
  const auto w = optional(weight);
  plain({self, w});
  const bool batch = self.is_floating_point() && self.dim() == 2 && target.dim() == 1 && target.scalar_type() == at::kLong;
  TORCH_CHECK_NOT_IMPLEMENTED(batch && self.size(0) == target.size(0) && (!w.defined() || (w.dim() == 1 && w.size(0) == self.size(1))),
                              "the Meta kernel says what is wrong");
}

std::tuple<at::Tensor, at::Tensor> nll_loss(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight, int64_t reduction,
                                            c10::SymInt) {
  check_classes(self, target, weight);
  const auto each = reduction == at::Reduction::None ? target.sizes() : at::IntArrayRef();
  return {at::empty(each, self.options()), at::empty({}, self.options())};
}

at::Tensor nll_loss_backward(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                             int64_t reduction, c10::SymInt, const at::Tensor& total) {
  check_classes(self, target, weight);
  plain({self, total});
  const bool each = reduction == at::Reduction::None;
  const bool fits = each ? gradient.sizes().equals(target.sizes()) : gradient.dim() <= 1 && gradient.numel() == 1;
  TORCH_CHECK_NOT_IMPLEMENTED(fits && gradient.scalar_type() == self.scalar_type() && total.numel() == 1, "the Meta kernel says what is wrong");
  return at::empty_like(self);
}

// As eager's CPU lays out a transform of the last ones of `dims`, which torch's reference knows of CUDA only: from the
// outermost to the innermost what is not transformed, then what is, each as the input has it.
at::Tensor spectrum(const at::Tensor& self, at::DimVector sizes, at::DimVector dims, size_t sorted, at::ScalarType dtype) {
  const auto outer = [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); };
  std::stable_sort(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(sorted), outer);
  at::DimVector order;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (std::ranges::find(dims, d) == dims.end()) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(), outer);
  order.append(dims.begin(), dims.end());
  at::DimVector strides(sizes.size());
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[static_cast<size_t>(*d)] = stride;
    stride *= std::max<int64_t>(sizes[static_cast<size_t>(*d)], 1);
  }
  return at::empty_strided(sizes, strides, self.options().dtype(dtype));
}

at::DimVector known_dims(const at::Tensor& self, at::IntArrayRef dim) {
  at::DimVector dims(dim.begin(), dim.end());
  for (auto& d : dims) d = at::maybe_wrap_dim(d, self.dim());
  const auto real = at::toRealValueType(self.scalar_type());
  const bool precise = real == at::kFloat || real == at::kDouble;
  TORCH_CHECK_NOT_IMPLEMENTED(precise && !dims.empty() && self.numel(), "the Meta kernel says what is wrong");
  return dims;
}

at::Tensor fft_c2c(const at::Tensor& self, c10::SymIntArrayRef dim, int64_t, bool) {
  const auto dims = known_dims(self, C10_AS_INTARRAYREF_SLOW(dim));
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_complex(), "the Meta kernel says what is wrong");
  return spectrum(self, at::DimVector(self.sizes()), dims, dims.size(), self.scalar_type());
}

at::Tensor fft_r2c(const at::Tensor& self, at::IntArrayRef dim, int64_t, bool onesided) {
  const auto dims = known_dims(self, dim);
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "the Meta kernel says what is wrong");
  at::DimVector sizes(self.sizes());
  auto& last = sizes[static_cast<size_t>(dims.back())];
  if (onesided) last = last / 2 + 1;
  return spectrum(self, sizes, dims, dims.size() - 1, at::toComplexType(self.scalar_type()));
}

at::Tensor fft_c2r(const at::Tensor& self, at::IntArrayRef dim, int64_t, c10::SymInt size) {
  auto dims = known_dims(self, dim);
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_complex() && size > 0, "the Meta kernel says what is wrong");
  at::DimVector sizes(self.sizes());
  auto input = self;
  if (dims.size() > 1) {
    const at::DimVector others(dims.begin(), dims.end() - 1);
    input = spectrum(self, sizes, others, others.size(), self.scalar_type());
  }
  sizes[static_cast<size_t>(dims.back())] = size.expect_int();
  return spectrum(input, sizes, {dims.back()}, 1, at::toRealValueType(self.scalar_type()));
}

template <class Signature>
Shape shape(Signature* function, bool any_dtype) {
  return {c10::KernelFunction::makeFromUnboxedRuntimeFunction(function), any_dtype};
}

std::unordered_map<std::string, Shape> table() {
  std::unordered_map<std::string, Shape> rows;
  const auto add = [&rows](const char* name, const char* overload, Shape shape) {
    const std::string plain = name + sizeof "aten::" - 1;
    rows.emplace("aten." + plain + "." + (*overload ? overload : "default"), std::move(shape));
  };
// op: its struct in at::_ops; its signature chooses among the overloads of `function`.
#define ROW(op, function, any_dtype) \
  add(at::_ops::op::name, at::_ops::op::overload_name, shape(static_cast<at::_ops::op::ptr_schema>(&function), any_dtype));
#define FLOATING(op, function) ROW(op, at::meta::function, false)
#define ANY(op, function) ROW(op, at::meta::function, true)

  ANY(add_Tensor, add) ANY(add__Tensor, add_) ANY(sub_Tensor, sub) ANY(sub__Tensor, sub_)
  ANY(mul_Tensor, mul) ANY(mul__Tensor, mul_) ANY(div_Tensor, div) ANY(div__Tensor, div_)
  ANY(maximum, maximum) ANY(minimum, minimum) ANY(pow_Tensor_Scalar, pow) ANY(pow_Tensor_Tensor, pow)
  ANY(eq_Tensor, eq) ANY(ne_Tensor, ne) ANY(lt_Tensor, lt) ANY(le_Tensor, le) ANY(gt_Tensor, gt) ANY(ge_Tensor, ge)
  ANY(eq_Scalar, eq) ANY(ne_Scalar, ne) ANY(lt_Scalar, lt) ANY(le_Scalar, le) ANY(gt_Scalar, gt) ANY(ge_Scalar, ge)
  FLOATING(addcmul, addcmul) FLOATING(addcdiv, addcdiv) FLOATING(lerp_Scalar, lerp) FLOATING(lerp_Tensor, lerp)
  FLOATING(neg, neg) FLOATING(exp, exp) FLOATING(log, log) FLOATING(log1p, log1p) FLOATING(expm1, expm1)
  FLOATING(sqrt, sqrt) FLOATING(rsqrt, rsqrt) FLOATING(reciprocal, reciprocal) FLOATING(sin, sin) FLOATING(cos, cos)
  FLOATING(tanh, tanh) FLOATING(sigmoid, sigmoid) FLOATING(erf, erf) FLOATING(floor, floor) FLOATING(ceil, ceil)
  FLOATING(tanh_backward, tanh_backward) FLOATING(sigmoid_backward, sigmoid_backward)
  ROW(gelu, gelu, false) ROW(gelu_backward, gelu_backward, false) FLOATING(silu, silu) FLOATING(silu_backward, silu_backward)
  FLOATING(elu, elu) FLOATING(leaky_relu, leaky_relu) FLOATING(leaky_relu_backward, leaky_relu_backward)
  FLOATING(softplus, softplus) FLOATING(threshold_backward, threshold_backward) FLOATING(clamp, clamp)
  FLOATING(clamp_min, clamp_min) FLOATING(clamp_max, clamp_max)
  FLOATING(sum_dim_IntList, sum) FLOATING(mean_dim, mean) FLOATING(amax, amax) FLOATING(amin, amin)
  FLOATING(argmax, argmax) FLOATING(argmin, argmin) FLOATING(cumsum, cumsum) FLOATING(topk, topk_symint)
  FLOATING(linalg_vector_norm, linalg_vector_norm)
  FLOATING(mm, mm) FLOATING(bmm, bmm) FLOATING(addmm, addmm) FLOATING(baddbmm, baddbmm)
  FLOATING(_softmax, _softmax) FLOATING(_softmax_backward_data, _softmax_backward_data)
  FLOATING(_log_softmax, _log_softmax) FLOATING(_log_softmax_backward_data, _log_softmax_backward_data)
  ANY(cat, cat) ANY(gather, gather) ANY(triu, triu_symint) ANY(tril, tril_symint)
  ROW(relu, relu, false) ROW(where_self, where, true) ROW(_safe_softmax, safe_softmax, false)
  ROW(_foreach_pow_Scalar, foreach_pow, true) ROW(_foreach_sqrt, foreach_sqrt, false)
  FLOATING(exp_, exp_) FLOATING(sqrt_, sqrt_) FLOATING(neg_, neg_) FLOATING(tanh_, tanh_) FLOATING(sigmoid_, sigmoid_)
  FLOATING(clamp_, clamp_) FLOATING(clamp_min_, clamp_min_) FLOATING(clamp_max_, clamp_max_) FLOATING(addcmul_, addcmul_)
  FLOATING(addcdiv_, addcdiv_) FLOATING(lerp__Scalar, lerp_) FLOATING(lerp__Tensor, lerp_) FLOATING(softplus_backward, softplus_backward)
  FLOATING(cumprod, cumprod) FLOATING(log2, log2) FLOATING(log10, log10) FLOATING(exp2, exp2) FLOATING(atan, atan) FLOATING(tan, tan)
  FLOATING(mse_loss, mse_loss) FLOATING(smooth_l1_loss, smooth_l1_loss) ROW(mse_loss_backward, mse_loss_backward, false)
  ROW(log_sigmoid_forward, log_sigmoid, false) ROW(log_sigmoid_backward, log_sigmoid_backward, false)
  ROW(logsumexp, logsumexp, false) ROW(dot, dot, false) ROW(mv, mv, false)
  ANY(bitwise_and_Tensor, bitwise_and) ANY(bitwise_or_Tensor, bitwise_or)
  // Of which the references compute all weights: 10 ms for a bilinear one, 67 for a bicubic one, at each new size.
  FLOATING(upsample_nearest1d, upsample_nearest1d_symint) FLOATING(upsample_nearest2d, upsample_nearest2d_symint)
  FLOATING(upsample_nearest3d, upsample_nearest3d_symint) FLOATING(upsample_linear1d, upsample_linear1d_symint)
  FLOATING(upsample_bilinear2d, upsample_bilinear2d_symint) FLOATING(upsample_trilinear3d, upsample_trilinear3d_symint)
  FLOATING(upsample_bicubic2d, upsample_bicubic2d_symint)
  // What the optimizers do to all parameters at once: the references take up to 1 ms a parameter.
  ROW(_foreach_add__Scalar, each_, false) ROW(_foreach_add__List, each_, false) ROW(_foreach_mul__Scalar, each_, false)
  ROW(_foreach_mul__List, each_, false) ROW(_foreach_div__List, each_, false) ROW(_foreach_div__ScalarList, each_, false)
  ROW(_foreach_lerp__Scalar, each_, false)
  ROW(_foreach_addcmul__Scalar, each_, false) ROW(_foreach_addcmul__ScalarList, each_, false)
  ROW(_foreach_addcdiv__Scalar, each_, false) ROW(_foreach_addcdiv__ScalarList, each_, false)
  ROW(_foreach_mul__Tensor, each_, false) ROW(_foreach_norm_Scalar, foreach_norm, false)
  // Of which the references take 1 to 2 ms when they run for the first time. benchmarks: first_steps, warm.
  ROW(native_layer_norm, layer_norm, false) ROW(native_layer_norm_backward, layer_norm_backward, false)
  ROW(native_batch_norm, batch_norm, false) ROW(native_batch_norm_backward, batch_norm_backward, false)
  ROW(nll_loss_forward, nll_loss, true) ROW(nll_loss_backward, nll_loss_backward, true)
  ROW(_fft_c2c, fft_c2c, true) ROW(_fft_r2c, fft_r2c, true) ROW(_fft_c2r, fft_c2r, true)
#undef ANY
#undef FLOATING
#undef ROW
  return rows;
}

}  // namespace

const Shape* shape_of(const std::string& name) {
  static const auto* rows = new std::unordered_map<std::string, Shape>(table());  // outlives every static
  const auto found = rows->find(name);
  return found == rows->end() ? nullptr : &found->second;
}

}  // namespace lazy
