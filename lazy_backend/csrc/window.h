// A window: a straight-line program over buffers, as it is recorded.
//
// Nodes are kept as two flat streams. `code` holds structure (op, argument kinds, dtypes,
// ranks, slots), `dims` everything that is a size or an int (sizes, strides, offsets, ints).
// Two windows with equal `code` have equal structure; with equal `dims` too, equal sizes.
// Run-time scalars are in neither: they are data.
#pragma once

#include <Python.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"
#include "driver.h"
#include "frame.h"

namespace lazy {

// Argument tags in `code`. What follows each, in `code` | in `dims`:
enum Tag : int64_t {
  kNone,        //
  kTensor,      // slot, dtype, rank, flags       | sizes, strides, offset (in the slot, once the window is cut)
  kHostScalar,  // dtype, wrapped                  (0-dim CPU tensor; value in scalars)
  kScalar,      // ScalarKind                      (run-time Scalar or float; value in scalars)
  kInt,         //                                 | value
  kBool,        // value
  kDouble,      // bits
  kString,      // interned id
  kDtype,       // value      (also layout, memory format: schema tells)
  kDevice,      // index
  kList,        // n, then n tagged elements
  kOut,         // slot, dtype, rank               | sizes, strides
};
enum TensorFlags : int64_t { kSizeOneMaskShift = 8 };  // bits above: which sizes are 1
enum ScalarKind : int64_t { kF64, kI64, kB1, kC128 };  // kC128 takes two entries

struct Hash {
  uint64_t a = 0x243F6A8885A308D3ull, b = 0x13198A2E03707344ull;
  void mix(uint64_t v) {
    a = (a ^ v) * 0x9E3779B97F4A7C15ull;
    a ^= a >> 29;
    b = (b + v) * 0xC2B2AE3D27D4EB4Full;
    b ^= b >> 31;
  }
  void mix(const Hash& o) {
    mix(o.a);
    mix(o.b);
  }
  // The numbers from `first` on.
  void mix(const std::vector<int64_t>& values, size_t first = 0) {
    for (size_t i = first; i < values.size(); ++i) mix(static_cast<uint64_t>(values[i]));
  }
  bool operator==(const Hash& o) const { return a == o.a && b == o.b; }
};
struct HashHash {
  size_t operator()(const Hash& h) const { return h.a ^ (h.b << 1); }
};

struct OpEntry;

constexpr int64_t kUnpatched = 0;  // a slot number, in `code`, and an offset, in `dims`, are filled in when the window is known

// Of a buffer in an op's streams. offset: of its first element in the storage, in elements.
struct Use {
  Buffer* buffer;
  uint32_t code, dims;  // where its slot's number is to stand, and its offset, if that is not 0
  int64_t offset;
};

// Of an op's streams, without the numbers of its slots and without offsets: what the recorder looks up is also what a
// window is known by, so that they are hashed once.
struct Keys {
  Hash code, dims;
};

// An op in the streams, by itself.
struct Recorded {
  std::vector<int64_t> code, dims;
  std::vector<uint64_t> scalars;
};

// Entries of each tag in `code`, itself included. The elements of a list, and the number of a 0-dim host tensor, follow as
// arguments.
constexpr int64_t kEntries[] = {1, 5, 3, 2, 1, 2, 2, 2, 2, 2, 2, 4};

struct Node {
  const OpEntry* op;
  uint32_t code, dims, scalars;  // first entry in each stream
  uint64_t call;                 // what the op is and its arguments look like, sizes too
  Frame frame;
};

// What `content_boundary` keeps of a window, and says what it is for.
struct Boundary {
  bool complete = false;         // it ends with the next op
  bool loop = false;             // its first ops are turns of a short loop
  uint64_t before = 0;           // rolling hash at its start,
  uint64_t first = 0;            // that of its first ops,
  uint64_t loop_lowest = ~0ull;  // the lowest of a short loop
  uint64_t lowest = ~0ull;       // and the lowest in its second quarter
};

struct Window {
  explicit Window(int device_index, uint64_t serial_number) : device(device_index), serial(serial_number) {}
  const int device;
  const uint64_t serial;
  std::vector<Node> nodes;
  std::vector<int64_t> code, dims;
  std::vector<uint64_t> scalars;
  std::vector<BufferPtr> slots;
  std::vector<uint8_t> had_data;  // per slot: defined before the window
  // Per slot, when the window is cut: the part of its buffer that the window knows, in bytes. Most often all; else that from
  // its first use to its last, so that a loop over `x[i : i + 32]` has one plan.
  struct Part {
    uint64_t first, nbytes;
  };
  std::vector<Part> parts;
  std::vector<uint8_t> from_start;  // per slot: some use of it is from its first byte on
  struct Offset {
    uint32_t slot, code, dims;  // where in the streams its use has a slot and an offset
    int64_t offset;
  };
  std::vector<Offset> offsets;      // of the other uses
  Hash structure, sizes;
  bool ordered = false;  // an op of it was recorded under torch.use_deterministic_algorithms: no sum in any order
  uint64_t pending_bytes = 0;
  Boundary boundary;
  uint64_t setup = 0;  // its first ops, so many, use nothing that there was before it
  // Its last ops, so many, fill memory that nothing else has written; how it was before them.
  uint64_t fills = 0;
  struct {
    size_t nodes, code, dims, scalars, slots, offsets;
    Hash structure, sizes;
    uint64_t pending_bytes, rolling;
    Boundary boundary;
  } before_fills = {};

