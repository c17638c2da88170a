"""Half types: rounding of f32 to what they hold, and their bits. What is left of a division."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import FORMATS, define, fma


@define("round_bf16")
def round_bf16(k: Builder, x: V) -> V:
    """To 8 bits of significand, ties to even. A NaN stays one."""
    bits = k.bitcast(x, "u32")
    even = (bits >> 16) & 1
    rounded = (bits + (even + 0x7FFF)) & 0xFFFF0000
    return k.bitcast(k.select(x != x, (bits | 0x400000) & 0xFFFF0000, rounded), "f32")


@define("round_f16")
def round_f16(k: Builder, x: V) -> V:
    """To 11 bits of significand, ties to even, subnormal below 2^-14, infinity from 65520 on."""
    bits = k.bitcast(x, "u32")
    sign, size = bits & 0x80000000, bits & 0x7FFFFFFF
    even = (size >> 13) & 1
    normal = (size + (even + 0xFFF)) & 0xFFFFE000
    small = k.bitcast((k.bitcast(size, "f32") + 0.5) - 0.5, "u32")  # an ulp of 0.5 is the least half
    finite = k.select(size < 0x38800000, small, normal)
    limited = k.select(size >= 0x477FF000, k.const(0x7F800000, "u32", x.width), finite)
    return k.bitcast(sign | k.select(size > 0x7F800000, size | 0x7FC00000, limited), "f32")


@define("bits_bf16")
def bits_bf16(k: Builder, x: V) -> V:
    """The 16 bits of an f32 that a bf16 holds."""
    return k.bitcast(x, "u32") >> 16


@define("value_bf16", "i32")
def value_bf16(k: Builder, bits: V) -> V:
    """The value that 16 bits have as a bf16."""
    return k.bitcast(k.bitcast(bits, "u32") << 16, "f32")


@define("bits_f16")
def bits_f16(k: Builder, x: V) -> V:
    """The 16 bits of an f32 that an f16 holds. The product makes its exponent that of a half, or a subnormal's."""
    bits = k.bitcast(x, "u32")
    size = bits & 0x7FFFFFFF
    finite = k.bitcast(k.bitcast(size, "f32") * 2.0**-112, "u32") >> 13
    special = ((size >> 13) & 0x3FF) | 0x7C00
    return ((bits >> 16) & 0x8000) | k.select(size >= 0x7F800000, special, finite)


@define("rounded_bits_f16")
def rounded_bits_f16(k: Builder, x: V) -> V:
    """The 16 bits of what `round_f16` gave."""
    return bits_f16(k, x)


@define("value_f16", "i32")
def value_f16(k: Builder, bits: V) -> V:
    """The value that 16 bits have as an f16."""
    bits = k.bitcast(bits, "u32")
    size = (bits & 0x7FFF) << 13
    finite = k.bitcast(k.bitcast(size, "f32") * 2.0**112, "u32")
    return k.bitcast(((bits & 0x8000) << 16) | k.select(size >= 0x0F800000, size | 0x7F800000, finite), "f32")


@define("rem", "f32", "f64")
def rem(k: Builder, x: V, y: V) -> V:
    """C's fmod by the quotient, where that is found; the language's function where a lane's is not.

    The quotient is of a divisor a little smaller, so that it is right or one too large while it has bits to spare. What
    fma leaves is a multiple of x's or y's last bit and at most y: exact, as is adding y once. What is not found between
    0 and y then (bits of floats that are not negative are in order) has a larger quotient, or is no number, or y is 0
    or infinite. The reciprocal of a y that all lanes have is taken once. 1 Mi floats by 0.7, Intel (Zen 5): 1.11 ms by
    the function, 0.14 by a division; the last kernel of `particles` (Zen 4) 168 us by a division, 143 so.
    """
    a, b = k.map("abs", x), k.map("abs", y)
    ratio = a * ((1.0 + 2.0 ** (2 - FORMATS[x.dtype].fraction)) / b)
    left = fma(k, -k.map("trunc", ratio), b, a)
    left = k.select(left < 0.0, left + b, left)
    bits = "u32" if x.dtype == "f32" else "u64"
    found = k.bitcast(left, bits) < k.bitcast(b, bits)
    left = k.emit("math.copysign", left, x)
    return k.rarely(~found, [left], lambda: [k.emit("arith.remf", x, y)])[0]
