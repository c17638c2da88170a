#include "window.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "causes.h"
#include "executor.h"
#include "recorder.h"
#include "stats.h"

namespace lazy {
namespace {

// Where a node's code has the slot of its first argument, a tensor.
constexpr size_t kFilled = 2;

// One per device, whichever thread or stream records: program order is the order of appends.
struct Recorder {
  std::mutex mutex;
  std::unique_ptr<Window> window;
  uint64_t next_serial = 1;
  uint64_t rolling = 0;   // hash of the last 16 ops: 4 bits leave at the top with each
  bool backward = false;  // the last op was a backward pass's, after its first contraction
  std::vector<Job>* captured = nullptr;
  struct {
    size_t nodes = 0, code = 0, dims = 0, slots = 0;
  } last;  // how long the last window's streams were: the next one is often alike

  void open_window(int device) {
    window = std::make_unique<Window>(device, next_serial++);
    window->nodes.reserve(last.nodes);
    window->code.reserve(last.code);
    window->dims.reserve(last.dims);
    window->slots.reserve(last.slots);
    window->had_data.reserve(last.slots);
  }
};
Recorder& recorder(int device) {
  static std::array<Recorder, 64> recorders;
  return recorders.at(static_cast<size_t>(device));
}

std::atomic<uint64_t> window_ops{512};

// Intermediates and outputs that a window may promise before it must run: bounds how far memory of dead inputs is held.
constexpr uint64_t kMaxPendingBytes = 1ull << 30;

// Windows of fixed length drift: a loop of 150 ops would give other windows in each of its turns, and each is a compile.
// So a window ends where the last ops hash low, which is at the same places of a loop's body whatever the phase:
//  - from a quarter of the greatest length on, at a hash in the lowest 1/128. A training step of some hundred ops has a few;
//  - from 32 ops on, or 16 with 4 MB of results, where the last 16 ops are those before its start: a loop has come round.
//    Loops that come round sooner are too short for windows of their own, and have the boundaries below;
//  - from an eighth on, in a window that is nothing but turns of such a loop (its first 16 ops came again at once): at the
//    loop's lowest hash. The device starts sooner and has less left to do when the script waits (benchmarks.launch_hiding);
//  - from an eighth on, at an upload, with which the steps of most scripts begin (`cut_at_upload`);
//  - from half on, at the first hash as low as the lowest between those two marks. A short loop has its lowest hash there.
// benchmarks: plans compiled after the second step of the demos.
constexpr int kContentBits = 7;
constexpr uint64_t kHashed = 16;    // ops in the rolling hash
constexpr uint64_t kTurn = 32;      // a turn from which on a window of its own pays: the stencil demo's step has 32 ops
// Results of a turn from which on it pays whatever its length: to write them takes a device 0.1 ms, a window costs 0.02. In
// windows of several turns what a turn updates in place is kept twice: a step of 27 ops of `mlp_train` 5.8 -> 5.1 ms (Zen 4).
constexpr uint64_t kHeavy = 4 << 20;
constexpr uint64_t kShortest = 64;  // greatest length of windows from which on it pays

bool content_boundary(Boundary& w, uint64_t length, uint64_t bytes, uint64_t rolling) {
  const uint64_t longest = window_ops;
  if (longest < kShortest) return false;
  if (rolling == w.before) {
    if (length >= kTurn || (length >= kHashed && bytes >= kHeavy)) return true;
    w.before = 0;
  }
  if (length <= kHashed) {
    w.first = w.loop_lowest = rolling;
  } else if (length < kHashed + kTurn) {
    w.loop |= rolling == w.first;
    w.loop_lowest = std::min(w.loop_lowest, rolling);
  } else if (w.loop && length >= longest / 8 && rolling == w.loop_lowest) {
    return true;
  }
  if (length < longest / 4) return false;
  if (rolling >> (64 - kContentBits) == 0) return true;
  if (length >= longest / 2) return rolling <= w.lowest;
  w.lowest = std::min(w.lowest, rolling);
  return false;
}

// A window also ends where a backward pass begins and where it ends: a device that is waited for each step has the pass
// before to do while the next one is recorded. It begins with its first contraction; one that has none is fused with what
// came before it. A step waited for each time, in turns, ms (Zen 4): `mlp_train` 6.9 -> 5.9, `lstm_train` 9.1 -> 8.3,
// `recommender_train` 3.8 -> 3.4. Fewer ops or bytes of results are done before a window of their own is (0.02 ms). Where
// there are many, recording (0.0015 ms an op) is little of a step's time, and to write what both passes use is more:
// `unet_train`, whose forward pass has 31 MB, 29.0 -> 30.7; `resnet_train`, 45 MB, the same or worse.
constexpr size_t kPassOps = 4;
constexpr uint64_t kPassLeast = 1 << 19, kPassMost = 1 << 24;

bool pass_boundary(Recorder& r, const OpEntry& op) {
  const bool backward = torch::autograd::get_current_graph_task_id() >= 0;
  if (backward == r.backward || (backward && !op.contracts)) return false;
  r.backward = backward;
  if (!r.window || window_ops < kShortest) return false;
  const auto ops = r.window->nodes.size(), bytes = r.window->pending_bytes;
  return ops >= kPassOps && bytes >= kPassLeast && bytes < kPassMost;
}

bool apart(const Window& w) { return w.fills >= kFills && window_ops >= kShortest; }

// The ticket of a captured job is that of the last job before it: there is nothing of its own to wait for.
uint64_t submit(Recorder& r, int device, Job job) {
  if (!r.captured) return executor(device).submit(std::move(job));
  r.captured->push_back(std::move(job));
  return executor(device).last_ticket();
}

void submit_fills(Recorder& r);

// Closes the window, with what can still be seen of it. Called with the lock held, so that
// windows are queued in the order in which they were recorded.
uint64_t submit_window(Recorder& r, Cut cause) {
  if (apart(*r.window) && r.window->before_fills.nodes) submit_fills(r);
  Job job;
  auto& window = *r.window;
  const size_t n = window.slots.size();
  job.alive.resize(n);
  Hash key = window.structure;
  key.mix(window.sizes.a);
  key.mix(window.sizes.b);
  for (size_t i = 0; i < n; ++i) {
    // What had data before a graph was captured may be read by its next replay.
    const bool kept = r.captured && window.had_data[i];
    job.alive[i] = kept || window.slots[i]->storage_alive.load(std::memory_order_acquire);
    key.mix(job.alive[i] | (window.had_data[i] << 1));
    window.slots[i]->window = 0;
    window.slots[i]->has_data = true;
  }
  job.key = key;
  r.last = {window.nodes.size(), window.code.size(), window.dims.size(), n};
  job.window = std::move(r.window);
  auto& s = stats();
  s.windows++;
  s.cuts[static_cast<size_t>(cause)]++;
  const int device = job.window->device;
  return submit(r, device, std::move(job));
}

// Takes the fills at the window's end out of it, and submits them before it.
void submit_fills(Recorder& r) {
  auto rest = std::move(r.window);
  auto& w = *rest;
  const auto& end = w.before_fills;
  r.open_window(w.device);
  for (size_t i = end.nodes; i < w.nodes.size(); ++i) {
    const Node &node = w.nodes[i], *next = i + 1 < w.nodes.size() ? &node + 1 : nullptr;
    std::vector<int64_t> code(w.code.begin() + node.code, next ? w.code.begin() + next->code : w.code.end());
    const std::vector<int64_t> dims(w.dims.begin() + node.dims, next ? w.dims.begin() + next->dims : w.dims.end());
    const auto slot = static_cast<size_t>(std::exchange(code[kFilled], kUnpatched));
    Keys keys;
    keys.code.mix(code);
    keys.dims.mix(dims);
    code[kFilled] = r.window->slot_of(w.slots[slot].get(), node.frame);
    r.window->add(*node.op, node.frame, code, dims, {w.scalars.begin() + node.scalars, next ? w.scalars.begin() + next->scalars : w.scalars.end()}, keys);
  }
  submit_window(r, Cut::kContent);
  r.rolling = end.rolling;
  if (!end.nodes) return;
  w.nodes.resize(end.nodes);
  w.code.resize(end.code);
  w.dims.resize(end.dims);
  w.scalars.resize(end.scalars);
  w.slots.resize(end.slots);
  w.had_data.resize(end.slots);
  w.structure = end.structure;
  w.sizes = end.sizes;
  w.pending_bytes = end.pending_bytes;
  w.boundary = end.boundary;
  w.fills = 0;
  r.window = std::move(rest);
}

}  // namespace

Stats& stats() {
  static Stats s;
  return s;
}

void reset_stats() {
  auto& s = stats();
  for (auto* counter : {&s.ops, &s.windows, &s.reads, &s.plans_compiled, &s.plans_assembled, &s.ops_interpreted, &s.plans_hit, &s.kernels_built,
                        &s.kernels_launched, &s.extern_calls, &s.host_ops, &s.host_bytes, &s.compile_ns, &s.meta_misses})
    counter->store(0);
  for (auto& counter : s.cuts) counter = 0;
  reset_causes();
  for (auto* op : op_entries()) op->host_calls = 0;
}

const char* cut_name(Cut cause) {
  static const char* const names[] = {"read", "full", "bytes", "synchronize", "host_op", "copy", "event", "graph", "boundary", "content"};
  return names[static_cast<size_t>(cause)];
}

void set_window_length(uint64_t ops) { window_ops = std::max<uint64_t>(ops, 1); }
uint64_t window_length() { return window_ops; }

// Slots are part of the structure in the order in which ops name them.
uint32_t Window::slot_of(Buffer* buffer, const Frame& frame) {
  if (buffer->window != serial) {
    buffer->window = serial;
    buffer->slot = static_cast<uint32_t>(slots.size());
    slots.push_back(BufferPtr::reclaim_copy(buffer));
    had_data.push_back(buffer->has_data);
    structure.mix(0x51077u | (uint64_t(buffer->has_data) << 32));
    sizes.mix(buffer->nbytes);
    if (!buffer->has_data) {
      pending_bytes += buffer->nbytes;
      buffer->born = frame;
    }
  }
  structure.mix(buffer->slot);
  return buffer->slot;
}

std::vector<uint32_t> Window::slots_of(size_t node) const {
  // Entries of each tag in `code`, itself included. The elements of a list, and the number of a 0-dim host tensor, follow as arguments.
  static constexpr int64_t kEntries[] = {1, 5, 3, 2, 1, 2, 2, 2, 2, 2, 2, 4};
  std::vector<uint32_t> found;
  const size_t end = node + 1 < nodes.size() ? nodes[node + 1].code : code.size();
  for (size_t at = nodes[node].code + 1; at < end; at += static_cast<size_t>(kEntries[code[at]]))
    if (code[at] == kTensor || code[at] == kOut) found.push_back(static_cast<uint32_t>(code[at + 1]));
  return found;
}

Hash Window::sizes_but(const std::vector<uint32_t>& others) const {
  Hash hash;
  auto other = others.begin();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (other != others.end() && *other == i) {
      ++other;
      continue;
    }
    const size_t end = i + 1 < nodes.size() ? nodes[i + 1].dims : dims.size();
    for (size_t at = nodes[i].dims; at < end; ++at) hash.mix(static_cast<uint64_t>(dims[at]));
    for (const uint32_t slot : slots_of(i)) hash.mix(slots[slot]->nbytes);
  }
  return hash;
}

