"""CUDA C++, for `nvcc -fmad=false` or NVRTC (products and sums must not be contracted).

Vectors are a template with the operators of the language: registers, not instructions, so kernels for these chips
use them for memory access only.
"""

from __future__ import annotations

import math
from typing import ClassVar

from codegen.dialects.base import Language, Type

HEADER = """\
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
template <class T, int N> struct vec {
    T v[N];
};
#define OPERATOR(op) \\
    template <class T, class U, int N> __device__ vec<T, N> operator op(vec<T, N> a, vec<U, N> b) { \\
        for (int i = 0; i < N; ++i) a.v[i] = a.v[i] op b.v[i]; \\
        return a; \\
    } \\
    template <class T, class U, int N> __device__ vec<T, N> operator op(vec<T, N> a, U b) { \\
        for (int i = 0; i < N; ++i) a.v[i] = a.v[i] op b; \\
        return a; \\
    }
OPERATOR(+) OPERATOR(-) OPERATOR(*) OPERATOR(/) OPERATOR(%)
OPERATOR(&) OPERATOR(|) OPERATOR(^) OPERATOR(<<) OPERATOR(>>)
#define COMPARISON(op) \\
    template <class T, int N> __device__ vec<int, N> operator op(vec<T, N> a, vec<T, N> b) { \\
        vec<int, N> c; \\
        for (int i = 0; i < N; ++i) c.v[i] = -(a.v[i] op b.v[i]); \\
        return c; \\
    }
COMPARISON(==) COMPARISON(!=) COMPARISON(<) COMPARISON(<=) COMPARISON(>) COMPARISON(>=)
template <class T, int N> __device__ vec<T, N> operator-(vec<T, N> a) {
    for (int i = 0; i < N; ++i) a.v[i] = -a.v[i];
    return a;
}
template <class T, int N> __device__ bool any(vec<T, N> a) {
    bool found = false;
    for (int i = 0; i < N; ++i) found |= a.v[i] != 0;
    return found;
}
template <class T, int N> __device__ vec<T, N> select(vec<int, N> c, vec<T, N> a, vec<T, N> b) {
    for (int i = 0; i < N; ++i) a.v[i] = c.v[i] ? a.v[i] : b.v[i];
    return a;
}
template <class T, class U, int N> __device__ vec<T, N> convert(vec<U, N> a) {
    vec<T, N> b;
    for (int i = 0; i < N; ++i) b.v[i] = (T)a.v[i];
    return b;
}
template <class T, class U> __device__ T as(U a) {
    static_assert(sizeof(T) == sizeof(U), "bits of two sizes");
    T b;
    memcpy(&b, &a, sizeof(T));
    return b;
}
"""


UINT = "unsigned int"


class Cuda(Language):
    """Vectors are `vec<type, lanes>`, aligned as one element."""

    name = "cuda"
    header = HEADER
    kernel = "__global__ void"
    function = "__device__ static inline"
    spaces: ClassVar[dict[str, str]] = {"global": "", "workgroup": "__shared__ ", "private": ""}
    ids: ClassVar[dict[str, str]] = {
        "gpu.global_id": "blockIdx.{d} * (size_t)blockDim.{d} + threadIdx.{d}",
        "gpu.thread_id": "threadIdx.{d}",
        "gpu.block_id": "blockIdx.{d}",
        "gpu.block_dim": "blockDim.{d}",
        "gpu.grid_dim": "gridDim.{d}",
    }
    axes = "xyz"
    barrier = "__syncthreads();"
    long_suffix = "ull"
    aligned = ""  # registers
    prefetch = ""  # other warps run meanwhile
    separate = release = ""  # its schedules need none
    restrict = "__restrict__ "
    unsigned_names: ClassVar[dict[str, str]] = {
        "i8": "unsigned char",
        "i16": "unsigned short",
        "i32": "unsigned int",
        "i64": "unsigned long long",
    }
    signed_names: ClassVar[dict[str, str]] = {
        "i1": "int",
        "i8": "signed char",
        "i16": "short",
        "i32": "int",
        "i64": "long long",
    }
    native_atomics: ClassVar[dict[str, tuple[str, str]]] = {
        "addi": ("atomicAdd", UINT), "andi": ("atomicAnd", UINT), "ori": ("atomicOr", UINT),
        "maxs": ("atomicMax", "int"), "mins": ("atomicMin", "int"), "maxu": ("atomicMax", UINT),
        "minu": ("atomicMin", UINT), "assign": ("atomicExch", UINT),
    }  # fmt: skip
    compare_and_swap: ClassVar[dict[int, str]] = {32: "atomicCAS", 64: "atomicCAS"}
    pointer = volatile_pointer = "{type} *"

    def vector(self, name: str, width: int) -> str:
        """The vector type of a scalar type."""
        return f"vec<{name}, {width}>"

    def splat(self, x: str, t: Type, signed: bool = False) -> str:
        """A scalar in every lane."""
        return self.pack([x] * t.width, t, signed)

    def pack(self, lanes: list[str], t: Type, signed: bool = False) -> str:
        """A vector of scalars."""
        return f"{self.type(t, signed)}{{{{{', '.join(lanes)}}}}}"

    def lane(self, x: str, i: int) -> str:
        """One lane of a vector."""
        return f"{x}.v[{i}]"

    def shuffle(self, x: str, y: str, lanes: list[int], width: int, t: Type) -> str:
        """Lanes picked from x followed by y, `width` lanes each."""
        return self.pack([self.lane(x if i < width else y, i % width) for i in lanes], t)

    def convert(self, x: str, target: Type, signed: bool = False) -> str:
        """The value in another type."""
        scalar = self.type(target._replace(width=1), signed)
        return f"({scalar}){x}" if target.width == 1 else f"convert<{scalar}>({x})"

    def reinterpret(self, x: str, target: Type, signed: bool = False) -> str:
        """The bits as another type of the same size."""
        return f"as<{self.type(target, signed)}>({x})"

    def compare(self, x: str, t: Type) -> str:
        """Comparisons of vectors give i1 lanes already."""
        return x

    def select(self, c: str, a: str, b: str, t: Type, lanes: int, raw: bool = False, signed: bool = False) -> str:
        """a where c else b, lane by lane."""
        return f"{c} ? {a} : {b}" if lanes == 1 else f"select({c}, {a}, {b})"

    def load_vector(self, p: str, i: str, t: Type, space: str, known: bool) -> str:
        """Lanes, aligned as one element."""
        return f"*(const {self.vector(self.memory(t.element), t.width)} *)({p} + {i})"

    def store_vector(self, x: str, p: str, i: str, t: Type, space: str, known: bool) -> str:
        """The statement that writes lanes, aligned as one element."""
        return f"*({self.vector(self.memory(t.element), t.width)} *)({p} + {i}) = {x};"

    def work_group(self, sizes: list[int]) -> str:
        """Linkage by name, and the number of work items where it is known."""
        return 'extern "C" ' + (f"__launch_bounds__({math.prod(sizes)}) " if sizes else "")


LANGUAGE = Cuda()
