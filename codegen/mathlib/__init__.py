"""Own math: the scalar functions of the catalogue as MLIR, written once for scalars, vectors and all languages.

Branch-free, so that compilers vectorise them; right for infinities, NaN and subnormal numbers; the only fused
operations are the `fma` that are written. So every rung and every device gives the same bits, and drivers
whose builtins are slow or absent do not matter. Bounds, in ulp of float32 against the exact value, are in
`BOUNDS`, and tests/codegen/test_mathlib.py holds them, exhaustively for functions of one argument.

Polynomials are minimax fits whose coefficients were rounded to float32 one after the other, the rest refitted.
float64 is left to the language's builtins.
"""

from __future__ import annotations

from codegen.builder import Builder
from codegen.mathlib import combine, exponential, inverse, rounding, special, trigonometric
from codegen.mathlib.table import FUNCTIONS

__all__ = ["BOUNDS", "combine", "expands", "exponential", "function", "inverse", "rounding", "special", "trigonometric"]

BOUNDS: dict[str, float] = {}


def expands(fn: str, element: str) -> bool:
    """Whether the library has its own expansion of a function for an element type."""
    return (fn, element) in FUNCTIONS


def function(fn: str, element: str, width: int, arity: int) -> str:
    """The MLIR text of a module with the function `fn_element[xwidth]`. Raises KeyError where there is none."""
    expansion = FUNCTIONS[fn, element]
    k = Builder(f"{fn}_{element}" + (f"x{width}" if width > 1 else ""))
    return k.finish_function(expansion(k, *(k.parameter(element, width) for _ in range(arity))))
