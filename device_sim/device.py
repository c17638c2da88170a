"""What both simulated chips share: memory, queues that run late, copies, events, checks, faults, the clock.

A command runs when the host waits for it (or asks whether it is done), not when it is queued: the latest moment that
the contract allows, which is where a host that frees or reuses memory too early is found out.
"""

# ruff: noqa: D102  (the methods of the contract are documented in lazy_backend.driver.base)
from __future__ import annotations

import atexit
import ctypes as ct
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lazy_backend.driver import origin
from lazy_backend.driver.base import Device, Driver
from lazy_backend.driver.errors import (
    DeviceLost,
    DriverError,
    InvalidArgument,
    LaunchFailed,
    MemoryFault,
    OutOfMemory,
    TimedOut,
)

from . import chip as chips
from . import faults
from .chip import Chip
from .clock import Clock, Step
from .memory import Allocation, Memory

HERE = str(Path(__file__).parent)  # this package's lines are nobody's origin


@dataclass(frozen=True)
class Settings:
    """How a simulated chip is set up; `from_environment` reads LAZY_SIM_CHIP, _SET, _FAULTS and _REPORT."""

    chip: Chip
    plan: faults.Plan
    report: str = ""

    @staticmethod
    def from_environment(default_chip: str) -> Settings:
        """Raises `BadChip` or `BadPlan`."""
        chip = chips.load(os.environ.get("LAZY_SIM_CHIP") or default_chip)
        changes = [s for s in os.environ.get("LAZY_SIM_SET", "").split(",") if s]
        plan = faults.load(os.environ.get("LAZY_SIM_FAULTS", ""))
        return Settings(chips.with_settings(chip, changes), plan, os.environ.get("LAZY_SIM_REPORT", ""))


@dataclass(eq=False)
class Command:
    """Something queued: run() does it. uses: the memory it names; into: the address that a copy writes first, or 0."""

    name: str
    run: Callable[[], None]
    uses: tuple[Allocation, ...] = ()
    into: int = 0


@dataclass(eq=False)
class Event:
    """Completes, or fails, with the queue's commands before it."""

    queue: Queue
    ns: int
    done: bool = False
    error: DriverError | None = None


@dataclass(eq=False)
class Queue:
    """Commands and events that have not run yet."""

    number: int
    pending: deque[Command | Event] = field(default_factory=deque)
    error: DriverError | None = None


