"""Error function, gamma function and powers."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.exponential import LN_2_PARTS, clamp, log, reduce_exp, reduce_log, scale
from codegen.mathlib.table import INF, NAN, Coefficients, copysign, define, fma, polynomial
from codegen.mathlib.trigonometric import cos_core, sin_core

PI = 3.141592653589793
# erf x / x - 1 in x^2 on [0, 1.125], error 2^-27; in f64 on [0, 1], 2^-56
ERF: Coefficients = {
    "f32": (0.12837917, -0.37612602, 0.11283256, -0.026839223, 0.0051602586, -0.00077657885, 7.063466e-05),
    "f64": (
        0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
        -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
        -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
    ),
}  # fmt: skip
# the fourth root of erfc x on [1.125, 3.95], error 2^-26.7 in erfc
ROOT_ERFC = (
    1.0054985, -0.3087858, -0.063425936, -0.05047935, 0.06612185, -0.022213398, 0.0032341972, -0.00017949642,
)  # fmt: skip
# 8 (1 - the eighth root of erfc x) / x - 1 on [0, 3.95], error 2^-27.8 in erf
EIGHTH_ROOT = (
    0.12837891280651093, 0.5570468306541443, 0.016692904755473137, -0.05267111957073212, -0.0015402940334752202,
    0.004131259396672249, -0.0007193949422799051, 3.9372775063384324e-05,
)  # fmt: skip
# e^(x^2) erfc(x) (1 + 2 x) in (x - 2) / (x + 2) for 0.5 <= x <= 10.1, error 2^-29; in f64 to 27.3, 2^-54
ERFC: Coefficients = {
    "f32": (
        1.27697837, -0.0927638263, -0.166030332, 0.164050058, -0.054216221, -0.00801364612, 0.00867711566,
        0.0011636744, -0.00128706347, -0.000235974643,
    ),
    "f64": (
        1.2769783815525286, -0.09276382658574606, -0.16603039761528907, 0.16405128003345176, -0.0542200009920698,
        -0.008034015082940658, 0.008722653877144038, 0.001271338978367745, -0.0014568139799264444,
        -0.00045434098991745835, 0.00020636765617863993, 0.00015104031738552616, -1.5135902664066172e-06,
        -3.6427717859227264e-05, -1.347280823706943e-05, 3.7161661972461806e-06, 5.155940328639876e-06,
        1.5270574393560004e-06, -5.575662320912052e-07, -9.472875596240268e-07, -4.079341741247134e-07,
        3.326540439962294e-07, 2.027237861900637e-07, -1.0771273589018439e-07,
    ),
}  # fmt: skip
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
# For f64: in x^2 on [0, 0.36]; in w - 2.75 for 0.44 <= w <= 5.3; in sqrt(w) - 3 for 2.25 <= sqrt(w) <= 4, and in
# sqrt(w) - 5 up to 6.1; errors 2^-54, 2^-54, 2^-53 and 2^-54
ERF_INV_DOUBLE = (
    (
        0.886226925452758, 0.2320136665346523, 0.12755617530617727, 0.08655212918073119, 0.06495962109685487,
        0.0517311702649969, 0.04283916791216813, 0.03642881563265016, 0.032091950049349165, 0.024783365274340125,
        0.04375826988181674, -0.05856097019161205, 0.2781790618464542, -0.5659715532776182, 0.9250348816578826,
        -0.8597351398916099, 0.4293633293352251,
    ),
    (
        1.5627896112343589, 0.24433025901507632, -0.005035975749999856, -0.001038581918213638, 0.00020906626774544037,
        -9.486052881070764e-06, -2.568835001739024e-06, 4.829530001657104e-07, -8.219308201135993e-09,
        -8.285176272943651e-09, 1.1138678200525558e-09, 3.3375208344595286e-11, -2.5646196058588086e-11,
        2.278213531200876e-12, 2.4734407610000245e-13, -7.36971638749266e-14, 3.440808830913009e-15,
        1.0996874832519862e-15, -1.8684773381386868e-16, -2.990984303569633e-18, 3.4063513042261166e-18,
        -1.611627990080805e-19, -1.9917350924535955e-20,
    ),
    (
        2.8329767987282706, 1.0016752766933998, 0.009445522011963253, -0.007643805570065302, 0.005685182419324263,
        -0.003558794016230333, 0.0014837373140756953, -0.00014889808886241752, -0.00028312410918091187,
        0.0002055163802822467, -4.646225358371087e-05, -2.2871486172749223e-05, 2.1940947110762504e-05,
        -5.954601719055036e-06, -1.6658751354819413e-06, 2.0176456814836744e-06, -6.285052714059494e-07,
        -1.0644759109195204e-07, 1.6090402174616934e-07, -4.1980271639945984e-08, -6.452597135175003e-09,
        3.7541047507519745e-09,
    ),
    (
        4.849906401408584, 1.0103004648645455, -0.000138719318373517, -0.00021503011983024694, 7.59952779202494e-05,
        -1.9681770676949253e-05, 4.526054328559671e-06, -9.930294774982885e-07, 2.2904362741369038e-07,
        -6.75560303537366e-08, 2.9044909320789473e-08, -1.525516018129263e-08, 7.777428539826634e-09,
        -3.471437933896719e-09, 1.3589365341577093e-09, -4.373889663734069e-10, 4.6977303445962824e-11,
        4.280243303730942e-11, -1.543927819720834e-11,
    ),
)  # fmt: skip
# (2 atanh s - 2 s - 2/3 s^3) / s^5 in s^2 on |s| <= 0.2, error 2^-33 and 2^-65 in 2 atanh s - 2 s
ATANH: Coefficients = {
    "f32": (0.399999976, 0.285720795, 0.221706614, 0.19737184),
    "f64": (
        0.4, 0.28571428571428487, 0.22222222222278695, 0.18181818167391273, 0.15384617228261813, 0.1333320125384769,
        0.11770245498984806, 0.10391790132801734, 0.11256990431013299,
    ),
}  # fmt: skip
TWO_THIRDS = {"f32": (0.666666687, -1.98682149e-08), "f64": (0.6666666666666666, 3.700743415417188e-17)}
# Nearer to 0 lgamma is the same on both sides: its slope there is less than half an ulp.
LEAST_REFLECTED = {"f32": 2.0**-24, "f64": 2.0**-54}
# What a logarithm times an exponent is cut off at: e^ of it is infinite or 0.
POWER_ENDS = {"f32": 110.0, "f64": 760.0}
# lgamma(2 + t) / t on -0.5 <= t <= 1, error 2^-26 and 2^-55
LGAMMA_2: Coefficients = {
    "f32": (
        0.422784328, 0.322467029, -0.0673520416, 0.0205810964, -0.00738678128, 0.0028867959, -0.00119320897,
        0.000531849568, -0.000228342149, 5.64656002e-05,
    ),
    "f64": (
        0.42278433509846713, 0.3224670334241132, -0.06735230105319796, 0.020580808427787502, -0.007385551028687111,
        0.0028905103306125996, -0.0011927539111748094, 0.0005096695270786523, -0.00022315476914202685,
        9.945749459386184e-05, -4.4926118904862264e-05, 2.050723289467849e-05, -9.440199753274835e-06,
        4.375472004777847e-06, -2.0371195482358996e-06, 9.511969731319312e-07, -4.5041997201473635e-07,
        2.2102374422908605e-07, -1.0784595012220329e-07, 4.4561979632842775e-08, -1.2394516911278076e-08,
        1.6305432352127331e-09,
    ),
}  # fmt: skip
# lgamma(5.5 + t) on |t| <= 2.5, error 2^-26 and 2^-54
LGAMMA_5: Coefficients = {
    "f32": (
        3.95781398, 1.61109316, 0.0996714979, -0.00660138205, 0.000653218478, -7.76440429e-05, 1.04724149e-05,
        -1.33480717e-06, 1.3978277e-07, -4.77153925e-08, 1.12318386e-08,
    ),
    "f64": (
        3.9578139676187165, 1.6110931485817512, 0.09967119349481353, -0.006601491253550288, 0.0006537746948311532,
        -7.74550503456106e-05, 1.016525101769195e-05, -1.4252015874823688e-06, 2.0921350720639847e-07,
        -3.176172205289887e-08, 4.946518138588713e-09, -7.858639734276946e-10, 1.2686536052716219e-10,
        -2.0744524096806962e-11, 3.4221565062351425e-12, -5.70558668897662e-13, 9.78274276987485e-14,
        -1.6551342058383776e-14, 2.379808212030433e-15, -4.0476115118434753e-16, 1.3373679908010618e-16,
        -2.3193148441000802e-17, -2.14075630002878e-18, 3.804396748856198e-19, 2.7595869956983643e-19,
        -4.8269423237045936e-20,
    ),
}  # fmt: skip
# digamma y - log y + 1 / (2 y) in 1 / y^2, without one factor 1 / y^2: Bernoulli numbers B_2n / 2n
DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
# lgamma x - (x - 1/2) log x + x - log(2 pi) / 2 in 1 / x for x >= 8, odd powers, error 2^-25 and 2^-64
STIRLING: Coefficients = {
    "f32": (0.0833333358, -0.00277896714, 0.000860169996),
    "f64": (
        0.08333333333333333, -0.0027777777777776747, 0.0007936507935117282, -0.0005952380234291254,
        0.0008417325268022405, -0.001914965912162907, 0.0062081367662297935, -0.020855820837463117,
    ),
}  # fmt: skip


@define("rsqrt", "f32", "f64")
def rsqrt(k: Builder, x: V) -> V:
    """1 / sqrt x: two roundings, the same everywhere."""
    return 1.0 / k.map("sqrt", x)


@define("erf")
def erf(k: Builder, x: V) -> V:
    """A polynomial up to 1.125, beyond it 1 - erfc, of which a polynomial gives the fourth root: two squares are half
    of the operations of an exponential (`norm_block` 1.88 -> 1.52 ms)."""
    size = k.map("abs", x)
    small = fma(k, size, polynomial(k, size * size, ERF["f32"]), size)
    root = polynomial(k, k.select(size > 3.95, 3.95, size), ROOT_ERFC)
    square = root * root
    large = fma(k, -square, square, 1.0)
    return copysign(k, k.select(size < 1.125, small, large), x)


@define("erf_beside_one")
def erf_beside_one(k: Builder, x: V) -> V:
    """erf for 1 to be added, with an absolute error of 2^-23.2: one polynomial, for eight times 1 less the eighth root
    of erfc. u = n (1 - p) gives n/2 (1 - p^2) = u - u^2 / 2n, which loses nothing where u is small. GELU by it has 1.9
    ulp where it is not negative, as with erf (eager 5.1); `norm_block` 1.87 -> 1.74 ms (Zen 4)."""
    size = k.map("abs", x)
    size = k.select(size > 3.95, 3.95, size)
    u = fma(k, size, polynomial(k, size, EIGHTH_ROOT), size)
    for n in (8, 4, 2):
        u = fma(k, u * (-0.5 / n), u, u)
    return copysign(k, u, x)


@define("erf", "f64")
def erf_double(k: Builder, x: V) -> V:
    """A polynomial up to 1, beyond it 1 - erfc."""
    size = k.map("abs", x)
    small = fma(k, size, polynomial(k, size * size, ERF["f64"]), size)
    return copysign(k, k.select(size < 1.0, small, 1.0 - erfc_beyond(k, clamp(k, size, 0.0, 6.0))), x)


def erfc_beyond(k: Builder, size: V) -> V:
    """erfc from 0.5 on: e^(-x^2) times a smooth function; the rounding error of x^2 is put back."""
    first, *more = ERFC[size.dtype]
    square = size * size
    error = fma(k, size, size, -square)
    t = (size - 2.0) / (size + 2.0)
    slope = polynomial(k, t, (*more,))
    dividend, divisor = fma(k, t, slope, first), fma(k, size, 2.0, 1.0)
    inverse = 1.0 / divisor
    smooth = dividend * inverse
    lost = fma(k, smooth, divisor - 1.0 - size * 2.0, fma(k, t, slope, first - dividend))
    rest = (fma(k, -smooth, divisor, dividend) + lost) * inverse
    tail, n = reduce_exp(k, -square)
    tail = fma(k, tail, -error, tail - error)
    return scale(k, smooth + fma(k, tail, smooth, rest), n)


@define("erfc", "f32", "f64")
def erfc(k: Builder, x: V) -> V:
    """1 - erf below 0.5."""
    large = erfc_beyond(k, clamp(k, k.map("abs", x), 0.0, 10.1 if x.dtype == "f32" else 27.3))
    small = 1.0 - fma(k, x, polynomial(k, x * x, ERF[x.dtype]), x)
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


@define("erf_inv", "f64")
def erf_inv_double(k: Builder, x: V) -> V:
    """The same with a third part, and 1 - x^2 as a product: it counts where it is small."""
    w = -log(k, (1.0 - x) * (x + 1.0))
    root = k.map("sqrt", w)
    parts = zip((x * x, w - 2.75, root - 3.0, root - 5.0), ERF_INV_DOUBLE, strict=True)
    near, middle, tail, last = [polynomial(k, at, coefficients) for at, coefficients in parts]
    beyond = k.select(w < 5.0625, middle, k.select(root < 4.0, tail, last))
    result = x * k.select(k.map("abs", x) < 0.6, near, beyond)
    return k.select(k.map("abs", x) == 1.0, x * INF, result)


def product(k: Builder, a: V, b: V) -> tuple[V, V]:
    """a * b, and what rounding lost."""
    high = a * b
    return high, fma(k, a, b, -high)


def log_pair(k: Builder, x: V) -> tuple[V, V]:
    """log x for finite x > 0 as the sum of a high and a low part, error 2^-30, in f64 2^-64."""
    m, n = reduce_log(k, x)
    below = m + 2.0
    inverse = 1.0 / below
    s = m * inverse
    rest = fma(k, -s, m - (below - 2.0), fma(k, -s, below, m))  # of the division m / (2 + m)
    square, square_low = product(k, s, s)
    cube, cube_low = product(k, square, s)
    slope = polynomial(k, square, ATANH[x.dtype])
    two_thirds, rest_of_it = TWO_THIRDS[x.dtype]
    factor = fma(k, square, slope, two_thirds)
    factor_low = fma(k, square, slope, two_thirds - factor) + rest_of_it
    term, term_low = product(k, cube, factor)
    low = fma(k, fma(k, square_low, s, cube_low), factor, fma(k, cube, factor_low, term_low))
    low = fma(k, n, LN_2_PARTS[x.dtype][1], fma(k, rest * inverse, fma(k, square, 2.0, 2.0), low))
    whole, twice = n * LN_2_PARTS[x.dtype][0], s * 2.0
    first = whole + twice
    high = first + term
    low = low + (twice - (first - whole)) + (term - (high - first))
    total = high + low
    return total, low - (total - high)


@define("powf", "f32", "f64")
def powf(k: Builder, x: V, y: V) -> V:
    """e^(y log |x|) with the logarithm in two parts, then the special cases of IEEE 754."""
    size = k.map("abs", x)
    high, low = log_pair(k, size)
    power, rest = product(k, high, y)
    rest = fma(k, low, y, rest)
    bounded = clamp(k, power, -POWER_ENDS[x.dtype], POWER_ENDS[x.dtype])
    tail, n = reduce_exp(k, bounded)
    rest = k.select(bounded == power, rest, 0.0)
    tail = fma(k, tail, rest, tail + rest)
    result = scale(k, tail + 1.0, n)

    grows = (size > 1.0) == (y > 0.0)
    limit = k.select(grows, INF, k.const(0.0, x.dtype, x.width))
    extreme = (size == 0.0) | (size == INF) | (k.map("abs", y) == INF)
    result = k.select(extreme, k.select(size == 1.0, 1.0, limit), result)

    half = y * 0.5
    whole = k.map("trunc", y) == y
    odd = whole & (k.map("trunc", half) != half)
    result = k.select(odd, copysign(k, result, x), result)
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


@define("lgamma", "f32", "f64")
def lgamma(k: Builder, x: V) -> V:
    """Below 1.5 by recurrence to [1.5, 3), where the zero at 2 is a factor; a polynomial to 8, Stirling from there.

    Negative arguments are reflected, so near the zeros between negative integers the error is absolute, not in ulp.
    """
    size = k.map("abs", x)
    low, lowest = size < 1.5, size < 0.5
    argument = k.select(low, k.select(lowest, size * (size + 1.0), size), size)
    logarithm = log(k, argument)
    t = k.select(lowest, size, k.select(low, size - 1.0, size - 2.0))
    near = t * polynomial(k, t, LGAMMA_2[x.dtype]) - k.select(low, logarithm, k.const(0.0, x.dtype, x.width))
    middle = polynomial(k, size - 5.5, LGAMMA_5[x.dtype])
    inverse = 1.0 / size
    series = fma(k, inverse, polynomial(k, inverse * inverse, STIRLING[x.dtype]), 0.9189385332046728)
    far = fma(k, size - 0.5, logarithm - 1.0, series - 0.5)
    result = k.select(size < 3.0, near, k.select(size < 8.0, middle, far))
    sine = k.map("abs", sin_cos_pi(k, size)[0])
    reflected = k.select(sine == 0.0, INF, log(k, PI / (size * sine)) - result)
    result = k.select((x < 0.0) & (size > LEAST_REFLECTED[x.dtype]), reflected, result)
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
    return total + (log(k, y) + fma(k, inverse, -0.5, square * polynomial(k, square, series)))


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
    return digamma_reflected(k, x, result, *sin_cos_pi(k, x))
