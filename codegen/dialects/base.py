"""What the printer asks of a language: types, literals, conversions, memory, ids. OpenCL C is the pattern; others override.

Integers have no sign in MLIR: they are printed unsigned, so that they wrap, and operations that mean a sign
cast. Half types exist in memory only: in registers they are f32 values that a half can hold. A vector of i1 is
a vector of int with lanes 0 or -1, as comparisons give it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple


class Type(NamedTuple):
    """An MLIR scalar or vector type: element name ("f32", "i1", "index") and lanes (1 = scalar)."""

    element: str
    width: int = 1

    @property
    def bits(self) -> int:
        return BITS[self.element]

    def to(self, element: str) -> Type:
        """The same lanes of another element."""
        return Type(element, self.width)

    @property
    def suffix(self) -> str:
        """f32, or f32x8: how a function for this type is told from others."""
        return self.element if self.width == 1 else f"{self.element}x{self.width}"


BITS = {"i1": 32, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 32, "bf16": 32, "f32": 32, "f64": 64}
UNSIGNED = {"i8": "uchar", "i16": "ushort", "i32": "uint", "i64": "ulong"}
SIGNED = {"i8": "char", "i16": "short", "i32": "int", "i64": "long"}
FLOATS = {"f32": "float", "f64": "double", "f16": "float", "bf16": "float"}


def decimal(value: float, element: str) -> str:
    """A float as the shortest decimal that reads back as the same bits."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{value:.9g}" if element != "f64" else repr(value)
    return text + ("" if "." in text or "e" in text else ".0") + ("" if element == "f64" else "f")


