// The CPU fallback: an op runs on CPU tensors that look at the lazy arguments' memory, zero-copy
// where the driver's memory is host visible, through copies of the whole storage where it is not.
#include "host_step.h"

#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "arguments.h"
#include "call.h"
#include "causes.h"
#include "executor.h"
#include "runtime.h"
#include "copy.h"
#include "stream.h"
#include "stats.h"

namespace lazy {
namespace {

// Host images of buffers for the time of one op.
class HostImages {
 public:
  at::Tensor view(Buffer* buffer, c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
    auto& image = images_[buffer];
    if (!image.defined()) image = make_image(buffer);
    auto typed = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(image.storage()),
                                                          c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                          c10::scalarTypeToTypeMeta(dtype));
    typed.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return typed;
  }

  // Copies back what may have changed, where memory is not shared.
  void write_back(Buffer* buffer) {
    Device& d = device(buffer->device);
    if (!d.props.host_visible && buffer->nbytes)
      d.copy_h2d(buffer->block->mem, buffer->block->offset, images_.at(buffer).data_ptr(), buffer->nbytes, true);
  }

  // The lazy buffer whose image `storage` is, or null.
  Buffer* owner(const c10::StorageImpl* storage) const {
    for (const auto& [buffer, image] : images_)
      if (image.storage().unsafeGetStorageImpl() == storage) return buffer;
    return nullptr;
  }

 private:
  static at::Tensor make_image(Buffer* buffer) {
    buffer->allocate();
    Device& d = device(buffer->device);
    const auto options = at::TensorOptions().dtype(at::kByte);
    const auto n = static_cast<int64_t>(buffer->nbytes);
    stats().host_bytes += buffer->nbytes;
    if (d.props.host_visible) {
      auto keep = BufferPtr::reclaim_copy(buffer);
      return at::from_blob(buffer->block->host, {n}, [keep](void*) {}, options);
    }
    auto image = at::empty({n}, options);
    if (n) d.copy_d2h(image.data_ptr(), buffer->block->mem, buffer->block->offset, buffer->nbytes, true);
    return image;
  }

