"""Own math: the scalar functions of the catalogue as MLIR, written once for scalars, vectors and all languages.

Branch-free, but for sines of arguments beyond 71476, vectors of exp some of whose results are not normal and
remainders of large quotients, so that compilers vectorise them; right for infinities, NaN and subnormal numbers; the
only fused operations are the `fma` that are written. So every rung and every device gives the same bits, and drivers
whose builtins are slow or absent do not matter. Bounds, in ulp against the exact value, are in `BOUNDS`, and
tests/codegen/test_mathlib.py holds them: on a sample, and, slow, on every float32 for functions of one argument.

Polynomials for float32 are minimax fits whose coefficients were rounded to float32 one after the other, the rest
refitted; those for float64 are Chebyshev fits (mpmath). float64's sines of arguments beyond 1e9 are the language's. The
functions of Intel's compiler are called lane by lane for float64: a million elements, ms, (eager) driver's -> ours, are
log (1.9) 3.2 -> 1.0, sin (2.4) 3.2 -> 0.5, tanh (3.2) 7.2 -> 0.8, pow (4.4) 6.4 -> 2.3, lgamma (10) 60 -> 3.2.
"""

from __future__ import annotations

from codegen.builder import Builder
from codegen.mathlib import combine, exponential, integers, inverse, rounding, special, trigonometric
from codegen.mathlib.table import FUNCTIONS

__all__ = [
    "BOUNDS",
    "combine",
    "expands",
    "exponential",
    "function",
    "integers",
    "inverse",
    "rounding",
    "special",
    "trigonometric",
]

# The greatest error found, with a margin: over every float32 (`make test-full` asks again), over samples of float64.
# `lgamma` and `digamma`, both for x > 0, count ulps of max(|result|, 1): about their zeros, and reflected to the left
# of 0, the error is absolute.
BOUNDS: dict[str, dict[str, float]] = {
    "f32": {
        "exp": 1.1, "exp2": 0.9, "expm1": 1.7, "log": 1.0, "log2": 1.7, "log10": 1.8, "log1p": 1.2, "sin": 1.6,
        "cos": 1.6, "tan": 1.7, "asin": 1.9, "acos": 1.4, "atan": 1.5, "sinh": 1.7, "cosh": 1.6, "tanh": 2.0,
        "asinh": 1.8, "acosh": 2.0, "atanh": 1.1, "erf": 1.4, "erfc": 2.6, "erf_inv": 2.3, "rsqrt": 1.5, "pow": 1.5,
        "atan2": 2.0, "lgamma": 4.0, "digamma": 9.0,
    },
    "f64": {
        "exp": 1.0, "exp2": 1.0, "expm1": 2.0, "log": 1.0, "log2": 1.1, "log10": 1.0, "log1p": 1.0, "sin": 1.7,
        "cos": 1.7, "tan": 1.8, "asin": 2.1, "acos": 1.4, "atan": 1.5, "sinh": 1.8, "cosh": 1.5, "tanh": 2.0,
        "asinh": 1.9, "acosh": 1.8, "atanh": 2.0, "erf": 1.0, "erfc": 2.1, "erf_inv": 2.6, "rsqrt": 1.5, "pow": 1.8,
        "atan2": 1.7, "lgamma": 3.0, "digamma": 9.0,
    },
}  # fmt: skip


def expands(fn: str, element: str) -> bool:
    """Whether the library has its own expansion of a function for an element type."""
    return (fn, element) in FUNCTIONS


def function(fn: str, element: str, width: int, arity: int) -> str:
    """The MLIR text of a module with the function `fn_element[xwidth]`. Raises KeyError where there is none."""
    expansion = FUNCTIONS[fn, element]
    k = Builder(f"{fn}_{element}" + (f"x{width}" if width > 1 else ""))
    return k.finish_function(expansion(k, *(k.parameter(element, width) for _ in range(arity))))
