// An op's call in the two flat streams of a window (window.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "buffer.h"
#include "ops.h"
#include "window.h"

namespace lazy {

// What a call looks like, before it has a place in a window. Reused by the thread.
struct Call {
  std::vector<int64_t> code, dims;  // with 0 where slots and offsets belong
  std::vector<Use> uses;
  std::vector<uint64_t> scalars;
  int device = -1;

  void clear() {
    code.clear();
    dims.clear();
    uses.clear();
    scalars.clear();
    device = -1;
  }
};

// Writes the op and its arguments, and finds the device that they are on. Raises where that is more than one.
void encode(Call& call, const OpEntry& op, const c10::IValue* args);

// A number that is known when the window runs.
void push_scalar(Call& call, const at::Scalar& s);

const std::string& interned_string(int64_t id);

}  // namespace lazy
