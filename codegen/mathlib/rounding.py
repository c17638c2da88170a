"""Rounding of f32 to what half types hold."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import define


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
