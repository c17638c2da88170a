#include "credit.h"

#include <algorithm>
#include <atomic>

#include "recorder.h"

namespace lazy {
namespace {

std::atomic<int> all{0};

// A new window takes its ops of the credit, and a quarter of a full window's: 43 windows of 60 ops use it up, 16 of 512. The
// first step of 38 nets, of which most windows are new, took half of it at most. A new window after one that was known
// takes a full window's. What was known gives back so little of its ops that what is compiled for it, 1 ms an op, takes a
// small part of the time.
// benchmarks.structures, ms a step from the 80th on, without credit / with it / eager: a coin for each step of an LSTM
// 450 / 10.5 / 10.5, a loop of branches 90 / 1.9 / 2.6, three of seven augmentations 110 / 9 / 9, small trees 80 / 1.6 / 0.7.
constexpr uint64_t kAfterKnown = 4, kGivenBack = 128;
// A window that ran op by op is compiled when it was back within so many ops so often on end, as in a loop, or so often.
constexpr uint64_t kSoon = 1 << 14;
constexpr uint32_t kSoonOnEnd = 4, kOften = 16;
// Windows that are remembered for it, of 64 bytes.
constexpr size_t kRare = 1 << 14;
// A window of fewer ops is compiled always: there are only so many.
constexpr size_t kLeast = 4;

}  // namespace

void compile_all(bool on) { all += on ? 1 : -1; }

void Credit::known(const Window& window) {
  const uint64_t ops = window.nodes.size();
  if (ops < kLeast) return;
  ops_ += ops;
  left_ = std::min(kMost, left_ + ops);
  last_known_ = true;
}

uint64_t Credit::price(uint64_t ops) const { return (ops + window_length() / 4 * (last_known_ ? kAfterKnown : 1)) * kGivenBack; }

void Credit::made(const Window& window) {
  const uint64_t ops = window.nodes.size();
  if (ops < kLeast || all) return;
  ops_ += ops;
  left_ -= std::min(left_, price(ops));
  last_known_ = false;
}

bool Credit::runs_op_by_op(const Hash& key, const Window& window) {
  const uint64_t ops = window.nodes.size();
  if (ops < kLeast || left_ >= price(ops) || all) return false;
  if (rare_.size() >= kRare) rare_.clear();
  Rare& rare = rare_[key];
  rare.soon = rare.runs && ops_ - rare.last < kSoon ? rare.soon + 1 : 0;
  rare.last = ops_;
  ops_ += ops;
  last_known_ = false;
  if (rare.runs++ < kOften && rare.soon < kSoonOnEnd) return true;
  rare_.erase(key);
  return false;
}

}  // namespace lazy
