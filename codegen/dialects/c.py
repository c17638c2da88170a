"""C99 with the vector types of GCC and clang, for `cc -O2 -march=native -ffp-contract=off -shared -fPIC`.

A kernel is one function that loops over work groups and work items itself (`codegen.work_items`):

    void NAME(void **args, const uint64_t global[3], const uint64_t local[3]);

args[i] points at a buffer's address or at a scalar's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from codegen.dialects.base import HALVES, Language, Type, combination

if TYPE_CHECKING:
    from codegen.printer import Printer

HEADER = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#pragma STDC FP_CONTRACT OFF
#define TYPES(T, name) VECTOR(T, name, 2) VECTOR(T, name, 4) VECTOR(T, name, 8) VECTOR(T, name, 16) VECTOR(T, name, 32)
#define VECTOR(T, name, n) \\
    typedef T name##n __attribute__((vector_size(n * sizeof(T)))); \\
    typedef T name##n##_at __attribute__((vector_size(n * sizeof(T)), aligned(sizeof(T)), may_alias));
TYPES(float, float) TYPES(double, double)
TYPES(uint8_t, uint8x) TYPES(uint16_t, uint16x) TYPES(uint32_t, uint32x) TYPES(uint64_t, uint64x)
TYPES(int8_t, int8x) TYPES(int16_t, int16x) TYPES(int32_t, int32x) TYPES(int64_t, int64x)
#define PREFETCH(at) __builtin_prefetch(at)
#define SEPARATE __asm__ volatile("" ::: "memory")
static __attribute__((noinline, unused)) void release(void) { SEPARATE; }
#define RELEASE release()
static inline float as_float(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
static inline uint32_t as_uint32_t(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
static inline double as_double(uint64_t x) { double y; memcpy(&y, &x, 8); return y; }
static inline uint64_t as_uint64_t(double x) { uint64_t y; memcpy(&y, &x, 8); return y; }
"""


class C(Language):
    """Vectors have the operators of the language; what else they need is written lane by lane."""

    name = "c"
    header = HEADER
    kernel = ""
    function = "static inline"
    spaces: ClassVar[dict[str, str]] = {"global": "", "workgroup": "", "private": ""}
    ids: ClassVar[dict[str, str]] = {
        "gpu.global_id": "global{d}",
        "gpu.thread_id": "local{d}",
        "gpu.block_id": "group{d}",
        "gpu.block_dim": "local[{d}]",
        "gpu.grid_dim": "groups{d}",
    }
    unroll = "#pragma GCC unroll 16"
    long_suffix = "ull"
    unsigned_names: ClassVar[dict[str, str]] = {
        "i8": "uint8_t",
        "i16": "uint16_t",
        "i32": "uint32_t",
        "i64": "uint64_t",
    }
    signed_names: ClassVar[dict[str, str]] = {
        "i1": "int32_t",
        "i8": "int8_t",
        "i16": "int16_t",
        "i32": "int32_t",
        "i64": "int64_t",
    }

    def vector(self, name: str, width: int) -> str:
        """The vector type of a scalar type."""
        return f"{name.replace('_t', 'x')}{width}"

    def splat(self, x: str, t: Type, signed: bool = False) -> str:
        """A scalar in every lane."""
        return self.pack([x] * t.width, t, signed)

    def pack(self, lanes: list[str], t: Type, signed: bool = False) -> str:
        """A vector of scalars."""
        return f"({self.type(t, signed)}){{{', '.join(lanes)}}}"

    def lane(self, x: str, i: int) -> str:
        """One lane of a vector."""
        return f"{x}[{i}]"

    def any(self, x: str, t: Type) -> str:
        """Whether an i1 vector has a true lane."""
        return f"({' | '.join(self.lane(x, i) for i in range(t.width))}) != 0"

    def shuffle(self, x: str, y: str, lanes: list[int], width: int, t: Type) -> str:
        """Lanes picked from x followed by y, `width` lanes each."""
        return self.pack([self.lane(x if i < width else y, i % width) for i in lanes], t)

    def convert(self, x: str, target: Type, signed: bool = False) -> str:
        """The value in another type."""
        name = self.type(target, signed)
        return f"({name}){x}" if target.width == 1 else f"__builtin_convertvector({x}, {name})"

    def reinterpret(self, x: str, target: Type, signed: bool = False) -> str:
        """The bits as another type of the same size."""
        name = self.type(target, signed)
        return f"as_{name}({x})" if target.width == 1 else f"({name})({x})"

    def select(self, c: str, a: str, b: str, t: Type, lanes: int, raw: bool = False, signed: bool = False) -> str:
        """a where c else b, lane by lane."""
        if lanes == 1:
            return super().select(c, a, b, t, lanes)
        mask = t.to("i1" if t.bits == 32 else f"i{t.bits}")
        c = c if raw or t.bits == 32 else self.convert(c, mask, signed=True)
        bits = self.type(mask, True)
        return f"({self.type(t, signed)})((({c}) & ({bits}){a}) | (~({c}) & ({bits}){b}))"

    def atomic(self, p: Printer, kind: str, t: Type, space: str, memory: str, i: str, x: str) -> str:
        """Work items run one after the other: a plain update."""
        fn, value = combination(kind, t)
        old = self.load(memory, i, t, space)
        if t.element not in HALVES:
            return self.store(p.need(fn, [old, x], value), memory, i, t, space)
        return self.store(p.half_bits(p.need(fn, [p.half_value(old, t), x], value), t), memory, i, t, space)

    def load_vector(self, p: str, i: str, t: Type, space: str, known: bool) -> str:
        """Lanes, aligned as one element."""
        return f"*(const {self.type(t._replace(element=self.stored(t)))}_at *)({p} + {i})"

    def store_vector(self, x: str, p: str, i: str, t: Type, space: str, known: bool) -> str:
        """The statement that writes lanes, aligned as one element."""
        return f"*({self.type(t._replace(element=self.stored(t)))}_at *)({p} + {i}) = {x};"

    def stored(self, t: Type) -> str:
        """The element that a type is in memory."""
        return "i16" if t.element in HALVES else t.element


LANGUAGE = C()
