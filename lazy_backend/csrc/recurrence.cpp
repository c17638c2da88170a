// Recurrent layers over whole sequences: one op forward and one backward a layer and direction, between products over all steps.
// Packed sequences are padded for it, so that batches of other lengths are the same window.
// torch's composites make an op for each part of each step, and a window as long as the sequence.
#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gru_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_relu_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_compositeimplicitautograd_dispatch.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "driver.h"
#include "packed.h"

namespace lazy {
namespace {

using at::Tensor;
using at::TensorList;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

enum class Kind : int64_t { lstm, gru, rnn_tanh, rnn_relu };

// `gates` columns of blocks as wide as the state in a step's products; `saved` blocks of a step kept for the backward pass.
// The same table in Python, with what the blocks are: ops_core/lowering/recurrence.py.
struct LayerShape {
  const char* name;
  int64_t gates, saved;
};
constexpr LayerShape kShapes[] = {{"lstm", 4, 6}, {"gru", 3, 5}, {"rnn_tanh", 1, 1}, {"rnn_relu", 1, 1}};
const LayerShape& shape_of(Kind kind) { return kShapes[static_cast<int64_t>(kind)]; }

Kind kind_named(c10::string_view name) {
  for (int64_t i = 0; i < 4; ++i)
    if (name == kShapes[i].name) return static_cast<Kind>(i);
  TORCH_CHECK(false, "no recurrent layer is called ", name);
}

OptionalTensor wrapped(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

// gates: (T, B, gates * H), the input's products with their bias; hidden, cell: (B, H); weight: (gates * H, H); bias: (gates * H).
// Returns the states after each step (T, B, H), what the backward pass needs (T, B, saved * H), the last cell state (lstm only).
constexpr const char* kForward =
    "recurrence(Tensor gates, Tensor hidden, Tensor? cell, Tensor weight, Tensor? bias, str kind, bool reverse) -> (Tensor, Tensor, Tensor)";
// Returns the gradients of the input's products, of the state's where these are others (gru), and what the step before the first
// would get besides the latter's product with the weight: the gradient of the cell state, or a part of the hidden state's (gru).
constexpr const char* kBackward =
    "recurrence_backward(Tensor grad, Tensor? grad_cell, Tensor saved, Tensor weight, str kind, bool reverse) -> (Tensor, Tensor, Tensor)";

Triple forward_meta(const Tensor& gates, const Tensor& hidden, const OptionalTensor& cell, const Tensor&, const OptionalTensor&,
                    c10::string_view kind, bool) {
  const auto steps = gates.sym_size(0), batch = gates.sym_size(1), size = hidden.sym_size(1);
  return {at::empty_symint({steps, batch, size}, gates.options()),
          at::empty_symint({steps, batch, size * shape_of(kind_named(kind)).saved}, gates.options()),
          cell ? at::empty_symint({batch, size}, gates.options()) : Tensor()};
}

Triple backward_meta(const Tensor& grad, const OptionalTensor&, const Tensor&, const Tensor&, c10::string_view name, bool) {
  const auto kind = kind_named(name);
  const auto steps = grad.sym_size(0), batch = grad.sym_size(1), size = grad.sym_size(2);
  const auto gates = [&] { return at::empty_symint({steps, batch, size * shape_of(kind).gates}, grad.options()); };
  const bool carries = kind == Kind::lstm || kind == Kind::gru;
  return {gates(), kind == Kind::gru ? gates() : Tensor(),
          carries ? at::empty_symint({batch, size}, grad.options()) : Tensor()};
}

Triple recurrence(const Tensor& gates, const Tensor& hidden, const OptionalTensor& cell, const Tensor& weight,
                  const OptionalTensor& bias, c10::string_view kind, bool reverse) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy_backend::recurrence", "")
                             .typed<Triple(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const OptionalTensor&,
                                           c10::string_view, bool)>();
  return op.call(gates, hidden, cell, weight, bias, kind, reverse);
}

Triple recurrence_backward(const Tensor& grad, const OptionalTensor& grad_cell, const Tensor& saved, const Tensor& weight,
                           c10::string_view kind, bool reverse) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy_backend::recurrence_backward", "")
                             .typed<Triple(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, c10::string_view, bool)>();
  return op.call(grad, grad_cell, saved, weight, kind, reverse);
}

// Arguments of a layer stack as torch's ops have them; hx: one state, or two for an LSTM; batch_sizes: of a packed sequence, or null.
struct Stack {
  Kind kind;
  const Tensor& input;
  TensorList hx, params;
  bool biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;
  const Tensor* batch_sizes = nullptr;
};

// torch's own composites. Those of one state leave the third result undefined.
Triple composed(const Stack& s) {
  namespace torchs = at::compositeimplicitautograd;
  const auto one = [&](auto composite) {
    auto [out, hidden] = s.batch_sizes
                             ? composite(s.input, *s.batch_sizes, s.hx[0], s.params, s.biases, s.layers, s.dropout, s.train, s.bidirectional)
                             : composite(s.input, s.hx[0], s.params, s.biases, s.layers, s.dropout, s.train, s.bidirectional, s.batch_first);
    return Triple{out, hidden, Tensor()};
  };
  switch (s.kind) {
    case Kind::lstm:
      return s.batch_sizes
                 ? torchs::lstm(s.input, *s.batch_sizes, s.hx, s.params, s.biases, s.layers, s.dropout, s.train, s.bidirectional)
                 : torchs::lstm(s.input, s.hx, s.params, s.biases, s.layers, s.dropout, s.train, s.bidirectional, s.batch_first);
    case Kind::gru:
      return one([](const auto&... args) { return torchs::gru(args...); });
    case Kind::rnn_tanh:
      return one([](const auto&... args) { return torchs::rnn_tanh(args...); });
    default:
      return one([](const auto&... args) { return torchs::rnn_relu(args...); });
  }
}

Tensor rows(const Tensor& steps) { return steps.reshape({steps.size(0) * steps.size(1), steps.size(2)}); }

// Products of an LSTM's steps that no sequence has, `padding` (T, B, 1): i is 0 and f is 1, so the cell state stays as it was and
// the products get no gradient. exp(kSure) is infinite.
constexpr double kSure = 1e4;
Tensor held(const Tensor& gates, const Tensor& padding) {
  const int64_t size = gates.size(2) / 4;
  const Tensor closed = at::full({size}, -kSure, gates.options()), rest = at::zeros({2 * size}, gates.options());
  return at::where(padding, at::cat({closed, closed.neg(), rest}), gates);
}

// One layer in one direction: (T, B, I) -> the states (T, B, H), and for an LSTM its last cell state, each sequence's where there is
// `padding`.
struct Layer : torch::autograd::Function<Layer> {
  enum Input { kInput, kHidden, kCell, kInputWeight, kWeight, kInputBias, kBias, kInputs, kArguments = kInputs + 3 };

