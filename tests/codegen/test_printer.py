"""What kernels look like in each language, to the letter, and what the printer refuses."""

from __future__ import annotations

import pytest

from codegen import mlir
from codegen.builder import Builder
from codegen.dialects import language
from codegen.printer import print_kernel, print_source


def source(k: Builder, dialect: str = "opencl") -> str:
    """The source without the header of its language."""
    return print_kernel(k.finish(), dialect).removeprefix(language(dialect).header)


def scale() -> Builder:
    k = Builder("scale", index_bits=64)
    x, y, n, factor = k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("index"), k.arg("f32")
    i = k.global_id(0)
    with k.if_(i < n):
        k.store(y, i, k.load(x, i) * factor + 1.0)
    return k


def test_scale_in_mlir() -> None:
    assert "\n".join(line.strip() for line in mlir.canonical(scale().finish()).splitlines()[2:-2]) == "\n".join(
        [
            "gpu.func @scale(%arg0: memref<?xf32> {llvm.noalias}, %arg1: memref<?xf32>, "
            "%arg2: index, %arg3: f32) kernel {",
            "%cst = arith.constant 1.000000e+00 : f32",
            "%global_id_x = gpu.global_id x",
            "%0 = arith.cmpi slt, %global_id_x, %arg2 : index",
            "scf.if %0 {",
            "%1 = memref.load %arg0[%global_id_x] : memref<?xf32>",
            "%2 = arith.mulf %1, %arg3 : f32",
            "%3 = arith.addf %2, %cst : f32",
            "memref.store %3, %arg1[%global_id_x] : memref<?xf32>",
            "}",
            "gpu.return",
            "}",
        ]
    )


@pytest.mark.parametrize("how, mark", [({}, ""), ({"unroll": True}, "#pragma unroll"), ({"rolled": True}, "ROLLED")])
def test_a_loop_says_whether_it_is_to_be_unrolled(how: dict[str, bool], mark: str) -> None:
    k = Builder("loop", index_bits=32)
    x = k.buffer("f32")
    with k.for_(0, k.arg("index"), **how) as loop:  # type: ignore[arg-type]
        k.store(x, loop.iv, 0.0)
    before = source(k).partition("for (")[0].splitlines()
    marks = [line.strip() for line in before if "unroll" in line or "ROLLED" in line]
    assert marks == [mark] * bool(mark)


def test_a_loop_around_another_is_not_to_be_unrolled() -> None:
    """its body is short, so a compiler would; the inner one is left to the compiler"""
    k = Builder("loops", index_bits=32)
    x = k.buffer("f32")
    with k.for_(0, 6) as outer, k.for_(0, 4) as inner:
        k.store(x, outer.iv * 4 + inner.iv, 0.0)
    lines = [line.strip() for line in source(k).splitlines()]
    loops = [i for i, line in enumerate(lines) if line.startswith("for (")]
    assert [lines[i - 1] == "ROLLED" for i in loops] == [True, False]


def test_scale_in_opencl() -> None:
    assert (
        source(scale())
        == """\
WHOLE
__kernel void scale(const __global float *restrict a0, __global float *a1, long a2, float a3)
{
    long v1 = GLOBAL_ID(0);
    bool v2 = v1 < a2;
    if (v2) {
        float v3 = a0[v1];
        float v4 = v3 * a3;
        float v5 = v4 + 1.0f;
        a1[v1] = v5;
    }
}
"""
    )


def test_scale_in_c() -> None:
    assert (
        source(scale(), "c")
        == """\
void scale(void **args, const uint64_t global[3], const uint64_t local[3])
{
    const float *restrict a0 = *(const float **)args[0];
    float *a1 = *(float **)args[1];
    int64_t a2 = *(int64_t *)args[2];
    float a3 = *(float *)args[3];
    for (int64_t global2 = 0; global2 < (int64_t)global[2]; ++global2) {
        for (int64_t global1 = 0; global1 < (int64_t)global[1]; ++global1) {
            for (int64_t global0 = 0; global0 < (int64_t)global[0]; ++global0) {
                bool v1 = global0 < a2;
                if (v1) {
                    float v2 = a0[global0];
                    float v3 = v2 * a3;
                    float v4 = v3 + 1.0f;
                    a1[global0] = v4;
                }
            }
        }
    }
}
"""
    )


