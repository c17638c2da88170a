"""The scalar catalogue in MLIR: what `Builder.map` emits for a function and a kind of operand.

Kinds: f(loat), i(nt), u(nsigned), b(ool), x (index). A row is the name of one MLIR operation, or a Python function that
builds a short expansion out of other catalogue functions. The `math` operations stand for the functions of
`codegen.mathlib`, which the printer defines next to the kernel; so each function has the same bits in all kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ops_core.dtypes import BY_NAME

if TYPE_CHECKING:
    from codegen.builder import Builder, V

Rule = str | Callable[..., "V"]


def same(k: Builder, x: V) -> V:
    """The operand itself."""
    return x


def negate(k: Builder, x: V) -> V:
    """0 - x."""
    return k.map("sub", k.const(0, x.dtype, x.width), x)


def invert(k: Builder, x: V) -> V:
    """All bits flipped."""
    return k.map("xor", x, k.const(True if x.dtype == "bool" else -1, x.dtype, x.width))


def sign(k: Builder, x: V) -> V:
    """-1, 0 or 1; zero for NaN, as torch has it."""
    one, zero = k.const(1, x.dtype, x.width), k.const(0, x.dtype, x.width)
    positive = k.select(x > zero, one, zero)
    return positive if kind(x.dtype) == "u" else k.select(x < zero, k.const(-1, x.dtype, x.width), positive)


def reciprocal(k: Builder, x: V) -> V:
    """1 / x."""
    return 1.0 / x


def remainder_float(k: Builder, x: V, y: V) -> V:
    """Python's modulo: the sign of the divisor."""
    r = k.map("fmod", x, y)
    return k.select((r != 0.0) & ((y < 0.0) != (r < 0.0)), r + y, r)


def remainder_int(k: Builder, x: V, y: V) -> V:
    """Python's modulo: the sign of the divisor."""
    r = k.map("fmod", x, y)
    return k.select((r != 0) & ((y < 0) != (r < 0)), r + y, r)


def divide(op: str) -> Callable[[Builder, V, V], V]:
    """An integer division that no operands can trap: x / 0 is 0, and the least integer / -1 wraps."""

    def build(k: Builder, x: V, y: V) -> V:
        if y.const not in (None, 0, -1):
            return k.emit(op, x, y)
        trap = y == 0
        if kind(y.dtype) == "i":
            trap = trap | (y == -1)
        opposite = k.select(y == 0, 0, 0 - x if op == "arith.divsi" else k.const(0, x.dtype, x.width))
        return k.select(trap, opposite, k.emit(op, x, k.select(trap, 1, y)))

    return build


def shift_left(k: Builder, x: V, n: V) -> V:
    """Zero where the distance is not within the type, as torch has it."""
    bits = 8 * BY_NAME[x.dtype].bytes
    zero = k.const(0, x.dtype, x.width)
    inside = (n >= 0) & (n < bits)
    return k.select(inside, k.emit("arith.shli", x, k.select(inside, n, zero)), zero)


def shift_right(k: Builder, x: V, n: V) -> V:
    """A distance out of range leaves the sign."""
    bits = 8 * BY_NAME[x.dtype].bytes
    if kind(x.dtype) == "i":
        return k.emit("arith.shrsi", x, k.select((n >= 0) & (n < bits), n, k.const(bits - 1, x.dtype, x.width)))
    zero = k.const(0, x.dtype, x.width)
    inside = n < bits
    return k.select(inside, k.emit("arith.shrui", x, k.select(inside, n, zero)), zero)


def nextafter(k: Builder, x: V, y: V) -> V:
    """The neighbour of x towards y: a step of one in the bits, away from zero or towards it."""
    bits = f"i{8 * BY_NAME[x.dtype].bytes}"
    i = k.bitcast(x, bits)
    grows = (y > x) == (x > 0.0)
    step = k.bitcast(i + k.select(grows, k.const(1, bits, x.width), k.const(-1, bits, x.width)), x.dtype)
    tiny = k.bitcast(k.const(1, bits, x.width), x.dtype)
    from_zero = k.select(y > 0.0, tiny, -tiny)
    moved = k.select(x == 0.0, from_zero, step)
    return k.select((x != x) | (y != y), x + y, k.select(x == y, y, moved))