  void add(const OpEntry& op, const Frame& frame, const std::vector<int64_t>& code, const std::vector<int64_t>& dims,
           const std::vector<uint64_t>& scalars, const Keys& keys);
  uint32_t slot_of(const Use& use, const Frame& frame);
  void order(bool is_ordered);
  uint32_t add_slot(Buffer* buffer, bool has_data);
  void add_use(uint32_t slot, const Use& use);               // by the op that is added next
  void place();                                              // fills in `parts` and the offsets
  Recorded recorded(size_t node) const;
  // Adds an op of another window, as a node there has it. slot(its buffer, its slot there): its slot here.
  void add_again(const Window& other, const Node& node, Recorded its, const std::function<uint32_t(Buffer*, uint32_t)>& slot);
  std::vector<uint32_t> slots_of(size_t node) const;         // that the node reads or writes
  Hash key(const std::vector<uint8_t>& alive) const;          // by which its plan is known
  Hash sizes_but(const std::vector<uint32_t>& nodes) const;  // of all other nodes, and of what they touch
};

// So many fills of fresh memory in a row are a window of their own, before the one in which they were recorded: an
// optimizer's state, made in a first step that is otherwise like the second, and has its plan. Fewer are worth more where
// they are, as constants. benchmarks: examples/gpt.py, plans compiled in the second step (1 -> 0, 0.8 s).
constexpr uint64_t kFills = 16;

// Cut the current window of a device and hand it to the executor. Returns the ticket of the
// last submitted job. `cause` is a row of the cut-cause table.
enum class Cut { kRead, kFull, kBytes, kSync, kHostOp, kCopy, kEvent, kGraph, kBoundary, kContent, kCount };
const char* cut_name(Cut cause);
uint64_t cut(int device, Cut cause);
// The host is about to read the buffer. Cuts, unless the host has waited since that was written: then it is known, and the
// window goes on. To wait is where a step of a script ends, whatever its windows are: a loss of a forward pass that was handed
// over before its backward pass was recorded. Returns the ticket of the last job that must be done.
uint64_t cut_before_read(const Buffer& buffer);
void note_upload(Buffer& buffer);

// An upload is where a script's step begins, a boundary in its own words: a window that is long enough ends there.
void cut_at_upload(int device);

// While a graph is captured, what would go to the executor is kept in `jobs`, in order; what needs a value raises.
struct Job;
void begin_capture(int device, std::vector<Job>* jobs);
void end_capture(int device);  // also where none is captured
bool capturing(int device);

// Queue jobs behind what is recorded so far.
void submit_all(int device, std::vector<Job> jobs);

// Queue something else in order, after what is recorded so far or (a fresh buffer's upload) before it. Returns its ticket.
uint64_t submit_action(int device, Cut cause, bool after_window, std::function<void(Device&)> action);

}  // namespace lazy
