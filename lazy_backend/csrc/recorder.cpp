// The recorder: one kernel for every op. Encodes the call (call.cpp), looks its outputs' metadata up (on a miss: runs the
// Meta kernel once), makes the outputs with deferred storage and appends a node to the device's window.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "arguments.h"
#include "call.h"
#include "copy.h"
#include "generator.h"
#include "ops.h"
#include "recorder.h"
#include "refusals.h"
#include "runtime.h"
#include "shapes.h"
#include "stats.h"
#include "stream.h"

namespace lazy {
namespace {

struct OutMeta {
  int alias;  // argument index, or -1 for a fresh tensor
  bool undefined;
  c10::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t list = -1;  // member count of a returned list, on its first member
  std::optional<int64_t> integer = {};  // a result that is a number, known from the shapes
};

struct MetaEntry {
  std::vector<int64_t> code, dims;  // compared on a hit: a hash alone is not proof
  std::vector<OutMeta> outs;
  uint64_t rng_numel = 0;  // what a random op's counters are counted from
};

struct MetaCache {
  std::mutex mutex;
  std::unordered_map<Hash, std::shared_ptr<MetaEntry>, HashHash> entries;
};
MetaCache& meta_cache() {
  static auto* cache = new MetaCache;
  return *cache;
}
// 64 k entries of some 500 bytes: 32 MB at most, then the cache starts anew.
constexpr size_t kMetaCacheEntries = 65536;

at::Tensor meta_of(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != c10::DeviceType::PrivateUse1) return t;
  at::Tensor meta = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
  return meta;
}

// A number on the host too: eager takes it among tensors of any device, some Meta kernels do not.
at::Tensor meta_of_any(const at::Tensor& t) {
  if (!t.defined() || !t.is_cpu() || t.dim()) return meta_of(t);
  at::Tensor meta = at::detail::empty_strided_meta({}, {}, t.scalar_type());
  meta.unsafeGetTensorImpl()->set_wrapped_number(t.unsafeGetTensorImpl()->is_wrapped_number());
  return meta;
}

bool host_number(const c10::IValue& v) { return v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu() && !v.toTensor().dim(); }

OutMeta describe_out(const at::Tensor& t, int alias) {
  if (!t.defined()) return {alias, true, c10::ScalarType::Undefined, {}, {}};
  if (t.layout() != c10::kStrided) refuse_layout("sparse");
  if (c10::isQIntType(t.scalar_type())) refuse_layout("quantized");
  return {alias, false, t.scalar_type(), t.sizes().vec(), t.strides().vec()};
}

bool floating(const c10::IValue& v) {
  if (v.isTensor()) return !v.toTensor().defined() || c10::isFloatingType(v.toTensor().scalar_type());
  return !v.isTensorList() || std::ranges::all_of(v.toTensorVector(), [](const at::Tensor& t) { return c10::isFloatingType(t.scalar_type()); });
}

// Runs the Meta kernel, on the arguments in the stack, for its results.
void run_meta(const OpEntry& op, torch::jit::Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  c10::impl::ExcludeDispatchKeyGuard no_python(c10::DispatchKeySet(c10::DispatchKey::Python) |
                                               c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot));
  constexpr c10::DispatchKeySet meta(c10::DispatchKey::Meta);
  if (op.shape && (op.shape->any_dtype || std::ranges::all_of(stack, floating))) {
    torch::jit::Stack results = stack;
    try {
      op.shape->function.callBoxed(op.handle, meta, &results);
      stack.swap(results);
      return;
    } catch (const c10::Error&) {
      // The Meta kernel says what is wrong, or takes it: a number on the CPU, for one.
    }
  }
  op.handle.redispatchBoxed(meta, &stack);
}

