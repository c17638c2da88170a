// Results of torch's CPU library in memory that is given, where the library has no way to be given any.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace lazy {

// On a thread that lives as long, tensors that the library makes may be placed. Costs other threads nothing.
class Placing {
 public:
  Placing();

 private:
  c10::impl::IncludeDispatchKeyGuard on_;
};

// Has `make` give its result in `to`, which is written in the one way or, where the library's result is not what it
// first makes of these sizes, by a copy.
void place(const at::Tensor& to, const std::function<at::Tensor()>& make);

}  // namespace lazy
