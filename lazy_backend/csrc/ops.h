// The op entries: what the recorder knows of an operator, looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <vector>

namespace lazy {

struct Shape;

// Which operands of an op eager lets share memory with what it writes: all, those that are it, or none.
enum class Overlap : uint8_t { kAny, kWhole, kNone };

struct OpEntry {
  c10::OperatorHandle handle;
  std::string name;       // "aten.add.Tensor"
  uint32_t id;            // of this process
  uint64_t digest;        // of the name: the same in every process
  size_t nargs, nreturns;
  bool seeded;            // draws random numbers
  bool view;              // returns an alias that it does not write
  bool mutates;
  bool pointwise;
  std::vector<int> aliases;        // per return: the argument that it is, or -1
  std::vector<bool> static_arg;    // per argument: its Scalar or float must be known when compiling
  std::atomic<bool> host{false};   // no lowering: runs on the host at once
  std::atomic<bool> warned{false};
  std::atomic<uint64_t> host_calls{0};
  bool disjoint = false;           // eager refuses an out= that lies in the first operand
  std::optional<c10::OperatorHandle> stand_in = {};  // what the host runs for it, where torch's CPU has no such op
  const Shape* shape = nullptr;    // structured: asked in place of the Meta kernel
  Overlap overlap = Overlap::kAny;
  bool stores = false;             // writes a number as it is, which the dtype must hold
  bool fills = false;              // writes one number to its only tensor
  bool contracts = false;          // a product, a convolution or attention
  bool divides = false;            // with a remainder: of integers by zero, eager raises
  bool awaited = false;            // iterates, and raises what scripts catch where it does not converge: at the call
  bool counts = false;             // autograd does not count as written the lists that it writes
  bool host_indices = false;       // its index tensors may live on the host, as on every accelerator
};

OpEntry& op_entry(const c10::OperatorHandle& op);
std::vector<OpEntry*> op_entries();

// Marks from Python's tables (ops_core): `name` as in OpEntry. They hold for entries made later too.
void mark_static_scalars(const std::string& name, const std::vector<std::string>& args);
void mark_host(const std::string& name);

// The boxed kernels.
void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void run_on_host(OpEntry& entry, torch::jit::Stack* stack);  // the CPU fallback: waits, runs, wraps

// Counts each tensor of a list that was written: autograd then knows that what it saved has changed.
void count_writes(const at::TensorList& list);

// What an op gave; nothing in place of an argument that it returns.
using Results = c10::SmallVector<c10::IValue, 4>;
// Adds the op to its window. False, and nothing was done: it is the host's.
bool record_node(OpEntry& op, c10::IValue* args, Results& results);
// As `record`, of arguments that stay the caller's; not for views, or ops whose indices may be on the host.
Results record_borrowed(OpEntry& op, c10::IValue* args);
// Registers the commonest ops with kernels that are not boxed.
void record_unboxed();

// Runs an op on CPU tensors that share (or copy, where memory is not host visible) the memory
// of the lazy arguments. The device must be idle. Used by the fallback and by host steps of plans.
void call_on_host(const OpEntry& entry, torch::jit::Stack* stack);

void register_ops();

// Raises: the device has no tensors of this kind ("sparse", "nested", "quantized").
[[noreturn]] void refuse_layout(const char* kind);

}  // namespace lazy