def test_private_arrays_are_aligned_where_vectors_go_through_them() -> None:
    k = Builder("through", index_bits=64)
    x, y, own = k.buffer("f32", readonly=True), k.buffer("f32"), k.private("f32", 32)
    i = k.global_id(0)
    k.store(own, i, k.load(x, i, 16))
    k.store(y, i, k.load(own, i, 16))
    for dialect in ("opencl", "c"):
        assert "__attribute__((aligned(64))) float v1[32];" in source(k, dialect)
    assert "    float v1[32];" in source(k, "cuda")


def test_scale_in_cuda() -> None:
    assert (
        source(scale(), "cuda")
        == """\
extern "C" __global__ void scale(const float *__restrict__ a0, float *a1, long long a2, float a3)
{
    long long v1 = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    bool v2 = v1 < a2;
    if (v2) {
        float v3 = a0[v1];
        float v4 = v3 * a3;
        float v5 = v4 + 1.0f;
        a1[v1] = v5;
    }
}
"""
    )


def test_loop_local_memory_and_vectors_in_opencl() -> None:
    k = Builder("rows", local_size=(16, 1, 1))
    x, y = k.buffer("bf16", readonly=True), k.buffer("f16")
    row, item, scratch = k.group_id(0), k.local_id(0), k.local("f32", 16)
    with k.for_(item * 4, 256, 64, init=[k.const(0, "f32", 4)], unroll=True) as loop:
        loop.yield_(k.map("maximum", loop.args[0], k.load(x, row * 256 + loop.iv, 4)))
    k.store(scratch, item, k.reduce("maximum", loop.results[0]))
    k.barrier()
    last = k.load(scratch, 15 - item)
    k.store(y, row * 16 + item, last)
    printed = source(k)
    assert (
        printed[printed.index("__attribute__((reqd") :]
        == """\
__attribute__((reqd_work_group_size(16, 1, 1)))
WHOLE
__kernel void rows(const __global ushort *restrict a0, __global ushort *a1)
{
    __attribute__((aligned(64))) __local float l0[16];
    ENTER(s1)
    int v1 = get_group_id(0);
    int v2 = get_local_id(0);
    int v3 = v2 * 4;
    float4 v4 = (float4)(0.0f);
    #pragma unroll
    for (int i5 = v3; i5 < 256; i5 += 64) {
        int v6 = v1 * 256;
        int v7 = v6 + i5;
        float4 v8 = value_bf16_i32x4(CONVERT(LOAD(__global, ushort, 4, a0 + v7), uint4));
        float4 v9 = ((v4 > v8) | (v4 != v4)) ? v4 : v8;
        v4 = v9;
    }
    float2 v10 = v4.s01;
    float2 v11 = v4.s23;
    float2 v12 = ((v10 > v11) | (v10 != v10)) ? v10 : v11;
    float v13 = v12.s0;
    float v14 = v12.s1;
    float v15 = ((v13 > v14) | (v13 != v13)) ? v13 : v14;
    l0[v2] = v15;
    barrier(CLK_LOCAL_MEM_FENCE);
    int v16 = 15 - v2;
    float v17 = l0[v16];
    int v18 = v1 * 16;
    int v19 = v18 + v2;
    float v20 = round_f16_f32(v17);
    a1[v19] = (ushort)rounded_bits_f16_f32(v20);
    LEAVE(s1)
}
"""
    )


def test_values_that_swap_in_a_loop_go_through_a_temporary() -> None:
    k = Builder("swap")
    x = k.buffer("f32")
    with k.for_(0, 5, init=[k.load(x, 0), k.load(x, 1)]) as loop:
        a, b = loop.args
        loop.yield_(b, a)
    k.store(x, 0, loop.results[0])
    k.store(x, 1, loop.results[1])
    assert "        float t6 = v3;\n        v3 = v4;\n        v4 = t6;\n" in source(k)


