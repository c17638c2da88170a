"""What the printer asks of a language: types, literals, conversions, memory, ids. OpenCL C is the pattern.

Integers have no sign in MLIR: they are printed unsigned, so that they wrap, and operations that mean a sign
cast. Half types exist in memory only: in registers they are f32 values that a half can hold. A vector of i1 is
a vector of int with lanes 0 or -1, as comparisons give it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from codegen.printer import Printer


class Type(NamedTuple):
    """An MLIR scalar or vector type: element name ("f32", "i1", "index") and lanes (1 = scalar)."""

    element: str
    width: int = 1

    @property
    def bits(self) -> int:
        """Bits of an element as vectors have it: i1 lanes are as wide as int, halves are f32."""
        return BITS[self.element]

    def to(self, element: str) -> Type:
        """The same lanes of another element."""
        return Type(element, self.width)

    @property
    def suffix(self) -> str:
        """f32, or f32x8: how a function for this type is told from others."""
        return self.element if self.width == 1 else f"{self.element}x{self.width}"


BITS = {"i1": 32, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 32, "bf16": 32, "f32": 32, "f64": 64}
HALVES = ("f16", "bf16")
FLOATS = {"f32": "float", "f64": "double", "f16": "float", "bf16": "float"}


def decimal(value: float, element: str) -> str:
    """A float as the shortest decimal that reads back as the same bits."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{value:.9g}" if element != "f64" else repr(value)
    return text + ("" if "." in text or "e" in text else ".0") + ("" if element == "f64" else "f")


def combination(kind: str, t: Type) -> tuple[str, Type]:
    """The library function that combines elements in an atomic update, and the type of its operands."""
    half = t.element in HALVES
    return f"combine_{kind}" + (f"_{t.element}" if half else ""), t.to("f32") if half else t


