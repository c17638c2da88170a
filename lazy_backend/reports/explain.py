"""What the device makes of a piece of code: windows, their kernels, the MLIR and source of each, the Python lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lazy_backend import _C, background
from lazy_backend import torch_lazy as lazy
from lazy_backend.reports import compiles


@dataclass(frozen=True)
class KernelReport:
    """One launch: the ops that it computes with their Python lines, and the kernel as MLIR and as source."""

    ops: list[str]
    lines: list[str]
    global_size: tuple[int, int, int]
    mlir: str
    source: str


@dataclass(frozen=True)
class WindowReport:
    """One window: its ops with their Python lines, its launches, the ops that run on the CPU."""

    ops: list[str]
    lines: list[str]
    kernels: list[KernelReport]
    host_ops: list[str]


@dataclass
class Explanation:
    """The windows of a run, in order; `str()` is the readable form. `result`: what the function returned."""

    windows: list[WindowReport] = field(default_factory=list)
    result: Any = None

    def __str__(self) -> str:
        text = []
        for number, window in enumerate(self.windows):
            text.append(f"window {number}: {len(window.ops)} ops, {len(window.kernels)} kernels")
            text += [f"  {op}  ({line})" for op, line in zip(window.ops, window.lines, strict=True)]
            text += [f"  on the CPU: {op}" for op in window.host_ops]
            for at, kernel in enumerate(window.kernels):
                text.append(f"\n  kernel {at}: {' + '.join(kernel.ops)}  over {kernel.global_size}")
                text += [f"    from {line}" for line in kernel.lines]
                text += ["", kernel.mlir.strip(), "", kernel.source.strip()]
        return "\n".join(text)


# Where `explain` gathers what is compiled, while it runs.
captured: list[WindowReport] | None = None


def explain(fn: Callable[..., Any], *args: Any) -> Explanation:
    """Runs `fn(*args)` and tells what was compiled for it. What was recorded before is run first."""
    global captured
    devices = range(_C.device_count())
    for index in devices:
        _C.synchronize(index)
        _C.forget_plans(index)
    explanation = Explanation()
    captured = explanation.windows
    _C.compile_all(True)
    try:
        explanation.result = fn(*args)
        for index in devices:
            _C.synchronize(index)
    finally:
        captured = None
        _C.compile_all(False)
    return explanation


_EVENTS = {
    "cut": "windows ended because",
    "read": "the host waited for a value",
    "fallback": "ops that ran on the CPU",
}

_REASONS = {
    ("cut", "read"): "the host needed a value",
    ("cut", "full"): "it held LAZY_WINDOW ops",
    ("cut", "bytes"): "its results would take over 1 GiB",
    ("cut", "synchronize"): "the program synchronized",
    ("cut", "host_op"): "an op runs on the CPU",
    ("cut", "copy"): "the host wrote to a tensor in use",
    ("cut", "event"): "an event was recorded",
    ("cut", "graph"): "a graph was captured or replayed",
    ("cut", "boundary"): "a mark of the program",
    ("cut", "content"): "a step of the program repeats there",
    ("read", "item"): "item(), bool(), a branch on a value",
    ("read", "copy to the host"): "cpu(), tolist(), print",
    ("read", "view by the host"): "DLPack",
}


@dataclass(frozen=True)
class Cause:
    """Why windows ended, the host waited or an op fell back: how often, and the Python line of the first time."""

    event: str  # "cut", "read" or "fallback"
    reason: str  # a name of `_REASONS`, or the op that fell back
    count: int
    line: str

    def __str__(self) -> str:
        return f"  {_REASONS.get((self.event, self.reason), self.reason):<42}{self.count:>8}  first at {self.line}"


def causes() -> list[Cause]:
    """Since the last `torch.lazy.reset_stats()`, the most frequent of each event first."""
    found = [Cause(*row) for row in _C.causes()]
    return sorted(found, key=lambda cause: (list(_EVENTS).index(cause.event), -cause.count))


def report() -> str:
    """What the device has done since the last `torch.lazy.reset_stats()`: counters, causes with lines, kernels."""
    from lazy_backend.kernels import described

    stats = lazy.stats()
    numbers = {name.replace("_", " "): n for name, n in stats.items() if not isinstance(n, dict)}
    numbers |= {f"cache {name}": n for name, n in stats["cache"].items()}
    text = [f"{name:<20}{n:>14.3f}" if isinstance(n, float) else f"{name:<20}{n:>14}" for name, n in numbers.items()]
    found = causes()
    for event, title in _EVENTS.items():
        text += ["", title] + ([str(cause) for cause in found if cause.event == event] or ["  none"])
    rows = [f"  {kind:<12}{c.count:>8}  first: {c.text} (at {c.line})" for kind, c in compiles.causes.items()]
    text += ["", "compiles, by what was not as in the nearest known window", *(rows or ["  none"])]
    text += ["", "products tuned", *(f"  {line}" for line in background.tuned)] if background.tuned else []
    text += ["", "kernels loaded", *(f"  {what}" for what in described.values())]
    return "\n".join(text)
