// Plans, as Python writes them. Formats: lazy_backend/compiler.py, lazy_backend/sized.py. Called with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "executor.h"

namespace lazy {

std::unique_ptr<Plan> plan_from_python(const pybind11::dict& source);

// plan: that of the sizes at hand.
std::shared_ptr<const Sized> sized_from_python(const pybind11::dict& source, const Plan& plan);

}  // namespace lazy
