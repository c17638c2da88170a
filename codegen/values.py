"""What a kernel under construction is made of: values, memory, loops, and how MLIR writes their types and constants."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ops_core.dtypes import BY_NAME

if TYPE_CHECKING:
    from codegen.builder import Builder

HALVES = ("f16", "bf16")
AXES = "xyz"
SPACES = {"global": "", "workgroup": ", #gpu.address_space<workgroup>", "private": ", #gpu.address_space<private>"}


class Mlir(str):
    """The text of a kernel. sizes: the numbers that are its last arguments, and the dtype of each."""

    sizes: tuple[tuple[int | float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Buf:
    """Memory: a kernel argument, work-group memory or private memory. `size` is None where the caller decides."""

    name: str
    dtype: str
    space: str = "global"
    size: int | None = None
    readonly: bool = False

    @property
    def type(self) -> str:
        """The MLIR type."""
        size = "?" if self.size is None else self.size
        return f"memref<{size}x{memory_type(self.dtype)}{SPACES[self.space]}>"


class V:
    """An SSA value. Operators build operations; ints and floats are constants of the other operand's type."""

    __slots__ = ("const", "dtype", "k", "name", "width")

    def __init__(self, k: Builder, name: str, dtype: str, width: int = 1, const: int | float | bool | None = None):
        self.k, self.name, self.dtype, self.width, self.const = k, name, dtype, width, const

    def __repr__(self) -> str:
        return f"{self.name}:{mlir_type(self.dtype, self.width)}"

    def __bool__(self) -> bool:
        raise TypeError("a kernel value has no truth at build time: use k.select or k.if_")

    __hash__ = object.__hash__

    def __add__(self, other: Operand) -> V:
        return self.k.map("add", self, other)

    def __radd__(self, other: Operand) -> V:
        return self.k.map("add", other, self)

    def __sub__(self, other: Operand) -> V:
        return self.k.map("sub", self, other)

    def __rsub__(self, other: Operand) -> V:
        return self.k.map("sub", other, self)

    def __mul__(self, other: Operand) -> V:
        return self.k.map("mul", self, other)

    def __rmul__(self, other: Operand) -> V:
        return self.k.map("mul", other, self)

    def __truediv__(self, other: Operand) -> V:
        return self.k.map("div", self, other)

    def __rtruediv__(self, other: Operand) -> V:
        return self.k.map("div", other, self)

    def __floordiv__(self, other: Operand) -> V:
        """Quotient towards zero: an index is never negative where it is divided."""
        return self.k.map("div", self, other)

    def __mod__(self, other: Operand) -> V:
        return self.k.map("fmod", self, other)

    def __neg__(self) -> V:
        return self.k.map("neg", self)

    def __and__(self, other: Operand) -> V:
        return self.k.map("and", self, other)

    def __or__(self, other: Operand) -> V:
        return self.k.map("or", self, other)

    def __xor__(self, other: Operand) -> V:
        return self.k.map("xor", self, other)

    def __invert__(self) -> V:
        return self.k.map("not", self)

    def __lshift__(self, other: Operand) -> V:
        return self.k.map("shl", self, other)

    def __rshift__(self, other: Operand) -> V:
        return self.k.map("shr", self, other)

    def __lt__(self, other: Operand) -> V:
        return self.k.map("lt", self, other)

    def __le__(self, other: Operand) -> V:
        return self.k.map("le", self, other)

    def __gt__(self, other: Operand) -> V:
        return self.k.map("gt", self, other)

    def __ge__(self, other: Operand) -> V:
        return self.k.map("ge", self, other)

    def __eq__(self, other: object) -> V:  # type: ignore[override]
        return self.k.map("eq", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> V:  # type: ignore[override]
        return self.k.map("ne", self, other)  # type: ignore[arg-type]


Operand: TypeAlias = V | int | float | bool


class Loop:
    """A loop that is being built: `iv`, the values `args` carried into a turn, and `results` after the loop."""

    def __init__(self, iv: V, args: list[V]):
        self.iv, self.args = iv, args
        self.yielded: tuple[V, ...] = ()
        self.results: list[V] = []

    def yield_(self, *values: V) -> None:
        """Name the carried values of the next turn, in the order of `init`."""
        self.yielded = values


def memory_type(dtype: str) -> str:
    """The MLIR element type in memory: bool takes a byte."""
    return "index" if dtype == "index" else "i8" if dtype == "bool" else BY_NAME[dtype].mlir


def mlir_type(dtype: str, width: int = 1) -> str:
    """The MLIR type of a value in registers."""
    element = "index" if dtype == "index" else BY_NAME[dtype].mlir
    return element if width == 1 else f"vector<{width}x{element}>"


def literal(value: int | float | bool, dtype: str) -> str:
    """A constant as MLIR writes it. Floats are given by their bits, so nothing is lost and inf and nan work."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "f32":
        return f"0x{struct.unpack('<I', f32_bytes(value))[0]:08X}"
    if dtype == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    bits = 64 if dtype == "index" else 8 * BY_NAME[dtype].bytes
    return str((int(value) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))


def f32_bytes(value: float) -> bytes:
    """Bytes of the nearest float32; what is too large becomes an infinity, as in a conversion on a device."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def type_suffix(v: V) -> str:
    """f32, or f32x8 for a vector: how a function for this type is told from others."""
    return v.dtype if v.width == 1 else f"{v.dtype}x{v.width}"