def compare(float_predicate: str, signed: str, unsigned: str) -> dict[str, Rule]:
    """Rows of a comparison; the kinds differ only in the predicate."""
    return {
        "f": f"arith.cmpf {float_predicate},",
        "i": f"arith.cmpi {signed},",
        "u": f"arith.cmpi {unsigned},",
        "x": f"arith.cmpi {signed},",
        "b": f"arith.cmpi {unsigned},",
    }


def integers(signed: str, unsigned: str, **more: Rule) -> dict[str, Rule]:
    """A row for signed and unsigned integers and index, and more."""
    return {"i": signed, "u": unsigned, "x": signed, **more}


# Functions that the math dialect has under the same name
MATH = (
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip

CATALOGUE: dict[str, dict[str, Rule]] = {
    "add": integers("arith.addi", "arith.addi", f="arith.addf", b="arith.ori"),
    "sub": integers("arith.subi", "arith.subi", f="arith.subf"),
    "mul": integers("arith.muli", "arith.muli", f="arith.mulf", b="arith.andi"),
    "div": {"f": "arith.divf", "i": divide("arith.divsi"), "u": divide("arith.divui"), "x": "arith.divsi"},
    "fmod": {"f": "func.call @rem", "i": divide("arith.remsi"), "u": divide("arith.remui"), "x": "arith.remsi"},
    "remainder": {"f": remainder_float, "i": remainder_int, "x": remainder_int, "u": divide("arith.remui")},
    "neg": {"f": "arith.negf", "i": negate, "u": negate, "x": negate},
    "abs": {"f": "math.absf", "i": "math.absi", "u": same, "b": same},
    "sign": {"f": sign, "i": sign, "u": sign, "b": same},
    "maximum": integers("arith.maxsi", "arith.maxui", f="arith.maximumf", b="arith.ori"),
    "minimum": integers("arith.minsi", "arith.minui", f="arith.minimumf", b="arith.andi"),
    "eq": compare("oeq", "eq", "eq"),
    "ne": compare("une", "ne", "ne"),
    "lt": compare("olt", "slt", "ult"),
    "le": compare("ole", "sle", "ule"),
    "gt": compare("ogt", "sgt", "ugt"),
    "ge": compare("oge", "sge", "uge"),
    "and": integers("arith.andi", "arith.andi", b="arith.andi"),
    "or": integers("arith.ori", "arith.ori", b="arith.ori"),
    "xor": integers("arith.xori", "arith.xori", b="arith.xori"),
    "not": {"i": invert, "u": invert, "b": invert},
    "shl": {"i": shift_left, "u": shift_left, "x": "arith.shli"},
    "shr": {"i": shift_right, "u": shift_right, "x": "arith.shrsi"},
    "floor": {"f": "math.floor", "i": same, "u": same},
    "ceil": {"f": "math.ceil", "i": same, "u": same},
    "trunc": {"f": "math.trunc", "i": same, "u": same},
    "round": {"f": "math.roundeven", "i": same, "u": same},
    "reciprocal": {"f": reciprocal},
    "nextafter": {"f": nextafter},
    "fma": {"f": "math.fma"},
    "pow": {"f": "math.powf", "i": "func.call @ipow", "u": "func.call @upow"},
    **{fn: {"f": f"math.{fn}"} for fn in MATH},
    **{fn: {"f": f"func.call @{fn}"} for fn in ("erf_inv", "lgamma", "digamma", "softmax_exp", "erf_beside_one")},
}


def kind(dtype: str) -> str:
    """The catalogue kind of a dtype."""
    return "x" if dtype == "index" else BY_NAME[dtype].kind


ATOMICS: dict[str, dict[str, str]] = {
    "add": {"f": "addf", "i": "addi", "u": "addi"},
    "mul": {"f": "mulf", "i": "muli", "u": "muli"},
    "maximum": {"f": "maximumf", "i": "maxs", "u": "maxu"},
    "minimum": {"f": "minimumf", "i": "mins", "u": "minu"},
    "and": {"i": "andi", "u": "andi", "b": "andi"},
    "or": {"i": "ori", "u": "ori", "b": "ori"},
    "set": {"f": "assign", "i": "assign", "u": "assign", "b": "assign"},
}
