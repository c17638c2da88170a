// Ops that torch has for devices only: what the host computes in their place while a window's kernels are being built.
// In a library of their own: as aten's CPU kernels they would be ops that torch's CPU has.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace lazy {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  const int64_t bias[] = {transposed ? weight.size(1) * groups : weight.size(0)};
  return at::convolution_backward(grad, input, weight, IntArrayRef(bias), stride, padding, dilation, transposed, output_padding,
                                  groups, mask);
}

// Without dropout: with it the op draws, and the window's kernel does so. Its statistics are the device op's, (B, H, L).
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias, double dropout, bool causal, bool,
    std::optional<double> scale) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, bias, scale);
  return {out, logsumexp, {}, {}, query.sym_size(2), key.sym_size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                              const Tensor& value, const Tensor& bias, std::array<bool, 4>,
                                                              const Tensor& out, const Tensor& logsumexp, const Tensor&,
                                                              const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal,
                                                              const Tensor&, const Tensor&, std::optional<double> scale) {
  const auto mask = bias.defined() ? OptionalTensor(bias) : std::nullopt;
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, value, out, logsumexp, dropout,
                                                                            causal, mask, scale);
  return {q, k, v, {}};
}

TORCH_LIBRARY(lazy_host, m) {
  m.def("convolution_overrideable", TORCH_FN(convolution));
  m.def("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.def("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
  m.def("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attention_backward));
}

}  // namespace
}  // namespace lazy