class Language:
    """OpenCL C, and the pattern for the others."""

    name = "opencl"
    header = ""
    kernel = "__kernel void"
    function = "__attribute__((always_inline)) static inline"
    spaces = {"global": "__global ", "workgroup": "__local ", "private": ""}
    storage = {"f16": "half", "bf16": "ushort"}
    ids = {
        "gpu.global_id": "get_global_id({d})",
        "gpu.thread_id": "get_local_id({d})",
        "gpu.block_id": "get_group_id({d})",
        "gpu.block_dim": "get_local_size({d})",
        "gpu.grid_dim": "get_num_groups({d})",
    }
    axes = "012"
    barrier = "barrier(CLK_LOCAL_MEM_FENCE);"
    unroll = "#pragma unroll"
    long_suffix = "ul"

    def type(self, t: Type, signed: bool = False) -> str:
        """The C type of a value in registers."""
        if t.element == "i1" and t.width == 1:
            return "bool"
        table = SIGNED if signed else UNSIGNED
        name = FLOATS.get(t.element) or ("int" if t.element == "i1" else table[t.element])
        return name if t.width == 1 else f"{name}{t.width}"

    def memory(self, element: str) -> str:
        """The C type of an element in memory."""
        return self.storage.get(element) or FLOATS.get(element) or UNSIGNED[element]

    def literal(self, value: float | int | bool, t: Type, signed: bool = False) -> str:
        """A constant in every lane."""
        return self._literal(value, t, signed)

    @cache  # noqa: B019  languages are singletons
    def _literal(self, value: float | int | bool, t: Type, signed: bool) -> str:
        if t.width > 1:
            scalar = str(-int(bool(value))) if t.element == "i1" else self.literal(value, Type(t.element), signed)
            return self.splat(scalar, t, signed)
        if t.element in FLOATS:
            return decimal(float(value), t.element)
        if t.element == "i1":
            return "true" if value else "false"
        if signed:
            small = -(1 << t.bits - 1)
            text = f"({value + 1} - 1)" if value == small else str(value)
            return text if t.bits <= 32 or value == small else text + self.long_suffix[1:]
        text = str(int(value) % (1 << t.bits))
        return f"{text}u" if t.bits == 32 else text + self.long_suffix if t.bits == 64 else f"({self.type(t)}){text}"

    def splat(self, x: str, t: Type, signed: bool = False) -> str:
        """A scalar in every lane."""
        return f"({self.type(t, signed)})({x})"

    def pack(self, lanes: list[str], t: Type, signed: bool = False) -> str:
        """A vector of scalars."""
        return f"({self.type(t, signed)})({', '.join(lanes)})"

    def lane(self, x: str, i: int) -> str:
        return f"{x}.s{i:x}"

    def any(self, x: str, t: Type) -> str:
        """Whether an i1 vector has a true lane."""
        return f"any({x})"

    def shuffle(self, x: str, y: str, lanes: list[int], width: int, t: Type) -> str:
        """Lanes picked from x followed by y, `width` lanes each."""
        if max(lanes) < width:
            return f"{x}.s{''.join(f'{i:x}' for i in lanes)}"
        return self.pack([self.lane(x if i < width else y, i % width) for i in lanes], t)

    def convert(self, x: str, target: Type, signed: bool = False) -> str:
        """The value in another type."""
        name = self.type(target, signed)
        return f"({name}){x}" if target.width == 1 else f"CONVERT({x}, {name})"

    def truth(self, x: str, t: Type) -> str:
        """An i1 as 0 or 1, ready for a conversion to a number."""
        return x if t.width == 1 else f"-{x}"

    def reinterpret(self, x: str, target: Type, signed: bool = False) -> str:
        """The bits as another type of the same size."""
        return f"as_{self.type(target, signed)}({x})"

    def signed(self, x: str, t: Type) -> str:
        """An integer as its signed type."""
        return f"({self.type(t, True)}){x}" if t.width == 1 else self.reinterpret(x, t, True)

    def unsigned(self, x: str, t: Type) -> str:
        """The result of a signed operation as the unsigned type; a scalar converts by assignment."""
        return x if t.width == 1 else self.reinterpret(x, t)

    def compare(self, x: str, t: Type) -> str:
        """A comparison of operands of type t as i1 lanes."""
        return x if t.width == 1 or t.bits == 32 else f"CONVERT({x}, int{t.width})"

    def select(self, c: str, a: str, b: str, t: Type, lanes: int, raw: bool = False) -> str:
        """a where c else b. c is i1 with `lanes` lanes, or, if raw, a comparison of values of type t."""
        if lanes > 1 and not raw and t.bits != 32:
            c = f"CONVERT({c}, {SIGNED[f'i{t.bits}']}{t.width})"
        return f"{c} ? {a} : {b}"

    def scalar_call(self, fn: str, args: list[str], t: Type) -> str:
        """A builtin on scalars. float32 functions have their C99 names."""
        return f"{fn}{'' if t.element == 'f64' else 'f'}({', '.join(args)})"

    def lanewise(self, fn: str, arity: int, t: Type) -> str:
        """A function of vectors that calls the scalar builtin for each lane; compilers make vectors of it."""
        names = "xyz"[:arity]
        parameters = ", ".join(f"{self.type(t)} {name}" for name in names)
        lanes = [
            self.scalar_call(fn, [self.lane(name, i) for name in names], t._replace(width=1)) for i in range(t.width)
        ]
        head = f"{self.function} {self.type(t)} {fn}_{t.suffix}({parameters})"
        return f"{head}\n{{\n{self.lanes_body(fn, names, self.pack(lanes, t))}}}\n"

    def lanes_body(self, fn: str, names: str, lanes: str) -> str:
        """The body of a lanewise function."""
        return f"    return {lanes};\n"

    def load(self, p: str, i: str, element: str, width: int) -> str:
        t = Type(element, width)
        if element == "f16":
            return f"vload_half({i}, {p})" if width == 1 else f"vload_half{width}(0, {p} + {i})"
        plain = f"{p}[{i}]" if width == 1 else f"vload{width}(0, {p} + {i})"
        if element == "bf16":
            bits = self.convert(plain, t.to("i32"))
            return self.reinterpret(f"({bits} << 16)", t.to("f32"))
        return plain

    def store(self, x: str, p: str, i: str, element: str, width: int) -> str:
        t = Type(element, width)
        if element == "f16":
            return f"vstore_half({x}, {i}, {p});" if width == 1 else f"vstore_half{width}({x}, 0, {p} + {i});"
        if element == "bf16":
            bits = self.reinterpret(x, t.to("i32"))
            x = self.convert(f"({bits} >> 16)", t.to("i16"))
        return f"{p}[{i}] = {x};" if width == 1 else f"vstore{width}({x}, 0, {p} + {i});"


    def work_group(self, sizes: list[int]) -> str:
        """The attribute of a kernel that needs one work-group size."""
        return f"__attribute__((reqd_work_group_size({', '.join(map(str, sizes))})))\n"
