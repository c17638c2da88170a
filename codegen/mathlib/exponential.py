"""exp, log and what is made of them."""

from __future__ import annotations

from collections.abc import Callable

from codegen.builder import Builder, V
from codegen.mathlib.table import (
    FORMATS,
    INF,
    LN_2,
    LOG2_E,
    NAN,
    copysign,
    define,
    fma,
    nearest,
    nearest_power,
    polynomial,
    power_of_two,
)

# ln 2 in two parts: n * LN_2_HIGH is exact for |n| < 2^9.
LN_2_HIGH, LN_2_LOW = 0.693145752, 1.42860677e-06
LN_2_DOUBLE = (0.6931471801362932, 4.236521365809284e-10)  # n < 2^22
# (e^r - 1 - r) / r^2 on |r| <= 0.35, error 2^-26
EXP = (0.49999997, 0.16666542, 0.0416674316, 0.00836687535, 0.00138718635)
# and for f64, error 2^-61
EXP_DOUBLE = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.00833333333332612, 0.0013888888888883737, 0.00019841269874873975,
    2.480158732558584e-05, 2.755725533255441e-06, 2.7557273594799413e-07, 2.510524515390137e-08, 2.0914707069612355e-09,
)  # fmt: skip
# (2^r - 1) / r on |r| <= 0.5, error 2^-28
EXP2 = (0.693147182, 0.240226477, 0.0555035807, 0.00961850304, 0.00133918901, 0.000153292363)
# 2^r on |r| <= 0.5, error 2^-23.7: for values that are added to 1
SHORT_EXP2 = (1.00000012, 0.693146944, 0.240221202, 0.0555071309, 0.00967554189, 0.00132764725)
# (tanh x - x) / x^3 in x^2 on [0, 0.6], error 2^-28
TANH = (-0.333332986, 0.133319363, -0.0537847169, 0.0207986254, -0.00589796668)
# (sinh x - x) / x^3 in x^2 on [0, 1], error 2^-31
SINH = (0.166666672, 0.00833331048, 0.000198428956, 2.78221319e-06)
# (atanh x - x) / x^3 in x^2 on [0, 0.5], error 2^-32
ATANH = (0.333333373, 0.199996218, 0.142978147, 0.109293982, 0.105245128, 0.0169577338, 0.185143039)
# (log(1 + m) - m + m^2 / 2) / m^3 on |m| <= 1/3, error 2^-27
LOG = (
    0.333332151, -0.249998048, 0.200104445, -0.166801795, 0.140053406, -0.121883817, 0.139867067, -0.128742635,
)  # fmt: skip


def rest(k: Builder, x: V, n: V) -> V:
    """x - n ln 2."""
    high, low = LN_2_DOUBLE if x.dtype == "f64" else (LN_2_HIGH, LN_2_LOW)
    return fma(k, n, -low, fma(k, n, -high, x))


def reduce_exp(k: Builder, x: V) -> tuple[V, V]:
    """x = n ln 2 + r: e^r - 1 and n, for |x| < 2^20."""
    whole, n = nearest(k, x, LOG2_E)
    r = rest(k, x, whole)
    return fma(k, r * r, polynomial(k, r, EXP_DOUBLE if x.dtype == "f64" else EXP), r), n


def short_exp(k: Builder, r: V) -> V:
    """e^r for |r| <= 0.35. One operation less than by way of e^r - 1."""
    return polynomial(k, r, (1.0, 1.0, *(EXP_DOUBLE if r.dtype == "f64" else EXP)))


def scale(k: Builder, x: V, n: V) -> V:
    """x * 2^n with one rounding, |n| <= 252, for f64 2044."""
    half = n >> 1
    return x * power_of_two(k, half) * power_of_two(k, n - half)


def clamp(k: Builder, x: V, low: float, high: float) -> V:
    """x within [low, high]; NaN stays."""
    return k.select(x > high, high, k.select(x < low, low, x))


