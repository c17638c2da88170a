// Collectives on lazy tensors: copied to host memory, run there by another backend (gloo), copied back.
#pragma once

#include <pybind11/pybind11.h>

namespace lazy {

void init_distributed(pybind11::module_& m);

}  // namespace lazy
