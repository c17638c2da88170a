// What an op's call looks like to the recorder: its arguments one by one, structure in `code` and sizes in `dims`.
#include "call.h"

#include <ATen/ATen.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "runtime.h"
#include "stream.h"

namespace lazy {
namespace {

std::mutex strings_mutex;
std::deque<std::string> strings;  // which stay where they are
int64_t intern(const std::string& text) {
  std::lock_guard<std::mutex> lock(strings_mutex);
  for (size_t i = 0; i < strings.size(); ++i)
    if (strings[i] == text) return static_cast<int64_t>(i);
  strings.push_back(text);
  return static_cast<int64_t>(strings.size()) - 1;
}

[[noreturn]] void mixed_devices(const OpEntry& op, int device, const at::Tensor& t) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, lazy:", device,
              " and ", t.device(), "! (when checking an argument of ", op.name, ")");
}

// item() without its dispatch, for the dtypes that Python numbers wrap to.
at::Scalar host_value(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case c10::ScalarType::Double: return *static_cast<const double*>(t.const_data_ptr());
    case c10::ScalarType::Long: return *static_cast<const int64_t*>(t.const_data_ptr());
    case c10::ScalarType::Bool: return *static_cast<const bool*>(t.const_data_ptr());
    default: return t.item();
  }
}

void push_tensor(Call& call, const OpEntry& op, const at::Tensor& t) {
  if (!t.defined()) {
    call.code.push_back(kNone);
    return;
  }
  auto* impl = t.unsafeGetTensorImpl();
  if (C10_LIKELY(impl->device_type() == c10::DeviceType::PrivateUse1)) {
    const int device = impl->device().index();
    if (call.device < 0) call.device = device;
    if (call.device != device) mixed_devices(op, call.device, t);
    const auto sizes = impl->sizes();
    const auto strides = impl->strides();
    int64_t ones = 0;
    for (size_t i = 0; i < sizes.size(); ++i) ones |= int64_t(sizes[i] == 1) << i;
    call.code.push_back(kTensor);
    const auto slot = static_cast<uint32_t>(call.code.size());
    call.code.push_back(kUnpatched);
    call.code.push_back(static_cast<int64_t>(c10::typeMetaToScalarType(impl->dtype())));
    call.code.push_back(static_cast<int64_t>(sizes.size()));
    call.code.push_back(ones << kSizeOneMaskShift);
    call.dims.insert(call.dims.end(), sizes.begin(), sizes.end());
    call.dims.insert(call.dims.end(), strides.begin(), strides.end());
    // A view of nothing lies nowhere.
    const int64_t offset = impl->numel() ? impl->storage_offset() : 0;
    call.uses.push_back({buffer_of(t), slot, static_cast<uint32_t>(call.dims.size()), offset});
    call.dims.push_back(kUnpatched);
    return;
  }
  if (impl->device_type() == c10::DeviceType::CPU && impl->dim() == 0) {
    call.code.push_back(kHostScalar);
    call.code.push_back(static_cast<int64_t>(t.scalar_type()));
    call.code.push_back(impl->is_wrapped_number());
    push_scalar(call, host_value(t));
    return;
  }
  mixed_devices(op, call.device < 0 ? current_device() : call.device, t);
}