// Runs the Meta kernel. Shape and dtype errors are eager's own, raised here, at the call.
std::shared_ptr<MetaEntry> infer(const OpEntry& op, const c10::IValue* args) {
  stats().meta_misses++;
  torch::jit::Stack stack;
  uint64_t largest = 0;
  for (size_t i = 0; i < op.nargs; ++i)
    if (args[i].isTensor() && args[i].toTensor().defined())
      largest = std::max<uint64_t>(largest, args[i].toTensor().numel());
  const auto run = [&](const auto& meta) {
    stack.clear();
    for (size_t i = 0; i < op.nargs; ++i) stack.push_back(moved(args[i], c10::DeviceType::Meta, meta));
    run_meta(op, stack);
  };
  try {
    run(meta_of);
  } catch (...) {
    if (std::none_of(args, args + op.nargs, host_number)) throw;
    run(meta_of_any);
  }
  auto entry = std::make_shared<MetaEntry>();
  for (size_t r = 0; r < op.nreturns; ++r) {
    const auto& v = stack[stack.size() - op.nreturns + r];
    if (v.isTensorList()) {
      const auto list = v.toTensorVector();
      for (size_t i = 0; i < list.size(); ++i) {
        entry->outs.push_back(describe_out(list[i], op.aliases[r]));
        if (i == 0) entry->outs.back().list = static_cast<int64_t>(list.size());
      }
    } else if (v.isTensor()) {
      entry->outs.push_back(describe_out(v.toTensor(), op.aliases[r]));
    } else if (v.isInt()) {
      entry->outs.push_back({-1, true, c10::ScalarType::Long, {}, {}, -1, v.toInt()});
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(v.isNone(), op.name, " returns something that is no tensor");
    }
  }
  for (const auto& out : entry->outs) {
    uint64_t numel = 1;
    for (int64_t size : out.sizes) numel *= static_cast<uint64_t>(size);
    if (!out.undefined) largest = std::max(largest, numel);
  }
  entry->rng_numel = largest;
  return entry;
}

// What eager says of a call that it refuses. No Meta kernel's error, after which the host is asked.
struct Refused {
  std::exception_ptr error;
};

void refuse_as_eager(const OpEntry& op, const c10::IValue* args) {
  if (!too_lenient(op, args)) return;
  try {
    raise_as_eager(op, args, nullptr);
  } catch (...) {
    throw Refused{std::current_exception()};
  }
}

// What a thread looked up last, by the low bits of its key: without the lock, an op takes 0.03 us less.
constexpr size_t kRecent = 1024;

// The answer lasts until the thread looks up something else.
const std::shared_ptr<MetaEntry>& lookup(const OpEntry& op, const Call& call, Hash key, const c10::IValue* args) {
  thread_local std::vector<std::shared_ptr<MetaEntry>> recent(kRecent);
  const auto same = [&call](const MetaEntry& entry) { return entry.code == call.code && entry.dims == call.dims; };
  auto& mine = recent[key.a % kRecent];
  if (C10_LIKELY(mine && same(*mine))) return mine;
  auto& cache = meta_cache();
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    auto found = cache.entries.find(key);
    if (found != cache.entries.end() && same(*found->second)) return mine = found->second;
  }
  refuse_as_eager(op, args);
  auto entry = infer(op, args);
  entry->code = call.code;
  entry->dims = call.dims;
  std::lock_guard<std::mutex> lock(cache.mutex);
  if (cache.entries.size() >= kMetaCacheEntries) cache.entries.clear();
  cache.entries[key] = entry;
  return mine = entry;
}

// In-place and out= faces: an out tensor of another shape is resized as eager does, what is changed in place is not.
void check_written(const OpEntry& op, const MetaEntry& meta, const c10::IValue* args, bool& resized) {
  for (const auto& out : meta.outs) {
    if (out.alias < 0 || out.undefined || !args[out.alias].isTensor()) continue;
    const auto& target = args[out.alias].toTensor();
    if (!op.fills) at::assert_no_internal_overlap(target);  // one number has no order
    if (!target.sizes().equals(out.sizes)) {
      if (!op.handle.schema().arguments()[static_cast<size_t>(out.alias)].kwarg_only()) raise_as_eager(op, args, nullptr);
      for (size_t i = 0; op.pointwise && i < static_cast<size_t>(out.alias); ++i)  // in place by way of out=
        TORCH_CHECK(!args[i].isTensor() || !args[i].toTensor().is_same(target), "output with shape ", target.sizes(),
                    " doesn't match the broadcast shape ", c10::IntArrayRef(out.sizes));
      at::native::resize_output(target, out.sizes);
      if (!out.strides.empty() && !target.strides().equals(out.strides) && target.is_contiguous())
        target.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes, out.strides);
      resized = true;
    }
  }
  if (!op.pointwise && !op.disjoint && op.overlap == Overlap::kAny) return;
  for (const auto& out : meta.outs) {
    if (out.alias < 0 || !args[out.alias].isTensor()) continue;
    const auto& target = args[out.alias].toTensor();
    if (op.overlap != Overlap::kAny) check_apart(op, target, args, out.alias);
    if (!op.pointwise && !op.disjoint) continue;
    if (op.disjoint && args[0].isTensor()) at::assert_no_overlap(target, args[0].toTensor());
    if (op.disjoint && args[0].isTensorList())
      for (const at::Tensor& operand : args[0].toTensorVector()) at::assert_no_overlap(target, operand);
    for (size_t i = 0; i < op.nargs; ++i)
      if (static_cast<int>(i) != out.alias && args[i].isTensor() && args[i].toTensor().defined() &&
          args[i].toTensor().device() == target.device())
        at::assert_no_partial_overlap(target, args[i].toTensor());
  }
}

