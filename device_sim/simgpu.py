"""simgpu: a level 2 chip. Kernels come as C source, run by the host; time comes from the virtual clock."""

# ruff: noqa: D102  (the methods of the contract are documented in lazy_backend.driver.base)
from __future__ import annotations

import ctypes as ct
import time
from dataclasses import dataclass

from lazy_backend.driver import origin
from lazy_backend.driver.base import Arg, Buffer, Local, Scalar
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.driver.cc import shared_library
from lazy_backend.driver.errors import BuildFailed, InvalidArgument, LaunchFailed, MemoryFault

from . import cost
from .clock import Step
from .device import HERE, Command, Queue, Settings, SimDevice, SimDriver, ranges
from .memory import ALIGNMENT, Allocation, runner

MAX_ARGS = 256
_BINARY = b"simgpu program\n"  # a built program is its source behind this line: the host's compiler keeps a cache


@dataclass(eq=False)
class Program:
    """A built program."""

    source: str
    library: ct.CDLL


@dataclass(eq=False)
class Kernel:
    """One function of a program."""

    name: str
    program: Program
    address: int


class SimGpu(SimDevice):
    """A chip that compiles C."""

    def properties(self) -> Capabilities:
        c = self.chip
        return Capabilities(
            level=2,
            name=c.name,
            vendor=c.vendor,
            driver_version="1",
            language="c",
            is_cpu=c.kind == "cpu",
            compute_units=c.compute_units,
            max_work_group_size=c.max_work_group_size,
            vector_bytes=c.vector_bytes,
            local_memory_bytes=c.scratchpad_kib << 10,
            global_memory_bytes=c.memory_mib << 20,
            cache_bytes=max(c.cache_kib, 16) << 10,
            mem_alignment=ALIGNMENT,
            max_kernel_args=MAX_ARGS,
            has_f64=True,
            launch_us=c.launch_us,
            bandwidth_gbs=c.bandwidth_gbs,
            peak_gflops_f32=c.peak_gflops["f32"],
        )

    def program_load(self, source: bytes, is_binary: bool, options: str) -> Program:
        fault = self.settings.plan.strike("build")
        if fault and fault.kind == "build_failed":
            raise BuildFailed("planned fault: the compiler refuses the program")
        if fault and fault.kind == "slow_build":
            time.sleep(fault.seconds)
        if is_binary and not source.startswith(_BINARY):
            raise BuildFailed("this is no simgpu program")
        text = source.removeprefix(_BINARY).decode()
        path = shared_library(text, "-O2", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-w")
        self.step(Step("load" if is_binary else "build"))
        return Program(text, ct.CDLL(str(path)))

    def program_binary(self, program: Program) -> bytes:
        return _BINARY + program.source.encode()

    def program_destroy(self, program: Program) -> None:
        """The host keeps the library: other programs of the same text share it."""

    def kernel_create(self, program: Program, name: str) -> Kernel:
        try:
            function = getattr(program.library, name)
        except AttributeError:
            raise InvalidArgument(f"the program has no kernel {name}") from None
        return Kernel(name, program, ct.cast(function, ct.c_void_p).value or 0)

    def kernel_destroy(self, kernel: Kernel) -> None:
        """Goes with its program."""

    def launch(
        self,
        queue: Queue,
        kernel: Kernel,
        global_size: tuple[int, int, int],
        local_size: tuple[int, int, int],
        args: list[Arg],
    ) -> None:
        local_size = local_size if local_size[0] else (1, 1, 1)
        self._check_geometry(kernel.name, global_size, local_size, args)
        buffers = [arg for arg in args if isinstance(arg, Buffer)]
        label = self.labelled(kernel.name, origin.current(HERE))
        for arg in buffers:
            self.checked(arg.mem, arg.offset, 0, f"kernel {label}")
            if arg.offset % ALIGNMENT:
                raise InvalidArgument(f"kernel {label}: byte {arg.offset} of {arg.mem} is no multiple of {ALIGNMENT}")
        memories = ranges([arg.mem for arg in buffers])
        work = cost.kernel_work(kernel.program.source, kernel.name, global_size, local_size, args)

        def run() -> None:
            self._check_inputs(kernel, label, args)
            self._execute(kernel, label, global_size, local_size, args)
            for mem in memories:
                if side := mem.overrun():
                    mem.mark_edges()
                    raise MemoryFault(f"kernel {label} wrote {side} {mem}")

        self.submit(queue, Command(label, run, memories), Step("kernel", kernel.name, queue.number, work=work))

    def _check_geometry(
        self, name: str, global_size: tuple[int, int, int], local_size: tuple[int, int, int], args: list[Arg]
    ) -> None:
        items = local_size[0] * local_size[1] * local_size[2]
        if any(g % n for g, n in zip(global_size, local_size, strict=True)):
            raise LaunchFailed(f"kernel {name}: global size {global_size} is no multiple of local size {local_size}")
        if items > self.chip.max_work_group_size:
            raise LaunchFailed(f"kernel {name}: {items} work-items in a group; at most {self.chip.max_work_group_size}")
        scratch = sum(arg.nbytes for arg in args if isinstance(arg, Local))
        if scratch > self.chip.scratchpad_kib << 10:
            raise LaunchFailed(f"kernel {name}: {scratch} bytes of work-group memory; {self.chip.scratchpad_kib} KiB")
        if len(args) > MAX_ARGS:
            raise LaunchFailed(f"kernel {name}: {len(args)} arguments; at most {MAX_ARGS}")

    def _check_inputs(self, kernel: Kernel, label: str, args: list[Arg]) -> None:
        """A read-only argument that nobody ever wrote is a read of uninitialised memory."""
        for arg, constant in zip(args, cost.constant_arguments(kernel.program.source, kernel.name), strict=False):
            if isinstance(arg, Buffer) and constant:
                mem: Allocation = arg.mem
                if mem.uninitialised(arg.offset, mem.nbytes - arg.offset, wholly=True):
                    self.find(f"kernel {label} reads {mem}, which was never written")

    def _execute(
        self,
        kernel: Kernel,
        label: str,
        global_size: tuple[int, int, int],
        local_size: tuple[int, int, int],
        args: list[Arg],
    ) -> None:
        scratch = []
        values = (ct.c_uint64 * max(1, len(args)))()  # an address, or a scalar's bytes
        for i, arg in enumerate(args):
            match arg:
                case Buffer(mem, offset):
                    values[i] = mem.address + offset
                case Scalar(data):
                    values[i] = int.from_bytes(data, "little")
                case Local(nbytes):
                    scratch.append(ct.create_string_buffer(nbytes + ALIGNMENT))
                    values[i] = -(-ct.addressof(scratch[-1]) // ALIGNMENT) * ALIGNMENT
        places = (ct.c_void_p * len(values))(*(ct.addressof(values) + 8 * i for i in range(len(values))))
        size3 = ct.c_uint64 * 3
        fault = ct.c_void_p()
        if runner().sim_run(kernel.address, places, size3(*global_size), size3(*local_size), ct.byref(fault)):
            where = self.memory.nearest(fault.value or 0)
            side = "after" if where and (fault.value or 0) >= where.address else "before"
            beside = f"{side} {where}" if where else f"address {fault.value or 0:#x}, which is no device memory"
            raise MemoryFault(f"kernel {label} touched memory {beside}")


class SimGpuDriver(SimDriver):
    """simgpu."""

    name = "simgpu"
    device_class = SimGpu


def driver() -> SimGpuDriver:
    """Entry point; LAZY_SIM_CHIP names the chip (default gpu_mid)."""
    return SimGpuDriver(Settings.from_environment("gpu_mid"))
