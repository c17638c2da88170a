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
    Coefficients,
    bits_of_high,
    copysign,
    define,
    fma,
    nearest,
    nearest_power,
    polynomial,
    polynomial_of_pairs,
    power_of_two,
)

# ln 2 in two parts: n * the first is exact for |n| < 2^9, in f64 2^22.
LN_2_PARTS = {"f32": (0.693145752, 1.42860677e-06), "f64": (0.6931471801362932, 4.236521365809284e-10)}
# (e^r - 1 - r) / r^2 on |r| <= 0.35, error 2^-26 and 2^-61
EXP: Coefficients = {
    "f32": (0.49999997, 0.16666542, 0.0416674316, 0.00836687535, 0.00138718635),
    "f64": (
        0.5, 0.1666666666666667, 0.04166666666666667, 0.00833333333332612, 0.0013888888888883737,
        0.00019841269874873975, 2.480158732558584e-05, 2.755725533255441e-06, 2.7557273594799413e-07,
        2.510524515390137e-08, 2.0914707069612355e-09,
    ),
}  # fmt: skip
# (2^r - 1) / r on |r| <= 0.5, error 2^-28 and 2^-56
EXP2: Coefficients = {
    "f32": (0.693147182, 0.240226477, 0.0555035807, 0.00961850304, 0.00133918901, 0.000153292363),
    "f64": (
        0.6931471805599453, 0.24022650695910072, 0.05550410866482158, 0.009618129107628484, 0.0013333558146428445,
        0.00015403530393362755, 1.5252733804051129e-05, 1.3215486815999978e-06, 1.0178086021185474e-07,
        7.054894386348348e-09, 4.4455303091051067e-10, 2.5733568308756892e-11, 1.3716962392737587e-12,
    ),
}  # fmt: skip
# (sinh x - x) / x^3 in x^2 on [0, 1], error 2^-31 and 2^-56
SINH: Coefficients = {
    "f32": (0.166666672, 0.00833331048, 0.000198428956, 2.78221319e-06),
    "f64": (
        0.16666666666666666, 0.008333333333333333, 0.0001984126984126984, 2.7557319223985825e-06,
        2.505210838547607e-08, 1.605904382690051e-10, 7.647165414593481e-13, 2.8112909646770106e-15,
        8.309171941866942e-18,
    ),
}  # fmt: skip
# (atanh x - x) / x^3 in x^2 on [0, 0.5], error 2^-32
ATANH = (0.333333373, 0.199996218, 0.142978147, 0.109293982, 0.105245128, 0.0169577338, 0.185143039)
# (log(1 + m) - m + m^2 / 2) / m^3 on |m| <= 1/3, error 2^-27
LOG = (
    0.333332151, -0.249998048, 0.200104445, -0.166801795, 0.140053406, -0.121883817, 0.139867067, -0.128742635,
)  # fmt: skip
# ((2 atanh s) / s - 2) / s^2 in s^2 on |s| <= 0.1716, error 2^-60 in 2 atanh s
LOG_DOUBLE = (
    0.6666666666666666, 0.4000000000000088, 0.28571428570803253, 0.22222222391794727, 0.18181795631498243,
    0.15386240172447838, 0.13268760562036724, 0.1308675766695207,
)  # fmt: skip
# log10 2 in two parts, n * the first exact
LOG10_2_DOUBLE = (0.3010299955494702, 1.1451100898021838e-10)
# The bits of where a number's octave begins for logarithms: 2/3, and the root of 1/2.
OCTAVE = {"f32": 0x3F2AAAAB, "f64": 0x3FE6A09E667F3BCD}
# Below, x itself is log(1 + x), e^x - 1 and the like.
LINEAR = {"f32": 2.0**-26, "f64": 2.0**-54}
# e^x - 1 is -1 below the first; beyond the second it is infinite.
EXPM1_ENDS = {"f32": (-25.0, 89.7), "f64": (-40.0, 710.4)}


def rest(k: Builder, x: V, n: V) -> V:
    """x - n ln 2."""
    high, low = LN_2_PARTS[x.dtype]
    return fma(k, n, -low, fma(k, n, -high, x))


def reduce_exp(k: Builder, x: V) -> tuple[V, V]:
    """x = n ln 2 + r: e^r - 1 and n, for |x| < 2^20."""
    whole, n = nearest(k, x, LOG2_E)
    return exp_less_one(k, rest(k, x, whole)), n


def exp_less_one(k: Builder, r: V) -> V:
    """e^r - 1 for |r| <= 0.35."""
    square = r * r
    return fma(k, square, polynomial_of_pairs(k, r, square, EXP[r.dtype]), r)


def short_exp(k: Builder, r: V) -> V:
    """e^r for |r| <= 0.35. One operation less than by way of e^r - 1."""
    return polynomial(k, r, (1.0, 1.0, *EXP[r.dtype]))


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
        bits = k.bitcast(value, FORMATS[x.dtype].integer) + (n << FORMATS[x.dtype].fraction)
        return [k.select(gone, 0.0, k.bitcast(bits, x.dtype))]

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