void upload_indices(const OpEntry& op, c10::IValue* args) {
  const auto device = args[0].toTensor().device();
  for (size_t i = 1; i < op.nargs; ++i) {
    if (!args[i].isOptionalTensorList()) continue;
    c10::List<std::optional<at::Tensor>> moved;
    bool any = false;
    for (const std::optional<at::Tensor>& t : args[i].toOptionalTensorList()) {
      const bool host = t.has_value() && t->defined() && t->device().is_cpu();
      any |= host;
      moved.push_back(host ? std::optional<at::Tensor>(t->to(device)) : t);
    }
    if (any) args[i] = moved;
  }
}

at::Tensor make_out(Call& call, const OutMeta& out) {
  call.code.push_back(kOut);
  at::Tensor t = make_tensor(call.device, out.dtype, out.sizes, out.strides);
  call.uses.push_back({buffer_of(t), static_cast<uint32_t>(call.code.size()), 0, 0});
  call.code.push_back(kUnpatched);
  call.code.push_back(static_cast<int64_t>(out.dtype));
  call.code.push_back(static_cast<int64_t>(out.sizes.size()));
  call.dims.insert(call.dims.end(), out.sizes.begin(), out.sizes.end());
  call.dims.insert(call.dims.end(), out.strides.begin(), out.strides.end());
  return t;
}

// A view op without a kernel of its own: the Meta kernel says where in the storage it looks.
void record_view(const OpEntry& op, torch::jit::Stack* stack) {
  const auto base = torch::jit::peek(*stack, 0, op.nargs).toTensor();
  torch::jit::Stack metas;
  const auto itemsize = static_cast<int64_t>(base.itemsize());
  at::Tensor flat = at::detail::empty_strided_meta({static_cast<int64_t>(base.storage().nbytes()) / itemsize}, {1},
                                                   base.scalar_type());
  metas.emplace_back(flat.as_strided(base.sizes(), base.strides(), base.storage_offset()));
  for (size_t i = 1; i < op.nargs; ++i) metas.push_back(moved(torch::jit::peek(*stack, i, op.nargs), c10::DeviceType::Meta, meta_of));
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &metas);
  }
  const auto alias = [&](const at::Tensor& meta) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(), meta.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
    return t;
  };
  const auto result = metas.back();
  torch::jit::drop(*stack, op.nargs);
  if (result.isTensorList()) {
    c10::List<at::Tensor> views;
    for (const at::Tensor& meta : result.toTensorList()) views.push_back(alias(meta));
    stack->emplace_back(views);
  } else {
    stack->emplace_back(alias(result.toTensor()));
  }
}

bool is_lazy_view(const c10::IValue& v) {
  return v.isTensor() && v.toTensor().defined() && (v.toTensor().is_conj() || v.toTensor().is_neg());
}

// torch hands conjugate and negative views to matrix products and triangular solves as they are, for libraries that
// read them so. A node knows no such bits: it gets what the view shows, and a view that it writes is written after it.
void record_resolved(const OpEntry& op, torch::jit::Stack* stack) {
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // the view, what is recorded in its place
  c10::IValue* args = stack->data() + (stack->size() - op.nargs);
  for (size_t i = 0; i < op.nargs; ++i) {
    if (!is_lazy_view(args[i])) continue;
    const at::Tensor view = args[i].toTensor(), plain = resolved(view);
    const auto* alias = op.handle.schema().arguments()[i].alias_info();
    if (alias && alias->isWrite()) written.emplace_back(view, plain);
    args[i] = plain;
  }
  record(op.handle, stack);
  for (const auto& [view, plain] : written) {
    view.copy_(plain);
    for (size_t r = 0; r < op.nreturns; ++r) {
      auto& result = torch::jit::peek(*stack, r, op.nreturns);
      if (result.isTensor() && result.toTensor().is_same(plain)) result = view;
    }
  }
}

}  // namespace

void record(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  OpEntry& op = op_entry(handle);
  if (op.view) return record_view(op, stack);
  c10::IValue* args = stack->data() + (stack->size() - op.nargs);
  if (C10_UNLIKELY(std::any_of(args, args + op.nargs, is_lazy_view))) return record_resolved(op, stack);
  if (!op.host.load(std::memory_order_relaxed) && op.host_indices) upload_indices(op, args);
  Results results;
  if (!record_node(op, args, results)) return run_on_host(op, stack);
  for (size_t r = 0; r < op.nreturns; ++r)
    if (op.aliases[r] >= 0) results[r] = std::move(args[op.aliases[r]]);
  torch::jit::drop(*stack, op.nargs);
  for (auto& result : results) stack->push_back(std::move(result));
  if (C10_UNLIKELY(op.awaited)) {
    const int device = torch::jit::peek(*stack, 0, op.nreturns).toTensor().device().index();
    if (!capturing(device)) wait_all(device, Cut::kHostOp);
  }
}

