"""The table of expansions, and the few steps that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from codegen.builder import Builder, Operand, V

Expansion = Callable[..., V]
FUNCTIONS: dict[tuple[str, str], Expansion] = {}

INF = float("inf")
NAN = float("nan")
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


class Format(NamedTuple):
    """A float type: the integers of its width, bits of its fraction, what its exponent is off by."""

    integer: str
    unsigned: str
    fraction: int
    bias: int

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << int(self.integer[1:]) - 1


FORMATS = {"f32": Format("i32", "u32", 23, 127), "f64": Format("i64", "u64", 52, 1023)}
Coefficients = dict[str, tuple[float, ...]]  # of a polynomial, by the float type


def define(fn: str, *elements: str) -> Callable[[Expansion], Expansion]:
    """Enter an expansion into the table."""

    def enter(expansion: Expansion) -> Expansion:
        for element in elements or ("f32",):
            FUNCTIONS[fn, element] = expansion
        return expansion

    return enter


def fma(k: Builder, a: V, b: Operand, c: Operand) -> V:
    """a * b + c, rounded once."""
    return k.map("fma", a, b, c)


def polynomial(k: Builder, x: V, coefficients: tuple[float, ...]) -> V:
    """c[0] + c[1] x + c[2] x^2 + .. by Horner's rule."""
    result = k.const(coefficients[-1], x.dtype, x.width)
    for c in coefficients[-2::-1]:
        result = fma(k, x, result, c)
    return result


def polynomial_of_pairs(k: Builder, x: V, square: V, coefficients: tuple[float, ...]) -> V:
    """`polynomial`, given x^2, as one in x^2 of c + c' x: as many operations, of which half as many wait for others."""
    even, odd = coefficients[::2], coefficients[1::2]
    terms = [fma(k, x, high, low) for low, high in zip(even, odd, strict=False)]
    terms += [k.const(c, x.dtype, x.width) for c in even[len(odd) :]]
    result = terms[-1]
    for term in terms[-2::-1]:
        result = fma(k, square, result, term)
    return result


def nearest(k: Builder, x: V, factor: float) -> tuple[V, V]:
    """The integer nearest to x * factor as a float and as an integer. A NaN gives a NaN and any integer.

    For |x * factor| < 2^22, or 2^51 for f64: added to 1.5 * 2^23 it is in the low bits.
    """
    high = 1.5 * 2.0 ** FORMATS[x.dtype].fraction
    shifted = fma(k, x, factor, high)
    return shifted - high, k.bitcast(shifted, FORMATS[x.dtype].integer) - bits_of_high(x.dtype)


def bits_of_high(dtype: str) -> int:
    """Those of 1.5 * 2^fraction, below whose last bit there is nothing: an integer added to them is added to it."""
    _, _, fraction, bias = FORMATS[dtype]
    return (bias + fraction << fraction) + (1 << fraction - 1)


def nearest_power(k: Builder, x: V, factor: float) -> tuple[V, V]:
    """The f32 integer n nearest to x * factor, and 2^n, for -127 < n < 128. A NaN gives a NaN and any power.

    As `nearest`, but what is added has the exponent's bias in its low bits, which are the power's exponent then.
    """
    high = 1.5 * 2.0**23 + 127
    shifted = fma(k, x, factor, high)
    return shifted - high, k.bitcast(k.bitcast(shifted, "i32") << 23, "f32")


def power_of_two(k: Builder, n: V) -> V:
    """2^n for an i32 n from -126 to 127, or an i64 n from -1022 to 1023."""
    dtype = "f32" if n.dtype == "i32" else "f64"
    _, _, fraction, bias = FORMATS[dtype]
    return k.bitcast((n << fraction) + (bias << fraction), dtype)


def copysign(k: Builder, size: V, sign: V) -> V:
    """A value >= 0 with the sign of another."""
    word = FORMATS[size.dtype].unsigned
    return k.bitcast(k.bitcast(size, word) | (k.bitcast(sign, word) & FORMATS[size.dtype].sign), size.dtype)
