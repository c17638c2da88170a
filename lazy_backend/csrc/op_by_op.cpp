#include "op_by_op.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ops.h"

namespace lazy {
namespace {

// Walks an op's streams argument by argument.
struct Reader {
  const Recorded& from;
  size_t code = 1, dims = 0, scalars = 0;  // behind the op's number

  bool at_end() const { return code == from.code.size(); }
  int64_t tag() const { return from.code[code]; }

  // Copies the argument at hand, or passes it by where `to` is null.
  void argument(Recorded* to) {
    const int64_t kind = tag(), rank = kind == kTensor || kind == kOut ? from.code[code + 3] : 0;
    const int64_t elements = kind == kList ? from.code[code + 1] : kind == kHostScalar ? 1 : 0;
    const auto copy = [](const auto& stream, size_t& at, size_t count, auto* into) {
      if (into) into->insert(into->end(), stream.begin() + static_cast<std::ptrdiff_t>(at), stream.begin() + static_cast<std::ptrdiff_t>(at + count));
      at += count;
    };
    const size_t numbers = kind != kScalar ? 0 : from.code[code + 1] == kC128 ? 2 : 1;
    copy(from.code, code, static_cast<size_t>(kEntries[kind]), to ? &to->code : nullptr);
    copy(from.dims, dims, static_cast<size_t>(2 * rank) + (kind == kTensor || kind == kInt), to ? &to->dims : nullptr);
    copy(from.scalars, scalars, numbers, to ? &to->scalars : nullptr);
    for (int64_t i = 0; i < elements; ++i) argument(to);
  }
};

// Of an op over lists, what it does with the members of this number: lists of one. Nothing behind the last, or where its
// lists are not of one length.
std::optional<Recorded> member(const OpEntry& op, const Recorded& whole, int64_t number) {
  Recorded found;
  found.code.push_back(whole.code[0]);
  Reader reader{whole};
  int64_t results = 0;
  std::optional<int64_t> members;
  for (size_t i = 0; i < op.nargs; ++i) {
    if (reader.tag() != kList) {
      reader.argument(&found);
      continue;
    }
    const int64_t length = whole.code[reader.code + 1];
    if (number >= length || length != members.value_or(length)) return {};
    members = length;
    found.code.insert(found.code.end(), {kList, 1});
    reader.code += static_cast<size_t>(kEntries[kList]);
    for (int64_t m = 0; m < length; ++m) reader.argument(m == number ? &found : nullptr);
  }
  for (; !reader.at_end(); ++results) reader.argument(results == number ? &found : nullptr);
  if (!members || (results && results != *members)) return {};
  return found;
}

// An op that does a part of another.
struct Part {
  const OpEntry* op;
  Recorded recorded;
};

// A concatenation of more tensors is copies of these: a list that grows, or one whose members are views as a coin has it,
// would be a plan of its own each time, 0.3 to 0.5 ms a tensor to make. Eight images of which each may be flipped: a step
// 4.6 ms with one kernel for all eight, 2.2 with copies. (codegen/functionalize.py, MOST_PARTS, is for windows that stay.)
constexpr int64_t kMostJoined = 4;

std::vector<Part> copies(const OpEntry& cat, const Recorded& whole) {
  static const OpEntry& copy = op_entry(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  Reader reader{whole}, list_end{whole}, end{whole};
  const int64_t tensors = whole.code[reader.code + 1];
  if (reader.tag() != kList || tensors <= kMostJoined) return {};
  list_end.argument(nullptr);
  for (size_t i = 0; i < cat.nargs; ++i) end.argument(nullptr);
  if (end.at_end() || end.tag() != kOut) return {};
  const int64_t slot = whole.code[end.code + 1], dtype = whole.code[end.code + 2], rank = whole.code[end.code + 3];
  const int64_t* strides = whole.dims.data() + end.dims + rank;
  const int64_t dim = whole.dims[list_end.dims] + (whole.dims[list_end.dims] < 0 ? rank : 0);
  reader.code += static_cast<size_t>(kEntries[kList]);
  std::vector<Part> parts;
  for (int64_t i = 0, offset = 0; i < tensors; ++i) {
    const int64_t* its_sizes = whole.dims.data() + reader.dims;
    const bool joins = reader.tag() == kTensor && whole.code[reader.code + 3] == rank;  // a vector of nothing joins with all
    if (!joins || std::find(its_sizes, its_sizes + rank, 0) != its_sizes + rank) {
      reader.argument(nullptr);
      continue;
    }
    Recorded one;
    int64_t ones = 0;
    for (int64_t d = 0; d < rank; ++d) ones |= int64_t(its_sizes[d] == 1) << d;
    one.code = {copy.id, kTensor, slot, dtype, rank, ones << kSizeOneMaskShift};
    one.dims.assign(its_sizes, its_sizes + rank);
    one.dims.insert(one.dims.end(), strides, strides + rank);
    one.dims.push_back(offset);
    offset += its_sizes[dim] * strides[dim];
    reader.argument(&one);
    one.code.insert(one.code.end(), {kBool, 0});  // blocking
    parts.push_back({&copy, std::move(one)});
  }
  return parts;
}

// What an op is done in: most in one, those over lists (a step of an optimizer, whose lists are others each time where a
// network leaves parts of it out) in one for each member.
std::vector<Part> parts_of(const Window& window, size_t node) {
  const OpEntry& op = *window.nodes[node].op;
  Recorded whole = window.recorded(node);
  std::vector<Part> parts;
  if (op.name == "aten.cat.default") parts = copies(op, whole);
  if (op.name.starts_with("aten._foreach_"))
    while (auto part = member(op, whole, static_cast<int64_t>(parts.size()))) parts.push_back({&op, std::move(*part)});
  if (parts.empty()) parts.push_back({&op, std::move(whole)});
  return parts;
}

}  // namespace

std::vector<Job> op_by_op(Job job) {
  const Window& whole = *job.window;
  std::vector<Job> parts;
  std::vector<size_t> last(whole.slots.size());  // the part that touches each slot last
  std::vector<std::vector<uint32_t>> slots;      // of the whole window, of each part
  std::vector<uint8_t> had_data = whole.had_data;
  for (size_t i = 0; i < whole.nodes.size(); ++i) {
    for (Part& op : parts_of(whole, i)) {
      auto part = std::make_unique<Window>(whole.device, whole.serial);
      std::vector<uint32_t> its_slots;
      part->order(whole.ordered);
      Node node = whole.nodes[i];
      node.op = op.op;
      part->add_again(whole, node, std::move(op.recorded), [&](Buffer* buffer, uint32_t there) {
        const auto found = std::ranges::find(its_slots, there);
        if (found != its_slots.end()) return static_cast<uint32_t>(found - its_slots.begin());
        its_slots.push_back(there);
        return part->add_slot(buffer, had_data[there]);
      });
      part->place();
      for (const uint32_t there : its_slots) {
        had_data[there] = true;
        last[there] = parts.size();
      }
      slots.push_back(std::move(its_slots));
      parts.emplace_back().window = std::move(part);
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const uint32_t there : slots[i]) parts[i].alive.push_back(job.alive[there] || last[there] > i);
    parts[i].key = parts[i].window->key(parts[i].alive);
  }
  return parts;  // each holds its buffers until it has run
}

}  // namespace lazy