  static variable_list forward(AutogradContext* ctx, const Tensor& input, const Tensor& hidden, const OptionalTensor& cell,
                               const Tensor& input_weight, const Tensor& weight, const OptionalTensor& input_bias,
                               const OptionalTensor& bias, int64_t kind, bool reverse, const OptionalTensor& padding) {
    const Tensor made = products(input, input_weight, input_bias), gates = padding ? held(made, *padding) : made;
    auto [out, saved, last] = recurrence(gates, hidden, cell, weight, bias, kShapes[kind].name, reverse);
    if (padding) ctx->saved_data["padding"] = *padding;
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["reverse"] = reverse;
    ctx->save_for_backward({input, hidden, cell.value_or(Tensor()), input_weight, weight, input_bias.value_or(Tensor()),
                            bias.value_or(Tensor()), out, saved});
    return last.defined() ? variable_list{out, last} : variable_list{out};
  }

  // The input's products of all steps (T, B, gates * H).
  static Tensor products(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
    const Tensor x = rows(input), w = weight.t();
    return (bias ? at::addmm(*bias, x, w) : at::mm(x, w)).view({input.size(0), input.size(1), -1});
  }

  // Inputs that are given have edges, in their order.
  static bool wanted(AutogradContext* ctx, const variable_list& all, int64_t input) {
    const auto edge = std::count_if(all.begin(), all.begin() + input, [](const Tensor& t) { return t.defined(); });
    return all[input].defined() && ctx->needs_input_grad(edge);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kind = static_cast<Kind>(ctx->saved_data["kind"].toInt());
    const bool reverse = ctx->saved_data["reverse"].toBool();
    const variable_list all = ctx->get_saved_variables();
    if (at::GradMode::is_enabled()) return composed_backward(ctx, kind, reverse, all, grads);
    const Tensor &out = all[kInputs], &saved = all[kInputs + 1], &hidden = all[kHidden], &weight = all[kWeight];
    const Tensor grad = grads[0].defined() ? grads[0] : at::zeros_like(out);
    const auto grad_cell = kind == Kind::lstm ? wrapped(grads[1]) : std::nullopt;
    auto [gates, hidden_gates, carry] = recurrence_backward(grad, grad_cell, saved, weight, shape_of(kind).name, reverse);
    if (!hidden_gates.defined()) hidden_gates = gates;

    variable_list result(kArguments);
    const auto wants = [&](Input i) { return wanted(ctx, all, i); };
    const Tensor flat = rows(gates), hidden_flat = rows(hidden_gates);
    if (wants(kInput)) result[kInput] = at::mm(flat, all[kInputWeight]).view(all[kInput].sizes());
    if (wants(kInputWeight)) result[kInputWeight] = at::mm(flat.t(), rows(all[kInput]));
    if (wants(kInputBias)) result[kInputBias] = flat.sum(0);
    if (wants(kBias)) result[kBias] = hidden_flat.sum(0);
    const int64_t last = out.size(0) - 1;
    if (wants(kWeight)) {
      const Tensor start = hidden.unsqueeze(0);
      const Tensor before = reverse ? at::cat({out.narrow(0, 1, last), start}) : at::cat({start, out.narrow(0, 0, last)});
      result[kWeight] = at::mm(hidden_flat.t(), rows(before));
    }
    if (wants(kHidden)) {
      const Tensor first = at::mm(hidden_gates.select(0, reverse ? last : 0), weight);
      result[kHidden] = kind == Kind::gru ? first + carry : first;
    }
    if (wants(kCell)) result[kCell] = carry;
    return result;
  }

