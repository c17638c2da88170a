"""OpenCL C 1.2 and later. No optional feature is needed for half types; double needs the device's cl_khr_fp64."""

from __future__ import annotations

from codegen.dialects.base import Language, Type

# Some drivers make a call of each builtin, which no loop vectoriser gets over (PoCL 3.0: fma 10 ms instead of
# 1 ms over 4 M floats); the compiler's own builtins become instructions.
INSTRUCTIONS = ("fma", "fabs", "sqrt", "rint", "round", "floor", "ceil", "trunc", "copysign")
EXTENSIONS = tuple(
    line
    for name in ("cl_khr_int64_base_atomics", "cl_khr_fp16")
    for line in (f"#ifdef {name}", f"#pragma OPENCL EXTENSION {name} : enable", "#endif")
)
# Functions that are one or two instructions where a compiler knows half types: of scalars, and of vectors of {n}.
# 2 Mi floats to halves on Zen 4: 300 us by 30 operations on their bits, 95 so.
OF_HALVES = {
    "round_f16": ("(float)(half)x0", "CONVERT(CONVERT(x0, half{n}), float{n})"),
    "rounded_bits_f16": ("as_ushort((half)x0)", "CONVERT(as_ushort{n}(CONVERT(x0, half{n})), uint{n})"),
}
# The values of halves by an instruction too, of scalars and of vectors, unless one is a NaN, whose bits that changes.
# 1 Mi halves on Zen 3, us, by operations on bits / so: sum of rows 137 / 110, x + y 274 / 198, layer norm 355 / 288.
VALUE_OF_HALF = "(float)as_half((ushort)x0)", "CONVERT(as_half{n}(CONVERT(x0, ushort{n})), float{n})"
# Intel's CPU runtime puts work-items side by side into vectors. Where most use vectors and some a loop, that undoes the
# vectors: a five-point stencil over rows of 766 floats, whose last 14 a loop computes, took 968 us instead of 98 (768 x
# 768). It also spends a third of a build on trying (the 18 products and the attention of examples/gpt.py: 7.0 s of
# processor time instead of 4.9). Kernels have vectors of their own wherever they pay.
WHOLE = (
    "#if defined(cl_intel_required_subgroup_size) && defined(LAZY_ON_CPU)",
    "#define WHOLE __attribute__((intel_reqd_sub_group_size(1)))",
    "#else",
    "#define WHOLE",
    "#endif",
)
# Vectors that are aligned as one element. With vload and vstore each access is a call, which Intel's compiler picks of
# many overloads and asks with ten regular expressions whether it is a sort. Without them the 47 programs of
# examples/gpt.py take 3.8 s of processor time to build in place of 4.5 (Zen 5).
AS_ELEMENTS = (
    "#define AT(type, n) typedef type type##n##_at __attribute__((ext_vector_type(n), aligned(sizeof(type))));",
    "#define EACH(type) AT(type, 2) AT(type, 4) AT(type, 8) AT(type, 16)",
    "EACH(uchar) EACH(ushort) EACH(uint) EACH(ulong) EACH(float)",
    "#ifdef cl_khr_fp64",
    "EACH(double)",
    "#endif",
    "#define LOAD(space, type, n, at) (*(const space type##n##_at *)(at))",
    "#define STORE(space, type, n, x, at) *(space type##n##_at *)(at) = x",
)
# A GPU's vectors are one access where they are aligned as a whole, which only the address tells, else one a lane:
# written as such, since LLVM makes one of two vectors that differ in nothing but what is known of their address.
AS_THEY_LIE = (
    "#define WHOLE_AT(type, n, at) (((ulong)(at) & (sizeof(type##n) - 1)) == 0)",
    "#define LOAD(space, type, n, at) \\",
    "    (WHOLE_AT(type, n, at) ? *(const space type##n *)(at) : (type##n)(LANES##n((const space type *)(at))))",
    "#define STORE(space, type, n, x, at) \\",
    "    { if (WHOLE_AT(type, n, at)) *(space type##n *)(at) = x; else PUT##n((space type *)(at), x) }",
)

# The same where `whole`, a constant of each call of a function, tells of all vectors. Where it says no none asks: with
# questions in the one body clang 16 loads a row three times in the other as well (softmax: 12 loads in place of 4).
KNOWN = """\
#define KNOWN_LOAD(space, type, n, at) \\
    (whole ? *(const space type##n *)(at) : (type##n)(LANES##n((const space type *)(at))))
#define KNOWN_STORE(space, type, n, x, at) \\
    { if (whole) *(space type##n *)(at) = x; else PUT##n((space type *)(at), x) }
"""


