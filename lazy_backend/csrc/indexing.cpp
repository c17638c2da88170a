// x[i, j] and x[i, j] = y of positions, recorded at once. Masks are read, and errors said, by ops_core/data_dependent.py,
// whose kernels are `lazy_backend::index` and `lazy_backend::index_put_`.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "ops.h"

namespace lazy {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

bool given(const std::optional<at::Tensor>& index) { return index.has_value() && index->defined(); }

bool positions(const Indices& indices) {
  return std::all_of(indices.begin(), indices.end(), [](const std::optional<at::Tensor>& index) {
    return !given(index) || index->scalar_type() == at::kLong || index->scalar_type() == at::kInt;
  });
}

// The sizes of x[indices]; nothing where they do not belong together.
std::optional<at::DimVector> sizes_of(const at::Tensor& self, const Indices& indices) {
  at::DimVector places, sizes;
  const auto rank = static_cast<size_t>(self.dim());
  if (indices.size() > rank) return {};
  std::vector<bool> used(rank);
  for (size_t d = 0; d < indices.size(); ++d) {
    const std::optional<at::Tensor> index = indices[d];
    if (!given(index)) continue;
    used[d] = true;
    const auto dims = static_cast<size_t>(index->dim());
    if (dims > places.size()) places.insert(places.begin(), dims - places.size(), 1);
    for (size_t i = 0; i < dims; ++i) {
      int64_t& place = places[places.size() - dims + i];
      const int64_t size = index->size(static_cast<int64_t>(i));
      if (place != 1 && size != 1 && place != size) return {};
      if (place == 1) place = size;
    }
  }
  const auto first = std::ranges::find(used, true), gap = std::find(first, used.end(), false);
  const bool together = first != used.end() && std::find(gap, used.end(), true) == used.end();
  const auto front = together ? first - used.begin() : 0;
  for (size_t d = 0; d < rank; ++d)
    if (!used[d]) sizes.push_back(self.size(static_cast<int64_t>(d)));
  sizes.insert(sizes.begin() + front, places.begin(), places.end());
  return sizes;
}

bool broadcasts(const at::Tensor& values, const at::DimVector& to) {
  const auto rank = static_cast<size_t>(values.dim());
  if (rank > to.size()) return false;
  for (size_t i = 0; i < rank; ++i)
    if (const int64_t n = values.sizes()[i]; n != 1 && n != to[to.size() - rank + i]) return false;
  return true;
}

// A mask over the first dims, wherever which one value goes: no count is needed.
bool whole_mask(const at::Tensor& self, const Indices& indices) {
  if (indices.size() != 1 || !given(indices[0])) return false;
  const at::Tensor mask = indices.get(0).value();
  const auto dims = static_cast<size_t>(mask.dim());
  return mask.scalar_type() == at::kBool && dims <= self.sizes().size() && mask.sizes().equals(self.sizes().slice(0, dims));
}

const c10::OperatorHandle& named(const char* name, const char* overload) {
  return *new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

at::Tensor index(const at::Tensor& self, const Indices& indices) {
  static const auto &recorded = named("aten::_unsafe_index", "Tensor"), &read = named("lazy_backend::index", "");
  torch::jit::Stack stack{self, indices};
  if (positions(indices)) record(recorded, &stack);
  else read.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
  return stack[0].toTensor();
}

at::Tensor& index_put_(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  static const auto &recorded = named("aten::_index_put_impl_", ""), &read = named("lazy_backend::index_put_", "");
  bool whole = false;
  if (values.numel() == 1) {
    whole = positions(indices) || whole_mask(self, indices);
  } else if (positions(indices)) {
    const auto sizes = sizes_of(self, indices);
    whole = sizes && broadcasts(values, *sizes);
  }
  torch::jit::Stack stack{self, indices, values, accumulate};
  if (whole) {
    stack.emplace_back(false);  // unsafe
    record(recorded, &stack);
  } else {
    read.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
  }
  return self;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy_backend, m) {
  m.def("index(Tensor self, Tensor?[] indices) -> Tensor");
  m.def("index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("index.Tensor", TORCH_FN(index));
  m.impl("index_put_", TORCH_FN(index_put_));
}

}  // namespace lazy
