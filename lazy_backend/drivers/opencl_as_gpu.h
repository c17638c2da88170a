// LAZY_OPENCL_AS=gpu: what a CPU's device says of itself then, so that kernels for GPUs run without one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "../driver/lazy_driver.h"

namespace lazy::opencl {

// What NVIDIA's driver says of an H100, as far as schedules ask for it.
inline void say_as_a_gpu(lazy_properties* p) {
  const std::string name = std::string(p->name) + " as a GPU";  // what is cached for one is not the other's
  std::snprintf(p->name, sizeof(p->name), "%s", name.c_str());
  p->compute_units = 132;
  p->max_work_group_size = 1024;
  p->subgroup_size = 32;
  p->vector_bytes = 4;
  p->local_memory_bytes = std::min<uint64_t>(p->local_memory_bytes, 48 << 10);
  p->mem_alignment = std::max(p->mem_alignment, 512u);
  p->max_private_bytes = 255 * 4;
  p->has_f16 = 0;
}

}  // namespace lazy::opencl
