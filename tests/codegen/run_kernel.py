"""Runs one kernel in a language: on an OpenCL platform, or as C compiled by the host's compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.builder import Builder
from codegen.printer import print_kernel
from tests.codegen.run_plan import build_options, device

Size = tuple[int, ...]
PLACES = ("Intel", "Portable", "c")
COMPILER = ("cc", "-O2", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-x", "c")
MEMORY = {
    "bool": np.bool_, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "f16": np.float16, "bf16": np.uint16, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip


def run(place: str, text: str, global_size: Size, local_size: Size | None, *args: Any) -> None:
    """Launch a module's kernel on arrays, which it changes, and NumPy scalars. Skips where the place is missing."""
    (run_c if place == "c" else run_opencl)(place, text, global_size, local_size, *args)


@cache
def platform(name: str) -> tuple[Any, Any]:
    cl = pytest.importorskip("pyopencl")
    try:
        context, queue = device(name)
    except StopIteration:
        pytest.skip(f"no OpenCL platform called {name}")
    if name == "Portable":
        try:
            cl.Program(context, "__kernel void nothing(void) {}").build()
        except cl.Error as error:
            pytest.skip(f"PoCL builds nothing on this processor: {error}")
    return context, queue


def run_opencl(place: str, text: str, global_size: Size, local_size: Size | None, *args: Any) -> None:
    context, queue = platform(place)
    import pyopencl as cl

    flags = cl.mem_flags
    kernel = cl.Program(context, print_kernel(text, "opencl")).build(options=build_options(context)).all_kernels()[0]
    given = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=a) if a.ndim else a for a in args]
    kernel.set_args(*given)
    cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
    for array, buffer in zip(args, given, strict=True):
        if array.ndim:
            cl.enqueue_copy(queue, array, buffer)
    queue.finish()


@cache
def compiled(text: str) -> Callable[..., None]:
    if not shutil.which(COMPILER[0]):
        pytest.skip("no C compiler")
    source = print_kernel(text, "c")
    library = Path(tempfile.mkdtemp()) / "kernel.so"
    subprocess.run([*COMPILER, "-", "-o", library, "-lm"], input=source, text=True, check=True)
    name = source.rpartition("\nvoid ")[2].partition("(")[0]
    function: Callable[..., None] = ctypes.CDLL(str(library))[name]
    shutil.rmtree(library.parent)
    return function


def run_c(place: str, text: str, global_size: Size, local_size: Size | None, *args: Any) -> None:
    args = tuple(map(np.asarray, args))
    addresses = [ctypes.c_void_p(a.ctypes.data) for a in args]
    cells = [ctypes.addressof(p) if a.ndim else a.ctypes.data for a, p in zip(args, addresses, strict=True)]
    sizes = [(ctypes.c_uint64 * 3)(*(*s, 1, 1)[:3]) for s in (global_size, local_size or (1,))]
    compiled(text)((ctypes.c_void_p * len(cells))(*cells), *sizes)


def elementwise(fn: Callable[..., Any], dtypes: tuple[str, ...], result: str, width: int) -> str:
    """A kernel that stores fn of its loaded operands; each work item handles `width` elements."""
    k = Builder("elementwise", index_bits=64)
    operands, out = [k.buffer(d, readonly=True) for d in dtypes], k.buffer(result)
    i = k.global_id(0) * width
    k.store(out, i, fn(k, *(k.load(b, i, width) for b in operands)))
    return k.finish()


def bf16(x: np.ndarray) -> np.ndarray:
    """The bits of bf16 values, rounded to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
