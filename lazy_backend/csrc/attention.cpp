// Which way scaled_dot_product_attention takes: torch asks a device that has registered a chooser.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace lazy {
namespace {

// Scores of one head from which on attention is recorded as one op, whose kernels keep none of them in memory, as eager's
// keep none. At 128 x 128 forward and backward of (2, 12, 128, 64) take the same processor time either way, 9 and 10 ms,
// so memory decides: the GPT demo peaks at 1.35x eager's with the scores kept. benchmarks/kernels.py `attention`, benchmarks/memory.py.
constexpr int64_t kFewestScores = 1 << 14;

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool, std::optional<double>, bool) {
  const bool plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !query.is_nested() &&
                     !at::areAnyTensorSubclassLike({query, key, value}) && !(mask && at::isTensorSubclassLike(*mask));
  const bool fused = plain && dropout == 0 && query.scalar_type() == at::kFloat && at::globalContext().userEnabledOverrideableSDP() &&
                     query.size(2) * key.size(2) >= kFewestScores;
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

// The op itself too: without a kernel of its own the recorder would take it for something to compute.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", TORCH_FN(choose)); }

}  // namespace
}  // namespace lazy

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &lazy::choose)
}