def vectors() -> list[str]:
    """Vectors in memory, which are aligned as their elements. PUTn(at, x) writes one lane by lane, LANESn(at) lists."""
    lines = []
    for width in (2, 4, 8, 16):
        lines.append(f"#define LANES{width}(at) {', '.join(f'(at)[{n}]' for n in range(width))}")
        lines.append(f"#define PUT{width}(at, x) {{ {' '.join(f'(at)[{n}] = (x).s{n:x};' for n in range(width))} }}")
    return ["#if defined(__clang__) && defined(LAZY_ON_CPU)", *AS_ELEMENTS, "#else", *lines, *AS_THEY_LIE, "#endif"]


# Intel's compiler makes the bounds of its loops over work items of what a kernel compares its number with, and where
# numbers become pointers before takes one kernel's for another's in the program (2026.22, "sycl-kernel-wg-loop-bound":
# of three merges of sorted runs one wrote its values elsewhere). It is not to know which number that is, but in
# kernels whose work items meet, which it cannot compile without (a barrier and local memory: SIGSEGV), and which no
# schedule for a CPU has.
IDS = (
    "#if defined(__clang__) && defined(LAZY_HIDDEN_IDS)",
    '#define GLOBAL_ID(d) ({ size_t id = get_global_id(d); __asm__("" : "+r"(id)); id; })',
    "#else",
    "#define GLOBAL_ID(d) get_global_id(d)",
    "#endif",
)
# A variable that a jump passes by has no marks of its lifetime, which Intel's compiler takes for calls (as above, and
# each of several passes asks anew): the 47 programs take 3.4 s in place of 3.8. The jump itself is never compiled.
SCOPE = (
    "#if defined(__clang__) && defined(LAZY_ON_CPU)",
    "#define ENTER(label) if (0) goto label;",
    "#define LEAVE(label) label:;",
    "#define ROLLED __attribute__((opencl_unroll_hint(1)))",
    '#define OPAQUE(x) ({ __typeof__(x) same = x; __asm__("" : "+r"(same)); same; })',
    "#else",
    "#define OPAQUE(x) x",
    "#define ENTER(label)",
    "#define LEAVE(label)",
    "#define ROLLED",
    "#endif",
)

# A term of a sum. A builtin is a call even where it is an instruction, which each of several passes asks as above; this
# becomes one when instructions are selected: the 46 kernels of examples/gpt.py take 2.02 s in place of 2.27 (Zen 4).
# That holds for a product that nothing else uses, so not for chains whose bits matter: those say fma.
MULADD = """\
#if defined(__clang__) && defined(LAZY_ON_CPU)
#pragma clang fp contract(fast)
    return x * y + z;
#else
    return fma(x, y, z);
#endif
"""


# 200,000 additions into 4,096 floats on an H100: 8 us, 15 with a compare and swap; all into one float 354 and 154.
NVIDIA_ADD = '    __asm__ volatile("red.global.add.f32 [%0], %1;" :: "l"(p), "f"(x) : "memory");\n'


# No register holds its value over a call, and this one stays one.
RELEASE = (
    "#if defined(__clang__) && defined(LAZY_ON_CPU)",
    '__attribute__((noinline)) static void release() { __asm__ volatile("" ::: "memory"); }',
    "#define RELEASE release()",
    "#else",
    "#define RELEASE",
    "#endif",
)


def shuffles() -> list[str]:
    """Lanes of two vectors by their numbers. Lane by lane a transpose of 16 x 16 floats is 2,048 instructions to the
    compiler: the 47 programs of examples/gpt.py take 3.7 s of processor time to build in place of 4.2 (Zen 5), and the
    largest binaries have half of the bytes."""
    lines = []
    for width in (2, 4, 8, 16):
        lanes = ", ".join(f"i{n}" for n in range(width))
        define = f"#define SHUFFLE{width}(x, y, mask, {lanes})"
        lines += ["#ifdef __clang__", f"{define} __builtin_shufflevector(x, y, {lanes})"]
        lines += ["#else", f"{define} shuffle2(x, y, (mask)({lanes}))", "#endif"]
    return lines