  std::map<Buffer*, at::Tensor> images_;
};

struct Cursor {
  const int64_t* code;
  const int64_t* dims;
  const uint64_t* scalars;
};

c10::IValue read_scalar(Cursor& c) {
  const int64_t kind = *c.code++;
  const uint64_t bits = *c.scalars++;
  double d;
  std::memcpy(&d, &bits, 8);
  switch (kind) {
    case kF64: return d;
    case kI64: return static_cast<int64_t>(bits);
    case kB1: return bits != 0;
    default: {
      double imaginary;
      std::memcpy(&imaginary, c.scalars++, 8);
      return c10::complex<double>(d, imaginary);
    }
  }
}

at::Tensor read_tensor(Cursor& c, const Window& w, HostImages& images) {
  const auto slot = static_cast<size_t>(*c.code++);
  Buffer* buffer = w.slots[slot].get();
  const auto dtype = static_cast<c10::ScalarType>(*c.code++);
  const auto rank = static_cast<size_t>(*c.code++);
  ++c.code;  // flags
  const at::IntArrayRef sizes(c.dims, rank), strides(c.dims + rank, rank);
  const int64_t offset = c.dims[2 * rank] + static_cast<int64_t>(w.parts[slot].first / c10::elementSize(dtype));
  c.dims += 2 * rank + 1;
  return images.view(buffer, dtype, sizes, strides, offset);
}

c10::IValue read_value(Cursor& c, const Window& w, HostImages& images, const c10::Type& declared) {
  const c10::Type& type = declared.kind() == c10::TypeKind::OptionalType ? *declared.containedType(0) : declared;
  switch (*c.code++) {
    case kNone: return type.kind() == c10::TypeKind::TensorType && &type == &declared ? c10::IValue(at::Tensor()) : c10::IValue();
    case kTensor: return read_tensor(c, w, images);
    case kHostScalar: {
      const auto dtype = static_cast<c10::ScalarType>(*c.code++);
      const bool wrapped = *c.code++;
      ++c.code;  // the kScalar tag
      auto t = at::scalar_tensor(read_scalar(c).toScalar(), at::TensorOptions().dtype(dtype));
      t.unsafeGetTensorImpl()->set_wrapped_number(wrapped);
      return t;
    }
    case kScalar: return read_scalar(c);
    case kInt: return *c.dims++;
    case kBool: return *c.code++ != 0;
    case kDouble: {
      double d;
      std::memcpy(&d, c.code++, 8);
      return d;
    }
    case kString: return interned_string(*c.code++);
    case kDtype: return *c.code++;
    case kDevice: ++c.code; return c10::Device(c10::DeviceType::CPU);
    case kList: {
      const int64_t n = *c.code++;
      const c10::Type& element = *type.containedType(0);
      auto list = c10::impl::GenericList(type.containedType(0));
      for (int64_t i = 0; i < n; ++i) list.push_back(read_value(c, w, images, element));
      if (element.kind() == c10::TypeKind::TensorType) return c10::impl::toTypedList<at::Tensor>(list);
      if (element.kind() == c10::TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> tensors;
        for (const c10::IValue& v : list) tensors.push_back(v.isNone() ? std::nullopt : std::optional<at::Tensor>(v.toTensor()));
        return tensors;
      }
      if (element.kind() == c10::TypeKind::IntType || element.kind() == c10::TypeKind::SymIntType) {
        c10::List<int64_t> ints;
        for (const c10::IValue& v : list) ints.push_back(v.toInt());
        return ints;
      }
      if (element.kind() == c10::TypeKind::BoolType) {
        c10::List<bool> bools;
        for (const c10::IValue& v : list) bools.push_back(v.toBool());
        return bools;
      }
      if (element.kind() == c10::TypeKind::FloatType) {
        c10::List<double> doubles;
        for (const c10::IValue& v : list) doubles.push_back(v.toDouble());
        return doubles;
      }
      return list;
    }
    default: TORCH_INTERNAL_ASSERT(false, "unknown tag in a window");
  }
}

void call_cpu(const OpEntry& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  op.stand_in.value_or(op.handle).callBoxed(stack);
}

// The face of an op that writes its results into tensors it is given, where the CPU has a kernel for it: the same
// arguments, then one for each result.
std::optional<c10::OperatorHandle> find_out_face(const OpEntry& op) {
  if (op.stand_in || op.mutates || op.view) return {};
  using Overloads = std::unordered_map<std::string, std::vector<c10::OperatorName>>;
  static const Overloads overloads = [] {
    Overloads found;
    for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) found[name.name].push_back(name);
    return found;
  }();
  const auto& schema = op.handle.schema();
  const auto named = overloads.find(schema.name());
  if (named == overloads.end()) return {};
  for (const auto& result : schema.returns())
    if (*result.real_type() != *c10::TensorType::get()) return {};
  // Losses take their out= tensor for one of the operands' size, and resize it, before they reduce.
  for (const auto& argument : schema.arguments())
    if (argument.name() == "reduction") return {};
  for (const auto& name : named->second) {
    const auto face = c10::Dispatcher::singleton().findOp(name);
    if (!face || !face->hasSchema() || !face->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const auto& arguments = face->schema().arguments();
    if (arguments.size() != op.nargs + op.nreturns) continue;
    bool same = true;
    for (size_t i = 0; i < arguments.size() && same; ++i) {
      const bool written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
      same = written == (i >= op.nargs);
      if (i < op.nargs) {
        const auto& other = schema.arguments()[i];
        same = same && arguments[i].name() == other.name() && *arguments[i].real_type() == *other.real_type();
      }
    }
    if (same) return face;
  }
  return {};
}

const std::optional<c10::OperatorHandle>& out_face(const OpEntry& op) {
  static std::mutex mutex;
  static std::unordered_map<uint32_t, std::optional<c10::OperatorHandle>> faces;  // by the op's id
  std::lock_guard<std::mutex> lock(mutex);
  const auto [found, fresh] = faces.try_emplace(op.id);
  if (fresh) found->second = find_out_face(op);
  return found->second;
}

bool lazy_tensor_value(const at::Tensor& t) { return t.defined() && t.device().is_privateuseone(); }

// An empty out= tensor: the host op gets one of its own that it may resize.
bool fresh_out(const at::Tensor& t) { return lazy_tensor_value(t) && t.dim() == 1 && t.numel() == 0; }

at::Tensor alias_of(const at::Tensor& base, const at::Tensor& like) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(), like.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return view;
}

}  // namespace