Results record_borrowed(OpEntry& op, c10::IValue* args) {
  Results results;
  const bool plain = std::none_of(args, args + op.nargs, is_lazy_view);
  if (C10_LIKELY(plain && record_node(op, args, results))) return results;
  torch::jit::Stack stack(args, args + op.nargs);
  if (plain) run_on_host(op, &stack);
  else record_resolved(op, &stack);
  results.assign(stack.begin(), stack.end());
  return results;
}

bool record_node(OpEntry& op, c10::IValue* args, Results& results) {
  if (op.host.load(std::memory_order_relaxed)) return false;
  // A Meta kernel written in Python may come back here through another op: keep one Call per depth.
  thread_local std::vector<std::unique_ptr<Call>> calls;
  thread_local size_t depth = 0;
  if (calls.size() <= depth) calls.push_back(std::make_unique<Call>());
  Call& call = *calls[depth++];
  struct Leave {
    ~Leave() { --depth; }
  } leave;
  call.clear();

  encode(call, op, args);
  if (call.device < 0) call.device = resolve_device(-1);

  Keys keys;
  size_t hashed = 0;
  const auto digest = [&] {
    keys = {};
    keys.code.mix(call.code);
    keys.dims.mix(call.dims);
    hashed = call.code.size();
  };
  digest();
  const MetaEntry* meta = nullptr;
  std::shared_ptr<MetaEntry> held;  // to resize a result is to record
  try {
    Hash both = keys.code;
    both.mix(keys.dims);
    const auto& found = lookup(op, call, both, args);
    if (op.mutates) held = found;
    meta = found.get();
  } catch (const Refused& refused) {
    std::rethrow_exception(refused.error);
  } catch (const c10::NotImplementedError&) {
    return false;  // no Meta kernel: the host knows
  } catch (...) {
    // What eager would say: the CPU kernel is asked about tensors of the same metadata. Where it does not
    // mind, the Meta kernel was too strict, and the host serves the call.
    raise_as_eager(op, args, std::current_exception());
    return false;
  }

  if (op.mutates) {
    bool resized = false;
    check_written(op, *meta, args, resized);
    if (resized) {
      const int device = call.device;
      call.clear();
      call.device = device;
      encode(call, op, args);
      digest();
    }
  }
  if (op.divides && divides_by_zero(args)) raise_as_eager(op, args, nullptr);
  if (op.stores && beyond_range(op, args)) raise_as_eager(op, args, nullptr);
  if (op.seeded) {
    if (no_distribution(op, args)) raise_as_eager(op, args, nullptr);
    const at::Generator* generator = nullptr;
    for (size_t i = 0; i < op.nargs; ++i)
      if (args[i].isGenerator()) {
        static thread_local at::Generator held;
        held = args[i].toGenerator();
        generator = &held;
      }
    // One Philox counter makes four 32-bit words: the fixed rule of ops_core (rng_counters).
    const auto [seed, offset] = philox_reserve(generator, call.device, (meta->rng_numel + 3) / 4);
    push_scalar(call, at::Scalar(static_cast<int64_t>(seed)));
    push_scalar(call, at::Scalar(static_cast<int64_t>(offset)));
  }

  const auto make = [&](const OutMeta& out) {
    if (out.undefined) {
      call.code.push_back(kNone);
      return at::Tensor();
    }
    return make_out(call, out);
  };
  for (size_t r = 0, o = 0; r < op.nreturns; ++r) {
    if (o >= meta->outs.size()) {  // an empty list
      results.emplace_back(c10::List<at::Tensor>());
      continue;
    }
    const auto& out = meta->outs[o];
    if (out.alias >= 0) {
      results.emplace_back();
      o += out.list >= 0 ? static_cast<size_t>(out.list) : 1;
    } else if (out.list >= 0) {
      c10::List<at::Tensor> list;
      for (int64_t i = 0; i < out.list; ++i) list.push_back(make(meta->outs[o++]));
      results.emplace_back(list);
    } else {
      at::Tensor made = make(out);
      if (out.integer) results.emplace_back(*out.integer);
      else results.emplace_back(std::move(made));
      ++o;
    }
  }
  keys.code.mix(call.code, hashed);  // what follows from the arguments, but for its sizes
  append(op, call.device, call.code, call.dims, call.uses, call.scalars, keys);
  if (op.counts) count_writes(args[0].toTensorVector());
  return true;
}

void count_writes(const at::TensorList& list) {
  for (const auto& t : list)
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

}  // namespace lazy
