"""Runs plans on an OpenCL device, slots being NumPy arrays: the test bench of codegen."""

from __future__ import annotations

import os
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from codegen.plan import Plan
from lazy_backend.driver.capabilities import Capabilities

Memory = Mapping[int, np.ndarray]
# Bytes behind each buffer that no kernel may change.
GUARD = b"\xa5" * 512
NUMBER = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64, "bool": np.uint8}


@cache
def device(platform: str = "Intel") -> tuple[Any, Any]:
    """A pyopencl context and queue on the first platform whose name has `platform` in it."""
    if "OCL_ICD_VENDORS" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="icd"))
        root, site = Path(sysconfig.get_path("data")), Path(sysconfig.get_path("platlib"))
        for library in (root / "lib/libintelocl.so", *site.glob("pyopencl/.libs/libpocl-*.so")):
            (folder / f"{library.name.split('.')[0]}.icd").write_text(str(library))
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    import pyopencl as cl

    found = next(p for p in cl.get_platforms() if platform in p.name)
    context = cl.Context(found.get_devices())
    return context, cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)


def build_options(context: Any) -> list[str]:
    """What the driver builds with for a CPU (drivers/opencl_driver.cpp): programs here are those that it runs."""
    import pyopencl as cl

    only = context.devices[0]
    version = only.opencl_c_version.split()[2]
    rounds = only.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    exact = ["-cl-fp32-correctly-rounded-divide-sqrt"] if rounds else []
    return [f"-cl-std=CL{version}", *exact, "-DLAZY_ON_CPU", "-DLAZY_HIDDEN_IDS"]


def capabilities(**changes: Any) -> Capabilities:
    """A CPU with 512-bit vectors, or what `changes` make of it."""
    known = {
        "language": "opencl", "is_cpu": True, "compute_units": 2, "max_work_group_size": 4096, "vector_bytes": 64,
        "max_kernel_args": 256, "mem_alignment": 128, "has_f16": True, "has_f64": True, "has_f32_atomics": True,
        "has_i64_atomics": True,
    }  # fmt: skip
    return Capabilities(**(known | changes)).complete()


class Runner:
    """A plan whose kernels are built, ready to run on memory that stays on the device."""

    def __init__(self, plan: Plan, slots: Memory, params: Sequence[Any] = (), platform: str = "Intel"):
        import pyopencl as cl

        self.cl, self.plan, self.params = cl, plan, params
        self.context, self.queue = device(platform)
        self.sizes = {n: a.nbytes for n, a in slots.items()} | {f"piece {i}": n for i, n in enumerate(plan.pieces)}
        self.slots = {n: self._buffer(a.tobytes()) for n, a in slots.items()}
        self.pieces = [self._buffer(bytes(n)) for n in plan.pieces]
        self.temps = [self.pieces[t.piece].get_sub_region(t.offset, max(t.nbytes, 1)) for t in plan.temps]
        options = build_options(self.context)
        programs = [cl.Program(self.context, k.source).build(options=options) for k in plan.kernels]
        self.kernels = [cl.Kernel(program, k.name) for program, k in zip(programs, plan.kernels, strict=True)]

    def _buffer(self, data: bytes) -> Any:
        """Device memory that holds data and a guard behind it."""
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        return self.cl.Buffer(self.context, flags, hostbuf=np.frombuffer(data + GUARD, np.uint8).copy())

    def check_guards(self) -> None:
        """Assert that nothing was written behind a slot or a piece."""
        for name, buffer in [*self.slots.items(), *((f"piece {i}", piece) for i, piece in enumerate(self.pieces))]:
            guard = np.empty(len(GUARD), np.uint8)
            self.cl.enqueue_copy(self.queue, guard, buffer, src_offset=self.sizes[name])
            assert guard.tobytes() == GUARD, f"a kernel wrote behind {name}"

    def run(self) -> list[Any]:
        """Run all launches; returns their events."""
        return [
            self.cl.enqueue_nd_range_kernel(self.queue, self._bound(launch), launch.global_size, launch.local_size)
            for launch in self.plan.launches
        ]

    def _bound(self, launch: Any) -> Any:
        kernel = self.kernels[launch.kernel]
        for i, arg in enumerate(launch.args):
            kernel.set_arg(i, self._argument(arg))
        return kernel

    def _argument(self, arg: Any) -> Any:
        if arg.kind == "slot":
            return self.slots[arg.value]
        if arg.kind == "temp":
            return self.temps[arg.value]
        if arg.kind == "local":
            return self.cl.LocalMemory(arg.value)
        return NUMBER[arg.type](self.params[arg.value] if arg.kind == "scalar" else arg.value)

    def read(self, slot: int, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        if out.nbytes:
            self.cl.enqueue_copy(self.queue, out, self.slots[slot])
        return out


def run_plan(plan: Plan, slots: Memory, params: Sequence[Any] = (), platform: str = "Intel") -> dict[int, np.ndarray]:
    """The memory of all slots after the plan."""
    runner = Runner(plan, slots, params, platform)
    runner.run()
    runner.check_guards()
    return {n: runner.read(n, a) for n, a in slots.items()}
