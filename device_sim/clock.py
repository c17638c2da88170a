"""The virtual clock: when each command of a trace runs on a chip. No wall time enters: one trace, one set of times.

One host submits commands; each takes `submit_us` of its time. A queue runs its commands in order. A command starts
when the one before it has ended (plus `gap_us`) and its submission has reached the chip (`launch_us` later); so launch
cost is hidden as long as the host runs ahead, and exposed where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .chip import Chip


@dataclass(frozen=True)
class Work:
    """What a kernel does. flops: operations by dtype, "special" among them; bytes: traffic.

    slots: operations issued, integer ones and selections too; a fused multiply-add is one slot and two flops.
    scattered: the part of the bytes whose next access lies on another page.
    """

    flops: dict[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    groups: int = 1
    slots: float = 0.0
    scattered: float = 0.0


@dataclass(frozen=True)
class Step:
    """One entry of a trace.

    kind     meaning                                  amount
    kernel   a launch, or a core op                   (see work)
    h2d d2h d2d  a copy                               bytes
    wait     the host waits for the queue             -
    alloc    memory taken (free: given back)          bytes
    build load   a program compiled, or made resident -
    flush        the host has no more for now         -
    record       the host prepares what follows       ns, from the trace's start, at which it is ready
    """

    kind: str
    name: str = ""
    queue: int = 0
    amount: int = 0
    work: Work = Work()


@dataclass(frozen=True)
class Span:
    """A command in virtual time (microseconds). exposed: launch cost during which the queue stood still."""

    step: Step
    submitted: float
    start: float
    end: float
    exposed: float
    limit: str  # what its duration comes from: "compute", "memory", "link" or "latency"


def kernel_us(chip: Chip, work: Work) -> tuple[float, str]:
    """Roofline time of a kernel and what limits it."""
    # Fewer work-groups than compute units leave units idle.
    share = min(1.0, work.groups / chip.compute_units)
    # n operations at r * 10^9 a second take n / r / 1000 microseconds.
    special = work.flops.get("special", 0.0) / chip.rate("special")
    arithmetic = sum(n / chip.rate(dtype) for dtype, n in work.flops.items() if dtype != "special")
    # A division or a root keeps the units that everything else waits for.
    compute = (max(arithmetic, work.slots / chip.issue_rate) + special) / (1e3 * chip.compute_efficiency * share)
    memory = memory_us(chip, work)
    return max(compute, memory), "compute" if compute > memory else "memory"


def memory_us(chip: Chip, work: Work) -> float:
    """Time of a kernel's traffic: what the cache holds of it at the cache's bandwidth, the rest at the memory's."""
    scattered = min(work.scattered, work.bytes) if chip.scattered_gbs else 0.0
    streamed = work.bytes - scattered
    cached = min(streamed, chip.cache_kib * 1024.0) if chip.cache_gbs else 0.0
    seconds = cached / (chip.cache_gbs or 1) + (streamed - cached) / (chip.bandwidth_gbs * chip.bandwidth_efficiency)
    return (seconds + scattered / (chip.scattered_gbs or 1)) / 1e3


class Clock:
    """Virtual time of one device. `spans`: the commands so far; `memory`: (time, bytes in use) at each change."""

    def __init__(self, chip: Chip):
        self.chip = chip
        self.host = 0.0
        self.host_waited = 0.0
        self.setup = 0.0  # of programs: once, beside the run, and less when the host's cache holds them
        self.spans: list[Span] = []
        self.memory: list[tuple[float, int]] = [(0.0, 0)]
        self._queue_end: dict[int, float] = {}
        self._engine_end = {"compute": 0.0, "copy": 0.0}

    def add(self, step: Step) -> None:
        """Let one step of the trace happen."""
        match step.kind:
            case "wait":
                end = max(self.host, self._queue_end.get(step.queue, 0.0))
                self.host_waited += end - self.host
                self.host = end
            case "alloc" | "free":
                self.host += self.chip.alloc_us
                change = step.amount if step.kind == "alloc" else -step.amount
                self.memory.append((self.host, self.memory[-1][1] + change))
            case "build" | "load":
                self.setup += self.chip.build_us if step.kind == "build" else self.chip.load_us
            case "record":
                self.host = max(self.host, step.amount / 1e3)
            case "flush":
                pass
            case _:
                self._command(step)

    def _command(self, step: Step) -> None:
        chip = self.chip
        self.host += chip.submit_us
        duration, limit = self._duration(step)
        latency = chip.launch_us if step.kind == "kernel" else chip.copy_us
        is_copy = chip.copy_engine and step.kind != "kernel"
        engine = "copy" if is_copy else "compute"
        queue_end = self._queue_end.get(step.queue, 0.0)
        ready = max(queue_end + (chip.gap_us if queue_end else 0.0), self._engine_end[engine])
        start = max(ready, self.host + latency)
        end = start + duration
        self._queue_end[step.queue] = self._engine_end[engine] = end
        self.spans.append(Span(step, self.host, start, end, min(start - queue_end, latency), limit))

    def _duration(self, step: Step) -> tuple[float, str]:
        chip = self.chip
        if step.kind == "kernel":
            return kernel_us(chip, step.work)
        if step.kind == "d2d":
            return 2 * step.amount / (1e3 * chip.bandwidth_gbs * chip.bandwidth_efficiency), "memory"
        return step.amount / (1e3 * (chip.h2d_gbs if step.kind == "h2d" else chip.d2h_gbs)), "link"

    @property
    def now(self) -> float:
        """When everything submitted so far has run."""
        return max([self.host, *self._queue_end.values()])

    def queue_time(self, queue: int) -> float:
        """When the last command of a queue ends."""
        return self._queue_end.get(queue, 0.0)


def replay(chip: Chip, trace: list[Step]) -> Clock:
    """The clock of a whole trace: the same program on another chip, without running it again."""
    clock = Clock(chip)
    for step in trace:
        clock.add(step)
    return clock
