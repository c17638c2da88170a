"""Ops whose output shape depends on data: one read of a count, everything else by device ops.

`KERNELS` maps an overload to a function with its schema's arguments, over tensors of any device; the backend registers
them. An indexing op reads only where a mask is among its indices; what it calls then, `UNMASKED`, is recorded whole.
The recorder itself calls that for indices that are positions, and the kernels of `READ` for any others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops_core.device_kernels import Kernel, into, registrar

KERNELS: dict[str, Kernel] = {}
kernel = registrar(KERNELS)
INDEX_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool)
UNMASKED = ("_unsafe_index.Tensor", "_index_put_impl_")
READ = ("index.Tensor", "index_put_.default")


@kernel("nonzero.default")
def nonzero(self: Tensor) -> Tensor:
    """Positions of the non-zeros, [count, ndim]."""
    count = int((self != 0).sum().item())
    return torch.nonzero_static(self, size=count)


@kernel("nonzero.out")
def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    """The same into `out`."""
    if out.dtype != torch.int64:
        torch.nonzero(torch.zeros(1), out=torch.empty(0, dtype=out.dtype))  # raises, in eager's words
    return into(out, nonzero(self))


@kernel("masked_select.default")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The elements of `self` where `mask`, as a vector. Raises RuntimeError for a mask of numbers."""
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    x, on = torch.broadcast_tensors(self, mask)
    return x.reshape(-1).index_select(0, nonzero(on.reshape(-1)).squeeze(1))


@kernel("masked_select.out")
def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    """The same into `out`. Raises RuntimeError where that shares memory with an operand."""
    if any(out.untyped_storage()._cdata == operand.untyped_storage()._cdata for operand in (self, mask)):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )
    return into(out, masked_select(self, mask))


def masked(indices: Sequence[Tensor | None]) -> bool:
    """Whether one of the indices is a mask."""
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def check_dtypes(indices: Sequence[Tensor | None]) -> None:
    """Raises IndexError for an index of a dtype that is none."""
    if any(i is not None and i.dtype not in INDEX_DTYPES for i in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def check_mask(self: Tensor, mask: Tensor, at: int) -> None:
    """Raises IndexError where a mask over dimensions `at`, `at` + 1, ... of a tensor has other sizes than they."""
    if mask.dim() + at > self.dim():
        raise IndexError(f"too many indices for tensor of dimension {self.dim()}")
    for d, n in enumerate(mask.shape):
        if n != self.shape[at + d]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {d} does not match the shape of the indexed tensor "
                f"{list(self.shape)} at index {at + d}"
            )


def check_values(self: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> None:
    """Raises RuntimeError where `values` do not broadcast to the shape of self[indices]."""
    used = [d for d, index in enumerate(indices) if index is not None]
    places = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    rest = [n for d, n in enumerate(self.shape) if d not in used]
    front = used[0] if used and used == list(range(used[0], used[0] + len(used))) else 0
    shape = [*rest[:front], *places, *rest[front:]]
    aligned = shape[max(0, len(shape) - values.dim()) :]
    if values.dim() > len(shape) or any(n not in (1, m) for n, m in zip(values.shape, aligned, strict=True)):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {shape}"
        )


