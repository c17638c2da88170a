// Which way scaled_dot_product_attention takes: torch asks a device that has registered a chooser.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace lazy {
namespace {

// Attention is recorded as one op. Its kernels keep no scores in memory, as eager's keep none, and are faster than two
// products and a softmax at every length: (8, 4, 16, 32) 63 -> 29 us, with its gradient, causal, 260 -> 169;
// (16, 4, 64, 16) 349 -> 111 and 831 -> 427; (8, 12, 128, 64) 2.2 -> 1.5 ms and 5.3 -> 4.1; one query of (1, 8, 200, 32)
// 34 -> 21 us, of (4, 12, 512, 64) 627 -> 401 (Granite Rapids). But for many queries of so few keys, for which there is
// no kernel (FEWEST_QUERIES in codegen/kernels/attention.py).
constexpr int64_t kFewest = 8;

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool, std::optional<double>, bool gqa) {
  const bool plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !query.is_nested() &&
                     !at::areAnyTensorSubclassLike({query, key, value}) && !(mask && at::isTensorSubclassLike(*mask));
  // What does not fit together is refused by the two products, as eager refuses it.
  const auto shared_by = [&] { return gqa && key.size(1) ? query.size(1) % key.size(1) == 0 : query.size(1) == key.size(1); };
  const bool fits = plain && query.size(3) == key.size(3) && key.size(2) == value.size(2) && key.size(1) == value.size(1) &&
                    query.size(0) == key.size(0) && key.size(0) == value.size(0) && shared_by() &&
                    (!mask || at::is_expandable_to(mask->sizes(), {query.size(0), query.size(1), query.size(2), key.size(2)}));
  const bool fused = fits && dropout == 0 && query.scalar_type() == at::kFloat && at::globalContext().userEnabledOverrideableSDP() &&
                     (query.size(2) < kFewest || key.size(2) >= kFewest);
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

// The op itself too: without a kernel of its own the recorder would take it for something to compute.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", TORCH_FN(choose)); }

}  // namespace
}  // namespace lazy

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &lazy::choose)
}