def header() -> str:
    """Contraction off, so that each operation rounds; C99 names of scalar float32 functions; vector conversion."""
    lines = ["#pragma OPENCL FP_CONTRACT OFF", *EXTENSIONS, *WHOLE, *vectors(), *SCOPE, *IDS, *RELEASE, *shuffles()]
    lines += ["#define fmodf fmod", "#define exp2f exp2"]
    lines += ["#ifdef __clang__", "#define CONVERT(x, type) __builtin_convertvector(x, type)"]
    # Not the language's prefetch, which Intel's runtime makes nothing of (layer norm as slow as without).
    lines += ["#define PREFETCH(at) __builtin_prefetch(at)", '#define SEPARATE __asm__ volatile("" ::: "memory")']
    lines += [f"#define {name}f __builtin_{name}f" for name in INSTRUCTIONS]
    lines += ["#else", "#define CONVERT(x, type) convert_##type(x)", "#define PREFETCH(at) prefetch(at, 1)"]
    lines += ["#define SEPARATE"]
    lines += ["#define __has_builtin(x) 0"]
    lines += [f"#define {name}f {name}" for name in INSTRUCTIONS]
    return "\n".join([*lines, "#endif", ""])


class OpenCL(Language):
    """The base is OpenCL C already."""

    header = header()
    whole = "WHOLE\n"
    aligned_known = KNOWN
    scope = ("ENTER({})", "LEAVE({})")
    rolled = "ROLLED"
    opaque = "OPAQUE({})"
    multiply_add = "muladd"

    def atomic_function(self, kind: str, t: Type, space: str, combine: str) -> str:
        """NVIDIA's GPUs add floats in one instruction, for which OpenCL has no name."""
        text = super().atomic_function(kind, t, space, combine)
        if (kind, t.element, space) != ("addf", "f32", "global"):
            return text
        head = text[: text.index("{") + 2]
        return f"#ifdef __NV_CL_C_VERSION\n{head}{NVIDIA_ADD}}}\n#else\n{text}#endif\n"

    def library_function(self, fn: str, t: Type, text: str) -> str:
        """Halves by instructions where the compiler is known to have them: Intel's, for CPUs."""
        known = "#if defined(cl_khr_fp16) && defined(__clang__) && defined(LAZY_ON_CPU)"
        if fn == "value_f16":
            head, opening, rest = text.partition("{\n")
            value = VALUE_OF_HALF[t.width > 1].format(n=t.width)
            number = "!any(value != value)" if t.width > 1 else "value == value"
            early = f"    {self.type(t.to('f32'))} value = {value};\n    if ({number}) return value;"
            return f"{head}{opening}{known}\n{early}\n#endif\n{rest}"
        if fn not in OF_HALVES:
            return text
        head = text[: text.index("{")]
        body = OF_HALVES[fn][t.width > 1].format(n=t.width)
        return f"{known}\n{head}{{\n    return {body};\n}}\n#else\n{text}#endif\n"

    def id(self, name: str, axis: int, meets: bool) -> str:
        """The number of a work item in the launch is hidden from a CPU's compiler (see GLOBAL_ID)."""
        return f"GLOBAL_ID({axis})" if name == "gpu.global_id" and not meets else super().id(name, axis, meets)

    def shuffle(self, x: str, y: str, lanes: list[int], width: int, t: Type) -> str:
        """Lanes picked from x followed by y, `width` lanes each."""
        if t.width == 1 or max(lanes) < width:
            return super().shuffle(x, y, lanes, width, t)
        mask = self.type(t.to(f"i{t.bits}"))
        return f"SHUFFLE{t.width}({x}, {y}, {mask}, {', '.join(map(str, lanes))})"

    def lanes_body(self, fn: str, names: str, lanes: str) -> str:
        """Vectors go whole to a compiler that has the function for them: 16 lanes in a long chain are too many for it.

        clang before 17 has no fma for vectors, but fuses x * y + z in a function where it is allowed to.
        """
        call = f"({', '.join(names)})"
        if fn == "muladd":
            return MULADD
        if fn not in INSTRUCTIONS:
            return super().lanes_body(fn, names, lanes)  # a driver's vector version may have other bits
        name = {"fabs": "abs"}.get(fn, fn)  # clang's, for floats too
        before, fallback = "", lanes
        if fn == "fma":
            before, fallback = "#pragma OPENCL FP_CONTRACT ON\n", "x * y + z"
        return (
            f"{before}#if __has_builtin(__builtin_elementwise_{name})\n"
            f"    return __builtin_elementwise_{name}{call};\n"
            f"#elif defined(__clang__)\n    return {fallback};\n#else\n    return {fn}{call};\n#endif\n"
        )


LANGUAGE = OpenCL()