def by_power_of_two(k: Builder, x: V, low: float, normal: float, high: float, parts: Callable[[V], tuple[V, V]]) -> V:
    """value * 2^n of parts(x) = (value, n), value from 0.7 to 1.5, for x up to `high`; 0 below `low`.

    That 0 is no product that underflows, which takes a Zen 4 core some 100 cycles: softmax of causal scores, half of
    them -inf, took five times as long as of finite ones. benchmarks: lengths, gpt.
    Results are normal for |x| <= `normal`: there n is added to the exponent. Softmax of (4096, 1024) floats takes
    1.60 ms where vectors branch so, else 1.99; with a tenth of them -inf 1.79, else 2.17. Scalars do not, so that
    loops over them become vectors.
    """

    def any_x() -> list[V]:
        return [k.select(gone, 0.0, scale(k, *parts(k.select(x > high, high, k.select(gone, 0.0, x)))))]

    def normal_x() -> list[V]:
        value, n = parts(x)
        integer, fraction, _ = FORMATS[x.dtype]
        return [k.select(gone, 0.0, k.bitcast(k.bitcast(value, integer) + (n << fraction), x.dtype))]

    gone = x < low
    beyond = k.map("not", (k.map("abs", x) <= normal) | gone)  # or NaN
    return (any_x() if x.width == 1 else k.either(k.any(beyond), any_x, normal_x))[0]


@define("exp", "f32", "f64")
def exp(k: Builder, x: V) -> V:
    """e^x. In f64 too: builtins are called lane by lane, 3.5 times slower."""

    def parts(x: V) -> tuple[V, V]:
        whole, n = nearest(k, x, LOG2_E)
        return short_exp(k, rest(k, x, whole)), n

    return by_power_of_two(k, x, *((-746.0, 708.0, 710.0) if x.dtype == "f64" else (-104.0, 87.0, 89.0)), parts)


@define("softmax_exp")
def softmax_exp(k: Builder, x: V) -> V:
    """e^x for x <= 0, but 0 below e^-87: nothing overflows and no result is subnormal, so that there is nothing to ask
    for all lanes (`norm_block` 1.45 -> 1.37 ms)."""
    n, power = nearest_power(k, x, LOG2_E)
    return k.select(x < -87.0, 0.0, short_exp(k, rest(k, x, n)) * power)


@define("exp2")
def exp2(k: Builder, x: V) -> V:
    """2^x."""

    def parts(x: V) -> tuple[V, V]:
        whole, n = nearest(k, x, 1.0)
        r = x - whole
        return fma(k, r, polynomial(k, r, EXP2), 1.0), n

    return by_power_of_two(k, x, -151.0, 126.0, 129.0, parts)


@define("expm1")
def expm1(k: Builder, x: V) -> V:
    """In quarters, so that nothing overflows before the result does."""
    tail, n = reduce_exp(k, clamp(k, x, -25.0, 89.7))
    power = power_of_two(k, n - 2)
    result = fma(k, tail, power, power - 0.25) * 4.0
    return k.select(k.map("abs", x) < 2.0**-26, x, result)


def quarter_exp(k: Builder, x: V) -> V:
    """e^|x| / 4, finite where cosh and sinh are."""
    tail, n = reduce_exp(k, clamp(k, k.map("abs", x), 0.0, 89.7))
    return (tail + 1.0) * power_of_two(k, n - 2)


@define("sinh")
def sinh(k: Builder, x: V) -> V:
    """A polynomial up to 1, beyond it e^x / 2 - e^-x / 2."""
    quarter = quarter_exp(k, x)
    square = x * x
    small = fma(k, x * square, polynomial(k, square, SINH), x)
    return k.select(k.map("abs", x) < 1.0, small, copysign(k, (quarter - 0.0625 / quarter) * 2.0, x))


@define("cosh")
def cosh(k: Builder, x: V) -> V:
    """e^x / 2 + e^-x / 2."""
    quarter = quarter_exp(k, x)
    return (quarter + 0.0625 / quarter) * 2.0


@define("tanh")
def tanh(k: Builder, x: V) -> V:
    """A polynomial up to 0.6, beyond it 1 - 2 / (e^2x + 1), of which the exponential is a tenth to nothing: a short one
    will do, and e^2x is 2^(2 / ln 2 x) without a rest (`elementwise` 2.91 -> 2.45 ms; the error 1.4 -> 1.9 ulp)."""
    size = k.map("abs", x)
    square = size * size
    small = fma(k, size * square, polynomial(k, square, TANH), size)
    most = k.select(size > 9.1, 9.1, size)
    n, power = nearest_power(k, most, 2.0 * LOG2_E)
    large = 1.0 - 2.0 / fma(k, polynomial(k, fma(k, most, 2.0 * LOG2_E, -n), SHORT_EXP2), power, 1.0)
    return copysign(k, k.select(size < 0.6, small, large), x)


def reduce_log(k: Builder, x: V) -> tuple[V, V]:
    """x = 2^n (1 + m) with 1 + m in [2/3, 4/3]: m, and n as f32. For x > 0."""
    tiny = x < 2.0**-126
    bits = k.bitcast(k.select(tiny, x * 2.0**23, x), "i32")
    exponent = (bits - 0x3F2AAAAB) & -0x800000
    m = k.bitcast(bits - exponent, "f32") - 1.0
    n = k.cast(exponent >> 23, "f32")
    return m, k.select(tiny, n - 23.0, n)


