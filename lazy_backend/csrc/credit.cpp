#include "credit.h"

#include <algorithm>
#include <atomic>

#include "ops.h"
#include "recorder.h"

namespace lazy {
namespace {

std::atomic<int> all{0};

// A new window of calls of which half came before takes its ops of the credit, and a quarter of a full window's, or all of it
// where the window before was known: 43 windows of 60 ops, or 15, use it up. It is given back when the window comes again. A
// window of other calls takes none: its ops have no plans either. Known windows give back so little of their ops that what is
// compiled for it, 1 ms an op, takes a small part of the time.
// benchmarks.structures, ms a step from the 80th on, without credit / with it / eager: a coin for each step of an LSTM
// 433 / 12.8 / 16, a loop of branches 73 / 1.9 / 7, three of seven augmentations 106 / 9 / 13, small trees 75 / 2.7 / 1.2.
constexpr uint64_t kAfterKnown = 4, kGivenBack = 128;
// A window that ran op by op is compiled when it was back within so many ops so often on end, as in a loop, or so often.
constexpr uint64_t kSoon = 1 << 14;
constexpr uint32_t kSoonOnEnd = 4, kOften = 16;
// Windows that are remembered for it, of 64 bytes.
constexpr size_t kRare = 1 << 14;
// A window of fewer ops is compiled always: there are only so many.
constexpr size_t kLeast = 8;
// Calls that are remembered.
constexpr size_t kCalls = 1 << 16;

// Windows of the same calls at the same lines, without a plan, that came with lists of other lengths so often have one that
// grows, and there would be a plan for each length. Lists of fewer tensors are no growing ones. 80 steps that append to a list
// of keys and concatenate it: 63 -> 5 s.
constexpr uint32_t kLengths = 3;
constexpr int64_t kLongList = 4;

// By what a node is known. Ops over lists run member by member, whatever the lists are.
uint64_t call_of(const Node& node) { return node.op->name.starts_with("aten._foreach_") ? node.op->digest : node.call; }

}  // namespace

void compile_all(bool on) { all += on ? 1 : -1; }

void Credit::known(const Window& window, uint64_t paid) {
  const uint64_t ops = window.nodes.size();
  if (ops < kLeast) return;
  ops_ += ops;
  left_ = std::min(kMost, left_ + ops + paid);
  last_known_ = true;
}

uint64_t Credit::price(const Window& window) const {
  const auto met = std::ranges::count_if(window.nodes, [this](const Node& node) { return calls_.contains(call_of(node)); });
  const uint64_t ops = window.nodes.size();
  if (2 * static_cast<uint64_t>(met) < ops) return 0;
  return (ops + window_length() / 4 * (last_known_ ? kAfterKnown : 1)) * kGivenBack;
}

bool Credit::grows(const Window& window) {
  Hash lines, lengths;  // of what is called where; of its lists
  for (const Node& node : window.nodes) {
    lines.mix(node.op->digest);
    lines.mix(reinterpret_cast<uintptr_t>(node.frame.code));
    lines.mix(static_cast<uint64_t>(node.frame.lasti));
    const int64_t* code = window.code.data() + node.code;
    if (code[1] == kList && code[2] >= kLongList && !node.op->name.starts_with("aten._foreach_")) lengths.mix(static_cast<uint64_t>(code[2]));
  }
  if (lengths == Hash()) return false;
  if (lists_.size() >= kRare) lists_.clear();
  Lists& lists = lists_[lines];
  if (lists.changes) lists.changes += lists.last != lengths.a;
  else lists.changes = 1;
  lists.last = lengths.a;
  return lists.changes > kLengths;
}

void Credit::meet(const Window& window) {
  ops_ += window.nodes.size();
  last_known_ = false;
  if (calls_.size() >= kCalls) calls_.clear();
  for (const Node& node : window.nodes) calls_.insert(call_of(node));
}

uint64_t Credit::made(const Window& window) {
  if (window.nodes.size() < kLeast || all) return 0;
  const uint64_t taken = std::min(left_, price(window));
  left_ -= taken;
  meet(window);
  return taken;
}

bool Credit::runs_op_by_op(const Hash& key, const Window& window) {
  const bool grown = window.nodes.size() > 1 && grows(window);
  if (window.nodes.size() < kLeast && !grown) return false;
  if (all) return all < 0;
  if (pays(window) && !grown) return false;
  if (rare_.size() >= kRare) rare_.clear();
  Rare& rare = rare_[key];
  rare.soon = rare.runs && ops_ - rare.last < kSoon ? rare.soon + 1 : 0;
  rare.last = ops_;
  meet(window);
  if (rare.runs++ < kOften && rare.soon < kSoonOnEnd) return true;
  rare_.erase(key);
  return false;
}

}  // namespace lazy
