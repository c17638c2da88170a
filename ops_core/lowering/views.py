"""View ops as functions of values: `apply(op, x, args)` and `write(op, base, args, new)`, its inverse.

The recorder never records a view. They come here inside traced decompositions and as `*_copy` ops.
"""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ops_core import array as A
from ops_core.array import Arr
from ops_core.lowering.registry import NotLowerable

Forward = Callable[..., Any]
Backward = Callable[..., Arr]
VIEWS: dict[str, tuple[Forward, Backward | None]] = {}


def view(*names: str, write: Backward | None = None) -> Callable[[Forward], Forward]:
    """Declare a view op: `forward(x, *args)`, and `write(new, base, *args)`, the base with `new` in its place."""

    def register(forward: Forward) -> Forward:
        for name in names:
            VIEWS[name] = (forward, write)
        return forward

    return register


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)


def _reshape_back(new: Arr, base: Arr, *_: Any) -> Arr:
    return new.reshape(*base.shape)


@view("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy", "_reshape_alias_copy",
      write=_reshape_back)  # fmt: skip
def _view(x, size, *_strides):
    return x.reshape(*_sizes(size))


@view("alias", "detach", "alias_copy", "detach_copy", "lift_fresh", "lift_fresh_copy", "_conj", "positive", "lift",
      write=lambda new, base: new)  # fmt: skip
def _alias(x):
    return x


@view("unsqueeze", "unsqueeze_copy", write=_reshape_back)
def _unsqueeze(x, dim):
    return x.unsqueeze(dim)


@view("squeeze", "squeeze_copy", write=_reshape_back)
def _squeeze(x, dim=None):
    dims = range(x.ndim) if dim is None else x.dims(dim) if isinstance(dim, int) or len(dim) else ()
    return x.reshape(*(n for d, n in enumerate(x.shape) if d not in dims or n != 1))


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


@view("permute", "permute_copy", write=lambda new, base, dims: new.permute(*_inverse([base.dim(d) for d in dims])))
def _permute(x, dims):
    return x.permute(*dims)


@view("transpose", "transpose_copy", "swapaxes", "swapdims", write=lambda new, base, a, b: new.transpose(a, b))
def _transpose(x, dim0, dim1):
    return x.transpose(dim0, dim1) if x.ndim else x


@view("t", "t_copy", write=lambda new, base: _t(new))
def _t(x):
    return x.transpose(0, 1) if x.ndim == 2 else x


@view("expand", "expand_copy")
def _expand(x, size, implicit=False):
    lead = len(size) - x.ndim
    return x.expand(*(x.shape[d - lead] if n == -1 else n for d, n in enumerate(size)))


def _bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    start = min(max(start + n if start < 0 else start, 0), n) if start is not None else 0
    end = min(max(end + n if end < 0 else end, start), n) if end is not None else n
    return start, max(start, end)


