"""Powers of integers."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import define
from ops_core.dtypes import BY_NAME

INTEGERS = ("i8", "i16", "i32", "i64")


@define("upow", *INTEGERS)
def upow(k: Builder, x: V, y: V) -> V:
    """Repeated squaring, wrapping; the exponent is read as unsigned."""
    one = k.const(1, x.dtype, x.width)
    with k.for_(0, 8 * BY_NAME[x.dtype].bytes, init=[one, x, y]) as loop:
        result, square, rest = loop.args
        result = k.select((rest & 1) != 0, result * square, result)
        loop.yield_(result, square * square, k.emit("arith.shrui", rest, one))
    return loop.results[0]


@define("ipow", *INTEGERS)
def ipow(k: Builder, x: V, y: V) -> V:
    """As `upow`, but a negative exponent leaves 1 and -1; of anything else the result is 0."""
    one = k.const(1, x.dtype, x.width)
    unit = k.select((y & 1) == 0, one, x)
    return k.select(y >= 0, upow(k, x, y), k.select((x == 1) | (x == -1), unit, 0))