@define("exp2", "f32", "f64")
def exp2(k: Builder, x: V) -> V:
    """2^x."""

    def parts(x: V) -> tuple[V, V]:
        whole, n = nearest(k, x, 1.0)
        r = x - whole
        return fma(k, r, polynomial(k, r, EXP2[x.dtype]), 1.0), n

    return by_power_of_two(k, x, *((-1076.0, 1022.0, 1025.0) if x.dtype == "f64" else (-151.0, 126.0, 129.0)), parts)


@define("expm1", "f32", "f64")
def expm1(k: Builder, x: V) -> V:
    """In quarters, so that nothing overflows before the result does."""
    tail, n = reduce_exp(k, clamp(k, x, *EXPM1_ENDS[x.dtype]))
    power = power_of_two(k, n - 2)
    result = fma(k, tail, power, power - 0.25) * 4.0
    return k.select(k.map("abs", x) < LINEAR[x.dtype], x, result)


def quarter_exp(k: Builder, x: V) -> V:
    """e^|x| / 4, finite where cosh and sinh are."""
    tail, n = reduce_exp(k, clamp(k, k.map("abs", x), 0.0, 711.0 if x.dtype == "f64" else 89.7))
    return (tail + 1.0) * power_of_two(k, n - 2)


@define("sinh", "f32", "f64")
def sinh(k: Builder, x: V) -> V:
    """A polynomial up to 1, beyond it e^x / 2 - e^-x / 2."""
    quarter = quarter_exp(k, x)
    square = x * x
    small = fma(k, x * square, polynomial(k, square, SINH[x.dtype]), x)
    return k.select(k.map("abs", x) < 1.0, small, copysign(k, (quarter - 0.0625 / quarter) * 2.0, x))


@define("cosh", "f32", "f64")
def cosh(k: Builder, x: V) -> V:
    """e^x / 2 + e^-x / 2."""
    quarter = quarter_exp(k, x)
    return (quarter + 0.0625 / quarter) * 2.0


@define("tanh", "f32", "f64")
def tanh(k: Builder, x: V) -> V:
    """(1 - e^-2|x|) / (1 + e^-2|x|), by way of e^r - 1 for -2|x| = n ln 2 + r: small x need no polynomial of their own.

    The divisor of e^2|x| would be above 2, where it is rounded twice as far: 2.4 ulp for 1.95. f32 needs no second part
    of ln 2, since the first is right to 2^-28. 19 operations; a polynomial up to 0.6 and 1 - 2 / (e^2|x| + 1) have 28
    (`elementwise`'s kernel on Emerald Rapids 1.52 -> 1.34 ms).
    """
    double = k.map("abs", x) * -2.0
    least = -40.0 if x.dtype == "f64" else -18.2
    y = k.select(double < least, least, double)
    if x.dtype == "f64":
        tail, whole = reduce_exp(k, y)
        power = power_of_two(k, whole)
    else:
        n, power = nearest_power(k, y, LOG2_E)
        tail = exp_less_one(k, fma(k, n, -LN_2, y))
    return copysign(k, fma(k, tail, -power, 1.0 - power) / fma(k, tail, power, power + 1.0), x)


def octaves(k: Builder, x: V) -> V:
    """The bits of 2^n, less those of 1, for x = 2^n y with y in [2/3, 4/3], in f64 [0.7, 1.4]. For normal x > 0."""
    integer, _, fraction, _ = FORMATS[x.dtype]
    return (k.bitcast(x, integer) - OCTAVE[x.dtype]) & -(1 << fraction)


def exponent(k: Builder, octave: V) -> V:
    """n of `octaves` as a float. An i64 is added to a float's last bits, which takes no conversion."""
    if octave.dtype == "i32":
        return k.cast(octave >> 23, "f32")
    return k.bitcast((octave >> 52) + bits_of_high("f64"), "f64") - 1.5 * 2.0**52


def reduce_log(k: Builder, x: V) -> tuple[V, V]:
    """x = 2^n (1 + m), 1 + m as in `octaves`: m, and n as a float. For x > 0."""
    integer, _, fraction, bias = FORMATS[x.dtype]
    tiny = x < 2.0 ** (1 - bias)
    normal = k.select(tiny, x * 2.0**fraction, x)
    octave = octaves(k, normal)
    m = k.bitcast(k.bitcast(normal, integer) - octave, x.dtype) - 1.0
    n = exponent(k, octave)
    return m, k.select(tiny, n - float(fraction), n)


def log_tail(k: Builder, m: V) -> V:
    """log(1 + m) - m, m as `reduce_log` has it. In f64 by way of s = m / (2 + m), 2 atanh s = m - s m + .."""
    if m.dtype == "f32":
        return m * m * fma(k, m, polynomial(k, m, LOG), -0.5)
    s, half = m / (m + 2.0), m * m * 0.5
    square = s * s
    return fma(k, s, fma(k, square, polynomial(k, square, LOG_DOUBLE), half), -half)


