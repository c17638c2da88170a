"""sin, cos and tan, with an exact reduction of any argument."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import NAN, define, fma, nearest, polynomial

# pi / 2 in three parts
HALF_PI = (1.57079637, -4.37113883e-08, -1.71512451e-15)
SIN = (-0.166666672, 0.00833337754, -0.000198520618, 2.82023962e-06)
COS = (0.0416666418, -0.00138871302, 2.44120856e-05)
TAN = (0.333333552, 0.133324623, 0.0540836938, 0.0211557187, 0.0111709433, -0.000342629966, 0.00459235488)


# Up to here n has few enough bits for n * HALF_PI to be exact part by part.
LARGE = 71476.0
# 2 / pi in binary, 32 bits a word, after a word of zeros
TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
# pi / 2 * 2^-30 in two parts
FRACTION = (1.46291812e-09, -4.07094027e-17)


def reduce_angle(k: Builder, x: V) -> tuple[V, V, V]:
    """x = n pi/2 + r with |r| <= pi/4: r, what it lacks, and n as i32 modulo 4."""
    whole, n = nearest(k, x, 0.6366197723675814)
    first = fma(k, whole, -HALF_PI[0], x)
    r = fma(k, whole, -HALF_PI[2], fma(k, whole, -HALF_PI[1], first))
    product = whole * HALF_PI[1]
    error = fma(k, whole, HALF_PI[2], fma(k, whole, HALF_PI[1], -product))
    difference = first - product
    rest = ((difference - r) - error) + ((first - difference) - product)
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
    return fma(k, r * square, polynomial(k, square, SIN), r)


def cos_core(k: Builder, r: V) -> V:
    """cos r for |r| <= pi/4."""
    square = r * r
    return fma(k, square * square, polynomial(k, square, COS), fma(k, square, -0.5, 1.0))


def sine(k: Builder, r: V, n: V) -> V:
    """sin(r + n pi/2)."""
    value = k.select((n & 1) == 0, sin_core(k, r), cos_core(k, r))
    return k.bitcast(k.bitcast(value, "u32") ^ k.bitcast((n & 2) << 30, "u32"), "f32")


@define("sin")
def sin(k: Builder, x: V) -> V:
    """The sine."""
    r, _, n = reduce_angle(k, x)
    return k.select(x == 0.0, x, sine(k, r, n))


@define("cos")
def cos(k: Builder, x: V) -> V:
    """The cosine: the sine a quarter turn on."""
    r, _, n = reduce_angle(k, x)
    return sine(k, r, n + 1)


@define("tan")
def tan(k: Builder, x: V) -> V:
    """A polynomial in the reduced angle, or -1 / it, which takes up what the polynomial's sum and the quotient lost."""
    r, rest, n = reduce_angle(k, x)
    square = r * r
    more = fma(k, r * square, polynomial(k, square, TAN), rest)
    value = r + more
    lost = (r - value) + more
    inverse = -1.0 / value
    inverse = fma(k, inverse, fma(k, inverse, lost, fma(k, inverse, value, 1.0)), inverse)
    return k.select(x == 0.0, x, k.select((n & 1) == 0, value, inverse))
