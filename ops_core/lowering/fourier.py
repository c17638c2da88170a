"""Discrete Fourier transforms: a composite where the length has small factors.

Else, and where a device has no kernel for it, matrix products: direct for short lengths, long ones split by factors.
A large prime factor is a convolution, which fast transforms of another length compute (Bluestein).
"""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, matmul, where
from ops_core.composites import composite
from ops_core.lowering.complex import multiply
from ops_core.lowering.registry import COMPLEX_RULES, Complex, NotLowerable, rule

# a length is transformed by one product up to DIRECT points; a larger prime factor up to LARGEST_PRIME
DIRECT, LARGEST_PRIME = 64, 80
# the shortest fast transform
SHORTEST = 16
# lengths that are a multiple of this are transformed in whole vectors
FAST = 256
# radices of the composite's passes
RADICES = (16, 8, 4, 2, 3, 5, 7, 11, 13)


def radices(n: int) -> tuple[int, ...]:
    """The radices of a fast transform of n points, at least two; none where n has not the factors for it.

    Where that is possible the square of the first, which is 16 or less, divides n: rows are vectors then."""
    found = [f for f in RADICES[:3] if n % (f * f) == 0][:1]
    rest = n // found[0] if found else n
    for radix in RADICES[1 if found else 0 :]:
        while rest % radix == 0:
            found.append(radix)
            rest //= radix
    return tuple(found) if rest == 1 and len(found) > 1 and n >= SHORTEST else ()


def _roots(rows: int, columns: int, n: int, sign: float, dtype: str) -> Complex:
    """exp(sign * 2 pi i * r * c / n) as a [rows, columns] matrix; the product is reduced before it is rounded.

    Quarters of a turn are exact: what is real stays so (a transform's middle, whose angle would be -pi for pi).
    """
    r, c = A.positions((rows, columns), 0), A.positions((rows, columns), 1)
    turn = A.map_("remainder", r * c, n)
    turn = where(turn * 2 > n, turn - n, turn)  # |angle| <= pi keeps its relative accuracy
    angle = turn.to(dtype) * (2 * math.pi / n)
    quarter, half = A.map_("abs", turn * 4).eq(n), (turn * 2).eq(n)
    return Complex(where(quarter, 0.0, A.map_("cos", angle)), where(half, 0.0, A.map_("sin", angle) * sign))


def _times(x: Complex, matrix: Complex) -> Complex:
    """x [..., n] @ matrix [n, m]."""
    lead = x.shape[:-1]
    re, im = (p.reshape(math.prod(lead), x.shape[-1]) for p in (x.re, x.im))
    parts = (matmul(re, matrix.re) - matmul(im, matrix.im), matmul(re, matrix.im) + matmul(im, matrix.re))
    return Complex(*(p.reshape(*lead, matrix.shape[-1]) for p in parts))


def _each(fn: Any, x: Complex) -> Complex:
    return Complex(fn(x.re), fn(x.im))


def _split(n: int) -> int:
    """The largest factor of n that is transformed directly; n itself when it has none."""
    return next((f for f in range(DIRECT, 1, -1) if n % f == 0), n)


