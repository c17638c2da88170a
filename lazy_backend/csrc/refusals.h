// Calls that eager refuses, in its own words.
#pragma once

#include <exception>

#include "ops.h"

namespace lazy {

inline bool is_integral(c10::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true); }

// Whether the Meta kernel would let a call through that eager refuses: of its dtypes, sizes and dims, once a call's key.
bool too_lenient(const OpEntry& op, const c10::IValue* args);

// Whether eager refuses the parameters of a distribution. They are no part of a call's key: asked at each call.
bool no_distribution(const OpEntry& op, const c10::IValue* args);

// Whether integers are divided by a number that is zero, which is no part of the key either.
bool divides_by_zero(const c10::IValue* args);

// Whether a number that is written, of an op that `stores` one, is none of the tensor's dtype: no part of the key.
bool beyond_range(const OpEntry& op, const c10::IValue* args);

// Raises where operands share memory with what is written, argument `alias`, and eager refuses that: see OpEntry::overlap.
void check_apart(const OpEntry& op, const at::Tensor& written, const c10::IValue* args, int alias);

// Makes the call on CPU tensors of the same shapes, which raises eager's error, if it has one. `error`, where there is
// one, is raised instead where these would be large.
void raise_as_eager(const OpEntry& op, const c10::IValue* args, std::exception_ptr error);

}  // namespace lazy
