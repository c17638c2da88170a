"""Stage 3: kernels are compiled, take their arguments, and run on the whole grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lazy_backend.driver.base import Address, Arg, Buffer, Local, Scalar
from lazy_backend.driver.errors import BuildFailed, DriverError
from lazy_backend.porting.bench import Bench, CheckFailed, expect

from . import check

Size = tuple[int, int, int]
ENTRIES = ("program_load", "kernel_create", "launch")
AT_EACH = (1, 1, 1)


def source(
    b: Bench, name: str, write: Callable[[Any], None], local_size: Size | None = None, addresses: bool = False
) -> str:
    """A kernel written with codegen's builder, in the chip's language. codegen is imported where a chip compiles."""
    from codegen.builder import Builder
    from codegen.printer import print_source

    k = Builder(name, index_bits=64, local_size=local_size)
    write(k)
    return print_source(k.finish(), b.caps.language, addresses).program()


def kernel(
    b: Bench, name: str, write: Callable[[Any], None], local_size: Size | None = None, addresses: bool = False
) -> Any:
    """The built kernel. addresses: it takes numbers for memory."""
    b.needs(*ENTRIES)
    program = b.device.program_load(source(b, name, write, local_size, addresses).encode(), False, "")
    return b.device.kernel_create(program, name)


def launch(b: Bench, made: Any, global_size: Size, local_size: Size, args: list[Arg]) -> None:
    """Launch, and wait."""
    b.device.launch(b.queue, made, global_size, local_size, args)
    b.device.synchronize(b.queue)


def _scale(k: Any) -> None:
    """y[i] = x[i] * s."""
    x, y, s = k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("f32")
    i = k.global_id(0)
    k.store(y, i, k.load(x, i) * s)


def _scalar(value: float, dtype: str) -> Scalar:
    return Scalar(np.asarray(value, dtype).tobytes())


@check()
def first_kernel(b: Bench) -> None:
    """A kernel with two buffers and a scalar computes y = x * s."""
    x = np.arange(1000, dtype=np.float32)
    mem = b.alloc(4000)
    launch(b, kernel(b, "scale", _scale), (1000, 1, 1), AT_EACH, [Buffer(b.upload(x)), Buffer(mem), _scalar(3, "f4")])
    got = b.get(mem, 1000, np.float32)
    expect((got == 3 * x).all(), f"y = x * 3 gave {got[:4]} for {x[:4]}: are arguments passed in order?")


@check()
def every_scalar_type(b: Bench) -> None:
    """Scalars of 4 and 8 bytes arrive with all their bits."""
    values = {"i32": (-123456789, "i4"), "i64": (-(2**52) - 12345, "i8"), "f32": (math.pi, "f4"), "f64": (math.e, "f8")}
    for dtype, (value, numpy) in values.items():
        if dtype == "f64" and not b.caps.has_f64:
            continue

        def write(k: Any, dtype: str = dtype) -> None:
            out, v = k.buffer(dtype), k.arg(dtype)
            k.store(out, k.global_id(0), v)

        mem = b.alloc(8 * 16)
        launch(b, kernel(b, f"fill_{dtype}", write), (16, 1, 1), AT_EACH, [Buffer(mem), _scalar(value, numpy)])
        got = b.get(mem, 16, numpy)
        expect((got == np.asarray(value, numpy)).all(), f"a scalar argument {dtype} of {value} arrived as {got[0]}")


@check()
def buffers_with_offsets(b: Bench) -> None:
    """A buffer argument begins at its offset, as an address where the chip takes these."""
    step, addresses = b.caps.mem_alignment, b.caps.address_args
    memory = Address if addresses else Buffer
    x = np.arange(4096, dtype=np.float32)
    src, dst = b.upload(x), b.upload(np.zeros_like(x))
    made = kernel(b, "scale", _scale, addresses=addresses)
    for offset in (step, 3 * step):
        launch(b, made, (100, 1, 1), AT_EACH, [memory(src, offset), memory(dst), _scalar(1, "f4")])
        got, first = b.get(dst, 100, np.float32), offset // 4
        expect(
            (got == x[first : first + 100]).all(), f"a buffer argument with offset {offset} begins at {got[0] * 4:g}"
        )
    launch(b, made, (100, 1, 1), AT_EACH, [memory(src), memory(dst, 2 * step), _scalar(1, "f4")])
    got = b.get(dst, 100, np.float32, 2 * step)
    expect((got == x[:100]).all(), f"a result at offset {2 * step} of its buffer is not there")


@check()
def arguments_are_copied(b: Bench) -> None:
    """Scalars may change as soon as launch() has returned."""
    x = np.ones(256, np.float32)
    src, mems = b.upload(x), [b.alloc(1024) for _ in range(32)]
    made = kernel(b, "scale", _scale)
    for i, mem in enumerate(mems):
        b.device.launch(b.queue, made, (256, 1, 1), AT_EACH, [Buffer(src), Buffer(mem), _scalar(i, "f4")])
    for i, mem in enumerate(mems):
        got = b.get(mem, 256, np.float32)
        expect((got == i).all(), f"launch {i} of 32 used the scalar {got[0]:g}: arguments must be copied at launch()")


@check()
def geometry(b: Bench) -> str:
    """Every work-item runs once, with the ids that the sizes say, in 1, 2 and 3 dimensions."""

    def write(k: Any) -> None:
        out, width, height = k.buffer("i64"), k.arg("i64"), k.arg("i64")
        ids = [[k.cast(get(d), "i64") for d in range(3)] for get in (k.global_id, k.group_id, k.local_id)]
        (gx, gy, gz), groups, locals_ = ids
        at = k.cast((gz * height + gy) * width + gx, "index")
        value = k.const(0, "i64")
        for v in (*groups, *locals_):
            value = value * 64 + v
        k.store(out, at, k.load(out, at) + value)

    most = b.caps.max_work_group_size
    shapes: list[tuple[Size, Size]] = [((37, 1, 1), AT_EACH), ((6, 5, 1), AT_EACH), ((3, 4, 5), AT_EACH)]
    if most >= 8:
        shapes += [((32, 1, 1), (8, 1, 1)), ((8, 6, 1), (4, 2, 1)), ((4, 4, 6), (2, 2, 2))]
    made = kernel(b, "geometry", write)
    for size, local in shapes:
        count = math.prod(size)
        mem = b.upload(np.zeros(count, np.int64))
        launch(b, made, size, local, [Buffer(mem), _scalar(size[0], "i8"), _scalar(size[1], "i8")])
        z, y, x = np.meshgrid(*(np.arange(n) for n in size[::-1]), indexing="ij")
        expected = np.zeros(size[::-1], np.int64)
        for v in (x // local[0], y // local[1], z // local[2], x % local[0], y % local[1], z % local[2]):
            expected = expected * 64 + v
        wrong = np.flatnonzero(b.get(mem, count, np.int64) != expected.ravel())
        expect(
            wrong.size == 0,
            f"global {size}, local {local}: {wrong.size} of {count} work-items ran not at all, twice or with other ids",
        )
    return f"{len(shapes)} shapes"


@check()
def local_memory_and_barriers(b: Bench) -> str:
    """Work-items of a group exchange values through local memory across a barrier."""
    n = min(64, b.caps.max_work_group_size)
    if n < 2 or b.caps.local_memory_bytes < 4 * n:
        return "groups of one work-item: nothing to exchange"

    def write(k: Any) -> None:
        x, y = k.buffer("f32", readonly=True), k.buffer("f32")
        scratch = k.local("f32", n)
        lid = k.local_id(0)
        k.store(scratch, lid, k.load(x, k.global_id(0)))
        k.barrier()
        k.store(y, k.global_id(0), k.load(scratch, (n - 1) - lid))

    x = np.arange(n * 40, dtype=np.float32)
    mem = b.alloc(x.nbytes)
    launch(b, kernel(b, "reverse", write, (n, 1, 1)), (x.size, 1, 1), (n, 1, 1), [Buffer(b.upload(x)), Buffer(mem)])
    got = b.get(mem, x.size, np.float32).reshape(40, n)
    expect((got == x.reshape(40, n)[:, ::-1]).all(), "values that crossed a barrier through local memory are wrong")
    return f"groups of {n}"


@check()
def many_arguments(b: Bench) -> str:
    """As many buffers as the properties allow (32 are enough)."""
    count = min(32, b.caps.max_kernel_args, b.caps.max_arg_bytes // 8)

    def write(k: Any) -> None:
        buffers = [k.buffer("f32", readonly=True) for _ in range(count - 1)]
        out, i = k.buffer("f32"), k.global_id(0)
        total = k.const(0.0, "f32")
        for j, buffer in enumerate(buffers):
            total = total + k.load(buffer, i) * float(j + 1)
        k.store(out, i, total)

    xs = [np.full(64, j % 5, np.float32) for j in range(count - 1)]
    mem = b.alloc(256)
    args: list[Arg] = [*(Buffer(b.upload(x)) for x in xs), Buffer(mem)]
    launch(b, kernel(b, "many", write), (64, 1, 1), AT_EACH, args)
    expected = sum(x * (j + 1) for j, x in enumerate(xs))
    expect((b.get(mem, 64, np.float32) == expected).all(), f"a kernel with {count} buffers read wrong ones")
    return f"{count} buffers"


@check()
def largest_group(b: Bench) -> str:
    """A group of max_work_group_size runs; a larger one is refused."""
    most = b.caps.max_work_group_size
    x = np.arange(2 * most, dtype=np.float32)
    mem = b.alloc(x.nbytes)
    made = kernel(b, "scale", _scale)
    args: list[Arg] = [Buffer(b.upload(x)), Buffer(mem), _scalar(2, "f4")]
    launch(b, made, (2 * most, 1, 1), (most, 1, 1), args)
    expect((b.get(mem, 2 * most, np.float32) == 2 * x).all(), f"groups of {most} work-items computed wrong values")
    try:
        launch(b, made, (2 * most, 1, 1), (2 * most, 1, 1), args)
    except DriverError:
        return f"{most} work-items"
    raise CheckFailed(f"a group of {2 * most} work-items was accepted; max_work_group_size says {most}")


@check()
def global_size_is_a_multiple(b: Bench) -> None:
    """A global size that is no multiple of the local size is refused, and the queue goes on."""
    if b.caps.max_work_group_size < 7:
        return
    x = np.ones(100, np.float32)
    mem = b.alloc(400)
    made = kernel(b, "scale", _scale)
    args: list[Arg] = [Buffer(b.upload(x)), Buffer(mem), _scalar(2, "f4")]
    try:
        launch(b, made, (100, 1, 1), (7, 1, 1), args)
    except DriverError:
        launch(b, made, (100, 1, 1), AT_EACH, args)
        expect((b.get(mem, 100, np.float32) == 2).all(), "after a refused launch a good one computes wrong values")


@check()
def launches_run_in_order(b: Bench) -> None:
    """500 dependent launches give what their order says."""

    def write(k: Any) -> None:
        x, i = k.buffer("f32"), k.global_id(0)
        k.store(x, i, k.load(x, i) * 0.5 + 1.0)

    mem = b.upload(np.zeros(4096, np.float32))
    made = kernel(b, "advance", write)
    expected = np.float32(0)
    for _ in range(500):
        b.device.launch(b.queue, made, (4096, 1, 1), AT_EACH, [Buffer(mem)])
        expected = expected * np.float32(0.5) + np.float32(1)
    got = b.get(mem, 4096, np.float32)
    expect((got == expected).all(), f"500 steps of x = x / 2 + 1 gave {got.min()} to {got.max()}, not {expected}")


@check()
def copies_wait_for_kernels(b: Bench) -> None:
    """Copies run after the kernels queued before them, kernels after the copies."""
    made = kernel(b, "scale", _scale)
    n = 1 << 20
    src, mid, dst = b.alloc(4 * n), b.alloc(4 * n), b.alloc(4 * n)
    for i in range(4):
        x = np.full(n, i + 1, np.float32)
        b.device.copy_h2d(b.queue, src, 0, x.ctypes.data, x.nbytes, False)
        b.device.launch(b.queue, made, (n, 1, 1), AT_EACH, [Buffer(src), Buffer(mid), _scalar(2, "f4")])
        b.device.copy_d2d(b.queue, dst, 0, mid, 0, x.nbytes)
        got = b.get(dst, n, np.float32)
        expect((got == 2 * (i + 1)).all(), "a copy did not wait for the kernel before it: a missing barrier in copy?")


@check()
def large_grid(b: Bench) -> str:
    """A grid of four million work-items reaches its last element."""
    n = 1 << 22
    x = np.ones(n, np.float32)
    mem = b.upload(np.zeros(n, np.float32))
    launch(b, kernel(b, "scale", _scale), (n, 1, 1), AT_EACH, [Buffer(b.upload(x)), Buffer(mem), _scalar(2, "f4")])
    expect((b.get(mem, n, np.float32) == 2).all(), f"a grid of {n} work-items did not write all {n} elements")
    return f"{n} work-items"


@check()
def bad_source_is_refused(b: Bench) -> str:
    """A program that does not compile fails with the compiler's words, and the next one builds."""
    b.needs("program_load")
    try:
        b.device.program_load(b"this is no program;", False, "")
    except BuildFailed as error:
        expect(len(str(error)) > 40, f"the error holds no compiler's words: {error}")
    except DriverError as error:
        raise CheckFailed(
            f"a program that does not compile gives {type(error).__name__}: it must be BUILD_FAILED"
        ) from None
    else:
        raise CheckFailed("program_load accepted a text that is no program")
    kernel(b, "scale", _scale)
    return "BUILD_FAILED"