def test_lanes_of_two_vectors_are_one_instruction_to_the_compiler() -> None:
    k = Builder("pairs")
    x = k.buffer("f64")
    a, b = k.load(x, 0, 2), k.load(x, 2, 2)
    k.store(x, 0, k.shuffle(a, b, [0, 2]))
    k.store(x, 2, k.shuffle(a, b, [1, 0]))
    printed = source(k)
    assert "double2 v3 = SHUFFLE2(v1, v2, ulong2, 0, 2);" in printed and "double2 v4 = v1.s10;" in printed
    assert "(double2){v1[0], v2[0]}" in source(k, "c")


def test_integers_are_unsigned_but_where_a_sign_matters() -> None:
    k = Builder("signs")
    x = k.buffer("i32")
    a, b = k.load(x, 0), k.load(x, 1)
    k.store(x, 0, k.select(a < b, a + b, k.map("shr", a, 3)))
    printed = source(k)
    assert "uint v5 = v1 + v2;" not in printed and "uint v4 = v1 + v2;" in printed
    assert "(int)v1 < (int)v2" in printed and "(int)v1 >> 3" in printed


@pytest.mark.parametrize(("dialect", "lines"), [("opencl", 1), ("c", 1), ("cuda", 0)])
def test_what_is_read_after_a_separation_stays_after_it(dialect: str, lines: int) -> None:
    """A statement of its own between the loads; a GPU's schedules need none."""
    k = Builder("apart")
    x, y = k.buffer("f32", readonly=True), k.buffer("f32")
    first = k.load(x, 0)
    k.separate()
    k.store(y, 0, first + k.load(x, 1))
    printed = source(k, dialect)
    assert printed.count("SEPARATE;") == lines
    assert not lines or printed.index("a0[0]") < printed.index("SEPARATE;") < printed.index("a0[1]")


def test_library_functions_are_defined_once_and_before_use() -> None:
    k = Builder("twice")
    x = k.buffer("f32")
    k.store(x, 0, k.map("exp", k.load(x, 0)))
    k.store(x, 1, k.map("exp", k.load(x, 1)))
    printed = source(k)
    assert printed.count("static inline float exp_f32(float x0)") == 1
    assert printed.index("exp_f32(float") < printed.index("__kernel")


def test_halves_are_rounded_by_an_instruction_where_a_compiler_has_one() -> None:
    k = Builder("round")
    x = k.buffer("f16")
    k.store(x, 0, k.load(k.buffer("f32", readonly=True), 0))
    printed = source(k)
    assert "return (float)(half)x0;" in printed
    assert "return as_ushort((half)x0);" in printed
    assert printed.count("uint v2 = v1 & 2147483648u;") == 1  # by operations on the bits for any other compiler


@pytest.mark.parametrize(("width", "value", "number"), [
    (1, "(float)as_half((ushort)x0)", "value == value"),
    (8, "CONVERT(as_half8(CONVERT(x0, ushort8)), float8)", "!any(value != value)"),
])  # fmt: skip
def test_halves_are_read_by_an_instruction_unless_one_is_a_nan(width: int, value: str, number: str) -> None:
    """whose bits it changes"""
    k = Builder("read")
    k.store(k.buffer("f32"), 0, k.load(k.buffer("f16", readonly=True), 0, width))
    printed = source(k)
    assert f"value = {value};\n    if ({number}) return value;\n#endif\n" in printed
    assert "as_half" not in source(k, "c")


def test_plain_copies_of_halves_keep_all_bits() -> None:
    k = Builder("copy")
    x = k.buffer("f16")
    k.store(x, 1, k.load(x, 0))
    assert "(half)" not in source(k)


