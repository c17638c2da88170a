"""Inverse trigonometric functions."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import FORMATS, Coefficients, copysign, define, fma, polynomial

# pi in two parts
PI = {"f32": (3.14159274, -8.74227766e-08), "f64": (3.141592653589793, 1.2246467991473532e-16)}
# (atan x - x) / x^3 in x^2 on [0, 1], error 2^-28 and 2^-55
ATAN: Coefficients = {
    "f32": (
        -0.333332986, 0.19998531, -0.142640516, 0.109511726, -0.084004581, 0.0579060428, -0.0311262887, 0.0108868685,
        -0.00178741443,
    ),
    "f64": (
        -0.3333333333333333, 0.1999999999999992, -0.14285714285701234, 0.11111111110268297, -0.0909090906193528,
        0.07692307078827029, -0.06666657934573768, 0.05882264416776449, -0.052624922290256754, 0.04758080083637821,
        -0.043306538430670664, 0.03938687540798632, -0.035271331066871296, 0.030330719265790507,
        -0.024191345810140718, 0.01718398172211335, -0.010412153260359241, 0.005140912856746939,
        -0.0019612554271685326, 0.0005376839297396244, -9.371186345052626e-05, 7.767624330289919e-06,
    ),
}  # fmt: skip
# (asin x - x) / x^3 in x^2 on [0, 0.25], error 2^-28 and 2^-58
ASIN: Coefficients = {
    "f32": (0.166666314, 0.0750209689, 0.044232361, 0.0340094864, 0.0067466842, 0.047479149),
    "f64": (
        0.16666666666666666, 0.07500000000000118, 0.044642857142551895, 0.03038194447553234, 0.02237215744350722,
        0.017352816540325496, 0.01396378001220357, 0.011566459612121669, 0.009621842970100282, 0.009319560794767446,
        0.0030448799094556773, 0.019554513336123378, -0.01924167174674304, 0.02961201126495512,
    ),
}  # fmt: skip


def atan_core(k: Builder, x: V) -> V:
    """atan x for |x| <= 1."""
    square = x * x
    return fma(k, x * square, polynomial(k, square, ATAN[x.dtype]), x)


@define("atan", "f32", "f64")
def atan(k: Builder, x: V) -> V:
    """Beyond 1 from the inverse argument."""
    size = k.map("abs", x)
    inverted = size > 1.0
    core = atan_core(k, k.select(inverted, 1.0 / size, size))
    high, low = PI[x.dtype]
    return copysign(k, k.select(inverted, (high / 2 - core) + low / 2, core), x)


@define("atan2", "f32", "f64")
def atan2(k: Builder, y: V, x: V) -> V:
    """The angle of the point (x, y): the quotient of the smaller side by the larger, put in its octant."""
    rise, run = k.map("abs", y), k.map("abs", x)
    large, small = k.map("maximum", rise, run), k.map("minimum", rise, run)
    both = (small == large) & (large == float("inf"))
    ratio = k.select(both, k.const(1.0, x.dtype, x.width), small / large)
    high, low = PI[x.dtype]
    angle = atan_core(k, k.select(large == 0.0, large, ratio))
    angle = k.select(rise > run, (high / 2 - angle) + low / 2, angle)
    left = k.bitcast(x, FORMATS[x.dtype].integer) < 0
    angle = k.select(left, (high - angle) + low, angle)
    return k.select((x != x) | (y != y), x + y, copysign(k, angle, y))


def asin_halves(k: Builder, size: V) -> tuple[V, V]:
    """asin of |x| <= 0.5 itself; beyond, asin of sqrt((1 - |x|) / 2), and whether it is that."""
    outer = size > 0.5
    square = k.select(outer, fma(k, size, -0.5, 0.5), size * size)
    root = k.select(outer, k.map("sqrt", square), size)
    return fma(k, root * square, polynomial(k, square, ASIN[size.dtype]), root), outer


@define("asin", "f32", "f64")
def asin(k: Builder, x: V) -> V:
    """Beyond 0.5 from the half angle."""
    angle, outer = asin_halves(k, k.map("abs", x))
    high, low = PI[x.dtype]
    return copysign(k, k.select(outer, fma(k, angle, -2.0, high / 2) + low / 2, angle), x)


@define("acos", "f32", "f64")
def acos(k: Builder, x: V) -> V:
    """Beyond 0.5 from the half angle, else pi / 2 - asin x."""
    angle, outer = asin_halves(k, k.map("abs", x))
    high, low = PI[x.dtype]
    near = k.select(x > 0.0, angle * 2.0, fma(k, angle, -2.0, high) + low)
    middle = (high / 2 - copysign(k, angle, x)) + low / 2
    return k.select(outer, near, middle)
