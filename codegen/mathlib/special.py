"""Error function, gamma function and powers."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.exponential import LN_2_HIGH, LN_2_LOW, clamp, log, reduce_exp, reduce_log, scale
from codegen.mathlib.table import INF, NAN, copysign, define, fma, polynomial
from codegen.mathlib.trigonometric import cos_core, sin_core

PI = 3.141592653589793
# erf x / x - 1 in x^2 on [0, 1.125], error 2^-27
ERF = (0.12837917, -0.37612602, 0.11283256, -0.026839223, 0.0051602586, -0.00077657885, 7.063466e-05)
# the fourth root of erfc x on [1.125, 3.95], error 2^-26.7 in erfc
ROOT_ERFC = (
    1.0054985, -0.3087858, -0.063425936, -0.05047935, 0.06612185, -0.022213398, 0.0032341972, -0.00017949642,
)  # fmt: skip
# e^(x^2) erfc(x) (1 + 2 x) in (x - 2) / (x + 2) for 0.5 <= x <= 10.1, error 2^-29
ERFC = (
    1.27697837, -0.0927638263, -0.166030332, 0.164050058, -0.054216221, -0.00801364612, 0.00867711566, 0.0011636744,
    -0.00128706347, -0.000235974643,
)  # fmt: skip
# erf_inv x / x in x^2 on [0, 0.6], error 2^-25
ERF_INV_NEAR = (
    0.886226952, 0.232006565, 0.127864495, 0.0815601274, 0.103070393, -0.0948294699, 0.310327828, -0.126359209,
)  # fmt: skip
# in w - 2.5 for w = -log(1 - x^2) < 5, error 2^-24
ERF_INV = (
    1.50140941, 0.24664028, -0.0041776658, -0.00125275517, 0.00021857355, -4.94386359e-06, -3.52244274e-06,
    4.60057493e-07, 2.80753056e-08, -8.24658386e-09,
)  # fmt: skip
# and in sqrt(w) - 3 for 5 <= w <= 17.4, error 2^-26
ERF_INV_TAIL = (
    2.83297682, 1.00167489, 0.00944451708, -0.00763569959, 0.00569341006, -0.0036057306, 0.00146829442,
    -3.94897288e-05, -0.000296066253, 0.000102908394,
)  # fmt: skip
# (2 atanh s - 2 s - 2/3 s^3) / s^5 in s^2 on |s| <= 0.2, error 2^-33 in 2 atanh s - 2 s
ATANH = (0.399999976, 0.285720795, 0.221706614, 0.19737184)
TWO_THIRDS = (0.666666687, -1.98682149e-08)
# lgamma(2 + t) / t on -0.5 <= t <= 1, error 2^-26
LGAMMA_2 = (
    0.422784328, 0.322467029, -0.0673520416, 0.0205810964, -0.00738678128, 0.0028867959, -0.00119320897,
    0.000531849568, -0.000228342149, 5.64656002e-05,
)  # fmt: skip
# lgamma(5.5 + t) on |t| <= 2.5, error 2^-26
LGAMMA_5 = (
    3.95781398, 1.61109316, 0.0996714979, -0.00660138205, 0.000653218478, -7.76440429e-05, 1.04724149e-05,
    -1.33480717e-06, 1.3978277e-07, -4.77153925e-08, 1.12318386e-08,
)  # fmt: skip
# digamma y - log y + 1 / (2 y) in 1 / y^2, without one factor 1 / y^2: Bernoulli numbers B_2n / 2n
DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
# lgamma x - (x - 1/2) log x + x - log(2 pi) / 2 in 1 / x for x >= 8, odd powers, error 2^-25
STIRLING = (0.0833333358, -0.00277896714, 0.000860169996)


@define("rsqrt", "f32", "f64")
def rsqrt(k: Builder, x: V) -> V:
    """1 / sqrt x: two roundings, the same everywhere."""
    return 1.0 / k.map("sqrt", x)


@define("erf")
def erf(k: Builder, x: V) -> V:
    """A polynomial up to 1.125, beyond it 1 - erfc, of which a polynomial gives the fourth root: two squares are half
    of the operations of an exponential (`norm_block` 1.88 -> 1.52 ms)."""
    size = k.map("abs", x)
    small = fma(k, size, polynomial(k, size * size, ERF), size)
    root = polynomial(k, k.select(size > 3.95, 3.95, size), ROOT_ERFC)
    square = root * root
    large = fma(k, -square, square, 1.0)
    return copysign(k, k.select(size < 1.125, small, large), x)


@define("erfc")
def erfc(k: Builder, x: V) -> V:
    """1 - erf below 0.5, else e^(-x^2) times a smooth function; the rounding error of x^2 is put back."""
    size = clamp(k, k.map("abs", x), 0.0, 10.1)
    small = 1.0 - fma(k, x, polynomial(k, x * x, ERF), x)
    square = size * size
    error = fma(k, size, size, -square)
    t = (size - 2.0) / (size + 2.0)
    slope = polynomial(k, t, ERFC[1:])
    dividend, divisor = fma(k, t, slope, ERFC[0]), fma(k, size, 2.0, 1.0)
    inverse = 1.0 / divisor
    smooth = dividend * inverse
    lost = fma(k, smooth, divisor - 1.0 - size * 2.0, fma(k, t, slope, ERFC[0] - dividend))
    rest = (fma(k, -smooth, divisor, dividend) + lost) * inverse
    tail, n = reduce_exp(k, -square)
    tail = fma(k, tail, -error, tail - error)
    large = scale(k, smooth + fma(k, tail, smooth, rest), n)
    result = k.select(k.map("abs", x) < 0.5, small, k.select(x < 0.0, 2.0 - large, large))
    return k.select(x != x, x, result)


@define("erf_inv")
def erf_inv(k: Builder, x: V) -> V:
    """Polynomials in x^2 up to 0.6, then in -log(1 - x^2) and in its root."""
    w = -log(k, fma(k, -x, x, 1.0))
    middle = polynomial(k, w - 2.5, ERF_INV)
    tail = polynomial(k, k.map("sqrt", w) - 3.0, ERF_INV_TAIL)
    near = polynomial(k, x * x, ERF_INV_NEAR)
    result = x * k.select(k.map("abs", x) < 0.6, near, k.select(w < 5.0, middle, tail))
    return k.select(k.map("abs", x) == 1.0, x * INF, result)


def product(k: Builder, a: V, b: V) -> tuple[V, V]:
    """a * b, and what rounding lost."""
    high = a * b
    return high, fma(k, a, b, -high)


def log_pair(k: Builder, x: V) -> tuple[V, V]:
    """log x for finite x > 0 as the sum of a high and a low part, error 2^-30."""
    m, n = reduce_log(k, x)
    below = m + 2.0
    inverse = 1.0 / below
    s = m * inverse
    rest = fma(k, -s, m - (below - 2.0), fma(k, -s, below, m))  # of the division m / (2 + m)
    square, square_low = product(k, s, s)
    cube, cube_low = product(k, square, s)
    slope = polynomial(k, square, ATANH)
    factor = fma(k, square, slope, TWO_THIRDS[0])
    factor_low = fma(k, square, slope, TWO_THIRDS[0] - factor) + TWO_THIRDS[1]
    term, term_low = product(k, cube, factor)
    low = fma(k, fma(k, square_low, s, cube_low), factor, fma(k, cube, factor_low, term_low))
    low = fma(k, n, LN_2_LOW, fma(k, rest * inverse, fma(k, square, 2.0, 2.0), low))
    whole, twice = n * LN_2_HIGH, s * 2.0
    first = whole + twice
    high = first + term
    low = low + (twice - (first - whole)) + (term - (high - first))
    total = high + low
    return total, low - (total - high)


@define("powf")
def powf(k: Builder, x: V, y: V) -> V:
    """e^(y log |x|) with the logarithm in two parts, then the special cases of IEEE 754."""
    size = k.map("abs", x)
    high, low = log_pair(k, size)
    power, rest = product(k, high, y)
    rest = fma(k, low, y, rest)
    bounded = clamp(k, power, -110.0, 110.0)
    tail, n = reduce_exp(k, bounded)
    rest = k.select(bounded == power, rest, 0.0)
    tail = fma(k, tail, rest, tail + rest)
    result = scale(k, tail + 1.0, n)

    grows = (size > 1.0) == (y > 0.0)
    limit = k.select(grows, INF, k.const(0.0, "f32", x.width))
    extreme = (size == 0.0) | (size == INF) | (k.map("abs", y) == INF)
    result = k.select(extreme, k.select(size == 1.0, 1.0, limit), result)

    half = y * 0.5
    whole = k.map("trunc", y) == y
    odd = whole & (k.map("trunc", half) != half)
    signed = k.bitcast(k.bitcast(result, "u32") | (k.bitcast(x, "u32") & 0x80000000), "f32")
    result = k.select(odd, signed, result)
    result = k.select((x < 0.0) & (x != -INF) & ~whole, NAN, result)
    result = k.select((x != x) | (y != y), x + y, result)
    return k.select((x == 1.0) | (y == 0.0), 1.0, result)


def sin_cos_pi(k: Builder, x: V) -> tuple[V, V]:
    """sin(pi r) and cos(pi r) for the distance r of x from the nearest integer, exact about their zeros."""
    rest = x - k.map("round", x)
    size = k.map("abs", rest)
    swapped = size > 0.25
    angle = k.select(swapped, 0.5 - size, size) * PI
    s, c = sin_core(k, angle), cos_core(k, angle)
    return copysign(k, k.select(swapped, c, s), rest), k.select(swapped, s, c)


@define("lgamma")
def lgamma(k: Builder, x: V) -> V:
    """Below 1.5 by recurrence to [1.5, 3), where the zero at 2 is a factor; a polynomial to 8, Stirling from there.

    Negative arguments are reflected, so near the zeros between negative integers the error is absolute, not in ulp.
    """
    size = k.map("abs", x)
    low, lowest = size < 1.5, size < 0.5
    argument = k.select(low, k.select(lowest, size * (size + 1.0), size), size)
    logarithm = log(k, argument)
    t = k.select(lowest, size, k.select(low, size - 1.0, size - 2.0))
    near = t * polynomial(k, t, LGAMMA_2) - k.select(low, logarithm, k.const(0.0, "f32", x.width))
    middle = polynomial(k, size - 5.5, LGAMMA_5)
    inverse = 1.0 / size
    series = fma(k, inverse, polynomial(k, inverse * inverse, STIRLING), 0.918938533)
    far = fma(k, size - 0.5, logarithm - 1.0, series - 0.5)
    result = k.select(size < 3.0, near, k.select(size < 8.0, middle, far))
    sine = k.map("abs", sin_cos_pi(k, size)[0])
    reflected = k.select(sine == 0.0, INF, log(k, PI / (size * sine)) - result)
    result = k.select((x < 0.0) & (size > 2.0**-24), reflected, result)
    return k.select(size == INF, INF, result)


def digamma_series(k: Builder, y: V, start: float, series: tuple[float, ...]) -> V:
    """digamma of y > 0: by recurrence to `start` and the asymptotic series in 1 / y^2 from there."""
    total = k.const(0.0, y.dtype, y.width)
    for _ in range(int(start)):
        small = y < start
        total = k.select(small, total - 1.0 / y, total)
        y = k.select(small, y + 1.0, y)
    inverse = 1.0 / y
    square = inverse * inverse
    logarithm = log(k, y) if y.dtype == "f32" else k.map("log", y)
    return total + (logarithm + fma(k, inverse, -0.5, square * polynomial(k, square, series)))


def digamma_reflected(k: Builder, x: V, result: V, sine: V, cosine: V) -> V:
    """digamma of x <= 0 from that of 1 - x; poles at 0 and NaN at negative integers."""
    value = k.select(sine == 0.0, k.select(x == 0.0, -1.0 / x, NAN), fma(k, cosine / sine, -PI, result))
    return k.select(x <= 0.0, value, result)


@define("digamma")
def digamma(k: Builder, x: V) -> V:
    """To about 8 ulp of max(|result|, 1)."""
    result = digamma_series(k, k.select(x <= 0.0, 1.0 - x, x), 8.0, DIGAMMA[:3])
    return digamma_reflected(k, x, result, *sin_cos_pi(k, x))


@define("digamma", "f64")
def digamma_double(k: Builder, x: V) -> V:
    """The same with two terms and four series terms more."""
    result = digamma_series(k, k.select(x <= 0.0, 1.0 - x, x), 10.0, DIGAMMA)
    angle = (x - k.map("round", x)) * PI
    return digamma_reflected(k, x, result, k.map("sin", angle), k.map("cos", angle))


@define("erf_inv", "f64")
def erf_inv_double(k: Builder, x: V) -> V:
    """The float32 polynomials, then Halley's steps on erf or, where it is close to 1, on erfc."""
    size = k.map("abs", x)
    w = -k.map("log", (1.0 - size) * (1.0 + size))
    root = k.map("minimum", k.map("sqrt", w), 6.1)
    tail = k.select(root < 4.2, polynomial(k, root - 3.0, ERF_INV_TAIL), root - 0.25)
    y = size * k.select(w < 5.0, polynomial(k, w - 2.5, ERF_INV), tail)
    for _ in range(3):
        missing = k.select(size < 0.5, size - k.map("erf", y), k.map("erfc", y) - (1.0 - size))
        step = missing * 0.886226925452758 * k.map("exp", y * y)
        y = y + step / (1.0 - y * step)
    y = k.select(size == 1.0, INF, y)
    return k.select(size <= 1.0, k.select(x < 0.0, -y, y), NAN)