def last(x: Complex, sign: float, around: bool = False) -> Complex:
    """The transform of the last dimension, whose first point follows the last one again if `around`."""
    n = x.shape[-1]
    if not (first := radices(n)[:1]):
        assert not around, "only what `radices` takes"
        return _by_products(x, sign)
    turns = _roots(first[0] + 1, n // first[0], n, sign, x.dtype)
    return Complex(*fourier(x.re, x.im, turns.re, turns.im, sign=sign, around=around))


@composite
def fourier(re: Arr, im: Arr, turns: Arr, turns_i: Arr, sign: float, around: bool) -> tuple[Arr, ...]:
    """The transform of the last dimension, n, whose first point follows the last one again if `around`.

    turns[j, p] = exp(sign * 2 pi i * j p / n) for p < n / f and j <= f, f = radices(n)[0]: the turns of the first
    pass, and in the last row those of the others.
    """
    out = _by_products(Complex(re, im), sign)
    return tuple(A.cat([p, p.slice(-1, 0, 1)], -1) if around else p for p in (out.re, out.im))


def _by_products(x: Complex, sign: float) -> Complex:
    n = x.shape[-1]
    if n <= DIRECT:
        return _times(x, _roots(n, n, n, sign, x.dtype))
    a = _split(n)
    if a == n:
        return _by_convolution(x, sign) if n > LARGEST_PRIME else _times(x, _roots(n, n, n, sign, x.dtype))
    b = n // a
    lead = x.shape[:-1]
    # x[i * b + j]: transform over i, turn by i' j / n, transform over j; result at j' * a + i'
    grid = _each(lambda p: p.reshape(*lead, a, b).transpose(-1, -2), x)
    inner = _times(grid, _roots(a, a, a, sign, x.dtype))  # [..., b (j), a (i')]
    turned = multiply(inner, _roots(b, a, n, sign, x.dtype))
    outer = _by_products(_each(lambda p: p.transpose(-1, -2), turned), sign)  # [..., a (i'), b (j')]
    return _each(lambda p: p.transpose(-1, -2).reshape(*lead, n), outer)


def _chirp(j: Arr, n: int, sign: float, dtype: str) -> Complex:
    """exp(sign * pi i * j^2 / n); the square is reduced before it is rounded."""
    turn = A.map_("remainder", j * j, 2 * n)
    angle = where(turn > n, turn - 2 * n, turn).to(dtype) * (math.pi / n)
    return Complex(A.map_("cos", angle), A.map_("sin", angle) * sign)


def _by_convolution(x: Complex, sign: float) -> Complex:
    """Bluestein: j k = (j^2 + k^2 - (k - j)^2) / 2, so x turned by its chirp and convolved with that of the other sign.

    The convolution is cyclic, over m >= 2 n - 1 points that a fast transform takes, in whole vectors.
    """
    n = x.shape[-1]
    m = next(m for m in range(-(-(2 * n - 1) // FAST) * FAST, 4 * n + FAST, FAST) if radices(m))
    chirp = _chirp(A.iota(n), n, sign, x.dtype)
    apart = A.map_("minimum", A.iota(m), m - A.iota(m))
    kernel = _each(lambda p: where(apart < n, p, 0.0), _chirp(apart, n, -sign, x.dtype))
    low, high = [0] * x.ndim, [0] * (x.ndim - 1) + [m - n]
    padded = _each(lambda p: p.pad(low, high), multiply(x, chirp))
    convolved = last(multiply(last(padded, -1.0), last(kernel, -1.0)), 1.0)
    return multiply(_each(lambda p: p.slice(-1, 0, n) * (1 / m), convolved), chirp)


def along(x: Complex, d: int, sign: float) -> Complex:
    """The transform of dimension `d`."""
    d %= x.ndim
    moved = last(_each(lambda p: p.move(d, -1), x), sign)
    return _each(lambda p: p.move(-1, d), moved)


def _scaled(x: Any, mode: int, count: int) -> Any:
    """Normalisation 0: none, 1: by the root of the count, 2: by the count."""
    factor = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[mode]
    if factor == 1.0:
        return x
    return _each(lambda p: p * factor, x) if isinstance(x, Complex) else x * factor


def _check(x: Any) -> None:
    if x.dtype not in ("f32", "f64") or 0 in x.shape:
        raise NotLowerable(f"a transform of {x.dtype} {x.shape}")


def _c2c(self: Complex, dim: Any, normalization: int, forward: bool) -> Complex:
    _check(self)
    out = self
    for d in dim:
        out = along(out, d, -1.0 if forward else 1.0)
    return _scaled(out, normalization, math.prod(self.shape[d] for d in dim))


rule("_fft_c2c", table=COMPLEX_RULES)(_c2c)


def _halves(n: int) -> bool:
    """Whether n real points are transformed as n / 2 complex ones."""
    return n % 2 == 0 and bool(radices(n // 2))


def _mirrored(x: Complex) -> Complex:
    """conj(x[n - 1 - k])."""
    return Complex(x.re.flip(-1), -x.im.flip(-1))


def _real(x: Arr) -> Complex:
    """The first n / 2 + 1 points of the transform of n real ones. As parts of n / 2 numbers the even and the odd points
    are transformed at once: what is symmetric in the result is of the even ones, the rest of the odd ones."""
    *lead, n = x.shape
    pairs = x.reshape(*lead, n // 2, 2)
    both = last(Complex(*(pairs.window(len(lead) + 1, part, 1).squeeze(-1) for part in range(2))), -1.0, True)
    other = _mirrored(both)
    even = Complex((both.re + other.re) * 0.5, (both.im + other.im) * 0.5)
    odd = Complex((both.im - other.im) * 0.5, (other.re - both.re) * 0.5)
    turned = multiply(odd, _each(lambda p: p.window(0, 1, 1).squeeze(0), _roots(2, n // 2 + 1, n, -1.0, x.dtype)))
    return Complex(even.re + turned.re, even.im + turned.im)


def _to_real(x: Complex, n: int) -> Arr:
    """The inverse: n real points of n / 2 + 1, whose first and last imaginary parts do not count."""
    half = n // 2
    k = A.iota(half + 1)
    x = Complex(x.re, where(k.eq(0) | k.eq(half), 0.0, x.im))
    other = _mirrored(x)
    odd = multiply(
        Complex(x.re - other.re, x.im - other.im),
        _each(lambda p: p.window(0, 1, 1).squeeze(0), _roots(2, half + 1, n, 1.0, x.dtype)),
    )
    both = Complex(x.re + other.re - odd.im, x.im + other.im + odd.re)
    both = last(_each(lambda p: p.slice(-1, 0, half), both), 1.0)
    return A.stack([both.re, both.im], -1).reshape(*x.shape[:-1], n)


@rule("_fft_r2c")
def _r2c(self, dim, normalization, onesided):
    _check(self)
    d = dim[-1] % self.ndim
    n = self.shape[d]
    if _halves(n):
        out = _real(self.move(d, -1))
        if not onesided:
            rest = _mirrored(_each(lambda p: p.slice(-1, 1, n // 2), out))
            out = Complex(A.cat([out.re, rest.re], -1), A.cat([out.im, rest.im], -1))
        out = _each(lambda p: p.move(-1, d), out)
    else:
        out = along(Complex(self, A.full_like(self, 0)), d, -1.0)
        if onesided:
            out = _each(lambda p: p.slice(d, 0, n // 2 + 1), out)
    for other in dim[:-1]:
        out = along(out, other, -1.0)
    return _scaled(out, normalization, math.prod(self.shape[d] for d in dim))


@rule("_fft_c2r", table=COMPLEX_RULES)
def _c2r(self, dim, normalization, last_dim_size):
    _check(self)
    out, d, n = self, dim[-1] % self.ndim, last_dim_size
    for other in dim[:-1]:
        out = along(out, other, 1.0)
    out = _each(lambda p: p.slice(d, 0, n // 2 + 1), out)
    count = math.prod([n, *(self.shape[other] for other in dim[:-1])])
    if _halves(n):
        return _scaled(_to_real(_each(lambda p: p.move(d, -1), out), n).move(-1, d), normalization, count)
    # the other half is the mirrored conjugate
    mirror = _each(lambda p: p.slice(d, 1, (n + 1) // 2).flip(d), out)
    full = Complex(A.cat([out.re, mirror.re], d), A.cat([out.im, -mirror.im], d)) if n > 2 else out
    return _scaled(along(full, d, 1.0).re, normalization, count)