  // Gradients that can be differentiated again: those of torch's composite. Aliases, since an input may depend on another.
  static variable_list composed_backward(AutogradContext* ctx, Kind kind, bool reverse, const variable_list& all,
                                         const variable_list& grads) {
    variable_list inputs(kInputs), targets;
    std::vector<int64_t> places;
    for (int64_t i = 0; i < kInputs; ++i) {
      if (!all[i].defined()) continue;
      inputs[i] = all[i].view_as(all[i]);
      if (!wanted(ctx, all, i)) continue;
      targets.push_back(inputs[i]);
      places.push_back(i);
    }
    variable_list hx{inputs[kHidden].unsqueeze(0)}, params{inputs[kInputWeight], inputs[kWeight]};
    if (kind == Kind::lstm) hx.push_back(inputs[kCell].unsqueeze(0));
    const bool biases = inputs[kBias].defined();
    if (biases) params.insert(params.end(), {inputs[kInputBias], inputs[kBias]});
    Tensor input = reverse ? inputs[kInput].flip(0) : inputs[kInput];
    if (const auto padding = ctx->saved_data.find("padding"); padding != ctx->saved_data.end()) {
      input = held(products(input, inputs[kInputWeight], wrapped(inputs[kInputBias])), padding->second.toTensor());
      params[0] = at::eye(input.size(2), input.options());
      if (biases) params[2] = at::zeros_like(inputs[kInputBias]);
    }
    const auto [out, hidden, cell] = composed({kind, input, hx, params, biases, 1, 0.0, false, false, false});
    variable_list results, from;
    if (grads[0].defined()) {
      results.push_back(reverse ? out.flip(0) : out);
      from.push_back(grads[0]);
    }
    if (kind == Kind::lstm && grads[1].defined()) {
      results.push_back(cell.squeeze(0));
      from.push_back(grads[1]);
    }
    variable_list result(kArguments);
    const auto found = torch::autograd::grad(results, targets, from, true, true, true);
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = found[i];
    return result;
  }
};

// Whether all tensors are plain ones of one floating dtype and device, of the sizes that torch's checks want. What is not,
// its composites compute or refuse: projections, subclasses, forward-mode gradients, autocast.
bool plain(const Stack& s) {
  const int64_t directions = s.bidirectional ? 2 : 1, states = s.kind == Kind::lstm ? 2 : 1, each = s.biases ? 4 : 2;
  const auto fits = [&](const Tensor& t) {
    return t.defined() && t.device() == s.input.device() && t.scalar_type() == s.input.scalar_type() && t.layout() == at::kStrided &&
           !at::isTensorSubclassLike(t) && !t._fw_grad(0).defined();
  };
  const auto all = [&](TensorList tensors) { return std::all_of(tensors.begin(), tensors.end(), fits); };
  if (s.input.dim() != 3 || !s.input.numel() || !at::isFloatingType(s.input.scalar_type()) || !fits(s.input) ||
      static_cast<int64_t>(s.hx.size()) != states || static_cast<int64_t>(s.params.size()) != s.layers * directions * each ||
      s.layers < 1 || !all(s.hx) || !all(s.params) || at::autocast::is_autocast_enabled(at::kPrivateUse1))
    return false;
  const int64_t size = s.hx[0].size(-1), batch = s.input.size(s.batch_first ? 0 : 1), wide = shape_of(s.kind).gates * size;
  for (const Tensor& state : s.hx)
    if (state.sizes() != at::IntArrayRef{s.layers * directions, batch, size}) return false;
  for (size_t i = 0; i < s.params.size(); i += each) {
    const bool first = static_cast<int64_t>(i) < directions * each;
    const int64_t width = first ? s.input.size(2) : directions * size;
    if (s.params[i].sizes() != at::IntArrayRef{wide, width} || s.params[i + 1].sizes() != at::IntArrayRef{wide, size}) return false;
    if (s.biases && (s.params[i + 2].sizes() != at::IntArrayRef{wide} || s.params[i + 3].sizes() != at::IntArrayRef{wide})) return false;
  }
  return size > 0;
}

// What the layers look up in a packed sequence that has been padded. One direction needs no reversal.
struct Order {
  Tensor mirrored, last;
  OptionalTensor padding;
};

// All layers over (T, B, I), time first. With an `order` the sequences end at different steps: each is turned round by itself, and its
// states are those of its last step.
Triple run_layers(const Stack& s, Tensor x, const Order* order) {
  const int64_t directions = s.bidirectional ? 2 : 1, each = s.biases ? 4 : 2;
  const auto looked_up = [](const Tensor& steps, const Tensor& places) { return steps.flatten(0, 1).index_select(0, places); };
  const auto turned = [&](const Tensor& steps) { return looked_up(steps, order->mirrored).view_as(steps); };
  variable_list hidden, cells;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    variable_list outs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t n = layer * directions + direction;
      const Tensor* p = &s.params[n * each];
      const bool turn = order && direction == 1;
      const auto made =
          Layer::apply(turn ? turned(x) : x, s.hx[0].select(0, n), s.kind == Kind::lstm ? OptionalTensor(s.hx[1].select(0, n)) : std::nullopt,
                       p[0], p[1], s.biases ? OptionalTensor(p[2]) : std::nullopt, s.biases ? OptionalTensor(p[3]) : std::nullopt,
                       static_cast<int64_t>(s.kind), direction == 1 && !order, order ? order->padding : std::nullopt);
      outs.push_back(turn ? turned(made[0]) : made[0]);
      hidden.push_back(order ? looked_up(made[0], order->last) : made[0].select(0, direction ? 0 : x.size(0) - 1));
      if (s.kind == Kind::lstm) cells.push_back(made[1]);
    }
    x = directions == 2 ? at::cat(outs, 2) : outs[0];
    if (s.train && s.dropout != 0 && layer + 1 < s.layers) x = at::dropout(x, s.dropout, true);
  }
  return {x, at::stack(hidden), cells.empty() ? Tensor() : at::stack(cells)};
}

