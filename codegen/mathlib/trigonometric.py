"""sin, cos and tan, with an exact reduction of any argument."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import FORMATS, NAN, Coefficients, define, fma, nearest, polynomial

# pi / 2 in three parts
HALF_PI = {
    "f32": (1.57079637, -4.37113883e-08, -1.71512451e-15),
    "f64": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
# (sin r - r) / r^3 and (cos r - 1 + r^2 / 2) / r^4 in r^2 on |r| <= pi/4, f64's errors 2^-57 and 2^-59
SIN: Coefficients = {
    "f32": (-0.166666672, 0.00833337754, -0.000198520618, 2.82023962e-06),
    "f64": (
        -0.16666666666666666, 0.008333333333333331, -0.0001984126984126494, 2.7557319219243677e-06,
        -2.505210619936182e-08, 1.6058526388142101e-10, -7.586389554705215e-13,
    ),
}  # fmt: skip
COS: Coefficients = {
    "f32": (0.0416666418, -0.00138871302, 2.44120856e-05),
    "f64": (
        0.041666666666666664, -0.0013888888888887359, 2.48015872987077e-05, -2.755731724172776e-07,
        2.0876140031390975e-09, -1.138218421447753e-11,
    ),
}  # fmt: skip
# (tan r - r) / r^3, f64's error 2^-54
TAN: Coefficients = {
    "f32": (0.333333552, 0.133324623, 0.0540836938, 0.0211557187, 0.0111709433, -0.000342629966, 0.00459235488),
    "f64": (
        0.33333333333333326, 0.13333333333337485, 0.05396825396390214, 0.02186948871535816, 0.00886323169120698,
        0.0035921771128265504, 0.001455429736592747, 0.000592279120318424, 0.00023046496842502796,
        0.0001201426575744397, -3.683304729936734e-06, 6.894848857598343e-05, -3.4003320790111915e-05,
        1.8295136618823303e-05,
    ),
}  # fmt: skip


# Up to here n has few enough bits for n * HALF_PI to be exact part by part.
LARGE = 71476.0
# For f64 the language's own functions are asked beyond this.
LARGE_DOUBLE = 1e9
# 2 / pi in binary, 32 bits a word, after a word of zeros
TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
# pi / 2 * 2^-30 in two parts
FRACTION = (1.46291812e-09, -4.07094027e-17)


def reduce_angle(k: Builder, x: V) -> tuple[V, V, V]:
    """x = n pi/2 + r with |r| <= pi/4: r, what it lacks, and n as an integer modulo 4. In f64 for |x| <= 1e9."""
    high, middle, low = HALF_PI[x.dtype]
    whole, n = nearest(k, x, 0.6366197723675814)
    first = fma(k, whole, -high, x)
    r = fma(k, whole, -low, fma(k, whole, -middle, first))
    product = whole * middle
    error = fma(k, whole, low, fma(k, whole, middle, -product))
    difference = first - product
    rest = ((difference - r) - error) + ((first - difference) - product)
    if x.dtype == "f64":
        return r, rest, n
    r, rest, n = k.rarely(k.map("abs", x) > LARGE, (r, rest, n), lambda: reduce_large(k, x))
    return r, rest, n


def reduce_large(k: Builder, x: V) -> tuple[V, V, V]:
    """The same for any finite x: x * 2/pi modulo 4 in integers (Payne and Hanek); NaN for infinities.

    Of 2/pi only the 96 bits count whose product with the significand is neither a multiple of 4 nor below 2^-62.
    """
    bits = k.bitcast(x, "u32")
    exponent = (bits >> 23) & 255
    significand = k.cast((bits & 0x7FFFFF) | 0x800000, "u64")
    first = exponent - 120  # the position in TWO_OVER_PI of the bit that has weight 2 in the product
    word, shift = first >> 5, first & 31

    def words(i: int) -> V:
        """TWO_OVER_PI[word + i]."""
        value = k.const(TWO_OVER_PI[i + 4], "u32", x.width)
        for at in range(4):
            value = k.select(word == at, TWO_OVER_PI[i + at], value)
        return value

    w = [words(i) for i in range(4)]
    window = [
        k.cast(k.emit("arith.shli", w[i], shift) | k.emit("arith.shrui", w[i + 1] >> 1, 31 - shift), "u64")
        for i in range(3)
    ]
    middle = significand * window[1] + ((significand * window[2]) >> 32)
    high = k.cast(significand * window[0] + (middle >> 32), "u32")
    low = k.cast(middle, "u32")
    n = (high + 0x20000000) >> 30
    units = k.bitcast(high - (n << 30), "i32")
    coarse = (units + 128) & -256
    fine = fma(k, k.cast(k.bitcast(low >> 1, "i32"), "f32"), 2.0**-31, k.cast(units - coarse, "f32"))
    top = k.cast(coarse, "f32")
    fraction = top + fine
    lost = fine - (fraction - top)
    error = fma(k, fraction, FRACTION[1], lost * FRACTION[0])
    r = fma(k, fraction, FRACTION[0], error)
    rest = fma(k, fraction, FRACTION[0], -r) + error
    r = k.select(exponent == 255, NAN, r)
    negative = x < 0.0
    quadrant = k.bitcast(n, "i32")
    return k.select(negative, -r, r), k.select(negative, -rest, rest), k.select(negative, -quadrant, quadrant)


def sin_core(k: Builder, r: V) -> V:
    """sin r for |r| <= pi/4."""
    square = r * r
    return fma(k, r * square, polynomial(k, square, SIN[r.dtype]), r)


def cos_core(k: Builder, r: V) -> V:
    """cos r for |r| <= pi/4."""
    square = r * r
    return fma(k, square * square, polynomial(k, square, COS[r.dtype]), fma(k, square, -0.5, 1.0))


def sine(k: Builder, x: V, turns: int) -> V:
    """sin(x + turns pi/2)."""
    r, _, n = reduce_angle(k, x)
    n = n + turns
    value = k.select((n & 1) == 0, sin_core(k, r), cos_core(k, r))
    word = FORMATS[x.dtype].unsigned
    sign = k.bitcast((n & 2) << (30 if x.dtype == "f32" else 62), word)
    return k.bitcast(k.bitcast(value, word) ^ sign, x.dtype)


def but_large(k: Builder, x: V, value: V, fn: str) -> V:
    """A function's value, for f64 the language's own where x is large or no number."""
    if x.dtype == "f32":
        return value
    large = k.map("not", k.map("abs", x) <= LARGE_DOUBLE)
    return k.rarely(large, [value], lambda: [k.emit(f"func.call @builtin_{fn}", x)])[0]


@define("sin", "f32", "f64")
def sin(k: Builder, x: V) -> V:
    """The sine."""
    return but_large(k, x, k.select(x == 0.0, x, sine(k, x, 0)), "sin")


@define("cos", "f32", "f64")
def cos(k: Builder, x: V) -> V:
    """The cosine: the sine a quarter turn on."""
    return but_large(k, x, sine(k, x, 1), "cos")


@define("tan", "f32", "f64")
def tan(k: Builder, x: V) -> V:
    """A polynomial in the reduced angle, or -1 / it, which takes up what the polynomial's sum and the quotient lost."""
    r, rest, n = reduce_angle(k, x)
    square = r * r
    more = fma(k, r * square, polynomial(k, square, TAN[x.dtype]), rest)
    value = r + more
    lost = (r - value) + more
    inverse = -1.0 / value
    inverse = fma(k, inverse, fma(k, inverse, lost, fma(k, inverse, value, 1.0)), inverse)
    return but_large(k, x, k.select(x == 0.0, x, k.select((n & 1) == 0, value, inverse)), "tan")