void push_value(Call& call, const OpEntry& op, const c10::IValue& v, const c10::Type& type, bool is_static) {
  if (v.isTensor()) {
    push_tensor(call, op, v.toTensor());
  } else if (v.isNone()) {
    call.code.push_back(kNone);
  } else if (type.kind() == c10::TypeKind::NumberType || (v.isDouble() && !v.isInt())) {
    if (!is_static) {
      push_scalar(call, v.toScalar());
    } else if (v.isDouble()) {
      const double d = v.toDouble();
      int64_t bits;
      std::memcpy(&bits, &d, 8);
      call.code.push_back(kDouble);
      call.code.push_back(bits);
    } else if (v.isInt()) {
      call.code.push_back(kInt);
      call.dims.push_back(v.toInt());
    } else if (v.isBool()) {
      call.code.push_back(kBool);
      call.code.push_back(v.toBool());
    } else {
      push_scalar(call, v.toScalar());
    }
  } else if (v.isInt()) {
    // dtype, layout and memory format arrive as ints of those types
    const bool is_enum = type.kind() == c10::TypeKind::ScalarTypeType || type.kind() == c10::TypeKind::LayoutType ||
                         type.kind() == c10::TypeKind::MemoryFormatType;
    if (is_enum) {
      call.code.push_back(kDtype);
      call.code.push_back(v.toInt());
    } else {
      call.code.push_back(kInt);
      call.dims.push_back(v.toInt());
    }
  } else if (v.isBool()) {
    call.code.push_back(kBool);
    call.code.push_back(v.toBool());
  } else if (v.isDevice()) {
    const auto device = v.toDevice();
    call.code.push_back(kDevice);
    call.code.push_back(device.index());
    if (device.is_privateuseone()) call.device = resolve_device(device.index());
  } else if (v.isString()) {
    call.code.push_back(kString);
    call.code.push_back(intern(v.toStringRef()));
  } else if (v.isList() || v.isIntList() || v.isDoubleList() || v.isBoolList() || v.isTensorList()) {
    const auto list = v.toListRef();
    call.code.push_back(kList);
    call.code.push_back(static_cast<int64_t>(list.size()));
    const auto* element = type.containedTypeSize() ? type.containedType(0).get() : &type;
    if (element->kind() == c10::TypeKind::ListType || element->kind() == c10::TypeKind::OptionalType)
      element = element->containedType(0).get();
    for (const auto& member : list) push_value(call, op, member, *element, is_static);
  } else if (v.isGenerator()) {
    call.code.push_back(kNone);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.name, ": an argument of kind ", v.tagKind(), " cannot be recorded");
  }
}

// A Scalar at its schema's default (alpha=1, beta=1) is part of the structure: no kernel multiplies by one.
bool is_default(const c10::Argument& argument, const c10::IValue& v) {
  const auto& fallback = argument.default_value();
  if (!fallback) return false;
  if (v.isInt()) return fallback->isInt() && fallback->toInt() == v.toInt();
  if (v.isDouble()) return fallback->isDouble() && fallback->toDouble() == v.toDouble();
  return v.isBool() && fallback->isBool() && fallback->toBool() == v.toBool();
}

const c10::Type& plain(const c10::Type& type) {
  return type.kind() == c10::TypeKind::OptionalType ? *type.containedType(0) : type;
}

}  // namespace

void push_scalar(Call& call, const at::Scalar& s) {
  call.code.push_back(kScalar);
  uint64_t bits[2] = {0, 0};
  int64_t kind = kF64;
  if (s.isBoolean()) {
    kind = kB1;
    bits[0] = s.toBool();
  } else if (s.isIntegral(false)) {
    kind = kI64;
    const int64_t v = s.to<int64_t>();
    std::memcpy(bits, &v, 8);
  } else if (s.isComplex()) {
    kind = kC128;
    const auto v = s.toComplexDouble();
    const double parts[2] = {v.real(), v.imag()};
    std::memcpy(bits, parts, 16);
  } else {
    const double v = s.toDouble();
    std::memcpy(bits, &v, 8);
  }
  call.code.push_back(kind);
  call.scalars.push_back(bits[0]);
  if (kind == kC128) call.scalars.push_back(bits[1]);
}

void encode(Call& call, const OpEntry& op, const c10::IValue* args) {
  const auto& schema = op.handle.schema().arguments();
  call.code.push_back(op.id);
  for (size_t i = 0; i < op.nargs; ++i)
    push_value(call, op, args[i], plain(*schema[i].type()), op.static_arg[i] || is_default(schema[i], args[i]));
}

const std::string& interned_string(int64_t id) {
  std::lock_guard<std::mutex> lock(strings_mutex);
  return strings[static_cast<size_t>(id)];
}

}  // namespace lazy