// Bytes of weight up to which a work-group that walks all steps reads the whole of it in each. An H200, 48 steps of an LSTM, a row
// a group, forward and training, ms, walked / a step at a time / cuDNN: of 256 KiB 0.38, 0.98 / 1.5, 4.7 / 0.31, 1.6; of 1 MiB 1.0,
// 2.3 / 1.6, 5.1 / 1.0, 3.5; of 4 MiB 2.8, 9.1 / 1.7, 7.2 / 0.9, 3.5; of 16 MiB 11, 28 / 3.8, 10 / 1.7, 3.5.
constexpr int64_t kWalkedWeight = 2 << 20;

// Whether a device has one kernel for all steps: with the steps written out a window takes longer to plan than torch's composite.
// What such a kernel needs of a device that is no CPU: codegen/kernels/recurrence_groups.py, `fits`, for any weight of these bytes.
bool walks(const Stack& s) {
  if (s.hx.empty() || !s.hx[0].dim()) return false;
  const lazy_properties& props = device(s.input.device().index()).props;
  const int64_t size = s.hx[0].size(-1), itemsize = std::max<int64_t>(4, s.input.element_size());
  return props.is_cpu || (props.local_memory_bytes >= (24 << 10) && shape_of(s.kind).gates * size * size * itemsize <= kWalkedWeight);
}