def positions(self: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with every mask replaced by the positions where it holds."""
    out: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            out.append(index)
            continue
        check_mask(self, index, len(out))
        out.extend(nonzero(index).unbind(1))
    return out


@kernel("index.Tensor")
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x[i, mask, ...]"""
    check_dtypes(indices)
    return torch.ops.aten._unsafe_index.Tensor(self, positions(self, indices) if masked(indices) else indices)


@kernel("index.Tensor_out")
def index_out(self: Tensor, indices: Sequence[Tensor | None], *, out: Tensor) -> Tensor:
    """The same into `out`."""
    return into(out, index(self, indices))


@kernel("index_put_.default")
def index_put_(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x[mask] = values; one value goes wherever one mask holds, and nothing needs to be read."""
    check_dtypes(indices)
    if masked(indices) and (values.numel() != 1 or len(indices) != 1):
        indices = positions(self, indices)
    elif masked(indices):
        (mask,) = indices
        assert mask is not None
        check_mask(self, mask, 0)
        return torch.ops.aten._index_put_impl_(self, indices, values, accumulate)
    if values.numel() != 1:
        check_values(self, indices, values)
    return torch.ops.aten._index_put_impl_(self, indices, values, accumulate)


@kernel("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Position i, repeats[i] times."""
    ends = repeats.cumsum(0)
    if output_size is None:
        if repeats.numel() and bool((repeats < 0).any().item()):
            raise RuntimeError("repeats can not be negative")
        output_size = int(ends[-1].item()) if repeats.numel() else 0
    at = torch.arange(output_size, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, at, right=True).to(repeats.dtype)


@kernel("bincount.default")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Occurrences (or weights) of 0, 1, ... in a vector of non-negative integers."""
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.is_floating_point():
        torch.bincount(torch.zeros(1, dtype=self.dtype))  # raises, in eager's words
    if self.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    low, high = torch.stack(torch.aminmax(self.to(torch.int64))).tolist()
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    kind = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    values = torch.ones_like(self, dtype=kind) if weights is None else weights.to(kind)
    counts = torch.zeros(max(high + 1, minlength), dtype=kind, device=self.device)
    return counts.index_add(0, self.to(torch.int64), values)


Unique = tuple[Tensor, Tensor, Tensor]


def _runs(first: Tensor, order: Tensor | None, shape: torch.Size, inverse: bool, counts: bool) -> Unique:
    """(first positions, inverse, counts) of runs whose first places are marked; `order` maps places to elements."""
    starts = nonzero(first).squeeze(1)
    none = torch.empty(0, dtype=torch.int64, device=first.device)
    back, size = none, none
    if inverse:
        number = first.to(torch.int64).cumsum(0) - 1
        back = number if order is None else torch.empty_like(number).scatter_(0, order, number)
        back = back.reshape(shape)
    if counts:
        ends = torch.cat([starts[1:], torch.tensor([first.numel()], device=first.device)]) if starts.numel() else starts
        size = ends - starts
    return starts, back, size


def _changes(x: Tensor) -> Tensor:
    """Where a vector (or a matrix's row) differs from the one before; the first always does."""
    differs = x[1:] != x[:-1]
    differs = differs if x.dim() == 1 else differs.any(1)
    return torch.cat([torch.ones(min(1, x.shape[0]), dtype=torch.bool, device=x.device), differs])


@kernel("_unique2.default")
def unique2(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    """Distinct elements in order, with inverse and counts."""
    values, order = self.reshape(-1).sort()
    starts, back, size = _runs(_changes(values), order, self.shape, return_inverse, return_counts)
    return values.index_select(0, starts), back, size


@kernel("_unique.default")
def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Distinct elements in order, with inverse."""
    return unique2(self, sorted, return_inverse, False)[:2]


@kernel("unique_consecutive.default")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:
    """Elements (or slices along `dim`) that differ from their predecessor."""
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    flat = self.reshape(-1)
    starts, back, size = _runs(_changes(flat), None, self.shape, return_inverse, return_counts)
    return flat.index_select(0, starts), back, size


def _rows(self: Tensor, dim: int) -> Tensor:
    """The slices along `dim` as rows. Raises RuntimeError where they are empty, as eager does."""
    count = self.shape[dim]
    if self.numel() == 0 and count:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    return self.movedim(dim, 0).reshape(count, self.numel() // max(count, 1))


@kernel("unique_dim_consecutive.default")
def unique_dim_consecutive(self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    """Slices along `dim` that differ from their predecessor."""
    rows = _rows(self, dim)
    starts, back, size = _runs(_changes(rows), None, rows.shape[:1], return_inverse, return_counts)
    return self.index_select(dim, starts), back, size


@kernel("unique_dim.default")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Unique:
    """Distinct slices along `dim`, in lexicographic order: one stable sort a column, the last column first."""
    rows = _rows(self, dim)
    order = torch.arange(rows.shape[0], device=self.device)
    for column in reversed(range(rows.shape[1])):
        order = order.index_select(0, rows[:, column].index_select(0, order).sort(stable=True)[1])
    starts, back, size = _runs(
        _changes(rows.index_select(0, order)), order, rows.shape[:1], return_inverse, return_counts
    )
    return self.index_select(dim, order.index_select(0, starts)), back, size


@kernel("equal.default")
def equal(self: Tensor, other: Tensor) -> bool:
    """Same shape and elements."""
    return self.shape == other.shape and bool((self == other).all().item())


@kernel("_ctc_loss.Tensor")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The lengths decide the shape of the state, so they are read."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    return torch.ops.aten._ctc_loss.default(log_probs, targets, *lengths, blank, zero_infinity)


@kernel("_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """The backward of the same, lengths read again."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    return torch.ops.aten._ctc_loss_backward.default(
        grad, log_probs, targets, *lengths, neg_log_likelihood, log_alpha, blank, zero_infinity
    )
