"""Programs built from source by several processes at once, of which none is the script's where that can be had.

Drivers' compilers hold a lock of their own (Intel's: threads gain nothing), so processes share a plan's programs. And a
compiler can end the process that it runs in: here that costs a program, not the script. The processes know the driver
through the contract and nothing of torch, which takes 0.4 s to start: one starts with the device for a script that
never ran before, others when a window turns out to have no plan, beside planning. They end when nothing has come for a
while, and are started again when they are needed.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lazy_backend import _C
from lazy_backend.builder import IDLE_FIRST_S, Builder, Died, Ended, Unstarted
from lazy_backend.driver import abi, discovery

if TYPE_CHECKING:
    from codegen.source import Source

log = logging.getLogger("lazy_backend.compile")

# Drivers whose compiler runs inside the process that asks it, and whose binaries are quick to load (OpenCL on a CPU:
# 1 ms where building takes 50): the script's process asks it for nothing that another can build. Others start a
# compiler of the host's, or are Python.
ISOLATED = frozenset({"opencl"})
# Where the script's process builds too. A kernel takes 0.05 to 1.5 s to build and a process 0.4 s to start: with fewer
# programs it comes too late.
FEWEST = 4
# Beyond that memory (some 150 MB each) grows faster than first steps shrink: most plans have under 60 kernels.
MOST = 8
# Characters of kernels that are built as one program: two or three products. The 46 kernels of examples/gpt.py take
# 1.85 s of processor time as programs of up to 20,000, 1.75 of 32,000, 1.65 of 45,000, 1.6 of 60,000 or more (Zen 4);
# but the last programs should keep all processes busy, and whoever needs one kernel later loads all of its program.
TOGETHER = 48_000
# Characters that take as long as a program takes anyway (2.2 ms a thousand, 14 ms): fewer are no program of their own.
# benchmarks: first step of examples/gpt.py, whose last dozen kernels are of a few lines each.
LEAST = 6_000
# Ops of a window that make a program (gpt.py: 205 and 49): no more processes are started ahead of need than it feeds.
OPS_A_PROGRAM = 4

_count = min(len(os.sched_getaffinity(0)), MOST)
_builders = [Builder(IDLE_FIRST_S, _count - 1), *(Builder() for _ in range(1, _count))]
# Devices that the processes know no binaries of: another driver's, or one that gives none.
_unknown: set[int] = set()


@atexit.register
def _end() -> None:
    for builder in _builders:
        builder.close()


def _isolated() -> bool:
    return discovery.opened_as_selected() and discovery.selected() in ISOLATED


@functools.lru_cache(maxsize=512)  # once a structure: one that comes again has its programs
def expect(structure: str, ops: int, device: int) -> None:
    """A window of so many ops has no plan: starts processes beside its planning, where the script's will not build."""
    if _isolated():
        for builder in _builders[: max(1, ops // OPS_A_PROGRAM)]:
            _start(builder, _C.device_properties(device))


def start_first() -> None:
    """Starts one process, for a script that will have programs, and does not wait for it."""
    if _isolated():
        _start(_builders[0])


def _start(builder: Builder, properties: bytes | None = None) -> None:
    """Starts a process, by a fork where the device is known to be a CPU: a GPU's driver may not survive one."""
    on_cpu = properties and _isolated() and abi.Properties.from_buffer_copy(properties).is_cpu
    if not builder.useless:
        try:
            builder.start(_builders[0] if on_cpu and builder is not _builders[0] else None)
        except OSError as error:
            log.info("no builder process: %r", error)


class Building:
    """Kernels of a plan, built from when they are asked for on, beside what the caller does until it needs them all.

    A program takes some 14 ms whatever is in it (Intel's, Zen 5), so where processes build, several kernels are one:
    the 47 of examples/gpt.py took 2.5 s of processor time as 17 programs, 3.1 each by itself, when it took 20 ms.

    `load(numbers, text, is_binary)` makes, in this process, the program of the kernels that were asked for as these.
    properties: the device's, packed, by which a process knows that its driver's device is the same.
    """

    def __init__(self, device: int, properties: bytes, load: Callable[[list[int], bytes, bool], int]) -> None:
        self._device, self._properties, self._load = device, properties, load
        self._isolated = _isolated()
        self._sources: list[Source] = []
        # (-length, number) of kernels that nobody builds yet, the longest first: one begun last would be waited for.
        self._left: queue.PriorityQueue[tuple[int, int]] = queue.PriorityQueue()
        self._answers: queue.SimpleQueue[tuple[list[int], Any] | Ended | None] = queue.SimpleQueue()
        self._threads: dict[Builder, threading.Thread] = {}
        self._unanswered: set[int] = set()

    def ask(self, source: Source) -> None:
        """One more kernel, of this source."""
        self._sources.append(source)
        self._unanswered.add(len(self._sources) - 1)
        self._leave(len(self._sources) - 1)
        for builder in self._helpers():
            if builder not in self._threads and len(self._threads) < len(self._sources):
                self._threads[builder] = threading.Thread(target=self._helped_by, args=(builder,), daemon=True)
                self._threads[builder].start()

    def wait(self) -> bool:
        """Whether a process has some still to build."""
        return bool(self._threads and self._unanswered)

    def finish(self) -> list[int | RuntimeError]:
        """Each kernel's program in the order of asking, or what is wrong with it: Died, or what `load` raised.

        Raises Ended where the script ends meanwhile.
        """
        self._end()
        working = len(self._threads)
        made: dict[int, int | RuntimeError] = {}
        while len(made) < len(self._sources):
            # What nobody does, and, where the script's process builds too, what nobody has begun.
            if not (self._isolated and working) and (i := self._next()) is not None:
                made[i] = self._loaded([i], self._text([i]), False)
                continue
            match self._answers.get():
                case None:
                    working -= 1
                case Ended() as ended:
                    raise ended
                case [i], Died() as died:
                    made[i] = died
                case numbers, bytes() as binary:
                    made |= dict.fromkeys(numbers, self._loaded(numbers, binary, True))
                case numbers, _:  # what the driver's compiler refuses it refuses here, in the driver's own words
                    made |= {i: self._loaded([i], self._text([i]), False) for i in numbers}
        return [made[i] for i in range(len(self._sources))]

    def abandon(self) -> None:
        """Waits for what has begun and leaves the rest."""
        while self._next() is not None:
            pass
        self._end()
        for thread in self._threads.values():
            thread.join()

    def _helpers(self) -> list[Builder]:
        """The processes that so many kernels are worth."""
        if self._device in _unknown or not discovery.opened_as_selected():
            return []
        # Where the script's process builds too it has a core of its own.
        useful = [b for b in _builders[: None if self._isolated else -1] if not b.useless]
        if len(self._sources) >= FEWEST:
            return useful
        return [b for b in useful if b.running()] or useful[:1] if self._isolated else []

    def _text(self, numbers: list[int]) -> bytes:
        first, *others = (self._sources[i] for i in numbers)
        return first.program(*others).encode()

    def _length(self, i: int) -> int:
        return len(self._sources[i].kernel)

    def _leave(self, i: int) -> None:
        self._left.put((-self._length(i), i))

    def _end(self) -> None:
        for _ in self._threads:
            self._left.put(_END)

    def _next(self, wait: bool = False) -> int | None:
        """The longest kernel that nobody has begun, if there is one, or when there is one."""
        try:
            found = self._left.get(wait)
        except queue.Empty:
            return None
        if found == _END:
            if not wait:
                self._left.put(_END)  # for a helper
            return None
        return found[1]

    def _together(self, first: int) -> list[int]:
        """Kernels for a program with this one: no more than leaves as much for each of the other processes, if much."""
        numbers, length = [first], self._length(first)
        left = length + sum(-found[0] for found in list(self._left.queue) if found != _END)
        share = min(TOGETHER, max(LEAST, left // len(self._threads)))
        while self._isolated and self._sources[first].header and (i := self._next()) is not None:
            if length + self._length(i) > share or not self._sources[i].header:
                self._leave(i)
                break
            numbers.append(i)
            length += self._length(i)
        return numbers

    def _loaded(self, numbers: list[int], text: bytes, is_binary: bool) -> int | RuntimeError:
        try:
            return self._load(numbers, text, is_binary)
        except RuntimeError as error:
            return error

    def _helped_by(self, builder: Builder) -> None:
        while (first := self._next(wait=True)) is not None:
            numbers = self._together(first)
            answers: list[tuple[list[int], Any]] = []
            try:
                answers = [(numbers, self._built(builder, numbers))]
                if len(numbers) > 1 and not isinstance(answers[0][1], bytes):  # one of them is at fault
                    answers = [([i], self._built(builder, [i])) for i in numbers]
            except Ended as ended:
                self._answers.put(ended)
                return
            except Unstarted as error:
                log.info("no builder process: %s; programs are built in the script's", error)
                answers = []
            except Exception:  # whoever asked would wait for ever
                log.exception("a builder process could not be asked; programs are built in the script's")
                answers = []
            if not answers or any(answer is None for _, answer in answers):
                for i in numbers:
                    self._leave(i)
                break
            for answer in answers:
                self._answers.put(answer)
            self._unanswered.difference_update(numbers)
        self._answers.put(None)

    def _built(self, builder: Builder, numbers: list[int]) -> bytes | str | Died | None:
        """What the process gives for a program. None: it knows no binaries of the device."""
        _start(builder, self._properties)
        try:
            answer = builder.build(self._device, self._properties, self._text(numbers))
        except Died as died:
            return died
        if answer is None:
            _unknown.add(self._device)
        return answer


# Comes after all kernels.
_END = 1, 0
