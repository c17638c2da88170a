// What ops give, by torch's structured kernels themselves.
#pragma once

#include <string>

#include <ATen/core/boxing/KernelFunction.h>

namespace lazy {

// Shape function of an op, for meta tensors. Under the dispatch key Meta the same op is a reference written in Python,
// which torch has put over it: the same answer, at 30 us to 1 ms where this takes 3.
struct Shape {
  c10::KernelFunction function;
  bool any_dtype;  // else for tensors of floating point only: eager's kernels refuse other dtypes, this lets them through
};

// nullptr: the op is not structured, or none that scripts call often with new sizes.
const Shape* shape_of(const std::string& name);

}  // namespace lazy
