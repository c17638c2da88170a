#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "ops.h"
#include "shapes.h"

namespace lazy {
namespace {

struct Marks {
  std::vector<std::string> static_args;
  bool host = false;
};

std::mutex entries_mutex;
std::vector<OpEntry*> entries;
std::unordered_map<std::string, Marks> marks;

void apply(OpEntry& entry, const Marks& mark) {
  const auto& arguments = entry.handle.schema().arguments();
  for (size_t i = 0; i < entry.nargs; ++i)
    if (std::find(mark.static_args.begin(), mark.static_args.end(), arguments[i].name()) != mark.static_args.end())
      entry.static_arg[i] = true;
  if (mark.host) entry.host = true;
}

// FNV-1a, of 64 bits.
uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

Overlap overlap_of(const std::string& name) {
  static const std::unordered_set<std::string> none = {
      "aten.index_add_.default", "aten.index_copy_.default", "aten.index_reduce_.default", "aten.index_put_.default",
      "aten._index_put_impl_.default", "aten.index_fill_.int_Scalar", "aten.put_.default", "aten.scatter_.src",
      "aten.scatter_.value", "aten.scatter_.reduce", "aten.scatter_add_.default", "aten.scatter_reduce_.two",
      "aten.index_select.out", "aten.take.out", "aten.index.Tensor_out"};
  static const std::unordered_set<std::string> whole = {
      "aten.masked_fill_.Scalar", "aten.where.self_out", "aten.cumsum.out", "aten.cumprod.out",
      "aten.logcumsumexp.out", "aten._logcumsumexp.out", "aten.sort.values_stable"};
  return none.contains(name) ? Overlap::kNone : whole.contains(name) ? Overlap::kWhole : Overlap::kAny;
}

OpEntry* make_entry(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  std::string name = schema.name();
  for (size_t at; (at = name.find("::")) != std::string::npos;) name.replace(at, 2, ".");
  name += "." + (schema.overload_name().empty() ? "default" : schema.overload_name());

  const uint64_t digest = fnv1a(name);
  auto* entry = new OpEntry{op, std::move(name), static_cast<uint32_t>(entries.size()), digest, schema.arguments().size(),
                            schema.returns().size(), op.hasTag(at::Tag::nondeterministic_seeded), false, false,
                            op.hasTag(at::Tag::pointwise), {}, std::vector<bool>(schema.arguments().size()), {}, {}, {}};
  for (const auto& result : schema.returns()) {
    int alias = -1;
    if (const auto* info = result.alias_info()) {
      for (size_t i = 0; i < entry->nargs; ++i) {
        const auto* argument = schema.arguments()[i].alias_info();
        if (argument && !info->beforeSets().empty() && argument->beforeSets() == info->beforeSets()) alias = static_cast<int>(i);
      }
      if (!info->isWrite()) entry->view = true;
    }
    entry->aliases.push_back(alias);
  }
  // Its output's shape is in the data: a kernel of its own reads it (ops_core.data_dependent), else the host.
  entry->host = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  static const std::unordered_set<std::string> disjoint = {"aten.gather.out", "aten.take.out", "aten.kthvalue.values",
                                                    "aten.cat.out"};
  entry->disjoint = disjoint.count(entry->name) != 0;
  entry->overlap = overlap_of(entry->name);
  for (const char* storing : {"aten.fill_.Scalar", "aten.fill.Scalar", "aten.masked_fill.Scalar", "aten.masked_fill_.Scalar",
                              "aten.index_fill.int_Scalar", "aten.index_fill_.int_Scalar", "aten.scatter.value",
                              "aten.scatter_.value", "aten.constant_pad_nd.default", "aten.clamp.default", "aten.clamp_.default",
                              "aten.clamp_min.default", "aten.clamp_max.default"})
    entry->stores |= entry->name == storing;
  if (schema.name().rfind("aten::", 0) == 0)  // host_ops.cpp
    entry->stand_in = c10::Dispatcher::singleton().findSchema({"lazy_host::" + schema.name().substr(6), schema.overload_name()});
  entry->shape = shape_of(entry->name);
  entry->fills = entry->name == "aten.zero_.default" || entry->name == "aten.fill_.Scalar";
  for (const char* contraction : {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution", "aten._scaled_dot"})
    entry->contracts |= entry->name.rfind(contraction, 0) == 0;
  for (const char* division : {"aten.floor_divide", "aten.remainder", "aten.fmod", "aten.div"})
    entry->divides |= entry->name.rfind(division, 0) == 0;
  for (const char* iterating : {"aten._linalg_eigh", "aten._linalg_svd", "aten._linalg_eigvals", "aten.linalg_eig"})
    entry->awaited |= entry->name.rfind(iterating, 0) == 0;
  for (const char* indexing : {"aten.index", "aten._index_put", "aten._unsafe_index"})
    entry->host_indices |= entry->name.rfind(indexing, 0) == 0;
  const auto* first = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
  entry->counts = first && first->isWrite() && entry->name.rfind("aten._foreach_", 0) == 0;
  for (const auto& argument : schema.arguments())
    entry->mutates |= argument.alias_info() && argument.alias_info()->isWrite();
  return entry;
}

}  // namespace

OpEntry& op_entry(const c10::OperatorHandle& op) {
  // A thread's own map: no lock on the hot path.
  thread_local std::unordered_map<c10::OperatorHandle, OpEntry*> cache;
  if (auto found = cache.find(op); found != cache.end()) return *found->second;
  std::lock_guard<std::mutex> lock(entries_mutex);
  for (auto* entry : entries)
    if (entry->handle == op) return *(cache[op] = entry);
  auto* entry = make_entry(op);
  if (auto mark = marks.find(entry->name); mark != marks.end()) apply(*entry, mark->second);
  entries.push_back(entry);
  return *(cache[op] = entry);
}

std::vector<OpEntry*> op_entries() {
  std::lock_guard<std::mutex> lock(entries_mutex);
  return entries;
}

void mark_static_scalars(const std::string& name, const std::vector<std::string>& args) {
  std::lock_guard<std::mutex> lock(entries_mutex);
  auto& mark = marks[name];
  mark.static_args.insert(mark.static_args.end(), args.begin(), args.end());
  for (auto* entry : entries)
    if (entry->name == name) apply(*entry, mark);
}

void mark_host(const std::string& name) {
  std::lock_guard<std::mutex> lock(entries_mutex);
  marks[name].host = true;
  for (auto* entry : entries)
    if (entry->name == name) entry->host = true;
}

}  // namespace lazy
