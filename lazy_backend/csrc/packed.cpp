#include "packed.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/_pack_padded_sequence_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_pad_packed_sequence_compositeimplicitautograd_dispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace lazy {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<int64_t> sequence_lengths(const Tensor& batch_sizes, int64_t batch) {
  std::vector<int64_t> lengths(batch, 0);
  const int64_t* sizes = batch_sizes.const_data_ptr<int64_t>();
  for (int64_t step = 0; step < batch_sizes.numel(); ++step)
    for (int64_t b = 0; b < sizes[step]; ++b) ++lengths[b];
  return lengths;
}

Tensor uploaded(const std::vector<int64_t>& numbers, c10::Device device) { return at::tensor(numbers, at::kLong).to(device); }

// As many dims as `like` has beyond its first, of size 1.
Tensor beside(const Tensor& mask, const Tensor& like) {
  std::vector<int64_t> sizes(like.dim(), 1);
  sizes[0] = mask.size(0);
  return mask.view(sizes);
}

struct Padded : torch::autograd::Function<Padded> {  // the places are flat here: (rows, ..) -> (steps * batch, ..)
  static Tensor forward(AutogradContext* ctx, const Tensor& rows, const Tensor& places, const Tensor& sources, const Tensor& padding,
                        const at::Scalar& fill) {
    ctx->save_for_backward({places, sources, padding});
    const Tensor found = rows.index_select(0, sources);
    return found.masked_fill(beside(padding, found), fill);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};

struct Packed : torch::autograd::Function<Packed> {
  static Tensor forward(AutogradContext* ctx, const Tensor& steps, const Tensor& places, const Tensor& sources, const Tensor& padding) {
    ctx->save_for_backward({places, sources, padding});
    return steps.index_select(0, places);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {Padded::apply(grads[0], saved[0], saved[1], saved[2], at::Scalar(0)), Tensor(), Tensor(), Tensor()};
  }
};

variable_list Padded::backward(AutogradContext* ctx, variable_list grads) {
  const auto saved = ctx->get_saved_variables();
  return {Packed::apply(grads[0], saved[0], saved[1], saved[2]), Tensor(), Tensor(), Tensor(), Tensor()};
}

// Neither with forward-mode gradients nor one whose numbers cannot be looked at.
bool is_plain(const Tensor& t) { return !at::isTensorSubclassLike(t) && !t._fw_grad(0).defined(); }

// What is no sequence to pack, torch's composite refuses.
std::tuple<Tensor, Tensor> pack_padded_sequence(const Tensor& input, const Tensor& lengths, bool batch_first) {
  const auto composed = [&] { return at::compositeexplicitautograd::_pack_padded_sequence(input, lengths, batch_first); };
  if (!is_plain(lengths) || !is_plain(input) || !lengths.device().is_cpu() || lengths.scalar_type() != at::kLong || lengths.dim() != 1 || !lengths.numel() || input.dim() < 2)
    return composed();
  const Tensor steps = batch_first ? input.transpose(0, 1) : input, dense = lengths.contiguous();
  const int64_t *begin = dense.const_data_ptr<int64_t>(), *end = begin + dense.numel();
  if (dense.numel() != steps.size(1) || !std::is_sorted(begin, end, std::greater<>()) || end[-1] < 1 || *begin > steps.size(0))
    return composed();
  std::vector<int64_t> sizes(*begin);
  for (int64_t step = 0; step < *begin; ++step) sizes[step] = std::count_if(begin, end, [&](int64_t n) { return n > step; });
  const Tensor batch_sizes = at::tensor(sizes, at::kLong);
  return {packed(steps.narrow(0, 0, *begin), packing(batch_sizes, *begin, input.device())), batch_sizes};
}

std::tuple<Tensor, Tensor> pad_packed_sequence(const Tensor& data, const Tensor& batch_sizes, bool batch_first, const at::Scalar& fill,
                                               int64_t total_length) {
  if (!is_plain(data) || data.dim() < 1 || !are_batch_sizes(batch_sizes, data.size(0)) || (total_length > 0 && total_length < batch_sizes.numel()))
    return at::compositeimplicitautograd::_pad_packed_sequence(data, batch_sizes, batch_first, fill, total_length);
  const Packing made = packing(batch_sizes, std::max(total_length, batch_sizes.numel()), data.device());
  const Tensor steps = padded(data, made, fill);
  return {batch_first ? steps.transpose(0, 1) : steps, at::tensor(sequence_lengths(batch_sizes, made.batch), at::kLong)};
}

void implement_packed(torch::Library& m) {
  m.impl("_pack_padded_sequence", TORCH_FN(pack_padded_sequence));
  m.impl("_pad_packed_sequence", TORCH_FN(pad_packed_sequence));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { implement_packed(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { implement_packed(m); }  // in inference mode

}  // namespace

bool are_batch_sizes(const Tensor& sizes, int64_t rows) {
  if (!is_plain(sizes) || !sizes.device().is_cpu() || sizes.scalar_type() != at::kLong || sizes.dim() != 1 || !sizes.numel() || !sizes.is_contiguous())
    return false;
  const int64_t *begin = sizes.const_data_ptr<int64_t>(), *end = begin + sizes.numel();
  return end[-1] > 0 && std::is_sorted(begin, end, std::greater<>()) && std::accumulate(begin, end, int64_t{0}) == rows;
}

Packing packing(const Tensor& batch_sizes, int64_t steps, c10::Device device) {
  const int64_t* sizes = batch_sizes.const_data_ptr<int64_t>();
  const int64_t batch = sizes[0];
  std::vector<int64_t> places, sources(steps * batch, 0);
  const Tensor padding = at::ones({steps * batch}, at::kBool);
  for (int64_t step = 0; step < batch_sizes.numel(); ++step)
    for (int64_t b = 0; b < sizes[step]; ++b) {
      const int64_t place = step * batch + b;
      sources[place] = static_cast<int64_t>(places.size());
      padding.mutable_data_ptr<bool>()[place] = false;
      places.push_back(place);
    }
  const auto rows = static_cast<int64_t>(places.size());
  return {steps, batch, rows, uploaded(places, device), uploaded(sources, device), padding.to(device)};
}

Tensor padded(const Tensor& rows, const Packing& p, const at::Scalar& fill) {
  const Tensor flat = Padded::apply(rows, p.places, p.sources, p.padding, fill);
  return flat.unflatten(0, {p.steps, p.batch});
}

Tensor packed(const Tensor& steps, const Packing& p) { return Packed::apply(steps.flatten(0, 1), p.places, p.sources, p.padding); }

Tensor mirrored(const Tensor& batch_sizes, const Packing& p) {
  const std::vector<int64_t> lengths = sequence_lengths(batch_sizes, p.batch);
  std::vector<int64_t> places(p.steps * p.batch);
  for (int64_t step = 0; step < p.steps; ++step)
    for (int64_t b = 0; b < p.batch; ++b)
      places[step * p.batch + b] = (step < lengths[b] ? lengths[b] - 1 - step : step) * p.batch + b;
  return uploaded(places, p.places.device());
}

Tensor last_places(const Tensor& batch_sizes, const Packing& p) {
  std::vector<int64_t> places = sequence_lengths(batch_sizes, p.batch);
  for (int64_t b = 0; b < p.batch; ++b) places[b] = (places[b] - 1) * p.batch + b;
  return uploaded(places, p.places.device());
}

}  // namespace lazy
