// Which kernels are short: those the thread that launches them runs itself, while nothing else is under way.
//
// The runtime's threads take 3 to 6 us to take a kernel over, and 30 to 100 where they sleep. benchmarks: gpt_decode
// 13.7 -> 12.8 ms. A launch says nothing of its work, so that first launches are timed, by the runtime's own clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "opencl_api.h"

namespace lazy::opencl {

// A few times what handing over takes: a second core would win no more than that.
constexpr uint64_t kShortNs = 12'000;
// One that took longer there several times in a row, not because its thread was interrupted, is handed over after that.
constexpr std::chrono::microseconds kLong{50};
constexpr uint32_t kLongRuns = 4;
// Runs that are timed: one may wait for a thread that is just being woken.
constexpr uint32_t kProbes = 4;

// How long a kernel takes. Not for several threads.
class Timing {
 public:
  // Whether that many work items are done in no time.
  bool is_short(const Functions& cl, uint64_t items) {
    look(cl);
    return !probe_ && probes_ && items <= items_ && ns_ <= kShortNs && long_runs_ < kLongRuns;
  }

  // Where a run of that many work items puts its event, if it tells whether the kernel is a short one; else null.
  cl_event* probe(uint64_t items) {
    if (probe_) return nullptr;
    if (items > items_) {
      items_ = items;
      probes_ = 0;
    }
    const bool tells = items == items_ && probes_ < kProbes && (!probes_ || ns_ > kShortNs);
    return tells ? &probe_ : nullptr;
  }

  // What it took where it was launched.
  void took(std::chrono::steady_clock::duration time) { long_runs_ = time > kLong ? long_runs_ + 1 : 0; }

  void forget(const Functions& cl) {
    if (probe_) cl.clReleaseEvent(std::exchange(probe_, nullptr));
  }

 private:
  void look(const Functions& cl) {
    if (!probe_) return;
    cl_int state = 0;
    cl.clGetEventInfo(probe_, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, nullptr);
    if (state > CL_COMPLETE) return;
    cl_ulong start = 0, end = 0;
    cl.clGetEventProfilingInfo(probe_, CL_PROFILING_COMMAND_START, sizeof(start), &start, nullptr);
    cl.clGetEventProfilingInfo(probe_, CL_PROFILING_COMMAND_END, sizeof(end), &end, nullptr);
    ns_ = probes_++ ? std::min<uint64_t>(ns_, end - start) : end - start;
    forget(cl);
  }

  uint64_t items_ = 0;  // most work items that it was launched with
  uint64_t ns_ = 0;     // the shortest time that as many took, in as many runs as
  uint32_t probes_ = 0;
  uint32_t long_runs_ = 0;    // in a row, where it was launched
  cl_event probe_ = nullptr;  // of a run whose time is not looked at yet
};

}  // namespace lazy::opencl