class Language:
    """OpenCL C, and the pattern for the others."""

    name = "opencl"
    header = ""
    kernel = "__kernel void"
    whole = ""  # precedes a kernel: a compiler is not to put its work-items side by side into vectors
    function = "__attribute__((always_inline)) static inline"
    spaces: ClassVar[dict[str, str]] = {"global": "__global ", "workgroup": "__local ", "private": ""}
    ids: ClassVar[dict[str, str]] = {
        "gpu.global_id": "get_global_id({d})",
        "gpu.thread_id": "get_local_id({d})",
        "gpu.block_id": "get_group_id({d})",
        "gpu.block_dim": "get_local_size({d})",
        "gpu.grid_dim": "get_num_groups({d})",
    }
    axes = "012"
    barrier = "barrier(CLK_LOCAL_MEM_FENCE);"
    restrict = "restrict "
    # Before an array of a work item or work-group, through which vectors go: where they cross cache lines, each is read
    # or written as two.
    # Products on Emerald Rapids, ms: 1024^3 9.2 -> 8.5, 512 x 3072 x 768 with B transposed 14.9 -> 10.5.
    aligned = "__attribute__((aligned(64))) "
    prefetch = "PREFETCH({});"
    separate = "SEPARATE;"
    release = "RELEASE;"  # the same for registers too
    aligned_known = ""  # goes before kernels that are told (`whole`) whether all of their vectors are aligned as such
    scope: ClassVar[tuple[str, str]] = ("", "")  # what begins and ends a block of some length; {}: a label
    opaque = "{}"  # a scalar that the compiler learns nothing of
    multiply_add = "fma"  # a lanewise function: a * b + c, rounded once or twice
    unroll = "#pragma unroll"
    rolled = ""  # precedes a loop that is not to be unrolled
    long_suffix = "ul"
    unsigned_names: ClassVar[dict[str, str]] = {"i8": "uchar", "i16": "ushort", "i32": "uint", "i64": "ulong"}
    signed_names: ClassVar[dict[str, str]] = {"i1": "int", "i8": "char", "i16": "short", "i32": "int", "i64": "long"}

    def id(self, name: str, axis: int, meets: bool) -> str:
        """Where a work item is along an axis. meets: the kernel has barriers or memory of a work-group."""
        return self.ids[name].format(d=self.axes[axis])

    def type(self, t: Type, signed: bool = False) -> str:
        """The C type of a value in registers."""
        if t.element == "i1" and t.width == 1:
            return "bool"
        names = self.signed_names if signed or t.element == "i1" else self.unsigned_names
        name = FLOATS.get(t.element) or names[t.element]
        return name if t.width == 1 else self.vector(name, t.width)

    def vector(self, name: str, width: int) -> str:
        """The vector type of a scalar type."""
        return f"{name}{width}"

    def memory(self, element: str) -> str:
        """The C type of an element in memory."""
        return self.unsigned_names["i16"] if element in HALVES else FLOATS.get(element) or self.unsigned_names[element]

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
        """One lane of a vector."""
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
        return x if t.width == 1 or t.bits == 32 else self.convert(x, t.to("i1"))

    def select(self, c: str, a: str, b: str, t: Type, lanes: int, raw: bool = False, signed: bool = False) -> str:
        """a where c else b. c is i1 with `lanes` lanes, or, if raw, a comparison of values of type t.

        signed: a and b are of the signed type, as an index is.
        """
        if lanes > 1 and not raw and t.bits != 32:
            c = self.convert(c, t.to(f"i{t.bits}"), signed=True)
        return f"{c} ? {a} : {b}"

    def scalar_call(self, fn: str, args: list[str], t: Type) -> str:
        """A builtin on scalars, by its name or as `builtin_NAME`. float32 functions have their C99 names."""
        fn = fn.removeprefix("builtin_")
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

    def load(self, p: str, i: str, t: Type, space: str, known: bool = False) -> str:
        """Elements from p[i] on, which is in an address space; halves as their bits. known: see `aligned_known`."""
        return f"{p}[{i}]" if t.width == 1 else self.load_vector(p, i, t, space, known)

    def store(self, x: str, p: str, i: str, t: Type, space: str, known: bool = False) -> str:
        """The statement that writes elements from p[i] on; halves as their bits."""
        return f"{p}[{i}] = {x};" if t.width == 1 else self.store_vector(x, p, i, t, space, known)

    def load_vector(self, p: str, i: str, t: Type, space: str, known: bool) -> str:
        """Lanes that are aligned as one element."""
        where = f"{self.spaces[space].strip() or '__private'}, {self.memory(t.element)}, {t.width}"
        return f"KNOWN_LOAD({where}, {p} + {i})" if known else f"LOAD({where}, {p} + {i})"

    def store_vector(self, x: str, p: str, i: str, t: Type, space: str, known: bool) -> str:
        """The statement that writes lanes, aligned as one element."""
        where = f"{self.spaces[space].strip() or '__private'}, {self.memory(t.element)}, {t.width}"
        return f"KNOWN_STORE({where}, {x}, {p} + {i});" if known else f"STORE({where}, {x}, {p} + {i});"

    def atomic(self, p: Printer, kind: str, t: Type, space: str, memory: str, i: str, x: str) -> str:
        """The statement that combines x into memory[i] atomically."""
        return p.need(f"atomic_{kind}_{space}", [f"{memory} + {i}", x], t) + ";"

    # Kinds that are one instruction on a 32-bit integer, and the type it wants
    native_atomics: ClassVar[dict[str, tuple[str, str]]] = {
        "addi": ("atomic_add", "uint"), "andi": ("atomic_and", "uint"), "ori": ("atomic_or", "uint"),
        "maxs": ("atomic_max", "int"), "mins": ("atomic_min", "int"), "maxu": ("atomic_max", "uint"),
        "minu": ("atomic_min", "uint"), "assign": ("atomic_xchg", "uint"),
    }  # fmt: skip
    compare_and_swap: ClassVar[dict[int, str]] = {32: "atomic_cmpxchg", 64: "atom_cmpxchg"}
    pointer = "{space}{type} *"
    volatile_pointer = "volatile {space}{type} *"

    def library_function(self, fn: str, t: Type, text: str) -> str:
        """The function `fn` of the mathlib, whose source is `text`, or an instruction in its place."""
        return text

    def atomic_function(self, kind: str, t: Type, space: str, combine: str) -> str:
        """The function behind `atomic`: an instruction, or an exchange that repeats until nobody came between.

        Elements of 8 and 16 bits are exchanged within their aligned 32 bits.
        """
        memory, value = self.memory(t.element), self.type(t)
        size = 16 if t.element in HALVES else t.bits
        word = self.unsigned_names["i64" if size == 64 else "i32"]

        def pointer(type: str) -> str:
            return self.volatile_pointer.format(space=self.spaces[space], type=type)

        head = f"{self.function} void atomic_{kind}_{space}_{t.suffix}({pointer(memory)}p, {value} x)\n{{\n"
        if size == 32 and t.element == "i32" and kind in self.native_atomics:
            name, type = self.native_atomics[kind]
            return f"{head}    {name}(({pointer(type)})p, ({type})x);\n}}\n"
        swap = self.compare_and_swap[max(size, 32)]
        if size >= 32:
            whole = t.to(f"i{size}")
            old = "old" if t == whole else self.reinterpret("old", t)
            new = f"{combine}({old}, x)"
            lines = [f"{pointer(word)}w = ({pointer(word)})p;"]
            update = new if t == whole else self.reinterpret(new, whole)
        else:
            lines = [
                f"{pointer(word)}w = ({pointer(word)})((size_t)p & ~(size_t)3);",
                f"const {word} shift = ((size_t)p & 3) * 8, mask = {(1 << size) - 1}u << shift;",
            ]
            update = f"(old & ~mask) | (({word})put << shift)"
        lines += [f"{word} seen = *w, old;", "do {", "    old = seen;"]
        if size < 32:
            stored = self.unsigned_names[f"i{size}"]
            lines += [f"    {stored} got = old >> shift, put;", f"    {value} value = {self.unpack('got', t)};"]
            lines += [f"    {self.repack(f'{combine}(value, x)', 'put', t)}"]
        lines += [f"    seen = {swap}(w, old, {update});", "} while (seen != old);"]
        return head + "".join(f"    {line}\n" for line in lines) + "}\n"

    def unpack(self, bits: str, t: Type) -> str:
        """The value of an element of 8 or 16 bits."""
        return f"value_{t.element}_i32({bits})" if t.element in HALVES else bits

    def repack(self, x: str, bits: str, t: Type) -> str:
        """The statement that gives `bits` the bits of a value."""
        return f"{bits} = bits_{t.element}_f32({x});" if t.element in HALVES else f"{bits} = {x};"

    def work_group(self, sizes: list[int]) -> str:
        """What goes before a kernel: the one work-group size that it needs, if any."""
        return f"__attribute__((reqd_work_group_size({', '.join(map(str, sizes))})))\n" if sizes else ""
