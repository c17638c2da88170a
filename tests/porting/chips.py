"""A small correct chip, and the same chip with one bug each: what `port check` must find."""

import ctypes as ct
import threading
from dataclasses import replace

import numpy as np

from device_sim import chip as chips
from device_sim import faults
from device_sim.device import Settings, SimDevice, SimDriver
from device_sim.simgpu import SimGpu
from device_sim.simnpu import SimNpu
from lazy_backend.driver.base import Buffer, Device, Driver, Scalar
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.driver.errors import BuildFailed, InvalidArgument, OutOfMemory, Unsupported

CAPACITY = 64 << 20


class Mem:
    def __init__(self, start, nbytes):
        self.start, self.nbytes = start, nbytes


class Flat(Device):
    """One flat memory; commands wait in a list until someone waits for them."""

    def __init__(self):
        self.memory = np.zeros(CAPACITY, np.uint8)
        self.used, self.top, self.free_places, self.pending = 0, 0, {}, []

    def properties(self):
        return Capabilities(level=1, name="flat", global_memory_bytes=CAPACITY)

    def alloc(self, nbytes):
        room = self.room(nbytes)
        if self.used + room > CAPACITY:
            raise OutOfMemory(f"{nbytes} bytes")
        self.used += room
        if self.free_places.get(room):
            return Mem(self.free_places[room].pop(), nbytes)
        if self.top + room > CAPACITY:
            self.top, self.free_places = 0, {}  # only ever full when everything is free, in these tests
        self.top += room
        return Mem(self.top - room, nbytes)

    def room(self, nbytes):
        return -(-max(nbytes, 1) // 64) * 64

    def free(self, mem):
        self.run()
        self.used -= self.room(mem.nbytes)
        self.free_places.setdefault(self.room(mem.nbytes), []).append(mem.start)

    def queue_create(self):
        return "queue"

    def queue_destroy(self, queue):
        self.run()

    def at(self, mem, offset, nbytes):
        if offset + nbytes > mem.nbytes:
            raise InvalidArgument(f"bytes {offset} to {offset + nbytes} of {mem.nbytes}")
        return self.memory[mem.start + offset : mem.start + offset + nbytes]

    def run(self):
        while self.pending:
            self.pending.pop(0)()

    def copy_h2d(self, queue, dst, dst_offset, src, nbytes, blocking):
        target = self.at(dst, dst_offset, nbytes)
        self.pending.append(lambda: ct.memmove(target.ctypes.data, src, nbytes))
        if blocking:
            self.run()

    def copy_d2h(self, queue, dst, src, src_offset, nbytes, blocking):
        source = self.at(src, src_offset, nbytes)
        self.pending.append(lambda: ct.memmove(dst, source.ctypes.data, nbytes))
        if blocking:
            self.run()

    def copy_d2d(self, queue, dst, dst_offset, src, src_offset, nbytes):
        target, source = self.at(dst, dst_offset, nbytes), self.at(src, src_offset, nbytes)
        self.pending.append(lambda: np.copyto(target, source))

    def event_record(self, queue):
        event = {"done": False}
        self.pending.append(lambda: event.update(done=True))
        return event

    def event_query(self, event):
        self.run()
        return event["done"]

    def event_wait(self, event):
        self.run()

    def event_destroy(self, event): ...

    def synchronize(self, queue):
        self.run()

    def core_op(self, queue, name, outputs, inputs, attrs):
        raise Unsupported("write core_op")


class ShortAllocation(Flat):
    def room(self, nbytes):
        return max(nbytes - 1, 1)


class RoundedCopy(Flat):
    def copy_h2d(self, queue, dst, dst_offset, src, nbytes, blocking):
        super().copy_h2d(queue, dst, dst_offset, src, nbytes // 4 * 4, blocking)


class SwappedOffsets(Flat):
    def copy_d2d(self, queue, dst, dst_offset, src, src_offset, nbytes):
        super().copy_d2d(queue, dst, src_offset, src, dst_offset, nbytes)


class MissingBarrier(Flat):
    def copy_d2d(self, queue, dst, dst_offset, src, src_offset, nbytes):
        np.copyto(self.at(dst, dst_offset, nbytes), self.at(src, src_offset, nbytes))


class LateHostRead(Flat):
    def copy_h2d(self, queue, dst, dst_offset, src, nbytes, blocking):
        super().copy_h2d(queue, dst, dst_offset, src, nbytes, False)


class DeadEvent(Flat):
    def event_query(self, event):
        return False


class EarlyEvent(Flat):
    def event_wait(self, event): ...


class Leak(Flat):
    def free(self, mem): ...


class WrongStatus(Flat):
    def alloc(self, nbytes):
        try:
            return super().alloc(nbytes)
        except OutOfMemory as error:
            raise InvalidArgument(str(error)) from None


class NoRangeCheck(Flat):
    def at(self, mem, offset, nbytes):
        return self.memory[mem.start + offset : mem.start + offset + nbytes]


class StaleContents(Flat):
    """Every fourth allocation is given the place of the one before it."""

    made = 0

    def alloc(self, nbytes):
        self.made += 1
        if self.made % 4 == 0:
            self.top -= min(self.top, self.room(nbytes))
        return super().alloc(nbytes)


class Contradiction(Flat):
    def properties(self):
        return replace(super().properties(), max_alloc_bytes=2 * CAPACITY)


class ThreadBound(Flat):
    """Its context belongs to the thread that opened it."""

    def __init__(self):
        super().__init__()
        self.thread = threading.current_thread()  # its number may be another's, once it has ended

    def alloc(self, nbytes):
        if threading.current_thread() is not self.thread:
            raise InvalidArgument("no current context")
        return super().alloc(nbytes)


class IgnoredOffset(SimGpu):
    """Of a kernel's first buffer."""

    place = 0

    def launch(self, queue, kernel, global_size, local_size, args):
        args = [Buffer(arg.mem) if i == self.place else arg for i, arg in enumerate(args)]
        super().launch(queue, kernel, global_size, local_size, args)


class IgnoredResultOffset(IgnoredOffset):
    place = 1


class ShortScalar(SimGpu):
    """Passes four bytes of every scalar."""

    def launch(self, queue, kernel, global_size, local_size, args):
        args = [Scalar(arg.data[:4]) if isinstance(arg, Scalar) else arg for arg in args]
        super().launch(queue, kernel, global_size, local_size, args)


class LateScalars(SimGpu):
    """Reads a kernel's scalars when it runs, from where the last launch left them."""

    def launch(self, queue, kernel, global_size, local_size, args):
        self.latest = {**getattr(self, "latest", {}), kernel: args}
        super().launch(queue, kernel, global_size, local_size, args)

    def _execute(self, kernel, label, global_size, local_size, args):
        args = [b if isinstance(a, Scalar) else a for a, b in zip(args, self.latest[kernel], strict=True)]
        super()._execute(kernel, label, global_size, local_size, args)


class LastRowMissing(SimGpu):
    """Runs one work-item short in the second dimension."""

    def _execute(self, kernel, label, global_size, local_size, args):
        x, y, z = global_size
        super()._execute(kernel, label, (x, max(1, y - local_size[1]), z), local_size, args)


class SilentCompiler(SimGpu):
    def program_load(self, source, is_binary, options):
        try:
            return super().program_load(source, is_binary, options)
        except BuildFailed:
            raise BuildFailed("error 1") from None


class WrongUnit(SimNpu):
    """States its bandwidth in Mbit/s."""

    def properties(self):
        stated = super().properties()
        return replace(stated, bandwidth_gbs=stated.bandwidth_gbs * 8000)


def settings(device):
    return Settings(chips.load("npu" if issubclass(device, SimNpu) else "gpu_mid"), faults.Plan([]))


class IgnoredStrides(SimNpu):
    def core_op(self, queue, name, outputs, inputs, attrs):
        def dense(t):
            strides, n = [], 1
            for size in reversed(t.sizes):
                strides.insert(0, n)
                n *= size
            return t._replace(strides=tuple(strides))

        super().core_op(queue, name, outputs, [dense(t) for t in inputs], attrs)


class TruncatedRounding(SimNpu):
    """Cuts bfloat16 off where it should round."""

    def _evaluate(self, name, outputs, inputs, attrs):
        from ops_core import numerics

        rounded = numerics.round_bf16
        numerics.round_bf16 = lambda x: (
            (np.ascontiguousarray(x, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).reshape(np.shape(x))
        )
        try:
            super()._evaluate(name, outputs, inputs, attrs)
        finally:
            numerics.round_bf16 = rounded


class OneRowShort(SimNpu):
    """Leaves the last row of a matrix product unwritten."""

    def core_op(self, queue, name, outputs, inputs, attrs):
        if name == "matmul":
            (out,) = outputs
            a, b = inputs
            out = out._replace(sizes=(*out.sizes[:-2], out.sizes[-2] - 1, out.sizes[-1]))
            a = a._replace(sizes=(*a.sizes[:-2], a.sizes[-2] - 1, a.sizes[-1]))
            outputs, inputs = [out], [a, b]
        super().core_op(queue, name, outputs, inputs, attrs)


def driver_of(device):
    """A driver of one of these devices."""
    if issubclass(device, SimDevice):

        class Simulated(SimDriver):
            name, device_class = device.__name__, device

        return Simulated(settings(device))

    class Plain(Driver):
        name, device_class = device.__name__, device

    return Plain()