def test_kernels_of_one_program_share_header_and_functions() -> None:
    first, second = Builder("first"), Builder("second")
    for k in (first, second):
        x = k.buffer("f32")
        k.store(x, 0, k.map("exp", k.load(x, 0)))
    second.store(x, 1, second.map("sinh", second.load(x, 1)))
    one, other = (print_source(k.finish(), "opencl") for k in (first, second))
    printed = one.program(other)
    assert printed.count(language("opencl").header) == 1
    assert printed.count("static inline float exp_f32(float x0)") == printed.count("sinh_f32(float x0)") == 1
    assert printed.index("sinh_f32(float x0)") < printed.index("__kernel void first") < printed.index("void second")


def test_memory_can_be_given_as_numbers() -> None:
    k = Builder("scaled", 32, (4, 1, 1))
    x, y, factor = k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("f32")
    shared = k.local("f32", 4)
    k.store(shared, k.local_id(0), k.load(x, k.global_id(0)) * factor)
    k.barrier()
    k.store(y, k.global_id(0), k.load(shared, 3 - k.local_id(0)))
    text = k.finish()
    pointers, numbers = (print_source(text, "opencl", addresses).kernel for addresses in (False, True))
    assert "ulong" not in pointers
    assert "scaled(ulong n0, ulong n1, float a2)" in numbers
    for line in ("const __global float *", "__global float *"):
        assert numbers.count(f" = ({line})n") == 1
    assert print_source(text, "c", True) == print_source(text, "c")


def test_memory_given_as_numbers_can_be_said_to_lie_apart() -> None:
    """By parameters of a function, where compilers heed it; what is written in place is not said to."""
    k = Builder("scaled", 32, (4, 1, 1))
    x, y, factor = k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("f32")
    shared = k.local("f32", 4)
    k.store(shared, k.local_id(0), k.load(x, k.global_id(0)) * factor)
    k.barrier()
    k.store(y, k.global_id(0), k.load(y, k.global_id(0)) + k.load(shared, 3 - k.local_id(0)))
    text = k.finish()
    printed = print_source(text, "opencl", True, apart=True).kernel
    taken = "const __global float *restrict a0, __global float *a1, float a2, __local float *l0"
    head = "__attribute__((reqd_work_group_size(4, 1, 1)))\nWHOLE\n"
    assert printed.startswith(f"{language('opencl').function} void scaled_apart({taken})\n{{\n")
    assert printed.endswith(
        f"""\
}}
{head}__kernel void scaled(ulong n0, ulong n1, float a2)
{{
    __attribute__((aligned(64))) __local float l0[4];
    scaled_apart((const __global float *)n0, (__global float *)n1, a2, l0);
}}
"""
    )
    assert print_source(text, "opencl", apart=True) == print_source(text, "opencl")
    assert print_source(text, "c", True, apart=True) == print_source(text, "c")


def test_a_kernel_without_memory_of_its_own_says_nothing_of_it() -> None:
    k = Builder("twice")
    x = k.buffer("f32")
    k.store(x, k.global_id(0), k.load(x, k.global_id(0)) * 2.0)
    text = k.finish()
    assert print_source(text, "opencl", True, apart=True) == print_source(text, "opencl", True)


def test_constants_fold_and_repeated_work_is_done_once() -> None:
    k = Builder("fold")
    x = k.buffer("f32")
    a, b = k.map("exp", k.load(x, 0)), k.map("exp", k.load(x, 0))
    k.store(x, k.global_id(0) * 1 + 0, a + b * (k.const(2.0, "f32") * 3))
    printed = source(k)
    kernel = printed[printed.index("__kernel") :]
    assert kernel.count("exp_f32") == 1
    assert "6.0f" in kernel and "* 1" not in kernel


def test_text_that_does_not_verify_is_refused() -> None:
    with pytest.raises(Exception, match=r"arith\.addf"):
        print_kernel("module { func.func @f(%a: i32) { %0 = arith.addf %a, %a : i32\n return } }", "opencl")


def test_an_operation_without_a_rule_is_named() -> None:
    k = Builder("strange")
    k._line('gpu.printf "hello"')
    with pytest.raises(NotImplementedError, match=r"gpu\.printf"):
        print_kernel(k.finish(), "opencl")


def test_languages() -> None:
    with pytest.raises(KeyError):
        language("fortran")
