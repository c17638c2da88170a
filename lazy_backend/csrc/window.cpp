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

// A part of a buffer begins at a multiple of so many bytes at least, as a buffer does that kernels load vectors from.
constexpr uint64_t kPartAlignment = 64;

// Of the parts of a device's buffers; 0 until someone asked the device.
std::array<std::atomic<uint64_t>, 64> part_alignments{};

// Without the recorder's lock and without the GIL: a driver in Python waits for it while its device is opened.
void learn_part_alignment(int device) {
  GilRelease free;
  const uint64_t least = std::max<uint64_t>(1, lazy::device(device).props.mem_alignment);
  part_alignments.at(static_cast<size_t>(device)) = (kPartAlignment + least - 1) / least * least;
}

// One per device, whichever thread or stream records: program order is the order of appends.
struct Recorder {
  std::mutex mutex;
  std::unique_ptr<Window> window;
  uint64_t next_serial = 1;
  bool began = false;     // a window was handed over
  uint64_t setup = 0;     // hash of the ops that were taken out of the first one
  uint64_t waits = 1;     // how often the host waited for all so far
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

// A script's first window begins with its data, where that is made on the device: what its first ops make of nothing that
// there was before, beside a model that came from the host. The first step would not be as the second is, which would be
// compiled by itself; so the data are a window of their own. Where a step has so few ops it is compiled as soon.
// benchmarks, the second step's compiles: gpt_train 0.5 s, bert_lengths 0.9, mlp_train 0.1.
constexpr uint64_t kLeastStep = 8;

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
  r.began = true;
  Job job;
  auto& window = *r.window;
  window.place();
  const size_t n = window.slots.size();
  job.alive.resize(n);
  for (size_t i = 0; i < n; ++i) {
    // What had data before a graph was captured may be read by its next replay.
    const bool kept = r.captured && window.had_data[i];
    job.alive[i] = kept || window.slots[i]->storage_alive.load(std::memory_order_acquire);
    window.slots[i]->window = 0;
    window.slots[i]->has_data = true;
  }
  job.key = window.key(job.alive);
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
  const auto fresh = [&](Buffer* buffer, uint32_t) {
    buffer->window = r.window->serial;
    return buffer->slot = r.window->add_slot(buffer, false);
  };
  for (size_t i = end.nodes; i < w.nodes.size(); ++i) r.window->add_again(w, w.nodes[i], w.recorded(i), fresh);
  submit_window(r, Cut::kContent);
  r.rolling = end.rolling;
  if (!end.nodes) return;
  w.nodes.resize(end.nodes);
  w.code.resize(end.code);
  w.dims.resize(end.dims);
  w.scalars.resize(end.scalars);
  w.slots.resize(end.slots);
  w.had_data.resize(end.slots);
  w.from_start.resize(end.slots);
  w.offsets.resize(end.offsets);
  w.structure = end.structure;
  w.sizes = end.sizes;
  w.pending_bytes = end.pending_bytes;
  w.boundary = end.boundary;
  w.fills = 0;
  r.window = std::move(rest);
}

