"""Upsampling, plain and antialiased, grid samplers, fractional pooling."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.pointwise import abs_
from ops_core.lowering.pooling import along, scatter_windows
from ops_core.lowering.promote import opmath
from ops_core.lowering.registry import NotLowerable, rule
from ops_core.sizes import real


def floor(x: Arr) -> Arr:
    """Round down."""
    return A.map_("floor", x)


def _whole(at: Arr) -> Arr:
    """Positions as indices, by way of i32, which is quicker than straight to i64 (nearest x 2 of (4, 64, 64, 64): 8.6
    ms, by way of i32 2.9)."""
    return at.to("i32").to("i64")


def _ratio(n: int, out: int, align: bool, scale: Any) -> float:
    """Input positions per output position."""
    if align:
        return (n - 1) / (out - 1) if out > 1 else 0.0
    given = None if scale is None else float(scale)
    return 1.0 / given if given is not None and given > 0 else n / out


def _source(o: Arr, ratio: float, align: bool, clamp: bool) -> Arr:
    if align:
        return o * ratio
    at = (o + 0.5) * ratio - 0.5
    return A.map_("maximum", at, 0.0) if clamp else at


def cubic(t: Arr, a: float) -> Arr:
    """Keys' kernel at distance |t|."""
    x = abs_(t)
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    return where(x <= 1.0, near, where(x < 2.0, far, 0.0))


def _reads(kind: str, o: Arr, n: int, ratio: float, align: bool) -> list[tuple[Arr, Arr | float]]:
    """(position, weight) of each input that the outputs at `o` read along a dim of n."""
    last = real(n - 1)
    if kind in ("nearest", "exact"):
        return [(A.map_("minimum", floor((o + 0.5) * ratio if kind == "exact" else o * ratio), last), 1.0)]
    at = _source(o, ratio, align, kind == "linear")
    base = floor(at)
    if kind == "linear":
        base = A.map_("minimum", base, last)
        fraction = A.map_("minimum", A.map_("maximum", at - base, 0.0), 1.0)
        return [(base, 1.0 - fraction), (A.map_("minimum", base + 1.0, last), fraction)]
    return [
        (A.map_("minimum", A.map_("maximum", base + float(k), 0.0), last), cubic(at - base - float(k), -0.75))
        for k in range(-1, 3)
    ]


def _taps(kind: str, n: int, out: int, align: bool, scale: Any, dtype: str) -> Arr:
    """[out, n]: the weight of each input position in each output position."""
    o, i = A.positions((out, n), 0, "i64").to(dtype), A.positions((out, n), 1, "i64").to(dtype)
    reads = _reads(kind, o, n, _ratio(n, out, align, scale), align)
    return functools.reduce(operator.add, [where(i.eq(at), weight, 0.0, dtype) for at, weight in reads])


def _triangle(t: Arr) -> Arr:
    return A.map_("maximum", 1.0 - abs_(t), 0.0)


def _lanczos(t: Arr) -> Arr:
    x = t * math.pi
    wave = A.map_("sin", x) / x * (A.map_("sin", x / 3.0) / (x / 3.0))
    return where(t.eq(0.0), 1.0, where(abs_(t) < 3.0, wave, 0.0))


_FILTERS: dict[str, tuple[float, Callable[[Arr], Arr]]] = {
    "bilinear": (1.0, _triangle), "bicubic": (2.0, lambda t: cubic(t, -0.5)), "lanczos": (3.0, _lanczos),
}  # fmt: skip


def _smooth_taps(kind: str, n: int, out: int, align: bool, scale: Any, dtype: str) -> Arr:
    """[out, n]: antialiased weights, each row summing to 1."""
    radius, weight = _FILTERS[kind]
    ratio = _ratio(n, out, align, scale)
    support = radius * ratio if ratio >= 1 else radius
    inverse = 1.0 / ratio if ratio >= 1 else 1.0
    o, i = A.positions((out, n), 0).to(dtype), A.positions((out, n), 1).to(dtype)
    centre = (o + 0.5) * ratio
    low = A.map_("maximum", A.map_("trunc", centre - support + 0.5), 0.0)
    high = A.map_("minimum", A.map_("trunc", centre + support + 0.5), real(n))
    w = where((i >= low) & (i < high), weight((i - centre + 0.5) * inverse), 0.0)
    return w / w.sum(1, True)