void Window::add(const OpEntry& op, const Frame& frame, const std::vector<int64_t>& its_code, const std::vector<int64_t>& its_dims,
                 const std::vector<uint64_t>& its_scalars, const Keys& keys) {
  nodes.push_back({&op, static_cast<uint32_t>(code.size()), static_cast<uint32_t>(dims.size()), static_cast<uint32_t>(scalars.size()), frame});
  code.insert(code.end(), its_code.begin(), its_code.end());
  dims.insert(dims.end(), its_dims.begin(), its_dims.end());
  scalars.insert(scalars.end(), its_scalars.begin(), its_scalars.end());
  structure.mix(keys.code);
  sizes.mix(keys.dims);
}

// What makes the structure of a window one that is ordered.
constexpr uint64_t kOrdered = 0x0DE7ED;

void append(const OpEntry& op, int device, std::vector<int64_t>& code, const std::vector<int64_t>& dims,
            const std::vector<std::pair<uint32_t, Buffer*>>& slots, const std::vector<uint64_t>& scalars, const Keys& keys) {
  const Frame frame = current_frame();
  auto& r = recorder(device);
  Cut cause = Cut::kCount;  // none
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    // Memory that an earlier window has, or this one, is not fresh.
    const bool fill = op.fills && slots.size() == 1 && !slots[0].second->has_data && !slots[0].second->window;
    if (r.window && !fill) {
      if (apart(*r.window)) submit_fills(r), cause = Cut::kContent;
      if (r.window) r.window->fills = 0;
    }
    const bool complete = (!fill && pass_boundary(r, op)) || (r.window && r.window->boundary.complete);
    if (complete && !r.window->fills) submit_window(r, cause = Cut::kContent);
    if (!r.window) {
      r.open_window(device);
      r.window->boundary.before = r.rolling;
    }
    auto& w = *r.window;
    if (fill && !w.fills++)
      w.before_fills = {w.nodes.size(), w.code.size(), w.dims.size(),   w.scalars.size(), w.slots.size(),
                        w.structure,    w.sizes,       w.pending_bytes, r.rolling,        w.boundary};
    if (C10_UNLIKELY(!w.ordered && at::globalContext().deterministicAlgorithms())) {
      w.ordered = true;
      w.structure.mix(kOrdered);
    }
    for (const auto& [position, buffer] : slots) code[position] = w.slot_of(buffer, frame);
    w.add(op, frame, code, dims, scalars, keys);
    stats().ops.fetch_add(1, std::memory_order_relaxed);
    r.rolling = (r.rolling << 4) + op.digest;
    // A window that is complete ends with the next op: what its last ops leave is often dead by then.
    w.boundary.complete |= content_boundary(w.boundary, w.nodes.size(), w.pending_bytes, r.rolling);
    const bool full = w.nodes.size() >= window_ops;
    if (full && apart(w)) submit_fills(r), cause = Cut::kContent;
    else if (full || w.pending_bytes > kMaxPendingBytes) submit_window(r, cause = full ? Cut::kFull : Cut::kBytes);
  }
  if (cause == Cut::kCount) return;
  note(Event::kCut, cut_name(cause), frame);
  executor(device).start();
  executor(device).throttle();
}