// Takes the window's first ops out of it that are data, and submits them, if it is the first window, or began as the first:
// with what each step draws for itself. Not if the rest uses something of theirs that is dead; later ops use what is alive.
bool submit_setup(Recorder& r) {
  const size_t nodes = r.window->setup;
  uint64_t ops = nodes;
  for (size_t i = 0; i < nodes; ++i) ops = ops * 31 + r.window->nodes[i].op->digest;
  if (r.began && r.setup != ops) return false;
  std::vector<uint8_t> lost(r.window->slots.size());
  for (size_t i = 0; i < nodes; ++i)
    for (const uint32_t slot : r.window->slots_of(i)) lost[slot] = !r.window->slots[slot]->storage_alive.load(std::memory_order_acquire);
  for (size_t i = nodes; i < r.window->nodes.size(); ++i)
    if (std::ranges::any_of(r.window->slots_of(i), [&](uint32_t slot) { return lost[slot]; })) return false;
  r.setup = ops;
  const auto whole = std::move(r.window);
  whole->place();
  const auto again = [&](size_t from, size_t to) {
    r.open_window(whole->device);
    r.window->order(whole->ordered);
    const auto slot = [&](Buffer* buffer, uint32_t) {
      if (buffer->window != r.window->serial) {
        buffer->window = r.window->serial;
        buffer->slot = r.window->add_slot(buffer, buffer->has_data);
        if (!buffer->has_data) r.window->pending_bytes += buffer->nbytes;
      }
      return buffer->slot;
    };
    for (size_t i = from; i < to; ++i) r.window->add_again(*whole, whole->nodes[i], whole->recorded(i), slot);
  };
  again(0, nodes);
  submit_window(r, Cut::kContent);
  again(nodes, whole->nodes.size());
  r.window->boundary = whole->boundary;
  return true;
}

}  // namespace

Stats& stats() {
  static Stats s;
  return s;
}

