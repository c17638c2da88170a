"""Copies, casts, concatenation, padding, factories and triangles."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

import torch

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering import views
from ops_core.lowering.promote import COMPLEX_PARTS, name_of, opmath, result_type, torch_dtype
from ops_core.lowering.registry import Complex, NotLowerable, rule
from ops_core.sizes import real


@rule("clone", "contiguous", "lift_fresh_copy", "_unsafe_view_copy")
def _clone(self):
    return self


def convert(x: Any, dtype: torch.dtype) -> Any:
    """Cast between any two dtypes, complex included."""
    if dtype in COMPLEX_PARTS:
        part = COMPLEX_PARTS[dtype]
        return (
            Complex(x.re.to(part), x.im.to(part))
            if isinstance(x, Complex)
            else Complex(x.to(part), A.full(x.shape, 0, part))
        )
    return (x.re if isinstance(x, Complex) else x).to(name_of(dtype))


@rule("_to_copy", "_autocast_to_reduced_precision", "_autocast_to_full_precision")
def _to_copy(self, dtype=None):
    return self if dtype is None else convert(self, dtype)


def like(value: Any, target: Any) -> Any:
    """`value` cast and broadcast to `target`'s dtype and shape."""
    if isinstance(target, Complex):
        pair = value if isinstance(value, Complex) else Complex(value, A.full(value.shape, 0, value.dtype))
        return Complex(like(pair.re, target.re), like(pair.im, target.im))
    value = value.re if isinstance(value, Complex) else value
    if A.broadcast_shapes(value.shape, target.shape) != target.shape:
        raise NotLowerable(f"a result of {value.shape} for a target of {target.shape}")
    return value.to(target.dtype).expand(*target.shape)


@rule("copy")
def _copy(self, src):
    return like(src, self)


@rule("_copy_from", "_copy_from_and_resize")
def _copy_from(self, dst):
    return like(self, dst)


def constant(shape: Any, value: Any, dtype: torch.dtype) -> Any:
    """A tensor of one value (Python number, run-time scalar or 0-dim array)."""
    shape = tuple(shape)
    if dtype in COMPLEX_PARTS:
        part = COMPLEX_PARTS[dtype]
        if isinstance(value, Complex):
            return Complex(value.re.to(part).expand(*shape), value.im.to(part).expand(*shape))
        parts = (value.real, value.imag) if isinstance(value, complex) else (value, 0)
        return Complex(*(_real_constant(shape, p, part) for p in parts))
    return _real_constant(shape, value, name_of(dtype))


def _real_constant(shape: tuple[int, ...], value: Any, dtype: str) -> Arr:
    if not isinstance(value, Arr):
        return A.full(shape, value, dtype)
    # A 0-dim tensor of a run-time scalar is no number any more: it promotes as a tensor does.
    number = shape or value.dtype != dtype
    tensor = value.to(dtype) if number else A.emit("map", (value,), (), dtype, fn="convert", to=dtype)
    return tensor.expand(*shape)


def _dtype_like(x: Any, dtype: torch.dtype | None) -> torch.dtype:
    return torch_dtype(x) if dtype is None else dtype


@rule("fill", "full_like")
def _fill(self, value=None, fill_value=None, dtype=None):
    return constant(self.shape, fill_value if value is None else value, _dtype_like(self, dtype))


@rule("zero", "zeros_like", "empty_like", "new_zeros", "new_empty", "new_empty_strided")
def _zeros_like(self, size=None, stride=None, dtype=None):
    return constant(self.shape if size is None else size, 0, _dtype_like(self, dtype))


@rule("ones_like", "new_ones")
def _ones_like(self, size=None, dtype=None):
    return constant(self.shape if size is None else size, 1, _dtype_like(self, dtype))


@rule("new_full")
def _new_full(self, size, fill_value, dtype=None):
    return constant(size, fill_value, _dtype_like(self, dtype))


@rule("zeros", "empty", "empty_strided", "empty_permuted", "_efficientzerotensor")
def _zeros(size, stride=None, physical_layout=None, dtype=None):
    return constant(size, 0, dtype or torch.get_default_dtype())


@rule("ones")
def _ones(size, dtype=None):
    return constant(size, 1, dtype or torch.get_default_dtype())


@rule("full")
def _full(size, fill_value, dtype=None):
    return constant(size, fill_value, dtype or result_type([fill_value]))


@rule("scalar_tensor")
def _scalar_tensor(s, dtype=None):
    return constant((), s, dtype or torch.get_default_dtype())


