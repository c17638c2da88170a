// Packed sequences: the rows of a batch's steps without those that a shorter sequence has not.
#pragma once

#include <ATen/ATen.h>

namespace lazy {

// Which packed row is which place of (steps, batch), places counted row by row. The sizes of the tensors are no part of a
// window's structure, so that batches of other lengths are the same window; torch's composites make ops for each step.
struct Packing {
  int64_t steps, batch, rows;
  at::Tensor places;   // (rows): the place of each row
  at::Tensor sources;  // (steps * batch): the row of each place, any where there is none
  at::Tensor padding;  // (steps * batch): whether there is none
};

// Whether `sizes` are a packed sequence's batch sizes of `rows` rows: on the CPU, positive, none larger than the one before.
bool are_batch_sizes(const at::Tensor& sizes, int64_t rows);

// `steps`: at least as many as there are batch sizes.
Packing packing(const at::Tensor& batch_sizes, int64_t steps, c10::Device device);

// (rows, ..) -> (steps, batch, ..), with `fill` where there is no row, and back. Both are differentiable as often as one likes.
at::Tensor padded(const at::Tensor& rows, const Packing& packing, const at::Scalar& fill = 0);
at::Tensor packed(const at::Tensor& steps, const Packing& packing);

// (steps * batch): the place of the same sequence's step that is as far from its end as this one is from its start.
at::Tensor mirrored(const at::Tensor& batch_sizes, const Packing& packing);

// (batch): the place of each sequence's last step.
at::Tensor last_places(const at::Tensor& batch_sizes, const Packing& packing);

}  // namespace lazy