void reset_stats() {
  auto& s = stats();
  for (auto* counter : {&s.ops, &s.windows, &s.windows_op_by_op, &s.reads, &s.plans_compiled, &s.plans_assembled, &s.ops_interpreted, &s.plans_hit, &s.kernels_built,
                        &s.kernels_launched, &s.extern_calls, &s.extern_copies, &s.host_ops, &s.host_bytes, &s.compile_ns, &s.meta_misses})
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

// What makes the structure of a window one that is ordered.
constexpr uint64_t kOrdered = 0x0DE7ED;

void Window::order(bool is_ordered) {
  if (C10_LIKELY(ordered || !is_ordered)) return;
  ordered = true;
  structure.mix(kOrdered);
}

// Slots are part of the structure in the order in which ops name them.
uint32_t Window::add_slot(Buffer* buffer, bool has_data) {
  slots.push_back(BufferPtr::reclaim_copy(buffer));
  had_data.push_back(has_data);
  from_start.push_back(false);
  structure.mix(0x51077u | (uint64_t(has_data) << 32));
  return static_cast<uint32_t>(slots.size()) - 1;
}

void Window::add_use(uint32_t slot, const Use& use) {
  structure.mix(slot);
  if (!use.offset) from_start[slot] = true;
  else offsets.push_back({slot, static_cast<uint32_t>(code.size()) + use.code, static_cast<uint32_t>(dims.size()) + use.dims, use.offset});
}

uint32_t Window::slot_of(const Use& use, const Frame& frame) {
  Buffer* buffer = use.buffer;
  if (buffer->window != serial) {
    buffer->window = serial;
    buffer->slot = add_slot(buffer, buffer->has_data);
    if (!buffer->has_data) {
      pending_bytes += buffer->nbytes;
      buffer->born = frame;
    }
  }
  add_use(buffer->slot, use);
  return buffer->slot;
}

void Window::place() {
  for (size_t i = 0; i < slots.size(); ++i) parts.push_back({from_start[i] ? 0 : UINT64_MAX, slots[i]->nbytes});
  const auto itemsize = [this](const Offset& use) { return c10::elementSize(static_cast<c10::ScalarType>(code[use.code + 1])); };
  for (const Offset& use : offsets) {
    uint64_t& first = parts[use.slot].first;
    first = std::min(first, static_cast<uint64_t>(use.offset) * itemsize(use));
  }
  const auto& learnt = part_alignments.at(static_cast<size_t>(device));
  if (!offsets.empty() && !learnt) learn_part_alignment(device);  // of ops that were not recorded with one
  const uint64_t alignment = offsets.empty() ? 1 : learnt.load();
  for (Part& part : parts) {
    part.first -= part.first % alignment;
    if (part.first) part.nbytes = 0;
  }
  for (const Offset& use : offsets) {
    Part& part = parts[use.slot];
    const auto rank = static_cast<size_t>(code[use.code + 2]);
    const int64_t *its_sizes = &dims[use.dims] - 2 * rank, *strides = its_sizes + rank;
    uint64_t last = static_cast<uint64_t>(use.offset);
    for (size_t d = 0; d < rank; ++d) last += static_cast<uint64_t>((its_sizes[d] - 1) * strides[d]);
    if (part.first) part.nbytes = std::max(part.nbytes, (last + 1) * itemsize(use) - part.first);
    dims[use.dims] = use.offset - static_cast<int64_t>(part.first / itemsize(use));
    sizes.mix(use.dims);
    sizes.mix(static_cast<uint64_t>(dims[use.dims]));
  }
  for (const Part& part : parts) sizes.mix(part.nbytes);
}

std::vector<uint32_t> Window::slots_of(size_t node) const {
  std::vector<uint32_t> found;
  const size_t end = node + 1 < nodes.size() ? nodes[node + 1].code : code.size();
  for (size_t at = nodes[node].code + 1; at < end; at += static_cast<size_t>(kEntries[code[at]]))
    if (code[at] == kTensor || code[at] == kOut) found.push_back(static_cast<uint32_t>(code[at + 1]));
  return found;
}

Recorded Window::recorded(size_t node) const {
  const auto part = [&](const auto& stream, uint32_t Node::*first) {
    const auto end = node + 1 == nodes.size() ? stream.end() : stream.begin() + nodes[node + 1].*first;
    return std::vector(stream.begin() + nodes[node].*first, end);
  };
  return {part(code, &Node::code), part(dims, &Node::dims), part(scalars, &Node::scalars)};
}

void Window::add_again(const Window& other, const Node& node, Recorded its, const std::function<uint32_t(Buffer*, uint32_t)>& slot) {
  auto& [its_code, its_dims, its_scalars] = its;
  Keys keys;  // as the recorder had them: of all that is known before the window is, but for the results' sizes
  std::vector<std::pair<uint32_t, Use>> uses;  // by slots of the other window
  size_t known = its_dims.size();
  for (size_t at = 1, dim = 0; at < its_code.size(); at += static_cast<size_t>(kEntries[its_code[at]])) {
    const int64_t tag = its_code[at];
    if (tag == kInt) ++dim;
    if (tag != kTensor && tag != kOut) continue;
    if (tag == kOut) known = std::min(known, dim);
    dim += 2 * static_cast<size_t>(its_code[at + 3]);
    const auto its_slot = static_cast<uint32_t>(std::exchange(its_code[at + 1], kUnpatched));
    int64_t offset = 0;
    if (tag == kTensor) {
      offset = std::exchange(its_dims[dim], kUnpatched);
      if (!other.parts.empty()) offset += static_cast<int64_t>(other.parts[its_slot].first / c10::elementSize(static_cast<c10::ScalarType>(its_code[at + 2])));
    }
    uses.push_back({its_slot, {other.slots[its_slot].get(), static_cast<uint32_t>(at) + 1, static_cast<uint32_t>(dim), offset}});
    dim += tag == kTensor;
  }
  keys.code.mix(its_code);
  for (size_t i = 0; i < known; ++i) keys.dims.mix(static_cast<uint64_t>(its_dims[i]));
  for (const auto& [its_slot, use] : uses) {
    const uint32_t here = slot(use.buffer, its_slot);
    add_use(here, use);
    its_code[use.code] = here;
  }
  add(*node.op, node.frame, its_code, its_dims, its_scalars, keys);
}

Hash Window::key(const std::vector<uint8_t>& alive) const {
  Hash key = structure;
  key.mix(sizes.a);
  key.mix(sizes.b);
  for (size_t i = 0; i < alive.size(); ++i) key.mix(alive[i] | (had_data[i] << 1));
  return key;
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
    for (const uint32_t slot : slots_of(i)) hash.mix(parts[slot].nbytes);
  }
  return hash;
}

