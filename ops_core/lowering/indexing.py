"""Gathers, scatters, embeddings, advanced indexing, and the losses that index."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import checked, clamp, required, wrap
from ops_core.lowering.pointwise import floor_quotient
from ops_core.lowering.promote import opmath, up
from ops_core.lowering.registry import NotLowerable, rule


def _at_least_1d(x: Arr) -> Arr:
    return x.reshape(1) if x.ndim == 0 else x


def _inside(x: Arr, dim: int, index: Arr, error: str) -> Arr:
    """Indices along a dim of x, checked."""
    d = x.dim(dim)
    return checked(index, x.shape[d] if x.ndim else 1, error, d)


@rule("gather")
def _gather(self, dim, index, sparse_grad=False):
    if index.numel == 0:
        return A.full(index.shape, 0, self.dtype)
    at = _inside(self, dim, index, "gather")
    if self.numel == 0:
        return A.full(index.shape, 0, self.dtype)
    return _at_least_1d(self).gather(dim, _at_least_1d(at)).reshape(*index.shape)


@rule("index_select")
def _index_select(self, dim, index):
    index = _at_least_1d(_inside(self, dim, index, "select"))
    if self.ndim == 0:
        return self
    d = self.dim(dim)
    if index.numel == 0 or self.numel == 0:
        return A.full((*self.shape[:d], index.numel, *self.shape[d + 1 :]), 0, self.dtype)
    return self.take(index, dim)


@rule("embedding")
def _embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    rows = checked(indices, weight.shape[0], "select")
    if indices.numel == 0 or weight.numel == 0:
        return A.full((*indices.shape, *weight.shape[1:]), 0, weight.dtype)
    return weight.take(rows)


@rule("embedding_dense_backward")
def _embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    width = grad_output.shape[-1]
    rows = clamp(indices, num_weights).reshape(-1)  # checked on the way forward
    grad = up(grad_output).reshape(rows.numel, width)
    if padding_idx is not None and padding_idx >= 0:
        grad = where(rows.eq(padding_idx).unsqueeze(1), 0.0, grad)
    if scale_grad_by_freq:
        grad = grad / frequency(rows, num_weights, grad.dtype).take(rows).unsqueeze(1)
    zeros = A.full((num_weights, width), 0, grad.dtype)
    return (zeros.index_put([rows], grad, "add") if rows.numel else zeros).to(grad_output.dtype)


def frequency(rows: Arr, size: int, dtype: str) -> Arr:
    """How often each of 0..size-1 occurs in `rows`."""
    return A.full((size,), 0, dtype).index_put([rows], A.full(rows.shape, 1, dtype), "add")


def _scatter(x: Arr, dim: int, index: Arr, src: Any, reduce: str) -> Arr:
    """torch.scatter at indices that are inside, with the source cut to their shape; halves combine in f32."""
    if index.numel == 0 or x.numel == 0:
        return x
    flat, index = _at_least_1d(x), _at_least_1d(index)
    if isinstance(src, Arr) and src.ndim == index.ndim:
        for d, n in enumerate(index.shape):
            src = src.slice(d, 0, n)
    else:
        src = src.reshape(*(1,) * index.ndim) if isinstance(src, Arr) else A.full(index.shape, src, x.dtype)
    dtype = opmath(x.dtype) if reduce in ("add", "mul") else x.dtype
    out = flat.to(dtype).scatter(dim, index, src.to(dtype).expand(*index.shape), reduce)
    return out.to(x.dtype).reshape(*x.shape)


@rule("scatter.src", "scatter.value")
def _scatter_set(self, dim, index, src=None, value=None):
    return _scatter(self, dim, _inside(self, dim, index, "gather"), value if src is None else src, "set")


@rule("scatter.reduce", "scatter.value_reduce")
def _scatter_with(self, dim, index, reduce, src=None, value=None):
    combine = {"add": "add", "multiply": "mul"}[reduce]
    return _scatter(self, dim, _inside(self, dim, index, "gather"), value if src is None else src, combine)


@rule("scatter_add")
def _scatter_add(self, dim, index, src):
    return _scatter(self, dim, _inside(self, dim, index, "gather"), src, "add")


REDUCTIONS = {"sum": ("add", 0), "prod": ("mul", 1), "amax": ("amax", None), "amin": ("amin", None), "mean": ("add", 0)}


def lowest(dtype: str, sign: int = -1) -> float | int | bool:
    """The identity of amax (sign -1) or amin (sign 1)."""
    k = A.kind(dtype)
    if k == "f":
        return sign * math.inf
    if k == "b":
        return sign > 0
    bits = 8 * A.dtypes.BY_NAME[dtype].bytes - (k == "i")
    return (1 << bits) - 1 if sign > 0 else 0 if k == "u" else -(1 << bits)


def _identity(reduce: str, dtype: str) -> float | int | bool:
    combine, neutral = REDUCTIONS[reduce]
    return neutral if neutral is not None else lowest(dtype, -1 if combine == "amax" else 1)


@rule("scatter_reduce.two")
def _scatter_reduce(self, dim, index, src, reduce, include_self=True):
    return _reduce_into(self, dim, _inside(self, dim, index, "gather"), src, reduce, include_self)


def _reduce_into(self: Arr, dim: int, index: Arr, src: Arr, reduce: str, include_self: bool) -> Arr:
    combine, _ = REDUCTIONS[reduce]
    dtype = opmath(self.dtype)
    base, values = self.to(dtype), src.to(dtype)
    if index.numel == 0:
        return self
    ones = A.full(index.shape, 1, "i32" if dtype == "f32" else "i64")
    zeros = A.full(self.shape, 0, ones.dtype)
    if not include_self:
        touched = _scatter(zeros, dim, index, ones, "set").ne(0)
        base = where(touched, _identity(reduce, dtype), base)
    out = _scatter(base, dim, index, values, combine)
    if reduce == "mean":
        count = _scatter(zeros if not include_self else A.full_like(zeros, 1), dim, index, ones, "add")
        count = A.map_("maximum", count, 1)
        out = out / count.to(dtype) if self.is_float else floor_quotient(out, count.to(dtype))
    return out.to(self.dtype)


def _index_along(x: Arr, dim: int, index: Arr, src: Arr) -> tuple[Arr, Arr]:
    """index_*'s 1-D index and source as scatter's full-shape ones."""
    d = x.dim(dim)
    if src.ndim != x.ndim:
        src = src.reshape(*(src.numel if i == d else 1 for i in range(x.ndim)))
    index = _at_least_1d(index)
    return index, src.expand(*(index.numel if i == d else n for i, n in enumerate(x.shape)))


def _along(x: Arr, dim: int, index: Arr, src: Arr, reduce: str, error: str = "select") -> Arr:
    """x with slices `index` along `dim` set to or increased by `src`."""
    flat = _at_least_1d(x)
    index, src = _index_along(flat, dim, _inside(x, dim, index, error), src)
    if index.numel == 0 or x.numel == 0:
        return x
    out = flat.move(dim, 0).index_put([index], src.move(dim, 0), reduce).move(0, dim)
    return out.reshape(*x.shape)


@rule("index_add")
def _index_add(self, dim, index, source, alpha=1):
    dtype = opmath(self.dtype)
    values = source.to(dtype)
    if isinstance(alpha, Arr) or alpha != 1:
        values = (
            values & bool(alpha) if dtype == "bool" else values * (alpha.to(dtype) if isinstance(alpha, Arr) else alpha)
        )
    error = "gather" if self.ndim > 1 else "select"  # eager has a kernel of its own for one dim
    return _along(self.to(dtype), dim, index, values, "add", error).to(self.dtype)


@rule("index_copy")
def _index_copy(self, dim, index, source):
    return _along(self, dim, index, source, "set", "index_copy")


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(self, dim, index, value):
    fill = value.to(self.dtype) if isinstance(value, Arr) else A.full((), value, self.dtype)
    d = self.dim(dim) if self.ndim else 0
    size = self.shape[d] if self.ndim else 1
    return _along(self, dim, checked(index, size, "index", d, negative=True), fill, "set", "index")


@rule("index_reduce")
def _index_reduce(self, dim, index, source, reduce, include_self=True):
    flat = _at_least_1d(self)
    if index.numel == 0:
        return self
    index, source = _index_along(flat, dim, _inside(self, dim, index, "select"), source)
    shape = [index.numel if i == flat.dim(dim) else 1 for i in range(flat.ndim)]
    spread = index.reshape(*shape).expand(*source.shape)
    return _reduce_into(flat, dim, spread, source, reduce, include_self).reshape(*self.shape)


def _masked(indices: Any) -> bool:
    return any(i is not None and i.dtype in ("bool", "u8") for i in indices)


def _positions(x: Arr, indices: Any, values: tuple[int, ...]) -> list[Any]:
    """Indices with masks replaced by the positions where they hold: as many as the shape of the values says."""
    places: list[Any] = []
    for index in indices:
        places += [index] * (index.ndim if index is not None and _masked([index]) else 1)
    used = [d for d, index in enumerate(places) if index is not None]
    adjacent = used == list(range(used[0], used[0] + len(used)))
    behind = x.ndim - len(used) - (used[0] if adjacent else 0)  # dims of a result behind that of the positions
    count = values[-1 - behind] if len(values) > behind else 1
    if count == 1:
        raise NotLowerable("a mask whose count the values do not tell")
    out: list[Any] = []
    for index in indices:
        if index is None or not _masked([index]):
            out.append(index)
        elif index.numel:
            rows = A.emit("nonzero", (index.to("bool"),), (count, index.ndim), "i64", size=count)
            out += [rows.select(1, d) for d in range(index.ndim)]
        else:
            out += [A.full((count,), 0, "i64")] * index.ndim
    return out


def _unchecked(index: Arr, size: int, error: str, dim: int, negative: bool) -> Arr:
    """Indices that torch itself computed, or that were checked on the way forward."""
    return clamp(wrap(index, size), size)


def _advanced(x: Arr, indices: Any, inside: Any = checked) -> tuple[list[int], list[Arr], int | None]:
    """The order that brings indexed dims to the front, the broadcast indices, and where torch puts the result
    dims (None: in front). inside: `checked`, or a function like it."""
    if _masked(indices):
        raise NotLowerable("a mask index has a data-dependent shape")
    dims = [d for d, i in enumerate(indices) if i is not None]
    order = dims + [d for d in range(x.ndim) if d not in dims]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    arrays = A.broadcast(*(inside(indices[d], x.shape[d], "index", d, negative=True) for d in dims))
    return order, list(arrays), dims[0] if adjacent else None


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(self, indices):
    return _indexed(self, indices, checked)


def _indexed(self: Arr, indices: Any, inside: Any) -> Arr:
    if all(i is None for i in indices):
        return self
    order, arrays, at = _advanced(self, indices, inside)
    rest = [self.shape[d] for d in order[len(arrays) :]]
    if arrays[0].numel == 0 or self.numel == 0:
        out = A.full((*arrays[0].shape, *rest), 0, self.dtype)
    else:
        out = self.permute(*order).index(arrays)
    if not at:
        return out
    rank = arrays[0].ndim
    dims = list(range(out.ndim))
    return out.permute(*dims[rank : rank + at], *dims[:rank], *dims[rank + at :])


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(self, indices, values, accumulate=False, unsafe=False):
    if len(indices) == 1 and _masked(indices) and values.numel == 1:
        mask = indices[0].to("bool").reshape(*indices[0].shape, *(1,) * (self.ndim - indices[0].ndim))
        value = values.to(self.dtype).reshape()
        return where(mask, self + value if accumulate else value, self)
    if _masked(indices):
        indices = _positions(self, indices, values.shape)
    if all(i is None for i in indices):
        spread = values.to(self.dtype).expand(*self.shape)
        return self + spread if accumulate else spread
    order, arrays, at = _advanced(self, indices, _unchecked if unsafe else checked)
    if arrays[0].numel == 0 or self.numel == 0:
        return self
    rank, rest = arrays[0].ndim, [self.shape[d] for d in order[len(arrays) :]]
    dtype = opmath(self.dtype) if accumulate else self.dtype
    values = values.to(dtype)
    if at:  # torch's result layout: rest[:at] + index dims + rest[at:]
        values = values.expand(*rest[:at], *arrays[0].shape, *rest[at:])
        dims = list(range(values.ndim))
        values = values.permute(*dims[at : at + rank], *dims[:at], *dims[at + rank :])
    values = values.expand(*arrays[0].shape, *rest)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    base = self.to(dtype).permute(*order)
    return base.index_put(arrays, values, "add" if accumulate else "set").permute(*inverse).to(self.dtype)


@rule("_unsafe_masked_index")
def _unsafe_masked_index(self, mask, indices, fill):
    out = _indexed(self, indices, _unchecked)
    return where(mask, out, fill.to(self.dtype) if isinstance(fill, Arr) else fill)


@rule("_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put_accumulate(self, mask, indices, values):
    return _index_put(self, indices, where(mask, values, 0), True, unsafe=True)


@rule("take")
def _take(self, index):
    at = checked(index, self.numel, "take", negative=True)
    if index.numel == 0 or self.numel == 0:
        return A.full(index.shape, 0, self.dtype)
    return self.reshape(-1).take(at)


@rule("put")
def _put(self, index, source, accumulate=False):
    rows = checked(index, self.numel, "take", negative=True).reshape(-1)
    if index.numel == 0 or self.numel == 0:
        return self
    out = self.reshape(-1).index_put([rows], source.to(self.dtype).reshape(-1), "add" if accumulate else "set")
    return out.reshape(*self.shape)


@rule("masked_scatter")
def _masked_scatter(self, mask, source):
    shape = A.broadcast_shapes(self.shape, mask.shape)
    on = mask.to("bool").expand(*shape).reshape(-1)
    if on.numel == 0 or source.numel == 0:
        return self.expand(*shape)
    count = on.to("i64").scan("cumsum", 0)
    required(count.slice(0, on.numel - 1, on.numel) <= source.numel, "masked source")
    at = A.map_("maximum", count - 1, 0)
    picked = source.reshape(-1).take(A.map_("minimum", at, source.numel - 1))
    return where(on, picked, self.expand(*shape).reshape(-1)).reshape(*shape)


@rule("masked_scatter_backward")
def _masked_scatter_backward(grad_output, mask, sizes):
    on = mask.to("bool").expand(*grad_output.shape).reshape(-1)
    count = math.prod(sizes)
    at = where(on, on.to("i64").scan("cumsum", 0) - 1, count)
    zeros = A.full((max(count, on.numel) + 1,), 0, grad_output.dtype)
    return zeros.index_put([at], grad_output.reshape(-1)).slice(0, 0, count).reshape(*sizes)


NONE, MEAN, SUM = 0, 1, 2


def _picked(x: Arr, target: Arr, ignore_index: int) -> tuple[Arr, Arr, Arr]:
    """(x at each target along dim 1, the safe targets, which count) for x [N, C, ...] and target [N, ...]."""
    target = target.to("i64")
    counts = target.ne(ignore_index)
    safe = checked(where(counts, target, 0), x.shape[1], "target")
    return x.gather(1, safe.unsqueeze(1)).squeeze(1), safe, counts


def _batch(x: Arr, target: Arr) -> tuple[Arr, Arr]:
    return (x.unsqueeze(0), target.reshape(1)) if x.ndim == 1 else (x, target)


def _loss_weights(weight: Arr | None, safe: Arr, counts: Arr, dtype: str) -> Arr:
    return counts.to(dtype) if weight is None else where(counts, weight.to(dtype).take(safe), 0.0)


@rule("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss_forward(self, target, weight, reduction, ignore_index):
    x, t = _batch(up(self), target)
    if t.numel == 0:
        value = 0.0 if reduction == SUM else math.nan
        empty = A.full(t.shape, 0, self.dtype) if reduction == NONE else A.full((), value, self.dtype)
        return empty, A.full((), 0, self.dtype)
    picked, safe, counts = _picked(x, t, ignore_index)
    w = _loss_weights(weight, safe, counts, x.dtype)
    losses = where(counts, -picked * w, 0.0)
    total = w.sum()
    if reduction == NONE:  # the total is only known of a single row
        unused = A.full((), 0, self.dtype) if self.ndim > 1 else total.to(self.dtype)
        return losses.reshape(*target.shape).to(self.dtype), unused
    loss = losses.sum() if reduction == SUM else losses.sum() / total
    return loss.to(self.dtype), total.to(self.dtype)


@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    x, t = _batch(self, target)
    if t.numel == 0:
        return A.full(self.shape, 0, self.dtype)
    dtype = opmath(self.dtype)
    t = t.to("i64")
    counts = t.ne(ignore_index)
    safe = clamp(where(counts, t, 0), x.shape[1])  # checked on the way forward
    grad = grad_output.to(dtype)
    grad = grad / total_weight.to(dtype) if reduction == MEAN else grad
    scale = -_loss_weights(weight, safe, counts, dtype) * (
        grad.reshape(*t.shape) if grad.numel == t.numel and grad.ndim else grad
    )
    classes = A.positions(x.shape, 1).eq(safe.unsqueeze(1))  # one-hot by comparison: fuses, no scatter
    return where(classes & counts.unsqueeze(1), scale.unsqueeze(1), 0.0).reshape(*self.shape).to(self.dtype)
