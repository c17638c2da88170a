"""Own math: scalar functions as MLIR, written once for scalars, vectors and all languages.
"""

from __future__ import annotations

from collections.abc import Callable

from codegen.builder import Builder, V

FUNCTIONS: dict[tuple[str, str], Callable[..., V]] = {}


def expands(fn: str, element: str) -> bool:
    """Whether the library has its own expansion of a function for an element type."""
    return (fn, element) in FUNCTIONS


def function(fn: str, element: str, width: int) -> str:
    """The MLIR text of a module with the function `fn_element[xwidth]`. Raises KeyError where there is none."""
    expansion = FUNCTIONS[fn, element]
    k = Builder(f"{fn}_{element}" + (f"x{width}" if width > 1 else ""))
    arity = expansion.__code__.co_argcount - 1
    return k.finish_function(expansion(k, *(k.parameter(element, width) for _ in range(arity))))


def define(fn: str, *elements: str) -> Callable[[Callable[..., V]], Callable[..., V]]:
    """Enter an expansion into the table."""

    def enter(expansion: Callable[..., V]) -> Callable[..., V]:
        for element in elements:
            FUNCTIONS[fn, element] = expansion
        return expansion

    return enter


@define("round_bf16", "f32")
def round_bf16(k: Builder, x: V) -> V:
    """To 8 bits of significand, ties to even. A NaN stays one."""
    bits = k.bitcast(x, "u32")
    even = (bits >> 16) & 1
    rounded = k.bitcast((bits + (even + 0x7FFF)) & 0xFFFF0000, "f32")
    return k.select(x != x, k.bitcast((bits | 0x400000) & 0xFFFF0000, "f32"), rounded)


@define("round_f16", "f32")
def round_f16(k: Builder, x: V) -> V:
    """To 11 bits of significand, ties to even, subnormal below 2^-14, infinity from 65520 on."""
    bits = k.bitcast(x, "u32")
    sign, size = bits & 0x80000000, bits & 0x7FFFFFFF
    even = (size >> 13) & 1
    normal = (size + (even + 0xFFF)) & 0xFFFFE000
    small = k.bitcast((k.bitcast(size, "f32") + 0.5) - 0.5, "u32")  # the ulp of 0.5 is the least half
    finite = k.select(size < 0x38800000, small, normal)
    limited = k.select(size >= 0x477FF000, k.const(0x7F800000, "u32", x.width), finite)
    return k.bitcast(sign | k.select(size > 0x7F800000, size | 0x7FC00000, limited), "f32")
