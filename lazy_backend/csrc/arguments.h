// An op's arguments as the same op takes them elsewhere: on the host, or on torch's Meta device.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace lazy {

// `v` with every tensor, in lists too, replaced by `tensor` of it, and the device by `type`. Generators are the device's
// own: the other place has its default one.
template <typename F>
c10::IValue moved(const c10::IValue& v, c10::DeviceType type, const F& tensor) {
  if (v.isTensor()) return tensor(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : v.toTensorList()) list.push_back(tensor(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorList())
      list.push_back(t.has_value() ? std::optional<at::Tensor>(tensor(*t)) : std::nullopt);
    return list;
  }
  if (v.isDevice() && v.toDevice().is_privateuseone()) return c10::Device(type);
  if (v.isGenerator()) return {};
  return v;
}

}  // namespace lazy
