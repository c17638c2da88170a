"""The table of expansions, and the few steps that all of them share."""

from __future__ import annotations

from collections.abc import Callable

from codegen.builder import Builder, Operand, V

Expansion = Callable[..., V]
FUNCTIONS: dict[tuple[str, str], Expansion] = {}

INF = float("inf")
NAN = float("nan")
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
ROUND = 1.5 * 2**23  # added to |x| < 2^22 it leaves the nearest integer in the low bits


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


def nearest(k: Builder, x: V, factor: float) -> tuple[V, V]:
    """The integer nearest to x * factor, |x * factor| < 2^22, as f32 and as i32. A NaN gives a NaN and any integer."""
    shifted = fma(k, x, factor, ROUND)
    return shifted - ROUND, k.bitcast(shifted, "i32") - 0x4B400000


def power_of_two(k: Builder, n: V) -> V:
    """2^n for an i32 n from -126 to 127."""
    return k.bitcast((n << 23) + 0x3F800000, "f32")


def copysign(k: Builder, size: V, sign: V) -> V:
    """A value >= 0 with the sign of another."""
    return k.bitcast(k.bitcast(size, "u32") | (k.bitcast(sign, "u32") & 0x80000000), "f32")