class SimDevice(Device):
    """One simulated chip. `trace`: all that happened; `findings`: what the checks saw without stopping anything."""

    def __init__(self, settings: Settings):
        self.settings, self.chip = settings, settings.chip
        self.memory = Memory(self, self.chip.memory_mib << 20)
        self.clock = Clock(self.chip)
        self.trace: list[Step] = []
        self.findings: list[str] = []
        self.places: dict[str, str] = {}  # kernel -> what it computes and the Python lines that use it
        self.lost = ""
        self._queues: list[Queue] = []
        self._lock = threading.RLock()  # events are asked for from any thread

    # what happens, in virtual time
    def step(self, step: Step) -> None:
        """Write one step into the trace and let the clock pass."""
        self.trace.append(step)
        self.clock.add(step)

    def find(self, text: str) -> None:
        """Keep a finding, once."""
        if text not in self.findings:
            self.findings.append(text)

    def labelled(self, kernel: str, place: str) -> str:
        """A kernel's name for messages, with where in the user's program its launch comes from, where that is known."""
        if not place:
            return kernel
        self.places[kernel] = place
        return f"{kernel} [{place}]"

    def close(self) -> None:
        if self.memory.alive:
            leaked = ", ".join(map(str, list(self.memory.alive.values())[:5]))
            self.find(f"{len(self.memory.alive)} allocations leak at close: {leaked}")
        for allocation in list(self.memory.alive.values()):
            self.memory.free(allocation)

    # memory
    def alloc(self, nbytes: int) -> Allocation:
        self._alive()
        if self.settings.plan.strike("alloc"):
            raise OutOfMemory(f"planned fault: allocation {self.memory.made + 1} of {nbytes} bytes is refused")
        made = self.memory.allocate(nbytes)
        self.step(Step("alloc", str(made), amount=nbytes))
        return made

    def free(self, mem: Allocation) -> None:
        self.checked(mem, 0, 0, located("free"))
        for queue in self._queues:
            user = next((c for c in queue.pending if isinstance(c, Command) and mem in c.uses), None)
            if user:
                raise MemoryFault(f"{mem} is freed while the queued command {user.name} still uses it")
        self.memory.free(mem)
        self.step(Step("free", str(mem), amount=mem.nbytes))

    def checked(self, mem: Allocation, offset: int, nbytes: int, what: str) -> Allocation:
        """`mem`, once it is known to be alive, ours, and as large as the range. Raises `MemoryFault`."""
        if mem.freed:
            raise MemoryFault(f"{what}: {mem} has been freed")
        if mem.device is not self:
            raise MemoryFault(f"{what}: {mem} belongs to another device")
        if offset + nbytes > mem.nbytes:
            raise MemoryFault(f"{what}: bytes {offset} to {offset + nbytes} lie outside {mem}")
        return mem

    # queues
    def queue_create(self) -> Queue:
        taken = {queue.number for queue in self._queues}
        self._queues.append(Queue(next(n for n in itertools.count() if n not in taken)))
        return self._queues[-1]

    def queue_destroy(self, queue: Queue) -> None:
        self._run(queue)
        self._queues.remove(queue)

    def submit(self, queue: Queue, command: Command, step: Step) -> None:
        """Queue a command that may be struck by a planned fault."""
        self._alive()
        call = "kernel" if step.kind == "kernel" else "copy"
        fault = self.settings.plan.strike(call, command.name)
        if fault:
            command.run = self._struck(fault, command)
        self.step(step)
        with self._lock:
            queue.pending.append(command)

    def _struck(self, fault: faults.Fault, command: Command) -> Callable[[], None]:
        healthy, name = command.run, command.name

        def run() -> None:
            match fault.kind:
                case "launch_failed":
                    raise LaunchFailed(f"planned fault: kernel {name} failed")
                case "hang":
                    self.clock.host += self.chip.timeout_us
                    raise TimedOut(f"kernel {name} ran for {self.chip.timeout_us / 1e6:g} s and was stopped")
                case "device_lost":
                    self.lost = f"the device was lost in kernel {name}"
                    raise DeviceLost(self.lost)
                case "corrupt_copy":
                    raise MemoryFault(f"{name}: the link's checksum does not match: the copy was damaged")
                case "flip_bits":
                    healthy()
                    if command.into:
                        ct.c_uint8.from_address(command.into).value ^= 1

        return run

    def _alive(self) -> None:
        if self.lost:
            raise DeviceLost(self.lost)

    def _run(self, queue: Queue, until: Event | None = None) -> None:
        """Run what is queued, up to an event. After a failure nothing queued behind it runs."""
        with self._lock:
            while queue.pending and not (until and until.done):
                entry = queue.pending.popleft()
                if isinstance(entry, Event):
                    entry.done = True
                    continue
                try:
                    entry.run()
                except DriverError as error:
                    self._fail(queue, error)

    def _fail(self, queue: Queue, error: DriverError) -> None:
        queue.error = error
        for entry in queue.pending:
            if isinstance(entry, Event):
                entry.done, entry.error = True, error
        queue.pending.clear()

    def _raise(self, queue: Queue) -> None:
        """Report a failure once; the queue is usable afterwards."""
        error, queue.error = queue.error, None
        if error:
            raise error

    def flush(self, queue: Queue) -> None:
        """Nothing to start: commands run when they are waited for. The trace shows what was handed over together."""
        self.step(Step("flush", queue=queue.number))

    def synchronize(self, queue: Queue) -> None:
        self._run(queue)
        self.step(Step("wait", queue=queue.number))
        self._alive()
        self._raise(queue)

    # copies
    def copy_h2d(self, queue: Queue, dst: Allocation, dst_offset: int, src: int, nbytes: int, blocking: bool) -> None:
        what = located("copy to the device")
        self.checked(dst, dst_offset, nbytes, what)

        def run() -> None:
            ct.memmove(dst.address + dst_offset, src, nbytes)

        into = dst.address + dst_offset if nbytes else 0
        self.submit(queue, Command(what, run, (dst,), into), Step("h2d", "h2d", queue.number, nbytes))
        if blocking:
            self.synchronize(queue)

    def copy_d2h(self, queue: Queue, dst: int, src: Allocation, src_offset: int, nbytes: int, blocking: bool) -> None:
        what = located("copy to the host")
        self.checked(src, src_offset, nbytes, what)

        def run() -> None:
            if src.uninitialised(src_offset, nbytes):
                self.find(f"{what} reads uninitialised bytes of {src}")
            ct.memmove(dst, src.address + src_offset, nbytes)

        self.submit(queue, Command(what, run, (src,), dst if nbytes else 0), Step("d2h", "d2h", queue.number, nbytes))
        if blocking:
            self.synchronize(queue)

    def copy_d2d(
        self, queue: Queue, dst: Allocation, dst_offset: int, src: Allocation, src_offset: int, nbytes: int
    ) -> None:
        what = located("copy inside the device")
        self.checked(dst, dst_offset, nbytes, what)
        self.checked(src, src_offset, nbytes, what)
        if dst is src and abs(dst_offset - src_offset) < nbytes:
            raise InvalidArgument(f"{what}: the ranges of {dst} overlap")

        def run() -> None:
            ct.memmove(dst.address + dst_offset, src.address + src_offset, nbytes)

        into = dst.address + dst_offset if nbytes else 0
        self.submit(queue, Command(what, run, (dst, src), into), Step("d2d", "d2d", queue.number, nbytes))

    # events
    def event_record(self, queue: Queue) -> Event:
        self._alive()
        event = Event(queue, int(self.clock.queue_time(queue.number) * 1e3))
        with self._lock:
            queue.pending.append(event)
        return event

    def event_query(self, event: Event) -> bool:
        self._run(event.queue, until=event)
        if event.error:
            raise event.error
        return event.done

    def event_wait(self, event: Event) -> None:
        self.event_query(event)
        with self._lock:
            self.step(Step("wait", queue=event.queue.number))

    def event_time_ns(self, event: Event) -> int:
        return event.ns

    def event_destroy(self, event: Event) -> None:
        """Nothing to give back."""


class SimDriver(Driver):
    """A driver of simulated devices; `devices` are the opened ones."""

    device_class: type[SimDevice]

    def __init__(self, settings: Settings):
        self.settings = settings
        self.devices: list[SimDevice] = []
        if settings.report:
            atexit.register(self.write_report)

    def device_count(self) -> int:
        return self.settings.chip.devices

    def open(self, index: int) -> SimDevice:
        if index >= self.device_count():
            raise InvalidArgument(f"no device {index}: {self.settings.chip.name} has {self.device_count()}")
        self.devices.append(self.device_class(self.settings))
        return self.devices[-1]

    def write_report(self) -> None:
        """Write the report of every opened device into the folder of LAZY_SIM_REPORT."""
        from .report import write

        write(self.devices, Path(self.settings.report))


def located(what: str) -> str:
    """What is done, with where in the user's program the call being served comes from, as far as that is known."""
    place = origin.current(HERE)
    return f"{what} [{place}]" if place else what


def ranges(allocations: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """Each allocation once."""
    return tuple(dict.fromkeys(allocations))
