"""Inverse trigonometric functions."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import copysign, define, fma, polynomial

PI_HIGH, PI_LOW = 3.14159274, -8.74227766e-08
# (atan x - x) / x^3 in x^2 on [0, 1], error 2^-28
ATAN = (
    -0.333332986, 0.19998531, -0.142640516, 0.109511726, -0.084004581, 0.0579060428, -0.0311262887, 0.0108868685,
    -0.00178741443,
)  # fmt: skip
# (asin x - x) / x^3 in x^2 on [0, 0.5625], error 2^-28
ASIN = (0.166666314, 0.0750209689, 0.044232361, 0.0340094864, 0.0067466842, 0.047479149)


def atan_core(k: Builder, x: V) -> V:
    """atan x for |x| <= 1."""
    square = x * x
    return fma(k, x * square, polynomial(k, square, ATAN), x)


@define("atan")
def atan(k: Builder, x: V) -> V:
    """Beyond 1 from the inverse argument."""
    size = k.map("abs", x)
    inverted = size > 1.0
    core = atan_core(k, k.select(inverted, 1.0 / size, size))
    return copysign(k, k.select(inverted, (PI_HIGH / 2 - core) + PI_LOW / 2, core), x)


@define("atan2")
def atan2(k: Builder, y: V, x: V) -> V:
    """The angle of the point (x, y): the quotient of the smaller side by the larger, put in its octant."""
    rise, run = k.map("abs", y), k.map("abs", x)
    large, small = k.map("maximum", rise, run), k.map("minimum", rise, run)
    both = (small == large) & (large == float("inf"))
    ratio = k.select(both, k.const(1.0, "f32", x.width), small / large)
    angle = atan_core(k, k.select(large == 0.0, large, ratio))
    angle = k.select(rise > run, (PI_HIGH / 2 - angle) + PI_LOW / 2, angle)
    left = k.bitcast(x, "i32") < 0
    angle = k.select(left, (PI_HIGH - angle) + PI_LOW, angle)
    return k.select((x != x) | (y != y), x + y, copysign(k, angle, y))


def asin_halves(k: Builder, size: V) -> tuple[V, V]:
    """asin of |x| <= 0.5 itself; beyond, asin of sqrt((1 - |x|) / 2), and whether it is that."""
    outer = size > 0.5
    square = k.select(outer, fma(k, size, -0.5, 0.5), size * size)
    root = k.select(outer, k.map("sqrt", square), size)
    return fma(k, root * square, polynomial(k, square, ASIN), root), outer


@define("asin")
def asin(k: Builder, x: V) -> V:
    """Beyond 0.5 from the half angle."""
    angle, outer = asin_halves(k, k.map("abs", x))
    return copysign(k, k.select(outer, fma(k, angle, -2.0, PI_HIGH / 2) + PI_LOW / 2, angle), x)


@define("acos")
def acos(k: Builder, x: V) -> V:
    """Beyond 0.5 from the half angle, else pi / 2 - asin x."""
    angle, outer = asin_halves(k, k.map("abs", x))
    near = k.select(x > 0.0, angle * 2.0, fma(k, angle, -2.0, PI_HIGH) + PI_LOW)
    middle = (PI_HIGH / 2 - copysign(k, angle, x)) + PI_LOW / 2
    return k.select(outer, near, middle)
