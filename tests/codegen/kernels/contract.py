"""Runs contractions on an OpenCL device: operands are strided NumPy views, the result comes back as an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from codegen.builder import HALVES, Builder, V
from codegen.kernels.contraction import Operand, Output, Store
from codegen.kernels.step import Steps
from codegen.printer import print_kernel
from tests.codegen.run_plan import build_options, device

MEMORY = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}


def to_memory(x: np.ndarray, dtype: str) -> np.ndarray:
    """Values as they lie in memory: bf16 by its bits, values being representable."""
    if dtype == "bf16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(MEMORY[dtype])


def register(dtype: str) -> str:
    return "f32" if dtype in HALVES else dtype


def operand(dtype: str, strides: Sequence[int], prologue: Callable[[V], V] | None = None) -> Operand:
    """A buffer read with strides (batch, i, j), in elements."""
    sb, si, sj = strides

    def bind(k: Builder) -> Any:
        buffer = k.buffer(dtype, readonly=True)

        def load(batch: V, i: V, j: V, width: int = 1) -> V:
            v = k.load(buffer, batch * sb + i * si + j * sj, width)
            return prologue(v) if prologue else v

        return load

    contiguous = 1 if sj == 1 else 0 if si == 1 else None
    return Operand(bind, register(dtype), contiguous, bool(sb), int(prologue is not None))


def output(dtype: str, strides: Sequence[int], epilogue: Callable[..., V] | None = None) -> Output:
    """A buffer written with strides (batch, i, j); the contiguous dim is the one of stride 1."""
    sb, si, sj = strides

    def bind(k: Builder) -> Any:
        buffer = k.buffer(dtype)

        def store(batch: V, i: V, j: V, acc: V, width: int = 1) -> None:
            k.store(buffer, batch * sb + i * si + j * sj, epilogue(k, batch, i, j, acc, width) if epilogue else acc)

        return Store(store)

    return Output(bind, 1 if sj == 1 else 0)


def dense(
    shape: Sequence[int], dtype: str = "f32", readonly: bool = True, epilogue: Callable[[V], V] | None = None
) -> Callable[[Builder], Callable[..., Any]]:
    """The bind of a dense buffer of any rank: of read(index, along, width), or of write(index, values, along)."""
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]

    def bind(k: Builder) -> Callable[..., Any]:
        buffer = k.buffer(dtype, readonly=readonly)

        def at(index: Sequence[V | int]) -> V:
            return sum((i * s for i, s in zip(index, strides, strict=True)), k.const(0, "index"))

        def read(index: Sequence[V | int], along: int | None = None, width: int = 1) -> V:
            assert along in (None, len(shape) - 1)
            return k.load(buffer, at(index), width)

        def write(index: Sequence[V | int], values: Sequence[V], along: int | None = None) -> None:
            k.store(buffer, at(index), epilogue(values[0]) if epilogue else values[0])

        return read if readonly else write

    return bind


class Launcher:
    """A contraction whose kernels are built, with its operands on the device."""

    def __init__(self, contraction: Steps, buffers: dict[str, list[np.ndarray]], platform: str = "Intel"):
        import pyopencl as cl

        self.cl = cl
        self.context, self.queue = device(platform)
        self.buffers = {name: [self._upload(a) for a in arrays if a is not None] for name, arrays in buffers.items()}
        self.temps = [cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(n, 1)) for n in contraction.temps]
        self.launches, options = [], build_options(self.context)
        for step in contraction.steps:
            program = cl.Program(self.context, print_kernel(step.mlir, "opencl")).build(options)
            kernel = getattr(program, step.name)
            given = [b for a in step.args for b in ([self.temps[a]] if isinstance(a, int) else self.buffers[a])]
            kernel.set_args(*given)
            self.launches.append((kernel, step.global_size, step.local_size))

    def _upload(self, a: np.ndarray) -> Any:
        flags = self.cl.mem_flags
        return self.cl.Buffer(self.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=a)

    def run(self) -> None:
        for kernel, global_size, local_size in self.launches:
            self.cl.enqueue_nd_range_kernel(self.queue, kernel, global_size, local_size)
        self.queue.finish()

    def read(self, name: str, like: np.ndarray, which: int = 0) -> np.ndarray:
        result = np.empty_like(like)
        self.cl.enqueue_copy(self.queue, result, self.buffers[name][which])
        return result