void run_host_step(const Window& window, uint32_t index, bool fallback) {
  const Node& node = window.nodes[index];
  const OpEntry& op = *node.op;
  HostImages images;
  Cursor c{window.code.data() + node.code + 1, window.dims.data() + node.dims, window.scalars.data() + node.scalars};
  torch::jit::Stack stack;
  for (const auto& argument : op.handle.schema().arguments())
    stack.push_back(read_value(c, window, images, *argument.real_type()));
  std::vector<Buffer*> written;
  for (size_t i = 0; i < op.nargs; ++i) {
    const auto* alias = op.handle.schema().arguments()[i].alias_info();
    if (!alias || !alias->isWrite()) continue;
    const auto note = [&](const at::Tensor& t) { written.push_back(images.owner(t.storage().unsafeGetStorageImpl())); };
    if (stack[i].isTensor()) note(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& t : stack[i].toTensorList()) note(t);
  }
  if (op.seeded) c.code += 4, c.scalars += 2;  // seed and offset: the host draws from its own generator
  const auto out = [&]() -> at::Tensor {  // undefined where the window has no such result
    if (*c.code++ != kOut) return {};
    Buffer* buffer = window.slots[static_cast<size_t>(*c.code++)].get();
    const auto dtype = static_cast<c10::ScalarType>(*c.code++);
    const auto rank = static_cast<size_t>(*c.code++);
    const int64_t* sizes = std::exchange(c.dims, c.dims + 2 * rank);
    written.push_back(buffer);
    return images.view(buffer, dtype, {sizes, rank}, {sizes + rank, rank}, 0);
  };
  std::vector<at::Tensor> results;
  const auto& face = out_face(op);
  if (face) {
    for (size_t r = 0; r < op.nreturns; ++r) results.push_back(out());
  }
  const bool in_place = face && std::all_of(results.begin(), results.end(), [](const auto& t) { return t.defined(); });
  try {
    if (in_place) {
      for (const at::Tensor& result : results) stack.emplace_back(alias_of(result, result));
      const torch::jit::Stack given(stack.end() - static_cast<ptrdiff_t>(op.nreturns), stack.end());
      at::AutoDispatchBelowADInplaceOrView guard;
      face->callBoxed(&stack);
      // Some kernels lay their out= tensor out anew: max_unpool2d as its input, if that is channels-last.
      for (size_t r = 0; r < op.nreturns; ++r)
        if (!given[r].toTensor().strides().equals(results[r].strides())) results[r].copy_(given[r].toTensor().clone());
    } else if (op.fills && op.nargs == 1 && stack[0].toTensor().is_contiguous()) {
      // zero_, as an optimizer's first step has it for each parameter. After the CPU's own parallel loop OpenMP's threads
      // spin, on cores that the builders of the first kernels want: 0.07 s of a first step, or 0.15.
      std::memset(stack[0].toTensor().data_ptr(), 0, stack[0].toTensor().nbytes());
    } else {
      call_cpu(op, &stack);
    }
  } catch (c10::Error& error) {  // an index that lies outside, most likely: raised at a later read
    error.add_context(op.name + " at " + describe(node.frame));
    throw;
  }

  const auto finish = [&](const at::Tensor& result, const at::Tensor& into) {
    if (into.defined() && result.defined()) into.copy_(result);
  };
  for (size_t r = 0; r < op.nreturns && !in_place; ++r) {
    if (op.aliases[r] >= 0) continue;
    const auto& v = stack[r];
    if (v.isTensorList())
      for (const at::Tensor& t : v.toTensorList()) finish(t, out());
    else
      finish(v.isTensor() ? v.toTensor() : at::Tensor(), face ? results[r] : out());
  }
  for (Buffer* buffer : written) images.write_back(buffer);
  if (!fallback) {
    stats().ops_interpreted++;
    return;
  }
  const_cast<OpEntry&>(op).host_calls++;
  stats().host_ops++;
  note(Event::kFallback, op.name, node.frame);
}