def _affine_range(count: int, start: Any, step: Any, dtype: str) -> Arr:
    """start + i * step, computed in f64 or i64 where that is exact enough, f32 for half."""
    compute = "i64" if A.kind(dtype) in "iu" else "f64" if dtype == "f64" else "f32"
    i = A.iota(count, "i32" if compute == "f32" else "i64").to(compute)
    start, step = (v.to(compute) if isinstance(v, Arr) else v for v in (start, step))
    scaled = i if not isinstance(step, Arr) and step == 1 else i * step
    return (scaled if not isinstance(start, Arr) and start == 0 else scaled + start).to(dtype)


@rule("arange")
def _arange(end, start=0, step=1, dtype=None):
    start, end, step = (v if isinstance(v, int) else float(v) for v in (start, end, step))
    whole = all(isinstance(v, int) for v in (start, end, step))
    name = name_of(dtype or (torch.int64 if whole else torch.get_default_dtype()))
    if name == "i64":  # integer bounds first; the other integers count in floating point
        start, end, step = (v if isinstance(v, int) else int(v) for v in (start, end, step))
        whole = True
    count = max(0, -((start - end) // step) if whole else math.ceil((end - start) / step))
    if A.kind(name) in "iu":
        start, step = (v if isinstance(v, int) else int(v) for v in (start, step))
    return _affine_range(count, start, step, name)


@rule("range")
def _range(start, end, step=1, dtype=None):
    start, end, step = float(start), float(end), float(step)
    return _affine_range(int((end - start) / step + 1), start, step, name_of(dtype or torch.get_default_dtype()))


def _bound(v: Any, dtype: str) -> Arr:
    """An end of a range as eager takes it: in the dtype of the result, a fraction cut off where that has none."""
    if isinstance(v, Arr):
        return v.to(dtype)
    return A.full((), v if A.is_float(dtype) else int(v), dtype)


@rule("linspace")
def _linspace(start, end, steps, dtype=None):
    result = name_of(dtype or torch.get_default_dtype())
    compute = "f64" if A.kind(result) in "iu" else opmath(result) if A.is_float(result) else "f32"
    first, last = (_bound(v, result).to(compute) for v in (start, end))
    if steps <= 1:
        return first.to(result).expand(steps)
    i = A.iota(steps)
    step = (last - first) / real(steps - 1)
    up = first + step * i.to(compute)
    down = last - step * (i * -1 + (steps - 1)).to(compute)
    return where(i < steps // 2, up, down).to(result)


@rule("logspace")
def _logspace(start, end, steps, base=10.0, dtype=None):
    result = name_of(dtype or torch.get_default_dtype())
    if not A.is_float(result):  # eager truncates the ends, not what lies between
        first, last = (_bound(v, result).to("f64") for v in (start, end))
        i = A.iota(steps)
        step = (last - first) / real(max(steps - 1, 1))
        exponents = where(i < (steps + 1) // 2, i.to("f64") * step + first, (i - (steps - 1)).to("f64") * step + last)
        return A.map_("pow", A.full((steps,), float(base), "f64"), exponents).to(result)
    exponents = _linspace(start, end, steps, torch.float64 if result == "f64" else torch.float32)
    powers = A.map_("pow", A.full(exponents.shape, float(base), exponents.dtype), exponents)
    return powers.to(result)


@rule("eye")
def _eye(n, m=None, dtype=None):
    shape = (n, n if m is None else m)
    same = A.positions(shape, 0).eq(A.positions(shape, 1))
    return convert(same, dtype or torch.get_default_dtype())


@rule("tril")
def _tril(self, diagonal=0):
    return _triangle(self, lambda row, column: column - row <= diagonal)


@rule("triu")
def _triu(self, diagonal=0):
    return _triangle(self, lambda row, column: column - row >= diagonal)


def _triangle(x: Arr, keep: Any) -> Arr:
    shape = x.shape[-2:]
    return where(keep(A.positions(shape, 0), A.positions(shape, 1)), x, 0)


@rule("tril_indices")
def _tril_indices(row, col, offset=0, dtype=torch.int64):
    return _triangle_indices(row, col, offset + 1, False, dtype)


@rule("triu_indices")
def _triu_indices(row, col, offset=0, dtype=torch.int64):
    return _triangle_indices(row, col, offset, True, dtype)


def _triangle_indices(rows: int, columns: int, offset: int, upper: bool, dtype: torch.dtype | None) -> Arr:
    """[2, n]: row and column of each place before (upper: from) column `row + offset`, in order.

    A place's row is found bit by bit: the last one that no more places precede. Nothing is a table of constants."""

    def before(r: Arr) -> Arr:
        """The places in the rows above r. Above `low` a row has none before its column, from `high` on all of them."""
        low, high = (A.map_("minimum", r, max(0, edge - offset)) for edge in (0, columns))
        left = ((high - low) * (low + high - 1) >> 1) + (high - low) * offset + (r - high) * columns
        return r * columns - left if upper else left

    starts = [min(max(r + offset, 0), columns) for r in range(rows)]
    name = name_of(dtype or torch.int64)
    i = A.iota(sum(columns - start if upper else start for start in starts))
    row = A.full(i.shape, 0, "i64")
    for bit in reversed(range(max(rows - 1, 0).bit_length())):
        later = row + (1 << bit)
        row = where((later < rows) & (before(later) <= i), later, row)
    column = i - before(row)
    if upper:
        column = column + A.map_("minimum", A.map_("maximum", row + offset, 0), columns)
    return A.stack([row, column], 0).to(name)


@rule("cat", "concat")
def _cat(tensors, dim=0):
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    dtype = result_type(tensors)
    return A.cat([t.to(name_of(dtype)) for t in kept], dim)


@rule("stack")
def _stack(tensors, dim=0):
    dtype = name_of(result_type(tensors))
    return A.stack([t.to(dtype) for t in tensors], dim)


@rule("constant_pad_nd")
def _constant_pad_nd(self, pad, value=0):
    low, high = [0] * self.ndim, [0] * self.ndim
    for i in range(len(pad) // 2):
        low[-1 - i], high[-1 - i] = pad[2 * i], pad[2 * i + 1]
    return self.pad(low, high, value)


@rule("flip")
def _flip(self, dims):
    return self.flip(*(self.dim(d) for d in dims)) if self.ndim else self


@rule("roll")
def _roll(self, shifts, dims=()):
    if not len(dims):
        return _roll(self.reshape(-1), shifts, (0,)).reshape(*self.shape) if self.numel else self
    out = self
    for shift, d in zip(shifts, dims, strict=False):
        n = out.shape[out.dim(d)]
        k = shift % n if n else 0
        out = A.cat([out.slice(d, n - k), out.slice(d, 0, n - k)], d) if k else out
    return out


@rule("repeat")
def _repeat(self, repeats):
    x = self.reshape(*(1,) * (len(repeats) - self.ndim), *self.shape)
    shape = [n * r for n, r in zip(x.shape, repeats, strict=False)]
    spread = [m for n, r in zip(x.shape, repeats, strict=False) for m in (r, n)]
    return x.reshape(*(m for n in x.shape for m in (1, n))).expand(*spread).reshape(*shape)


@rule("slice_scatter")
def _slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    return views.slice_scatter(self, src, dim, start, end, step)


@rule("select_scatter")
def _select_scatter(self, src, dim, index):
    return views.select_scatter(self, src, dim, index)


@rule("diagonal_scatter")
def _diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    return views.diagonal_scatter(self, src, offset, dim1, dim2)


@rule("as_strided_scatter")
def _as_strided_scatter(self, src, size, stride, storage_offset=None):
    return views.as_strided_scatter(self, src, size, stride, storage_offset)


def _into_zeros(grad: Arr, shape: Any, scatter: Any) -> Arr:
    return scatter(A.full(tuple(shape), 0, grad.dtype), grad)


@rule("slice_backward")
def _slice_backward(grad_output, input_sizes, dim, start, end, step):
    d = dim % len(input_sizes)
    n = input_sizes[d]
    if step == 1:  # a pad fuses where a scatter does not
        low = start + n if start < 0 else min(start, n)
        before, after = [0] * grad_output.ndim, [0] * grad_output.ndim
        before[d], after[d] = low, n - low - grad_output.shape[d]
        return grad_output.pad(before, after)
    return _into_zeros(grad_output, input_sizes, lambda z, g: views.slice_scatter(z, g, dim, start, end, step))


@rule("select_backward")
def _select_backward(grad_output, input_sizes, dim, index):
    d = dim % len(input_sizes)
    low, high = [0] * len(input_sizes), [0] * len(input_sizes)
    low[d] = index % input_sizes[d]
    high[d] = input_sizes[d] - low[d] - 1
    return grad_output.unsqueeze(d).pad(low, high)


@rule("diagonal_backward")
def _diagonal_backward(grad_output, input_sizes, offset, dim1, dim2):
    return _into_zeros(grad_output, input_sizes, lambda z, g: views.diagonal_scatter(z, g, offset, dim1, dim2))


@rule("diag_embed")
def _diag_embed(self, offset=0, dim1=-2, dim2=-1):
    n = self.shape[-1] + abs(offset)
    a, b = dim1 % (self.ndim + 1), dim2 % (self.ndim + 1)
    if a > b:
        a, b, offset = b, a, -offset
    rows, columns = A.positions((n, n), 0), A.positions((n, n), 1)
    padded = self.pad([0] * self.ndim, [0] * (self.ndim - 1) + [abs(offset)])
    body = padded.unsqueeze(-2 if offset < 0 else -1)  # the coordinate that starts at 0 picks the element
    on = (columns - rows).eq(offset)
    out = where(on, body.expand(*padded.shape[:-1], n, n), 0)
    return out.move(-2, a).move(-1, b)