// All layers, as torch's composites have them.
Triple run(const Stack& s) {
  if (!plain(s) || !walks(s)) return composed(s);
  auto [out, hidden, cell] = run_layers(s, s.batch_first ? s.input.transpose(0, 1) : s.input, nullptr);
  return {s.batch_first ? out.transpose(0, 1) : out, hidden, cell};
}

// So many times the rows of a packed sequence are computed at most, rather than an op for each part of each step.
constexpr int64_t kMostPadding = 8;

Triple run_packed(const Stack& s) {
  if (s.input.dim() != 2 || !are_batch_sizes(*s.batch_sizes, s.input.size(0)) || !walks(s)) return composed(s);
  const int64_t steps = s.batch_sizes->numel(), batch = *s.batch_sizes->const_data_ptr<int64_t>();
  if (steps * batch > kMostPadding * s.input.size(0)) return composed(s);
  const Packing made = packing(*s.batch_sizes, steps, s.input.device());
  const Tensor input = padded(s.input, made);
  const Stack whole{s.kind, input, s.hx, s.params, s.biases, s.layers, s.dropout, s.train, s.bidirectional, false};
  if (!plain(whole)) return composed(s);
  const Order order{s.bidirectional ? mirrored(*s.batch_sizes, made) : Tensor(), last_places(*s.batch_sizes, made),
                    s.kind == Kind::lstm ? OptionalTensor(made.padding.view({steps, batch, 1})) : std::nullopt};
  auto [out, hidden, cell] = run_layers(whole, input, &order);
  return {packed(out, made), hidden, cell};
}

Triple lstm(const Tensor& input, TensorList hx, TensorList params, bool biases, int64_t layers, double dropout, bool train,
            bool bidirectional, bool batch_first) {
  return run({Kind::lstm, input, hx, params, biases, layers, dropout, train, bidirectional, batch_first});
}

Triple packed_lstm(const Tensor& data, const Tensor& batch_sizes, TensorList hx, TensorList params, bool biases, int64_t layers,
                   double dropout, bool train, bool bidirectional) {
  return run_packed({Kind::lstm, data, hx, params, biases, layers, dropout, train, bidirectional, false, &batch_sizes});
}

template <Kind kind>
std::tuple<Tensor, Tensor> one_state(const Tensor& input, const Tensor& hx, TensorList params, bool biases, int64_t layers,
                                     double dropout, bool train, bool bidirectional, bool batch_first) {
  auto [out, hidden, _] = run({kind, input, hx, params, biases, layers, dropout, train, bidirectional, batch_first});
  return {out, hidden};
}

template <Kind kind>
std::tuple<Tensor, Tensor> packed_one_state(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx, TensorList params, bool biases,
                                            int64_t layers, double dropout, bool train, bool bidirectional) {
  auto [out, hidden, _] = run_packed({kind, data, hx, params, biases, layers, dropout, train, bidirectional, false, &batch_sizes});
  return {out, hidden};
}

void implement_layers(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(lstm));
  m.impl("gru.input", TORCH_FN(one_state<Kind::gru>));
  m.impl("rnn_tanh.input", TORCH_FN(one_state<Kind::rnn_tanh>));
  m.impl("rnn_relu.input", TORCH_FN(one_state<Kind::rnn_relu>));
  m.impl("lstm.data", TORCH_FN(packed_lstm));
  m.impl("gru.data", TORCH_FN(packed_one_state<Kind::gru>));
  m.impl("rnn_tanh.data", TORCH_FN(packed_one_state<Kind::rnn_tanh>));
  m.impl("rnn_relu.data", TORCH_FN(packed_one_state<Kind::rnn_relu>));
}

TORCH_LIBRARY(lazy_backend, m) {
  m.def(kForward);
  m.def(kBackward);
}
TORCH_LIBRARY_IMPL(lazy_backend, Meta, m) {
  m.impl("recurrence", TORCH_FN(forward_meta));
  m.impl("recurrence_backward", TORCH_FN(backward_meta));
}
TORCH_LIBRARY_IMPL(lazy_backend, Autograd, m) {  // `Layer` has their gradients
  m.impl("recurrence", torch::CppFunction::makeFallthrough());
  m.impl("recurrence_backward", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { implement_layers(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { implement_layers(m); }  // in inference mode

}  // namespace
}  // namespace lazy