void Window::add(const OpEntry& op, const Frame& frame, const std::vector<int64_t>& its_code, const std::vector<int64_t>& its_dims,
                 const std::vector<uint64_t>& its_scalars, const Keys& keys) {
  nodes.push_back({&op, static_cast<uint32_t>(code.size()), static_cast<uint32_t>(dims.size()), static_cast<uint32_t>(scalars.size()),
                   keys.code.a ^ keys.dims.b, frame});
  code.insert(code.end(), its_code.begin(), its_code.end());
  dims.insert(dims.end(), its_dims.begin(), its_dims.end());
  scalars.insert(scalars.end(), its_scalars.begin(), its_scalars.end());
  structure.mix(keys.code);
  sizes.mix(keys.dims);
}

void append(const OpEntry& op, int device, std::vector<int64_t>& code, const std::vector<int64_t>& dims,
            const std::vector<Use>& uses, const std::vector<uint64_t>& scalars, const Keys& keys) {
  const Frame frame = current_frame();
  auto& r = recorder(device);
  const bool any_offset = std::ranges::any_of(uses, [](const Use& use) { return use.offset != 0; });
  if (C10_UNLIKELY(any_offset && !part_alignments.at(static_cast<size_t>(device)))) learn_part_alignment(device);
  Cut cause = Cut::kCount;  // none
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    // Memory that an earlier window has, or this one, is not fresh.
    const bool fill = op.fills && uses.size() == 1 && !uses[0].offset && !uses[0].buffer->has_data && !uses[0].buffer->window;
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
      w.before_fills = {w.nodes.size(),   w.code.size(), w.dims.size(), w.scalars.size(), w.slots.size(),
                        w.offsets.size(), w.structure,   w.sizes,       w.pending_bytes,  r.rolling,
                        w.boundary};
    w.order(at::globalContext().deterministicAlgorithms());
    const bool data = std::ranges::none_of(uses, [](const Use& use) { return use.buffer->has_data; });
    if (data && w.setup == w.nodes.size()) ++w.setup;
    for (const Use& use : uses) {
      code[use.code] = w.slot_of(use, frame);
      if (op.mutates || code[use.code - 1] == kOut) use.buffer->written = r.waits;
    }
    w.add(op, frame, code, dims, scalars, keys);
    stats().ops.fetch_add(1, std::memory_order_relaxed);
    r.rolling = (r.rolling << 4) + op.digest;
    // A window that is complete ends with the next op: what its last ops leave is often dead by then.
    w.boundary.complete |= content_boundary(w.boundary, w.nodes.size(), w.pending_bytes, r.rolling);
    const bool begins = (!r.began || r.setup) && !r.captured && w.setup && w.nodes.size() == w.setup + kLeastStep && window_ops >= kShortest;
    const bool full = w.nodes.size() >= window_ops;
    if (full && apart(w)) submit_fills(r), cause = Cut::kContent;
    else if (full || w.pending_bytes > kMaxPendingBytes) submit_window(r, cause = full ? Cut::kFull : Cut::kBytes);
    else if (begins && submit_setup(r)) cause = Cut::kContent;
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
    r.waits += waits;
    if (!r.window) return executor(device).last_ticket();
    ticket = submit_window(r, cause);
  }
  note(Event::kCut, cut_name(cause));
  if (!waits) executor(device).start();  // else whoever waits runs it
  return ticket;
}

void note_upload(Buffer& buffer) {
  auto& r = recorder(buffer.device);
  std::lock_guard<std::mutex> lock(r.mutex);
  buffer.written = r.waits;
}

uint64_t cut_before_read(const Buffer& buffer) {
  auto& r = recorder(buffer.device);
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    if (!r.captured && buffer.has_data && buffer.written < r.waits) return buffer.ticket;
  }
  return cut(buffer.device, Cut::kRead);
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
      if (job.window) {
        stats().windows++;
        for (const auto& slot : job.window->slots) slot->written = r.waits;
      }
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
