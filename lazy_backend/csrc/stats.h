// Counters of torch.lazy.stats(): plain atomics, cheap enough to leave on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "window.h"

namespace lazy {

struct Stats {
  std::atomic<uint64_t> ops{0}, windows{0}, windows_op_by_op{0}, reads{0}, plans_compiled{0}, plans_assembled{0}, ops_interpreted{0}, plans_hit{0}, kernels_built{0},
      kernels_launched{0}, extern_calls{0}, extern_copies{0}, host_ops{0}, host_bytes{0}, compile_ns{0}, meta_misses{0};
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Cut::kCount)> cuts{};
};
Stats& stats();
void reset_stats();

}  // namespace lazy