Matrix = Callable[[int, str], Arr]  # the resampling matrix of a dimension, in a dtype


def _resample(x: Arr, rank: int, matrix: Matrix, shape: tuple[int, ...]) -> Arr:
    """Apply one [m, n] matrix along each of the last `rank` dims."""
    if x.numel == 0:
        return A.full(shape, 0, x.dtype)
    out = x.to(opmath(x.dtype))
    for d in range(rank):
        out = along(out, x.ndim - rank + d, matrix(d, out.dtype))
    return out.to(x.dtype)


def _scales(bound: dict[str, Any], rank: int) -> list[Any]:
    names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[3 - rank :]
    return [bound.get(n) for n in names]


def _forward(kind: str, rank: int) -> Callable[..., Arr]:
    def forward(self, output_size, align_corners=False, **scales):
        shape = (*self.shape[:2], *output_size)
        if self.numel == 0 or math.prod(shape) == 0:
            return A.full(shape, 0, self.dtype)
        weighs = kind in ("linear", "cubic")
        dtype = opmath(self.dtype) if self.is_float and weighs else "f32"
        out = self.to(dtype) if weighs else self
        for d, (n, size, scale) in enumerate(zip(self.shape[2:], output_size, _scales(scales, rank), strict=True)):
            reads = _reads(kind, A.iota(size).to(dtype), n, _ratio(n, size, align_corners, scale), align_corners)
            aside = (size, *[1] * (rank - 1 - d))
            rows = (*out.shape[: 2 + d], size, *out.shape[3 + d :])
            parts = []
            for at, weight in reads:  # not take, whose result would lie with this dim in front
                part = out.gather(2 + d, _whole(at).reshape(*aside).expand(*rows))
                parts.append(part * weight.reshape(*aside) if isinstance(weight, Arr) else part)
            out = functools.reduce(operator.add, parts)
        if weighs and not self.is_float:  # eager takes bytes only
            out = A.map_("minimum", A.map_("maximum", A.map_("round", out), 0.0), 255.0)
        return out.to(self.dtype)

    return forward


def _backward(kind: str, rank: int) -> Callable[..., Arr]:
    def backward(grad_output, output_size, input_size, align_corners=False, **scales):
        def matrix(d: int, dtype: str) -> Arr:
            n, out, scale = input_size[2 + d], output_size[d], _scales(scales, rank)[d]
            return _taps(kind, n, out, align_corners, scale, dtype).transpose(0, 1)

        return _resample(grad_output, rank, matrix, tuple(input_size))

    return backward


for _name, (_kind, _rank) in {
    "upsample_nearest1d": ("nearest", 1), "upsample_nearest2d": ("nearest", 2), "upsample_nearest3d": ("nearest", 3),
    "_upsample_nearest_exact1d": ("exact", 1), "_upsample_nearest_exact2d": ("exact", 2),
    "_upsample_nearest_exact3d": ("exact", 3), "upsample_linear1d": ("linear", 1), "upsample_bilinear2d": ("linear", 2),
    "upsample_trilinear3d": ("linear", 3), "upsample_bicubic2d": ("cubic", 2),
}.items():  # fmt: skip
    rule(_name)(_forward(_kind, _rank))
    rule(f"{_name}_backward")(_backward(_kind, _rank))