def slice_scatter(
    base: Arr, src: Arr, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Arr:
    """`base` with base[start:end:step] along `dim` replaced by `src`."""
    dim = base.dim(dim)
    n = base.shape[dim]
    start, end = _bounds(n, start, end)
    count = -(-(end - start) // step)
    src = src.to(base.dtype).expand(*(count if d == dim else m for d, m in enumerate(base.shape)))
    if count == 0:
        return base
    if step == 1:
        parts = [base.slice(dim, 0, start), src, base.slice(dim, end, n)]
        return A.cat([p for p in parts if p.shape[dim]], dim)
    index = A.iota(count) * step + start
    return base.move(dim, 0).index_put([index], src.move(dim, 0)).move(0, dim)


@view("slice", "slice_copy", write=lambda new, base, *args: slice_scatter(base, new, *args))
def _slice(x, dim=0, start=None, end=None, step=1):
    return x.slice(dim, *_bounds(x.shape[x.dim(dim)], start, end), step)


def select_scatter(base: Arr, src: Arr, dim: int, index: int) -> Arr:
    """`base` with base.select(dim, index) replaced."""
    at = index % base.shape[base.dim(dim)]
    return slice_scatter(base, src.unsqueeze(base.dim(dim)), dim, at, at + 1)


@view("select", "select_copy", write=lambda new, base, dim, index: select_scatter(base, new, dim, index))
def _select(x, dim, index):
    return x.select(dim, index)


@view("narrow", "narrow_copy",
      write=lambda new, base, dim, start, length: slice_scatter(base, new, dim, start, start + length))  # fmt: skip
def _narrow(x, dim, start, length):
    start %= max(x.shape[x.dim(dim)], 1) if start < 0 else start + 1
    return x.slice(dim, start, start + length)


@view("split", "split_copy", "unsafe_split")
def _split(x, split_size, dim=0):
    if not isinstance(split_size, int):
        return _split_with_sizes(x, split_size, dim)
    n = x.shape[x.dim(dim)]
    if split_size == 0:
        return [x]
    return [x.slice(dim, i, min(i + split_size, n)) for i in range(0, max(n, 1), split_size)]


@view("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def _split_with_sizes(x, split_sizes, dim=0):
    return x.split(dim, split_sizes)


@view("chunk", "unsafe_chunk")
def _chunk(x, chunks, dim=0):
    n = x.shape[x.dim(dim)]
    return _split(x, max(1, -(-n // chunks)), dim) if n else [x] * chunks


@view("unbind", "unbind_copy")
def _unbind(x, dim=0):
    return [x.select(dim, i) for i in range(x.shape[x.dim(dim)])]


def diagonal_length(rows: int, columns: int, offset: int) -> int:
    """Elements on a diagonal."""
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


def _diagonal_index(x: Arr, offset: int, dim1: int, dim2: int) -> tuple[list[int], list[Arr]]:
    """The order that brings both dims to the front, and the indices of the diagonal there."""
    a, b = x.dim(dim1), x.dim(dim2)
    order = [a, b, *(d for d in range(x.ndim) if d not in (a, b))]
    i = A.iota(diagonal_length(x.shape[a], x.shape[b], offset))
    return order, [i + max(-offset, 0), i + max(offset, 0)]


def diagonal_scatter(base: Arr, src: Arr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Arr:
    """`base` with a diagonal replaced by `src` (diagonal last)."""
    order, indices = _diagonal_index(base, offset, dim1, dim2)
    if indices[0].numel == 0:
        return base
    values = src.to(base.dtype).move(-1, 0)
    return base.permute(*order).index_put(indices, values).permute(*_inverse(order))


@view("diagonal", "diagonal_copy", write=lambda new, base, *args: diagonal_scatter(base, new, *args))
def _diagonal(x, offset=0, dim1=0, dim2=1):
    order, indices = _diagonal_index(x, offset, dim1, dim2)
    return x.permute(*order).index(indices).move(0, -1)


@view("unfold", "unfold_copy")
def _unfold(x, dimension, size, step):
    if x.ndim == 0:
        return x.reshape(1).expand(size) if size == 1 else A.full((0,), 0, x.dtype)
    d = x.dim(dimension)
    count = (x.shape[d] - size) // step + 1
    index = (A.iota(count) * step).unsqueeze(1) + A.iota(size).unsqueeze(0)
    return x.take(index, d).move(d + 1, -1)


def _linear_index(size: Sequence[int], stride: Sequence[int], offset: int) -> Arr:
    """The flat position of each element of a strided view."""
    index = A.full(tuple(size), offset, "i64")
    for d, s in enumerate(stride):
        index = index + A.positions(tuple(size), d) * s
    return index


def as_strided_scatter(base: Arr, src: Arr, size: Any, stride: Any, storage_offset: int | None = None) -> Arr:
    """`base` (contiguous) with a strided view of it replaced."""
    index = _linear_index(size, stride, storage_offset or 0)
    flat = base.reshape(-1).index_put([index.reshape(-1)], src.to(base.dtype).reshape(-1))
    return flat.reshape(*base.shape)


@view("as_strided", "as_strided_copy", write=lambda new, base, *args: as_strided_scatter(base, new, *args))
def _as_strided(x, size, stride, storage_offset=None):
    offset, count = storage_offset or 0, math.prod(size)
    contiguous = all(
        s == math.prod(size[d + 1 :]) or n == 1 for d, (n, s) in enumerate(zip(size, stride, strict=False))
    )
    if contiguous and offset + count <= x.numel:
        return x.reshape(x.numel).slice(0, offset, offset + count).reshape(*size)
    return x.reshape(x.numel).index([_linear_index(size, stride, offset)])


@view("view.dtype", "view_copy.dtype")
def _view_dtype(x, dtype):
    from ops_core.lowering.promote import name_of

    name = name_of(dtype)
    if "bool" in (name, x.dtype) and name != x.dtype:
        raise NotLowerable("bits of bool")
    if A.dtypes.BY_NAME[name].bytes != A.dtypes.BY_NAME[x.dtype].bytes:
        raise NotLowerable("a view as a dtype of another width")
    return x.bitcast(name)


def find(base: str, overload: str) -> tuple[Forward, Backward | None] | None:
    """The view functions of an op, by overload first."""
    return VIEWS.get(f"{base}.{overload}") or VIEWS.get(base)
