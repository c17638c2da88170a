"""Discrete Fourier transforms as matrix products: direct for short lengths, split by factors for long ones."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import matmul, where
from ops_core.lowering.complex import multiply
from ops_core.lowering.registry import COMPLEX_RULES, Complex, NotLowerable, rule

# a length is transformed by one product up to DIRECT points; a larger prime factor up to LONGEST_PRIME
DIRECT, LONGEST_PRIME = 64, 2048


def _roots(rows: int, columns: int, n: int, sign: float, dtype: str) -> Complex:
    """exp(sign * 2 pi i * r * c / n) as a [rows, columns] matrix; the product is reduced before it is rounded."""
    r, c = A.positions((rows, columns), 0), A.positions((rows, columns), 1)
    turn = A.map_("remainder", r * c, n)
    turn = where(turn * 2 > n, turn - n, turn)  # |angle| <= pi keeps its relative accuracy
    angle = turn.to(dtype) * (2 * math.pi / n)
    return Complex(A.map_("cos", angle), A.map_("sin", angle) * sign)


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


def last(x: Complex, sign: float) -> Complex:
    """The transform of the last dimension."""
    n = x.shape[-1]
    if n <= DIRECT:
        return _times(x, _roots(n, n, n, sign, x.dtype))
    a = _split(n)
    if a == n:
        if n > LONGEST_PRIME:
            raise NotLowerable(f"a transform of prime length {n}")
        return _times(x, _roots(n, n, n, sign, x.dtype))
    b = n // a
    lead = x.shape[:-1]
    # x[i * b + j]: transform over i, turn by i' j / n, transform over j; result at j' * a + i'
    grid = _each(lambda p: p.reshape(*lead, a, b).transpose(-1, -2), x)
    inner = _times(grid, _roots(a, a, a, sign, x.dtype))  # [..., b (j), a (i')]
    turned = multiply(inner, _roots(b, a, n, sign, x.dtype))
    outer = last(_each(lambda p: p.transpose(-1, -2), turned), sign)  # [..., a (i'), b (j')]
    return _each(lambda p: p.transpose(-1, -2).reshape(*lead, n), outer)


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


@rule("_fft_r2c")
def _r2c(self, dim, normalization, onesided):
    _check(self)
    out = along(Complex(self, A.full_like(self, 0)), dim[-1], -1.0)
    if onesided:
        out = _each(lambda p: p.slice(dim[-1], 0, self.shape[dim[-1]] // 2 + 1), out)
    for d in dim[:-1]:
        out = along(out, d, -1.0)
    return _scaled(out, normalization, math.prod(self.shape[d] for d in dim))


@rule("_fft_c2r", table=COMPLEX_RULES)
def _c2r(self, dim, normalization, last_dim_size):
    _check(self)
    out, d, n = self, dim[-1] % self.ndim, last_dim_size
    for other in dim[:-1]:
        out = along(out, other, 1.0)
    half = n // 2 + 1
    out = _each(lambda p: p.slice(d, 0, half), out)
    # the other half is the mirrored conjugate
    mirror = _each(lambda p: p.slice(d, 1, (n + 1) // 2).flip(d), out)
    full = Complex(A.cat([out.re, mirror.re], d), A.cat([out.im, -mirror.im], d)) if n > 2 else out
    count = math.prod([n, *(self.shape[other] for other in dim[:-1])])
    return _scaled(along(full, d, 1.0).re, normalization, count)