def _declare_antialiased(kind: str) -> None:
    def matrices(sizes: Any, out: Any, align: bool, scales: Any, transposed: bool) -> Matrix:
        def matrix(d: int, dtype: str) -> Arr:
            w = _smooth_taps(kind, sizes[d], out[d], align, scales[d], dtype)
            return w.transpose(0, 1) if transposed else w

        return matrix

    @rule(f"_upsample_{kind}2d_aa.default")
    def forward(self, output_size, align_corners, scales_h=None, scales_w=None):
        if not self.is_float:
            raise NotLowerable("antialiased upsampling of integers has its own rounding")
        w = matrices(self.shape[2:], output_size, align_corners, (scales_h, scales_w), False)
        return _resample(self, 2, w, (*self.shape[:2], *output_size))

    @rule(f"_upsample_{kind}2d_aa_backward")
    def backward(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
        w = matrices(input_size[2:], output_size, align_corners, (scales_h, scales_w), True)
        return _resample(grad_output, 2, w, tuple(input_size))


for _kind in _FILTERS:
    _declare_antialiased(_kind)


# grid samplers
BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _unnormalise(x: Arr, size: int, align: bool, rank: int) -> tuple[Arr, float]:
    """[-1, 1] to pixels, and the derivative; in the order of operations of eager's kernel of that rank."""
    if rank == 2:
        return ((x + 1.0) * ((size - 1) / 2), (size - 1) / 2) if align else ((x + 1.0) * (size / 2) - 0.5, size / 2)
    if align:
        return (x + 1.0) / 2.0 * real(size - 1), (size - 1) / 2
    return ((x + 1.0) * real(size) - 1.0) / 2.0, size / 2


def _clip(x: Arr, size: int) -> tuple[Arr, Arr]:
    top = real(size - 1)
    inside = (x > 0.0) & (x < top)
    # not maximum, which would leave NaN: eager takes the first pixel for it
    return A.map_("minimum", where(x > 0.0, x, 0.0), top), inside.to(x.dtype)


def _reflect(x: Arr, low: float, high: float) -> tuple[Arr, Arr]:
    """Reflection between two planes, and the derivative's sign."""
    span = high - low
    if span <= 0:
        return A.full_like(x, 0.0), A.full_like(x, 0.0)
    y = abs_(x - low)
    sign = where(x - low < 0.0, -1.0, 1.0, x.dtype)
    extra = A.map_("fmod", y, span)
    even = A.map_("remainder", floor(y / span), 2.0).eq(0.0)
    return where(even, extra + low, (span - extra) + low), where(even, sign, -sign)


def _padded(x: Arr, size: int, padding: int, align: bool) -> tuple[Arr, Arr]:
    """The coordinate after padding, and the derivative."""
    if padding == BORDER:
        return _clip(x, size)
    if padding == REFLECTION:
        y, slope = _reflect(x, 0.0, real(size - 1)) if align else _reflect(x, -0.5, size - 0.5)
        z, inside = _clip(y, size)
        return z, slope * inside
    return x, A.full_like(x, 1.0)


class _Sampler:
    """The taps of one grid sampling: input [N, C, ...] read at points [N, P]."""

    def __init__(self, shape: tuple[int, ...], grid: Arr, mode: int, padding: int, align: bool):
        self.n, self.c, self.sizes = shape[0], shape[1], shape[2:]
        rank = len(self.sizes)
        points = math.prod(grid.shape[1:-1])
        self.points = points
        flat = grid.reshape(self.n, points, rank)
        self.mode, self.padding, self.align = mode, padding, align
        self.at: list[Arr] = []  # pixel coordinates, slowest dimension first
        self.slope: list[Arr] = []
        for d in range(rank):
            x, derivative = _unnormalise(flat.select(-1, rank - 1 - d), self.sizes[d], align, rank)
            if mode != BICUBIC:
                x, slope = _padded(x, self.sizes[d], padding, align)
                self.slope.append(slope * derivative)
            else:
                self.slope.append(A.full_like(x, derivative))
            self.at.append(x)

    def _along(self, d: int) -> list[tuple[Arr, Arr, Arr | None]]:
        """(position, weight, derivative of the weight) of each tap along one dimension."""
        x = self.at[d]
        if self.mode == NEAREST:
            return [(A.map_("round", x), A.full_like(x, 1.0), None)]
        base = floor(x)
        f = x - base
        if self.mode == BILINEAR:
            one = A.full_like(x, 1.0)
            return [(base, 1.0 - f, -one), (base + 1.0, f, one)]
        taps: list[tuple[Arr, Arr, Arr | None]] = []
        for k in range(-1, 3):
            position, _ = _padded(base + float(k), self.sizes[d], self.padding, self.align)
            weight = cubic(f - float(k), -0.75) + f * 0.0  # NaN of NaN, where `cubic` has 0
            taps.append((position, weight, _cubic_slope(f - float(k), -0.75)))
        return taps

    def taps(self) -> Any:
        """Every tap: (flat index, inside, weights, derivatives), the last two one entry a dimension."""
        for taps in itertools.product(*(self._along(d) for d in range(len(self.sizes)))):
            flat: Arr | None = None
            inside: Arr | None = None
            for (position, _, _), size in zip(taps, self.sizes, strict=False):
                ok = (position >= 0.0) & (position <= real(size - 1))
                # not maximum, which would leave NaN
                whole = _whole(A.map_("minimum", where(position > 0.0, position, 0.0), real(size - 1)))
                flat = whole if flat is None else flat * size + whole
                inside = ok if inside is None else inside & ok
            yield flat, inside, [t[1] for t in taps], [t[2] for t in taps]

    def batch(self) -> Arr:
        return A.iota(self.n).reshape(self.n, 1).expand(self.n, self.points)


def _cubic_slope(t: Arr, a: float) -> Arr:
    """Derivative of `cubic` with respect to t."""
    x = abs_(t)
    near = (3 * (a + 2) * x - 2 * (a + 3)) * x
    far = ((3.0 * x - 10.0) * x + 8.0) * a
    slope = where(x <= 1.0, near, where(x < 2.0, far, 0.0))
    return where(t < 0.0, -slope, slope)


def _product(factors: list[Arr]) -> Arr:
    out = factors[0]
    for f in factors[1:]:
        out = out * f
    return out


def _precision(x: Arr) -> str:
    """Eager's kernels: float32 for half images, the half type itself for half volumes."""
    return opmath(x.dtype) if x.ndim == 4 else x.dtype


@rule("grid_sampler_2d", "_grid_sampler_2d_cpu_fallback", "grid_sampler_3d")
def _grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    dtype = _precision(input)
    shape = (*input.shape[:2], *grid.shape[1:-1])
    if input.numel == 0 or math.prod(shape) == 0:
        return A.full(shape, 0, input.dtype)
    s = _Sampler(input.shape, grid.to(dtype), interpolation_mode, padding_mode, align_corners)
    pixels = input.to(dtype).reshape(s.n, s.c, -1).permute(0, 2, 1)
    total: Arr | None = None
    for flat, inside, weights, _ in s.taps():
        weight = _product(weights)
        weight = where(inside, weight, weight * 0.0).unsqueeze(-1)  # NaN and infinite points have NaN, as in eager
        part = pixels.index([s.batch(), flat]) * weight
        total = part if total is None else total + part
    assert total is not None
    return total.permute(0, 2, 1).reshape(*shape).to(input.dtype)


@rule("grid_sampler_2d_backward", "_grid_sampler_2d_cpu_fallback_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask=(True, True)
):  # fmt: skip
    dtype = _precision(input)
    if input.numel == 0 or grad_output.numel == 0:
        return A.full(input.shape, 0, input.dtype), A.full(grid.shape, 0, grid.dtype)
    s = _Sampler(input.shape, grid.to(dtype), interpolation_mode, padding_mode, align_corners)
    pixels = input.to(dtype).reshape(s.n, s.c, -1).permute(0, 2, 1)
    grad = grad_output.to(dtype).reshape(s.n, s.c, s.points).permute(0, 2, 1)
    rank = len(s.sizes)
    dx = A.full(pixels.shape, 0, dtype)
    slopes: list[Any] = [None] * rank
    for flat, inside, weights, derivatives in s.taps():
        if output_mask[0]:
            weight = where(inside, _product(weights), 0.0).unsqueeze(-1)
            dx = dx.index_put([s.batch(), flat], grad * weight, "add")
        if output_mask[1] and interpolation_mode != NEAREST:
            dot = where(inside, (grad * pixels.index([s.batch(), flat])).sum(-1), 0.0)
            for d in range(rank):
                part = dot * _product([*weights[:d], derivatives[d], *weights[d + 1 :]])
                old = slopes[d]
                slopes[d] = part if old is None else old + part
    dx_out = dx.permute(0, 2, 1).reshape(*input.shape).to(input.dtype) if output_mask[0] else None
    if not output_mask[1]:
        return dx_out, None
    if interpolation_mode == NEAREST:
        return dx_out, A.full(grid.shape, 0, grid.dtype)
    columns = [slopes[d] * s.slope[d] for d in reversed(range(rank))]
    return dx_out, A.stack(columns, -1).reshape(*grid.shape).to(grid.dtype)


def _fractional(rank: int) -> None:
    order = (1, 0) if rank == 2 else (0, 1, 2)  # which random sample serves which dimension

    @rule(f"fractional_max_pool{rank}d")
    def forward(self, kernel_size, output_size, random_samples):
        lead = self.shape[: self.ndim - rank]
        sizes, kernel = self.shape[-rank:], tuple(kernel_size)
        samples = random_samples.to(self.dtype).reshape(*(lead if len(lead) == 2 else (-1,)), rank)
        if len(lead) == 1:
            samples = samples.reshape(*lead, rank)
        flat: Arr | None = None
        for d, (n, k, o) in enumerate(zip(sizes, kernel, output_size, strict=False)):
            start = _interval_starts(samples.select(-1, order[d]), n, k, o)  # [*lead, o]
            at = start.unsqueeze(-1) + A.iota(k)  # [*lead, o, k]
            shape = [*lead, *(1,) * (2 * rank)]
            shape[len(lead) + d], shape[len(lead) + rank + d] = o, k
            at = at.reshape(*shape)
            flat = at if flat is None else flat * n + at
        assert flat is not None
        if self.numel == 0:
            return A.full((*lead, *output_size), 0, self.dtype), A.full((*lead, *output_size), 0, "i64")
        flat = flat.reshape(*lead, math.prod(output_size), math.prod(kernel))
        plane = self.reshape(*lead, -1)
        windows = plane.gather(-1, flat.reshape(*lead, -1)).reshape(*flat.shape)
        best = windows.arg("argmax", -1, True)
        picked = windows.gather(-1, best), flat.gather(-1, best)
        return tuple(x.reshape(*lead, *output_size) for x in picked)

    @rule(f"fractional_max_pool{rank}d_backward")
    def backward(grad_output, self, kernel_size, output_size, indices):
        return scatter_windows(grad_output, self.shape, indices, rank, False)


def _interval_starts(sample: Arr, n: int, kernel: int, out: int) -> Arr:
    """[..., out] window starts of fractional pooling from one random sample each, in the steps of its own dtype."""

    def rounded(x: Arr) -> Arr:
        return x.to(sample.dtype).to(opmath(sample.dtype))

    i = A.iota(out).to(opmath(sample.dtype))
    last = A.full((out,), n - kernel, "i64")
    if out == 1:
        return last.expand(*sample.shape, out)
    room, steps = (rounded(A.full((), real(x), opmath(sample.dtype))) for x in (n - kernel, out - 1))
    alpha, s = rounded(room / steps), rounded(sample.unsqueeze(-1))
    start = A.map_("trunc", rounded(rounded(s + i) * alpha)) - A.map_("trunc", rounded(s * alpha))
    return where(A.iota(out) < out - 1, start.to("i64"), last)


for _rank in (2, 3):
    _fractional(_rank)