def log_tail(k: Builder, m: V) -> V:
    """log(1 + m) - m for |m| <= 1/3."""
    return m * m * fma(k, m, polynomial(k, m, LOG), -0.5)


def log_limits(k: Builder, x: V, result: V) -> V:
    """The result of a logarithm with its values at 0, at infinity and below 0."""
    result = k.select(x == INF, x, result)
    result = k.select(x == 0.0, -INF, result)
    return k.select(x >= 0.0, result, NAN)


@define("log")
def log(k: Builder, x: V) -> V:
    """The logarithm to base e."""
    m, n = reduce_log(k, x)
    tail = fma(k, n, LN_2_LOW, log_tail(k, m))
    return log_limits(k, x, fma(k, n, LN_2_HIGH, tail + m))


def scaled_log(k: Builder, x: V, factor: tuple[float, float], unit: tuple[float, float]) -> V:
    """log x * factor, where n ln 2 * factor = n * unit; both given as a high and a low part."""
    m, n = reduce_log(k, x)
    tail = log_tail(k, m)
    low = fma(k, tail, factor[0], m * factor[1])
    low = fma(k, n, unit[1], low) if unit[1] else low
    high = m * factor[0]
    error = fma(k, m, factor[0], -high)
    return log_limits(k, x, fma(k, n, unit[0], high + (low + error)))


@define("log2")
def log2(k: Builder, x: V) -> V:
    """The logarithm to base 2."""
    return scaled_log(k, x, (1.44269502, 1.92596303e-08), (1.0, 0.0))


@define("log10")
def log10(k: Builder, x: V) -> V:
    """The logarithm to base 10."""
    return scaled_log(k, x, (0.434294492, -1.01030074e-08), (0.301029205, 7.90351421e-07))


@define("log1p")
def log1p(k: Builder, x: V) -> V:
    """Scales x itself by the power of two that 1 + x has, so nothing is lost about 0."""
    exponent = (k.bitcast(x + 1.0, "i32") - 0x3F2AAAAB) & -0x800000
    power = k.bitcast(0x40800000 - exponent, "f32")  # 4 * 2^-n
    scaled, shift = k.bitcast(k.bitcast(x, "i32") - exponent, "f32"), fma(k, power, 0.25, -1.0)
    m = scaled + shift
    lost = scaled - (m - shift)
    n = k.cast(exponent >> 23, "f32")
    result = fma(k, n, LN_2_HIGH, fma(k, n, LN_2_LOW, log_tail(k, m) + lost) + m)
    result = k.select(k.map("abs", x) < 2.0**-26, x, result)
    result = k.select(x == INF, x, result)
    result = k.select(x == -1.0, -INF, result)
    return k.select(x >= -1.0, result, NAN)


@define("asinh")
def asinh(k: Builder, x: V) -> V:
    """log(x + sqrt(x^2 + 1)), about 0 through log1p; beyond 2^60 the square would overflow and adds nothing."""
    size = k.map("abs", x)
    limited = k.select(size < 2.0**60, size, 1.0)
    square = limited * limited
    small = log1p(k, limited + square / (k.map("sqrt", square + 1.0) + 1.0))
    return copysign(k, k.select(size < 2.0**60, small, log(k, size) + LN_2), x)


@define("acosh")
def acosh(k: Builder, x: V) -> V:
    """log1p(t + root) with t = x - 1, root = sqrt(2 t + t^2), and what the sum lost, by the slope there, x - root."""
    t = k.select(x < 2.0**60, x - 1.0, 1.0)
    root = k.map("sqrt", fma(k, t, t, t * 2.0))
    total = root + t
    lost = k.select(t < 1.0, (root - total) + t, 0.0)  # beyond, x - root is all rounding, and this far below an ulp
    small = fma(k, lost, (t - root) + 1.0, log1p(k, total))
    result = k.select(x < 2.0**60, small, log(k, x) + LN_2)
    return k.select(x >= 1.0, result, NAN)


@define("atanh")
def atanh(k: Builder, x: V) -> V:
    """A polynomial up to 0.5, beyond it half the logarithm of (1 + x) / (1 - x)."""
    size, square = k.map("abs", x), x * x
    small = fma(k, x * square, polynomial(k, square, ATANH), x)
    large = copysign(k, log1p(k, 2.0 * size / (1.0 - size)) * 0.5, x)
    return k.select(size < 0.5, small, large)