def log_limits(k: Builder, x: V, result: V) -> V:
    """The result of a logarithm with its values at 0, at infinity and below 0."""
    result = k.select(x == INF, x, result)
    result = k.select(x == 0.0, -INF, result)
    return k.select(x >= 0.0, result, NAN)


@define("log", "f32", "f64")
def log(k: Builder, x: V) -> V:
    """The logarithm to base e."""
    m, n = reduce_log(k, x)
    high, low = LN_2_PARTS[x.dtype]
    return log_limits(k, x, fma(k, n, high, fma(k, n, low, log_tail(k, m)) + m))


def scaled_log(k: Builder, x: V, factor: tuple[float, float], unit: tuple[float, float]) -> V:
    """log x * factor, where n ln 2 * factor = n * unit; both given as a high and a low part."""
    m, n = reduce_log(k, x)
    tail = log_tail(k, m)
    low = fma(k, tail, factor[0], m * factor[1])
    low = fma(k, n, unit[1], low) if unit[1] else low
    high = m * factor[0]
    error = fma(k, m, factor[0], -high)
    return log_limits(k, x, fma(k, n, unit[0], high + (low + error)))


@define("log2", "f32", "f64")
def log2(k: Builder, x: V) -> V:
    """The logarithm to base 2."""
    factor = (1.4426950408889634, 2.0355273740931033e-17) if x.dtype == "f64" else (1.44269502, 1.92596303e-08)
    return scaled_log(k, x, factor, (1.0, 0.0))


@define("log10", "f32", "f64")
def log10(k: Builder, x: V) -> V:
    """The logarithm to base 10."""
    if x.dtype == "f64":
        return scaled_log(k, x, (0.4342944819032518, 1.098319650216765e-17), LOG10_2_DOUBLE)
    return scaled_log(k, x, (0.434294492, -1.01030074e-08), (0.301029205, 7.90351421e-07))


@define("log1p", "f32", "f64")
def log1p(k: Builder, x: V) -> V:
    """Scales x itself by the power of two that 1 + x has, so nothing is lost about 0."""
    integer, _, fraction, bias = FORMATS[x.dtype]
    octave = octaves(k, x + 1.0)
    power = k.bitcast((bias + 2 << fraction) - octave, x.dtype)  # 4 * 2^-n
    scaled, shift = k.bitcast(k.bitcast(x, integer) - octave, x.dtype), fma(k, power, 0.25, -1.0)
    m = scaled + shift
    lost = scaled - (m - shift)
    n = exponent(k, octave)
    high, low = LN_2_PARTS[x.dtype]
    result = fma(k, n, high, fma(k, n, low, log_tail(k, m) + lost) + m)
    result = k.select(k.map("abs", x) < LINEAR[x.dtype], x, result)
    result = k.select(x == INF, x, result)
    result = k.select(x == -1.0, -INF, result)
    return k.select(x >= -1.0, result, NAN)


@define("asinh", "f32", "f64")
def asinh(k: Builder, x: V) -> V:
    """log(x + sqrt(x^2 + 1)), about 0 through log1p; beyond 2^60 the square would overflow and adds nothing."""
    size = k.map("abs", x)
    limited = k.select(size < 2.0**60, size, 1.0)
    square = limited * limited
    small = log1p(k, limited + square / (k.map("sqrt", square + 1.0) + 1.0))
    return copysign(k, k.select(size < 2.0**60, small, log(k, size) + LN_2), x)


@define("acosh", "f32", "f64")
def acosh(k: Builder, x: V) -> V:
    """log1p(t + root) with t = x - 1, root = sqrt(2 t + t^2), and what the sum lost, by the slope there, x - root."""
    t = k.select(x < 2.0**60, x - 1.0, 1.0)
    root = k.map("sqrt", fma(k, t, t, t * 2.0))
    total = root + t
    lost = k.select(t < 1.0, (root - total) + t, 0.0)  # beyond, x - root is all rounding, and this far below an ulp
    small = fma(k, lost, (t - root) + 1.0, log1p(k, total))
    result = k.select(x < 2.0**60, small, log(k, x) + LN_2)
    return k.select(x >= 1.0, result, NAN)


@define("atanh", "f32", "f64")
def atanh(k: Builder, x: V) -> V:
    """A polynomial up to 0.5, beyond it and in f64 half the logarithm of (1 + x) / (1 - x)."""
    size, square = k.map("abs", x), x * x
    large = copysign(k, log1p(k, 2.0 * size / (1.0 - size)) * 0.5, x)
    if x.dtype == "f64":
        return large
    small = fma(k, x * square, polynomial(k, square, ATANH), x)
    return k.select(size < 0.5, small, large)