uint64_t cut(int device, Cut cause) {
  auto& r = recorder(device);
  uint64_t ticket;
  const bool waits = cause == Cut::kRead || cause == Cut::kSync || cause == Cut::kHostOp;
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    TORCH_CHECK(!(r.captured && waits), "operation not permitted while a graph is being captured: the host needs a value (",
                cut_name(cause), "), and nothing runs before replay()");
    if (!r.window) return executor(device).last_ticket();
    ticket = submit_window(r, cause);
  }
  note(Event::kCut, cut_name(cause));
  if (!waits) executor(device).start();  // else whoever waits runs it
  return ticket;
}

void cut_at_upload(int device) {
  auto& r = recorder(device);
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    if (!r.window || window_ops < kShortest || r.window->nodes.size() < window_ops / 8) return;
    submit_window(r, Cut::kContent);
  }
  note(Event::kCut, cut_name(Cut::kContent));
  executor(device).start();
  executor(device).throttle();
}

void begin_capture(int device, std::vector<Job>* jobs) {
  auto& r = recorder(device);
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    TORCH_CHECK(!r.captured, "a graph is being captured on lazy:", device, " already");
    if (r.window) submit_window(r, Cut::kGraph);
    r.captured = jobs;
  }
  executor(device).start();
}

void end_capture(int device) {
  auto& r = recorder(device);
  std::lock_guard<std::mutex> lock(r.mutex);
  if (r.captured && r.window) submit_window(r, Cut::kGraph);
  r.captured = nullptr;
}

bool capturing(int device) {
  auto& r = recorder(device);
  std::lock_guard<std::mutex> lock(r.mutex);
  return r.captured;
}

void submit_all(int device, std::vector<Job> jobs) {
  auto& r = recorder(device);
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    TORCH_CHECK(!r.captured, "a graph cannot be replayed while one is being captured");
    if (r.window) submit_window(r, Cut::kGraph);
    for (Job& job : jobs) {
      if (job.window) stats().windows++;
      executor(device).submit(std::move(job));
    }
  }
  executor(device).start();
  executor(device).throttle();
}

uint64_t submit_action(int device, Cut cause, bool after_window, std::function<void(Device&)> action) {
  auto& r = recorder(device);
  bool cutting;
  uint64_t ticket;
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    cutting = r.window && after_window;
    if (cutting) submit_window(r, cause);
    Job job;
    job.action = std::move(action);
    ticket = submit(r, device, std::move(job));
  }
  executor(device).start();
  if (cutting) note(Event::kCut, cut_name(cause));
  return ticket;
}

}  // namespace lazy
