"""Poolings. A window is a set of taps, each a strided slice of the padded input: pointwise work that fuses."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import checked
from ops_core.lowering.indexing import lowest
from ops_core.lowering.promote import opmath
from ops_core.lowering.registry import rule
from ops_core.sizes import real

Ints = tuple[int, ...]

# Windows of up to as many taps are written out, larger ones are loops. A graph grows with its taps: an average over
# (2, 4, 28, 28) with a kernel of 28 x 28 took 139 s to compile on a busy machine, as loops 0.8.
MOST_TAPS = 32


class Window:
    """The geometry of a pooling over the last `rank` dimensions of an input shape."""

    def __init__(self, shape: Ints, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool):
        self.rank, self.sizes = rank, shape[-rank:]
        self.kernel, self.padding, self.dilation = (_spread(v, rank) for v in (kernel, padding, dilation))
        self.stride = _spread(stride, rank) if len(stride) else self.kernel
        self.out = tuple(map(self._length, range(rank), itertools.repeat(ceil_mode)))
        # padding at the end so that every tap of the last window exists
        self.after = tuple(
            max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
            for o, s, d, k, n, p in zip(
                self.out, self.stride, self.dilation, self.kernel, self.sizes, self.padding, strict=False
            )
        )

    def _length(self, i: int, ceil_mode: bool) -> int:
        n, k, s, p, d = (v[i] for v in (self.sizes, self.kernel, self.stride, self.padding, self.dilation))
        room = n + 2 * p - d * (k - 1) - 1
        out = (room + (s - 1 if ceil_mode else 0)) // s + 1
        return out - 1 if ceil_mode and (out - 1) * s >= n + p else out

    @property
    def many(self) -> bool:
        """Whether the taps are too many to be written out."""
        return math.prod(self.kernel) > MOST_TAPS and all(d == 1 for d in self.dilation)

    def covers(self, i: int) -> bool:
        """Whether dimension `i` has one window, with all of it within."""
        return self.out[i] == 1 and self.kernel[i] - self.padding[i] >= self.sizes[i]

    def tiles(self, i: int) -> bool:
        """Whether the windows of dimension `i` lie side by side and make it up, each position in one."""
        k = self.kernel[i]
        return not self.covers(i) and self.stride[i] == k and not self.padding[i] and self.out[i] * k == self.sizes[i]

    def inputs(self, i: int) -> tuple[Arr, Arr]:
        """[out, most] input positions of each window along dimension `i`, undilated, and which of them belong to it."""
        n, k, s, p = self.sizes[i], self.kernel[i], self.stride[i], self.padding[i]
        shape = (self.out[i], min(k, n))
        low = A.positions(shape, 0) * s - p
        at = A.map_("maximum", low, 0) + A.positions(shape, 1)
        return A.map_("minimum", at, n - 1), at < A.map_("minimum", low + k, n)

    def outputs(self, i: int) -> tuple[Arr, Arr]:
        """[n, most] windows near each input position along dimension `i`, undilated, and which of them it is in."""
        n, k, s, p, o = self.sizes[i], self.kernel[i], self.stride[i], self.padding[i], self.out[i]
        shape = (n, min(o, -(-k // s)))
        high = A.positions(shape, 0) + p
        at = A.map_("maximum", high - (k - s), 0) / s + A.positions(shape, 1)
        return A.map_("minimum", at, o - 1), at <= A.map_("minimum", high / s, o - 1)

    def taps(self) -> Iterator[Ints]:
        """Offsets of the taps in the padded input, of those that read any of the input itself."""
        return itertools.product(*(self._taps(i) for i in range(self.rank)))

    def _taps(self, i: int) -> Sequence[int]:
        n, k, s, p, d, o = (v[i] for v in (self.sizes, self.kernel, self.stride, self.padding, self.dilation, self.out))
        every = range(0, k * d, d)
        if every[-1] - p < n and (o - 1) * s >= p:
            return every
        first = (max(0, -(-(p - at) // s)) for at in every)  # the window from which on a tap is not before the input
        return [at for at, w in zip(every, first, strict=True) if w < o and at - p + w * s < n]

    def pad(self, x: Arr, value: Any) -> Arr:
        """The input with `value` where windows reach beyond it."""
        lead = [0] * (x.ndim - self.rank)
        return x.pad([*lead, *self.padding], [*lead, *self.after], value)

    def tap(self, padded: Arr, offset: Ints) -> Arr:
        """The values of one tap at every output position."""
        lead = padded.ndim - self.rank
        for d, (at, size, step) in enumerate(zip(offset, self.out, self.stride, strict=False), lead):
            padded = padded.window(d, at, size, step)
        return padded

    def spread(self, grad: Arr, offset: Ints) -> Arr:
        """The adjoint of `pad` and `tap`: `grad` placed where the tap reads, zeros elsewhere."""
        lead = grad.ndim - self.rank
        for d, (at, step, n, low) in enumerate(zip(offset, self.stride, self.sizes, self.padding, strict=False), lead):
            grad = dilate(grad, d, step)
            start = at - low
            before, after = [0] * grad.ndim, [0] * grad.ndim
            before[d], after[d] = start, n - start - grad.shape[d]
            grad = grad.pad(before, after)
        return grad

    def position(self, offset: Ints) -> Arr:
        """The flat input position that a tap reads, at every output position (i64, without leading dims)."""
        flat: Arr | int = 0
        for d, (at, step, n, low) in enumerate(zip(offset, self.stride, self.sizes, self.padding, strict=False)):
            along = A.positions(self.out, d) * step + (at - low)
            flat = along if isinstance(flat, int) else flat * n + along
        assert isinstance(flat, Arr)
        return flat


def _spread(values: Any, rank: int) -> Ints:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def dilate(x: Arr, d: int, step: int) -> Arr:
    """step - 1 zeros between neighbours along `d`."""
    if step == 1:
        return x
    n = x.shape[d]
    high = [0] * (x.ndim + 1)
    high[d + 1] = step - 1
    wide = x.unsqueeze(d + 1).pad([0] * (x.ndim + 1), high)
    return wide.reshape(*x.shape[:d], n * step, *x.shape[d + 1 :]).slice(d, 0, (n - 1) * step + 1)


def _max_pool(x: Arr, window: Window) -> tuple[Arr, Arr]:
    if window.many:
        return _max_of(x, [window.inputs(i) for i in range(window.rank)])
    padded = window.pad(x, lowest(x.dtype))
    best: Arr | None = None
    for offset in window.taps():
        value, at = window.tap(padded, offset), window.position(offset)
        if best is None:
            # the first tap may lie in the padding: start from the first real position instead
            inside = _inside(window, offset)
            best, where_best = value, at.expand(*value.shape)
            found = inside
            continue
        inside = _inside(window, offset)
        better = (
            (value > best) | value.ne(value) if x.is_float else (value > best) if x.dtype != "bool" else value & ~best
        )
        take = (better | ~found) & inside
        best, where_best = where(take, value, best), where(take, at, where_best)
        found = found | inside
    assert best is not None
    return best, where_best


def _inside(window: Window, offset: Ints) -> Arr:
    """Whether a tap reads the input, not the padding, at every output position."""
    out: Arr | None = None
    for d, (at, step, n, low) in enumerate(zip(offset, window.stride, window.sizes, window.padding, strict=False)):
        along = A.positions(window.out, d) * step + (at - low)
        ok = (along >= 0) & (along < n)
        out = ok if out is None else out & ok
    assert out is not None
    return out


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_with_indices(self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    rank = _rank(self, kernel_size)
    return _max_pool(self, Window(self.shape, rank, kernel_size, stride, padding, dilation, ceil_mode))


def _rank(x: Arr, kernel: Any) -> int:
    return len(kernel) if len(kernel) > 1 else x.ndim - 2


@rule("max_pool2d_with_indices_backward")
def _max_pool2d_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return scatter_windows(grad_output, self.shape, indices, 2, _disjoint(kernel_size, stride, dilation))


@rule("max_pool3d_with_indices_backward")
def _max_pool3d_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return scatter_windows(grad_output, self.shape, indices, 3, _disjoint(kernel_size, stride, dilation))


def _disjoint(kernel: Any, stride: Any, dilation: Any) -> bool:
    """No two windows share an input position, so a scatter needs no addition."""
    stride = stride if len(stride) else kernel
    rank = max(len(kernel), len(stride))
    return all(
        s >= k and d == 1
        for k, s, d in zip(_spread(kernel, rank), _spread(stride, rank), _spread(dilation, rank), strict=False)
    )


def scatter_windows(grad: Arr, shape: Ints, indices: Arr, rank: int, disjoint: bool) -> Arr:
    """grad [.., out...] added at flat `indices` of the last `rank` dims of zeros of `shape`."""
    lead, plane = shape[:-rank], math.prod(shape[-rank:])
    dtype = grad.dtype if disjoint else opmath(grad.dtype)
    zeros = A.full((*lead, plane), 0, dtype)
    if grad.numel == 0:
        return A.full(shape, 0, grad.dtype)
    flat = grad.to(dtype).reshape(*lead, -1)
    out = zeros.scatter(-1, indices.to("i64").reshape(*flat.shape), flat, "set" if disjoint else "add")
    return out.reshape(*shape).to(grad.dtype)


@rule("max_unpool2d", "max_unpool3d")
def _max_unpool(self, indices, output_size, stride=(), padding=()):
    rank = len(output_size)
    at = checked(indices, math.prod(output_size), "unpool")
    return scatter_windows(self, (*self.shape[:-rank], *output_size), at, rank, disjoint=True)


def _divisor(window: Window, count_include_pad: bool, override: int | None) -> Any:
    """What an average divides by: a number, or one per output position."""
    if override:
        return float(override)
    total: Any = None
    product, constant = 1, True
    for d in range(window.rank):
        n, k, s, p = window.sizes[d], window.kernel[d], window.stride[d], window.padding[d]
        spans = [(o * s - p, min(o * s - p + k, n + p)) for o in range(window.out[d])]
        counts = [hi - lo if count_include_pad else min(hi, n) - max(lo, 0) for lo, hi in spans]
        constant = constant and len(set(counts)) <= 1
        start = A.positions(window.out, d) * s - p
        end = A.map_("minimum", start + k, n + p)
        if not count_include_pad:
            start, end = A.map_("maximum", start, 0), A.map_("minimum", end, n)
        extent = end - start
        total = extent if total is None else total * extent
        product *= counts[0] if counts else 1
    return float(product) if constant else total


def _avg_window(shape: Ints, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, rank: int) -> Window:
    return Window(shape, rank, kernel, stride, padding, (1,), ceil_mode)


def _avg_pool(rank: int) -> Any:
    def forward(
        self, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        window = _avg_window(self.shape, kernel_size, stride, padding, ceil_mode, rank)
        total = _sums_of_inputs(self.to(opmath(self.dtype)), window)
        return _divide(total, _divisor(window, count_include_pad, divisor_override)).to(self.dtype)

    def backward(
        grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None
    ):  # fmt: skip
        window = _avg_window(self.shape, kernel_size, stride, padding, ceil_mode, rank)
        grad = grad_output.to(opmath(grad_output.dtype))
        grad = _divide(grad, _divisor(window, count_include_pad, divisor_override))
        return _sums_of_outputs(grad, window).to(grad_output.dtype)

    rule(f"avg_pool{rank}d")(forward)
    rule(f"avg_pool{rank}d_backward")(backward)


def _windows_of(x: Arr, d: int, at: Arr, inside: Arr, outside: Any) -> Arr:
    """Dimension `d` of x as [windows, places]: what lies `at` them, `outside` where that is not of the window."""
    windows = x.take(at, d)
    shape = [1] * windows.ndim
    shape[d], shape[d + 1] = at.shape
    return where(inside.reshape(*shape), windows, outside)


def _sums_of_inputs(x: Arr, window: Window) -> Arr:
    """The sum of each window: of its taps, or one dimension after the other, first those that one window covers."""
    if not window.many:
        padded = window.pad(x, 0)
        return functools.reduce(operator.add, (window.tap(padded, offset) for offset in window.taps()))
    lead = x.ndim - window.rank
    whole = [lead + i for i in range(window.rank) if window.covers(i)]
    x = x.sum(whole, True) if whole else x
    for i in range(window.rank):
        d = lead + i
        if window.tiles(i):
            x = x.reshape(*x.shape[:d], window.out[i], window.kernel[i], *x.shape[d + 1 :]).sum(d + 1)
        elif not window.covers(i):
            x = _windows_of(x, d, *window.inputs(i), 0).sum(d + 1)
    return x


def _sums_of_outputs(grad: Arr, window: Window) -> Arr:
    """At each input position the sum over the windows that it is in."""
    if not window.many:
        return functools.reduce(operator.add, (window.spread(grad, offset) for offset in window.taps()))
    lead = grad.ndim - window.rank
    for i in range(window.rank):
        d, n = lead + i, window.sizes[i]
        before, after = grad.shape[:d], grad.shape[d + 1 :]
        if window.covers(i):
            grad = grad.expand(*before, n, *after)
        elif window.tiles(i):
            grad = grad.unsqueeze(d + 1).expand(*before, window.out[i], window.kernel[i], *after)
            grad = grad.reshape(*before, n, *after)
        else:
            grad = _windows_of(grad, d, *window.outputs(i), 0).sum(d + 1)
    return grad


def _max_of(x: Arr, spans: list[tuple[Arr, Arr]]) -> tuple[Arr, Arr]:
    """The largest of each window over the last dimensions and its flat position, the first's, or the last NaN's.

    Windows are gathered one dimension after the other, padded to the longest.
    """
    rank = len(spans)
    lead = x.ndim - rank
    flat = A.iota(math.prod(x.shape[lead:])).reshape(*x.shape[lead:])
    out = [at.shape[0] for at, _ in spans]
    windows = x
    for i, (at, inside) in enumerate(spans):
        windows = _windows_of(windows, lead + 2 * i, at, inside, lowest(x.dtype))
        flat = flat.take(at, 2 * i)
    order = [*range(lead), *(lead + 2 * i for i in range(rank)), *(lead + 2 * i + 1 for i in range(rank))]
    windows = windows.permute(*order).reshape(*x.shape[:lead], *out, -1)
    places = flat.permute(*(2 * i for i in range(rank)), *(2 * i + 1 for i in range(rank))).reshape(*out, -1)
    best = windows.arg("argmax", -1, True)
    if x.is_float:
        last = where(windows.ne(windows), A.positions(windows.shape, windows.ndim - 1), -1).amax(-1, True)
        best = where(last >= 0, last, best)
    return windows.gather(-1, best).squeeze(-1), places.expand(*windows.shape).gather(-1, best).squeeze(-1)


def _divide(x: Arr, divisor: Any) -> Arr:
    if not isinstance(divisor, Arr):
        return x / divisor if x.is_float else x / int(divisor)
    return x / divisor.to(x.dtype)


for _dims in (1, 2, 3):
    _avg_pool(_dims)


def adaptive_matrix(size: int, out: int, dtype: str) -> Arr:
    """[out, size]: row o averages the o-th adaptive window."""
    o, i = A.positions((out, size), 0), A.positions((out, size), 1)
    start, end = (o * size) / out, ((o + 1) * size + (out - 1)) / out
    inside = (i >= start) & (i < end)
    return where(inside, 1.0 / (end - start).to(dtype), 0.0)


def along(x: Arr, d: int, matrix: Arr) -> Arr:
    """`matrix` [m, n] applied to dimension `d` (size n) of x."""
    moved = x.move(d, -1)
    flat = A.matmul(moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1]), matrix.transpose(0, 1))
    return flat.reshape(*moved.shape[:-1], matrix.shape[0]).move(-1, d)


def _adaptive_avg(rank: int) -> Any:
    def forward(self, output_size):
        x = self.to(opmath(self.dtype))
        if x.numel == 0:
            return A.full((*x.shape[:-rank], *output_size), 0, self.dtype)
        for d, (n, o) in enumerate(zip(x.shape[-rank:], output_size, strict=False), x.ndim - rank):
            if o and n % o == 0:
                x = x.reshape(*x.shape[:d], o, n // o, *x.shape[d + 1 :]).mean(d + 1)
            else:
                x = along(x, d, adaptive_matrix(n, o, x.dtype))
        return x.to(self.dtype)

    def backward(grad_output, self):
        grad = grad_output.to(opmath(grad_output.dtype))
        if grad.numel == 0:
            return A.full(self.shape, 0, self.dtype)
        for d, (n, o) in enumerate(zip(self.shape[-rank:], grad.shape[-rank:], strict=False), grad.ndim - rank):
            if n % o == 0:
                spread = (
                    (grad / real(n // o)).unsqueeze(d + 1).expand(*grad.shape[: d + 1], n // o, *grad.shape[d + 1 :])
                )
                grad = spread.reshape(*grad.shape[:d], n, *grad.shape[d + 1 :])
            else:
                grad = along(grad, d, adaptive_matrix(n, o, grad.dtype).transpose(0, 1))
        return grad.to(self.dtype)

    rule(f"_adaptive_avg_pool{rank}d", f"adaptive_avg_pool{rank}d")(forward)
    rule(f"_adaptive_avg_pool{rank}d_backward", f"adaptive_avg_pool{rank}d_backward")(backward)


for _dims in (2, 3):
    _adaptive_avg(_dims)


def _adaptive_max(rank: int) -> Any:
    def forward(self, output_size):
        sizes = zip(self.shape[-rank:], output_size, strict=False)
        return _max_of(self, [_adaptive_windows(n, out) for n, out in sizes])

    def backward(grad_output, self, indices):
        return scatter_windows(grad_output, self.shape, indices, rank, False)

    rule(f"adaptive_max_pool{rank}d")(forward)
    rule(f"adaptive_max_pool{rank}d_backward")(backward)


def _adaptive_windows(n: int, out: int) -> tuple[Arr, Arr]:
    """[out, longest] input positions of each adaptive window, and which of them belong to it."""
    longest = max(-(-(o + 1) * n // out) - o * n // out for o in range(out))
    shape = (out, longest)
    o = A.positions(shape, 0)
    start, end = (o * n) / out, ((o + 1) * n + (out - 1)) / out
    at = start + A.positions(shape, 1)
    return A.map_("minimum", at, n - 1), at < end


for _dims in (2, 3):
    _adaptive_max(_dims)
