"""`Arr`: a graph value with array syntax. Everything in `ops_core.lowering` is written with it.

Operators and functions append core ops to the graph named by `building(graph)`. Operands broadcast; a Python number
takes the dtype of the array beside it. Dtypes never mix silently: convert with `to`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ops_core import dtypes
from ops_core.ir import Graph, Value
from ops_core.scalars import BY_NAME as SCALARS
from ops_core.sizes import alike, varies

Shape = tuple[int, ...]
Number = float | int | bool

_graph: ContextVar[Graph] = ContextVar("graph")


@contextmanager
def building(graph: Graph) -> Iterator[Graph]:
    """New arrays inside the block go to `graph`."""
    token = _graph.set(graph)
    try:
        yield graph
    finally:
        _graph.reset(token)


def current() -> Graph:
    """The graph being built."""
    return _graph.get()


def emit(op: str, inputs: Sequence[Arr], shape: Sequence[int], dtype: str, /, **attrs: Any) -> Arr:
    """One core op with one output."""
    return emit_multi(op, inputs, [(tuple(shape), dtype)], **attrs)[0]


def emit_multi(op: str, inputs: Sequence[Arr], specs: list[tuple[Shape, str]], **attrs: Any) -> tuple[Arr, ...]:
    """One core op with several outputs, one (shape, dtype) each."""
    return tuple(Arr(v) for v in _graph.get().add_multi(op, tuple(x.v for x in inputs), specs, **attrs))


def kind(dtype: str) -> str:
    """ "b", "u", "i" or "f"."""
    return dtypes.BY_NAME[dtype].kind


def is_float(dtype: str) -> bool:
    """Whether a dtype is floating."""
    return kind(dtype) == "f"


class Arr:
    """A value of the graph being built."""

    __slots__ = ("v",)

    def __init__(self, value: Value):
        self.v = value

    def __repr__(self) -> str:
        return f"Arr({self.v!r})"

    @property
    def shape(self) -> Shape:
        """Sizes."""
        return self.v.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return self.v.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.v.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.v.shape)

    @property
    def kind(self) -> str:
        """ "b", "u", "i" or "f"."""
        return kind(self.v.dtype)

    @property
    def is_float(self) -> bool:
        """Whether a dtype is floating."""
        return self.kind == "f"

    def dim(self, d: int) -> int:
        """`d` wrapped to 0 <= d < ndim (0-dim arrays count as 1-dim), as a plain number: a trace is for this dim."""
        return int(d) % max(self.ndim, 1)

    def dims(self, ds: int | Sequence[int] | None) -> Shape:
        """Wrapped, sorted dims; None and () mean all."""
        if ds is None or (not isinstance(ds, int) and len(ds) == 0):
            return tuple(range(self.ndim))
        if self.ndim == 0:
            return ()
        return tuple(sorted({self.dim(d) for d in ((ds,) if isinstance(ds, int) else ds)}))

    # dtype
    def to(self, dtype: str) -> Arr:
        """Converted to `dtype`, or itself."""
        return self if dtype == self.dtype else emit("map", (self,), self.shape, dtype, fn="convert", to=dtype)

    def bitcast(self, dtype: str) -> Arr:
        """The same bits as `dtype`, of the same width."""
        return self if dtype == self.dtype else emit("map", (self,), self.shape, dtype, fn="bitcast", to=dtype)

    # shape
    def expand(self, *shape: int) -> Arr:
        """Broadcast to `shape`."""
        return self if alike(shape, self.shape) else emit("expand", (self,), shape, self.dtype, shape=shape)

    def reshape(self, *shape: int) -> Arr:
        """The same elements in row-major order; one size may be -1."""
        if -1 in shape:
            rest = -math.prod(shape)
            shape = tuple(self.numel // rest if n == -1 and rest else max(n, 0) for n in shape)
        return self if alike(shape, self.shape) else emit("reshape", (self,), shape, self.dtype, shape=shape)

    def permute(self, *order: int) -> Arr:
        """Dimension d of the result is dimension order[d]."""
        order = tuple(self.dim(d) for d in order)
        if order == tuple(range(self.ndim)):
            return self
        return emit("permute", (self,), [self.shape[d] for d in order], self.dtype, dims=order)

    def transpose(self, a: int, b: int) -> Arr:
        """Two dimensions exchanged."""
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def move(self, source: int, target: int) -> Arr:
        """Dimension `source` moved to position `target`, the others in order."""
        order = list(range(self.ndim))
        order.insert(self.dim(target), order.pop(self.dim(source)))
        return self.permute(*order)

    def unsqueeze(self, d: int) -> Arr:
        """A dimension of size 1 inserted at `d`."""
        d %= self.ndim + 1
        return self.reshape(*self.shape[:d], 1, *self.shape[d:])

    def squeeze(self, d: int) -> Arr:
        """Dimension `d` (of size 1) removed."""
        d = self.dim(d)
        return self.reshape(*self.shape[:d], *self.shape[d + 1 :])

    def slice(self, d: int, start: int, stop: int | None = None, step: int = 1) -> Arr:
        """Positions start, start + step, ... before stop along `d` (0 <= start <= stop <= size, step > 0)."""
        d = self.dim(d)
        size = max(0, -(-((self.shape[d] if stop is None else stop) - start) // step))
        return self.window(d, start, size, step)

    def window(self, d: int, start: int, size: int, step: int = 1) -> Arr:
        """`size` positions start + i * step along `d`."""
        starts, sizes, steps = [0] * self.ndim, list(self.shape), [1] * self.ndim
        starts[d], sizes[d], steps[d] = start, size, step
        if alike((start, size, step), (0, self.shape[d], 1)):
            return self
        return emit("slice", (self,), sizes, self.dtype, start=tuple(starts), size=tuple(sizes), step=tuple(steps))

    def select(self, d: int, at: int) -> Arr:
        """Position `at` along `d`, without that dimension."""
        d = self.dim(d)
        return self.window(d, at % self.shape[d], 1).squeeze(d)

    def flip(self, *ds: int) -> Arr:
        """Reversed along the dimensions."""
        out = self
        for d in ds:
            out = out.window(d, out.shape[d] - 1, out.shape[d], -1)
        return out

    def split(self, d: int, sizes: Sequence[int]) -> list[Arr]:
        """Consecutive pieces of the sizes along `d`."""
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [self.slice(d, start, start + size) for start, size in zip(starts, sizes, strict=False)]

    def pad(self, low: Sequence[int], high: Sequence[int], value: Number | Arr = 0) -> Arr:
        """`low[d]` values before and `high[d]` after dimension d; negative amounts crop."""
        out = self
        for d, (lo, hi) in enumerate(zip(low, high, strict=False)):
            out = out.slice(d, max(0, -lo), max(0, -lo, out.shape[d] - max(0, -hi)))
        low, high = tuple(max(0, n) for n in low), tuple(max(0, n) for n in high)
        if not any(low) and not any(high):
            return out
        fill = value.to(self.dtype) if isinstance(value, Arr) else full((), value, self.dtype)
        shape = [lo + n + hi for lo, n, hi in zip(low, out.shape, high, strict=False)]
        return emit("pad", (out, fill), shape, self.dtype, low=low, high=high)

    # reductions
    def reduce(self, op: str, ds: int | Sequence[int] | None = None, keepdim: bool = False, **attrs: bool) -> Arr:
        """`sum`, `prod`, `amax`, `amin` over `ds` (None: all). attrs: what else the node says."""
        dims = self.dims(ds)
        if not dims:
            return self
        kept = tuple(n for d, n in enumerate(self.shape) if d not in dims)
        out = emit(op, (self,), kept, self.dtype, dims=dims, **attrs)
        return out.reshape(*(1 if d in dims else n for d, n in enumerate(self.shape))) if keepdim else out

    def sum(self, ds: int | Sequence[int] | None = None, keepdim: bool = False) -> Arr:
        """Sum over `ds` (None: all)."""
        return self.reduce("sum", ds, keepdim)

    def amax(self, ds: int | Sequence[int] | None = None, keepdim: bool = False) -> Arr:
        """Largest over `ds`."""
        return self.reduce("amax", ds, keepdim)

    def amin(self, ds: int | Sequence[int] | None = None, keepdim: bool = False) -> Arr:
        """Smallest over `ds`."""
        return self.reduce("amin", ds, keepdim)

    def any(self, ds: int | Sequence[int] | None = None, keepdim: bool = False) -> Arr:
        """Whether any element is non-zero."""
        return self.to("bool").reduce("amax", ds, keepdim)

    def all(self, ds: int | Sequence[int] | None = None, keepdim: bool = False) -> Arr:
        """Whether all elements are non-zero."""
        return self.to("bool").reduce("amin", ds, keepdim)

    def mean(self, ds: int | Sequence[int] | None = None, keepdim: bool = False) -> Arr:
        """Arithmetic mean over `ds`; nan over nothing."""
        count = math.prod(self.shape[d] for d in self.dims(ds))
        return self.sum(ds, keepdim) / (count or math.nan)

    def arg(self, op: str, d: int, keepdim: bool = False) -> Arr:
        """`argmax` or `argmin` along `d`, i64."""
        d = self.dim(d)
        kept = tuple(n for i, n in enumerate(self.shape) if i != d)
        out = emit(op, (self,), kept, "i64", dims=(d,))
        return out.unsqueeze(d) if keepdim else out

    # scans and order
    def scan(self, op: str, d: int) -> Arr:
        """`cumsum`, `cumprod` or `logcumsumexp` along `d`."""
        return emit(op, (self,), self.shape, self.dtype, dim=self.dim(d))

    def sort(
        self, d: int, descending: bool = False, stable: bool = True, start: int = 0, count: int | None = None
    ) -> tuple[Arr, ...]:
        """(values, positions) of all places of the order, or of `count` from `start` on."""
        d = self.dim(d)
        count = self.shape[d] if count is None else count
        shape = (*self.shape[:d], count, *self.shape[d + 1 :])
        order = {"descending": descending, "stable": stable, "start": start, "count": count}
        return emit_multi("sort", (self,), [(shape, self.dtype), (shape, "i64")], dim=d, **order)

    # movement
    def gather(self, d: int, index: Arr) -> Arr:
        """torch.gather: the element at `index` along `d`."""
        return emit("gather", (self, index), index.shape, self.dtype, dim=self.dim(d))

    def take(self, index: Arr, d: int = 0) -> Arr:
        """Slices at `index` (any shape) along `d`: result shape[:d] + index.shape + shape[d + 1:]."""
        d = self.dim(d)
        out = self.move(d, 0).index([index])
        order = (
            list(range(index.ndim, index.ndim + d)) + list(range(index.ndim)) + list(range(index.ndim + d, out.ndim))
        )
        return out.permute(*order)

    def index(self, indices: Sequence[Arr]) -> Arr:
        """x[i0, i1, ...] on the leading dimensions; all indices i64 of one shape."""
        shape = indices[0].shape + self.shape[len(indices) :]
        return emit("index", (self, *indices), shape, self.dtype, dims=tuple(range(len(indices))))

    def index_put(self, indices: Sequence[Arr], values: Arr, reduce: str = "set") -> Arr:
        """x[i0, ...] = or += values."""
        dims = tuple(range(len(indices)))
        return emit("index_put", (self, values, *indices), self.shape, self.dtype, dims=dims, reduce=reduce)

    def scatter(self, d: int, index: Arr, src: Arr, reduce: str = "set") -> Arr:
        """torch.scatter_reduce including self."""
        return emit("scatter", (self, index, src), self.shape, self.dtype, dim=self.dim(d), reduce=reduce)

    # operators
    def __add__(self, other: Arr | Number) -> Arr:
        return map_("add", self, other)

    def __radd__(self, other: Number) -> Arr:
        return map_("add", other, self)

    def __sub__(self, other: Arr | Number) -> Arr:
        return map_("sub", self, other)

    def __rsub__(self, other: Number) -> Arr:
        return map_("sub", other, self)

    def __mul__(self, other: Arr | Number) -> Arr:
        return map_("mul", self, other)

    def __rmul__(self, other: Number) -> Arr:
        return map_("mul", other, self)

    def __truediv__(self, other: Arr | Number) -> Arr:
        return map_("div", self, other)

    def __rtruediv__(self, other: Number) -> Arr:
        return map_("div", other, self)

    def __neg__(self) -> Arr:
        return map_("neg", self)

    def __invert__(self) -> Arr:
        return map_("not", self)

    def __and__(self, other: Arr | Number) -> Arr:
        return map_("and", self, other)

    def __or__(self, other: Arr | Number) -> Arr:
        return map_("or", self, other)

    def __xor__(self, other: Arr | Number) -> Arr:
        return map_("xor", self, other)

    def __lshift__(self, other: Arr | Number) -> Arr:
        return map_("shl", self, other)

    def __rshift__(self, other: Arr | Number) -> Arr:
        return map_("shr", self, other)

    def __lt__(self, other: Arr | Number) -> Arr:
        return map_("lt", self, other)

    def __le__(self, other: Arr | Number) -> Arr:
        return map_("le", self, other)

    def __gt__(self, other: Arr | Number) -> Arr:
        return map_("gt", self, other)

    def __ge__(self, other: Arr | Number) -> Arr:
        return map_("ge", self, other)

    def eq(self, other: Arr | Number) -> Arr:
        """Elementwise equality."""
        return map_("eq", self, other)

    def ne(self, other: Arr | Number) -> Arr:
        """Elementwise inequality."""
        return map_("ne", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a graph value has no truth value")


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The NumPy broadcast of shapes (which are known to be compatible)."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=False))


def broadcast(*xs: Arr) -> tuple[Arr, ...]:
    """All at their common shape."""
    shape = broadcast_shapes(*(x.shape for x in xs))
    return tuple(x.expand(*shape) for x in xs)


_RESULT_BOOL = frozenset(name for name, fn in SCALARS.items() if fn.result == "bool")


def map_(fn: str, *operands: Arr | Number, **attrs: bool) -> Arr:
    """One scalar function on broadcast operands. attrs: what else the node says, as `softmax` (see the op table)."""
    arrays = [x for x in operands if isinstance(x, Arr)]
    shape = broadcast_shapes(*(x.shape for x in arrays))
    own = next((x for x in (operands[1:] if fn == "where" else operands) if isinstance(x, Arr)), arrays[0]).dtype
    if own == "bool" and fn in ("lt", "le", "gt", "ge"):
        return map_(fn, *(x.to("u8") if isinstance(x, Arr) else int(x) for x in operands))
    inputs = [x.expand(*shape) if isinstance(x, Arr) else full(shape, x, own) for x in operands]
    typed = inputs[1:] if fn == "where" else inputs
    if any(x.dtype != typed[0].dtype for x in typed):
        raise TypeError(f"{fn} on {[x.dtype for x in typed]}")
    return emit("map", inputs, shape, "bool" if fn in _RESULT_BOOL else typed[0].dtype, fn=fn, **attrs)


def full(shape: Sequence[int], value: Number, dtype: str) -> Arr:
    """A constant."""
    return emit("full", (), shape, dtype, value=coerce(value, dtype))


def coerce(value: Number, dtype: str) -> Number:
    """A Python number as `dtype` holds it (integers wrap as a C cast does)."""
    k = kind(dtype)
    if varies(value) and k != "b":
        return value
    if k == "f":
        return float(value)
    if k == "b":
        return bool(value)
    bits = 8 * dtypes.BY_NAME[dtype].bytes
    wrapped = int(value) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if k == "i" and wrapped >> (bits - 1) else wrapped


def full_like(x: Arr, value: Number) -> Arr:
    """A constant of the same shape and dtype."""
    return full(x.shape, value, x.dtype)


def iota(n: int, dtype: str = "i64") -> Arr:
    """0, 1, ..., n - 1."""
    return emit("iota", (), (n,), dtype)


def positions(shape: Shape, d: int, dtype: str = "i64") -> Arr:
    """The coordinate along `d` at every place of `shape`, still of size 1 in the other dimensions."""
    d %= max(len(shape), 1)
    return iota(shape[d], dtype).reshape(*(n if i == d else 1 for i, n in enumerate(shape)))


def where(condition: Arr, a: Arr | Number, b: Arr | Number, dtype: str | None = None) -> Arr:
    """`a` where `condition`; two Python numbers need `dtype`."""
    if dtype is not None and not isinstance(a, Arr):
        a = full((), a, dtype)
    return map_("where", condition, a, b)


def cat(xs: Sequence[Arr], d: int) -> Arr:
    """Concatenation along `d`."""
    if len(xs) == 1:
        return xs[0]
    d = xs[0].dim(d)
    shape = [sum(x.shape[d] for x in xs) if i == d else n for i, n in enumerate(xs[0].shape)]
    return emit("cat", xs, shape, xs[0].dtype, dim=d)


def stack(xs: Sequence[Arr], d: int) -> Arr:
    """Concatenation along a new dimension `d`."""
    return cat([x.unsqueeze(d) for x in xs], d % (xs[0].ndim + 1))


def matmul(a: Arr, b: Arr) -> Arr:
    """[..., m, k] @ [..., k, n] with broadcast batch dimensions."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    return emit("matmul", (a, b), (*batch, a.shape[-2], b.shape[-1]), a.dtype)


def rand_bits(shape: Shape, seed: Arr, offset: Arr) -> Arr:
    """Random u32 of a counter-based stream; seed and offset are 0-dim i64."""
    return emit("rand_bits", (seed, offset), shape, "u32")


def cummax(x: Arr, d: int) -> tuple[Arr, ...]:
    """(running maximum, its last position)."""
    return emit_multi("cummax", (x,), [(x.shape, x.dtype), (x.shape, "i64")], dim=x.dim(d))


def searchsorted(table: Arr, values: Arr, right: bool) -> Arr:
    """Insertion points of `values` in rows of `table`, i64."""
    return emit("searchsorted", (table, values), values.shape, "i64", right=right)


def frexp(x: Arr) -> tuple[Arr, ...]:
    """(mantissa in [0.5, 1), exponent i32)."""
    return emit_multi("map", (x,), [(x.shape, x.dtype), (x.shape, "i32")], fn="frexp")