@check()
def missing_kernel_is_refused(b: Bench) -> None:
    """A kernel name that the program does not have fails."""
    b.needs(*ENTRIES)
    program = b.device.program_load(source(b, "scale", _scale).encode(), False, "")
    try:
        b.device.kernel_create(program, "no_such_kernel")
    except DriverError:
        return
    raise CheckFailed("kernel_create gave a kernel that the program does not have")


@check()
def programs_come_back_as_binaries(b: Bench) -> str:
    """A program's binary loads again and computes the same."""
    if not b.device.offers("program_binary"):
        return "no program_binary (optional): every process compiles anew"
    b.needs(*ENTRIES)
    program = b.device.program_load(source(b, "scale", _scale).encode(), False, "")
    binary = b.device.program_binary(program)
    b.device.program_destroy(program)
    made = b.device.kernel_create(b.device.program_load(binary, True, ""), "scale")
    x = np.arange(64, dtype=np.float32)
    mem = b.alloc(256)
    launch(b, made, (64, 1, 1), AT_EACH, [Buffer(b.upload(x)), Buffer(mem), _scalar(5, "f4")])
    expect((b.get(mem, 64, np.float32) == 5 * x).all(), "a kernel from a binary computes other values than from source")
    return f"{len(binary)} bytes"


@check()
def local_arguments(b: Bench) -> str:
    """A LOCAL argument is work-group memory of so many bytes (a driver without groups may refuse it)."""
    from codegen.dialects import language

    if b.caps.language != "opencl":
        return f"{type(language(b.caps.language)).__name__} kernels declare their own"
    text = (
        "__kernel void turn(__global float *x, __local float *s) { size_t i = get_local_id(0); s[i] = x[i]; "
        "barrier(CLK_LOCAL_MEM_FENCE); x[i] = s[7 - i]; }"
    )
    made = b.device.kernel_create(b.device.program_load(text.encode(), False, ""), "turn")
    mem = b.upload(np.arange(8, dtype=np.float32))
    launch(b, made, (8, 1, 1), (8, 1, 1), [Buffer(mem), Local(32)])
    expect((b.get(mem, 8, np.float32) == np.arange(8)[::-1]).all(), "a LOCAL argument does not hold its bytes")
    return "32 bytes"
