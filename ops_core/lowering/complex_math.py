"""Arithmetic and elementary functions of complex pairs."""

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.pointwise import signbit
from ops_core.lowering.registry import Complex


def multiply(a: Complex, b: Complex) -> Complex:
    """Product."""
    return Complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def divide(a: Complex, b: Complex) -> Complex:
    """Smith's method: no overflow in the denominator. By zero each part is divided by itself, as in eager."""
    wide = A.map_("abs", b.re) >= A.map_("abs", b.im)
    big, small = where(wide, b.re, b.im), where(wide, b.im, b.re)
    ratio = small / big
    scale = big + small * ratio
    re = where(wide, a.re + a.im * ratio, a.re * ratio + a.im) / scale
    im = where(wide, a.im - a.re * ratio, a.im * ratio - a.re) / scale
    zero, nothing = big.eq(0.0) & small.eq(0.0), A.map_("abs", big)
    return Complex(where(zero, a.re / nothing, re), where(zero, a.im / nothing, im))


def modulus(x: Complex) -> Arr:
    """|x| without overflow."""
    a, b = A.map_("abs", x.re), A.map_("abs", x.im)
    big, small = A.map_("maximum", a, b), A.map_("minimum", a, b)
    ratio = small / where(big.eq(0.0) | big.eq(math.inf), 1.0, big)
    return where(a.eq(math.inf) | b.eq(math.inf), math.inf, big * A.map_("sqrt", ratio * ratio + 1.0))


def cexp(x: Complex) -> Complex:
    """Exponential."""
    e = A.map_("exp", x.re)
    plain = x.im.eq(0.0)
    return Complex(where(plain, e, e * A.map_("cos", x.im)), where(plain, x.im, e * A.map_("sin", x.im)))


def clog(x: Complex) -> Complex:
    """Principal logarithm."""
    return Complex(A.map_("log", modulus(x)), A.map_("atan2", x.im, x.re))


def clog1p(x: Complex) -> Complex:
    """log(1 + x), also of small numbers: |1 + x|^2 - 1 = re (2 + re) + im^2."""
    y = one_plus(x)
    near = A.map_("log1p", x.re * (x.re + 2.0) + x.im * x.im) * 0.5
    return Complex(where(_small(x), near, A.map_("log", modulus(y))), A.map_("atan2", y.im, y.re))


def _small(x: Complex) -> Arr:
    return (A.map_("abs", x.re) < 0.5) & (A.map_("abs", x.im) < 0.5)


def csqrt(x: Complex) -> Complex:
    """Principal square root."""
    m = modulus(x)
    t = A.map_("sqrt", (A.map_("abs", x.re) + m) * 0.5)
    half = A.map_("abs", x.im) / (t * 2.0)
    half = where(t.eq(0.0), 0.0, half)
    im = where(x.re >= 0.0, half, t)
    return Complex(where(x.re >= 0.0, t, half), where(signbit(x.im), -im, im))


def scale(x: Complex, by: Any) -> Complex:
    """Times a real number."""
    return Complex(x.re * by, x.im * by)


def times_i(x: Complex) -> Complex:
    """Times i."""
    return Complex(-x.im, x.re)


def minus_i(x: Complex) -> Complex:
    """Times -i."""
    return Complex(x.im, -x.re)


def one_plus(x: Complex) -> Complex:
    """1 + x."""
    return Complex(x.re + 1.0, x.im)


def one_minus(x: Complex) -> Complex:
    """1 - x."""
    return Complex(1.0 - x.re, -x.im)


def reciprocal(x: Complex) -> Complex:
    """1 / x."""
    return divide(Complex(A.full_like(x.re, 1), A.full_like(x.re, 0)), x)


def sinh(x: Complex) -> Complex:
    """Hyperbolic sine."""
    return Complex(A.map_("sinh", x.re) * A.map_("cos", x.im), A.map_("cosh", x.re) * A.map_("sin", x.im))


def cosh(x: Complex) -> Complex:
    """Hyperbolic cosine."""
    return Complex(A.map_("cosh", x.re) * A.map_("cos", x.im), A.map_("sinh", x.re) * A.map_("sin", x.im))


def tanh(x: Complex) -> Complex:
    """From tanh of the real and tan of the imaginary part: no overflow."""
    t, u = A.map_("tanh", x.re), A.map_("tan", x.im)
    denominator = 1.0 + (t * u) * (t * u)
    return Complex(t * (1.0 + u * u) / denominator, u * (1.0 - t * t) / denominator)


def asinh(x: Complex) -> Complex:
    """log(x + root), root = sqrt(x^2 + 1), on the right half plane, odd; root - 1 = x^2 / (root + 1)."""
    flip = x.re < 0.0
    y = Complex(where(flip, -x.re, x.re), where(flip, -x.im, x.im))
    root = multiply(csqrt(Complex(y.re, y.im + 1.0)), csqrt(Complex(y.re, y.im - 1.0)))
    out, rest = clog(Complex(y.re + root.re, y.im + root.im)), divide(multiply(y, y), one_plus(root))
    near, small = clog1p(Complex(y.re + rest.re, y.im + rest.im)), _small(y)
    out = Complex(where(small, near.re, out.re), where(small, near.im, out.im))
    return Complex(where(flip, -out.re, out.re), where(flip, -out.im, out.im))


def acosh(x: Complex) -> Complex:
    """Inverse hyperbolic cosine."""
    root = multiply(csqrt(Complex(x.re + 1.0, x.im)), csqrt(Complex(x.re - 1.0, x.im)))
    return clog(Complex(x.re + root.re, x.im + root.im))


def atanh(x: Complex) -> Complex:
    """Inverse hyperbolic tangent."""
    a, b = clog1p(x), clog1p(Complex(-x.re, -x.im))
    return Complex((a.re - b.re) * 0.5, (a.im - b.im) * 0.5)


def acos(x: Complex) -> Complex:
    """pi/2 - asin(x)."""
    s = asin(x)
    return Complex(math.pi / 2 - s.re, -s.im)


def asin(x: Complex) -> Complex:
    """Inverse sine, by that of the hyperbolic one."""
    return minus_i(asinh(times_i(x)))


def expm1(x: Complex) -> Complex:
    """exp(a) cos(b) - 1 = expm1(a) cos(b) - 2 sin(b / 2)^2."""
    s = A.map_("sin", x.im * 0.5)
    re = A.map_("expm1", x.re) * A.map_("cos", x.im) - s * s * 2.0
    return Complex(re, A.map_("exp", x.re) * A.map_("sin", x.im))


def sgn(x: Complex) -> Complex:
    """x / |x|; 0 at 0."""
    m = modulus(x)
    safe = where(m.eq(0.0), 1.0, m)
    return Complex(x.re / safe, x.im / safe)