void run_on_host(OpEntry& op, torch::jit::Stack* stack) {
  int device_index = current_device();
  const auto visit = [](const c10::IValue& v, const auto& f) {
    if (v.isTensor()) f(v.toTensor());
    if (v.isTensorList())
      for (const at::Tensor& t : v.toTensorList()) f(t);
    if (v.isOptionalTensorList())
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorList())
        if (t.has_value()) f(*t);
  };
  const size_t base = stack->size() - op.nargs;
  for (size_t i = base; i < stack->size(); ++i)
    visit((*stack)[i], [&](const at::Tensor& t) {
      if (lazy_tensor_value(t)) device_index = t.device().index();
    });
  for (size_t i = base; i < stack->size(); ++i)
    if ((*stack)[i].isDevice() && (*stack)[i].toDevice().is_privateuseone())
      device_index = resolve_device((*stack)[i].toDevice().index());
  announce_host_op(op, describe(current_frame()));
  wait_all(device_index, Cut::kHostOp);

  HostImages images;
  const auto image = [&](const at::Tensor& t) {
    if (fresh_out(t)) return at::empty({0}, at::TensorOptions().dtype(t.scalar_type()));
    return lazy_tensor_value(t) ? images.view(buffer_of(t), t.scalar_type(), t.sizes(), t.strides(), t.storage_offset()) : t;
  };
  torch::jit::Stack host;
  std::vector<Buffer*> written;
  std::vector<at::Tensor> lazy_args;
  for (size_t i = 0; i < op.nargs; ++i) {
    const auto& v = (*stack)[base + i];
    visit(v, [&](const at::Tensor& t) {
      if (lazy_tensor_value(t)) lazy_args.push_back(t);
    });
    host.push_back(moved(v, c10::DeviceType::CPU, image));
    const auto* alias = op.handle.schema().arguments()[i].alias_info();
    if (alias && alias->isWrite())
      visit(v, [&](const at::Tensor& t) {
        if (lazy_tensor_value(t)) written.push_back(buffer_of(t));
      });
  }
  call_cpu(op, &host);
  for (Buffer* buffer : written) images.write_back(buffer);
  if (op.counts) count_writes((*stack)[base].toTensorVector());

  // A written argument that the op returned is that argument; a view of one is a view of it; the rest is new.
  const auto wrap = [&](const at::Tensor& t, const c10::IValue* target) -> at::Tensor {
    if (!t.defined() || !t.device().is_cpu()) return t;
    if (t.layout() != c10::kStrided) refuse_layout("sparse");
    if (target && target->isTensor()) {
      const at::Tensor& out = target->toTensor();
      if (fresh_out(out)) {
        at::native::resize_output(out, t.sizes());
        out.copy_(t);
      }
      return out;
    }
    if (Buffer* owner = images.owner(t.storage().unsafeGetStorageImpl()))
      for (const auto& argument : lazy_args)
        if (buffer_of(argument) == owner) return alias_of(argument, t);
    return upload(t, device_index);
  };
  torch::jit::Stack results;
  for (size_t r = 0; r < op.nreturns; ++r) {
    const auto& v = host[r];
    const auto* target = op.aliases[r] >= 0 && op.mutates ? &(*stack)[base + static_cast<size_t>(op.aliases[r])] : nullptr;
    if (v.isTensor()) {
      results.emplace_back(wrap(v.toTensor(), target));
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorList()) list.push_back(wrap(t, nullptr));
      results.emplace_back(list);
    } else {
      results.push_back(v);
    }
  }
  torch::jit::drop(*stack, op.nargs);
  for (auto& result : results) stack->push_back(std::move(result));
  op.host_calls++;
  stats().host_ops++;
  note(Event::kFallback, op.name);
}

}  // namespace lazy
