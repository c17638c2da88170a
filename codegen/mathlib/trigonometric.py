"""sin, cos and tan, with an exact reduction of any argument."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import define, fma, nearest, polynomial

# pi / 2 in three parts
HALF_PI = (1.57079637, -4.37113883e-08, -1.71512451e-15)
SIN = (-0.166666672, 0.00833337754, -0.000198520618, 2.82023962e-06)
COS = (0.0416666418, -0.00138871302, 2.44120856e-05)
TAN = (0.333333552, 0.133324623, 0.0540836938, 0.0211557187, 0.0111709433, -0.000342629966, 0.00459235488)


def reduce_angle(k: Builder, x: V) -> tuple[V, V]:
    """x = n pi/2 + r with |r| <= pi/4: r, and n as i32 modulo 4."""
    whole, n = nearest(k, x, 0.6366197723675814)
    r = x
    for part in HALF_PI:
        r = fma(k, whole, -part, r)
    return r, n


def sin_core(k: Builder, r: V) -> V:
    square = r * r
    return fma(k, r * square, polynomial(k, square, SIN), r)


def cos_core(k: Builder, r: V) -> V:
    square = r * r
    return fma(k, square * square, polynomial(k, square, COS), fma(k, square, -0.5, 1.0))


def sine(k: Builder, r: V, n: V) -> V:
    """sin(r + n pi/2)."""
    value = k.select((n & 1) == 0, sin_core(k, r), cos_core(k, r))
    return k.bitcast(k.bitcast(value, "u32") ^ k.bitcast((n & 2) << 30, "u32"), "f32")


@define("sin")
def sin(k: Builder, x: V) -> V:
    return sine(k, *reduce_angle(k, x))


@define("cos")
def cos(k: Builder, x: V) -> V:
    r, n = reduce_angle(k, x)
    return sine(k, r, n + 1)


@define("tan")
def tan(k: Builder, x: V) -> V:
    r, n = reduce_angle(k, x)
    square = r * r
    value = fma(k, r * square, polynomial(k, square, TAN), r)
    return k.select((n & 1) == 0, value, -1.0 / value)
