"""What the device makes of a piece of code: windows, their kernels, the MLIR and source of each, the Python lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lazy_backend import _C
from lazy_backend.report import compiles


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
    try:
        explanation.result = fn(*args)
        for index in devices:
            _C.synchronize(index)
    finally:
        captured = None
    return explanation


def report() -> str:
    """What the device has done since the last `torch.lazy.reset_stats()`: counters, causes with lines, kernels."""
    from lazy_backend.kernels import described

    stats = torch.lazy.stats()
    numbers = {name.replace("_", " "): n for name, n in stats.items() if not isinstance(n, dict)}
    numbers |= {f"cache {name}": n for name, n in stats["cache"].items()}
    text = [f"{name:<20}{n:>14.3f}" if isinstance(n, float) else f"{name:<20}{n:>14}" for name, n in numbers.items()]
    for event, title in (("cut", "cuts"), ("read", "reads"), ("fallback", "ops that ran on the CPU")):
        rows = [f"  {code:<40}{n:>8}  first at {line}" for what, code, n, line in _C.causes() if what == event]
        text += ["", title, *(rows or ["  none"])]
    rows = [f"  {kind:<12}{c.count:>8}  first: {c.text} (at {c.line})" for kind, c in compiles.causes.items()]
    text += ["", "compiles, by what was not as in the nearest known window", *(rows or ["  none"])]
    text += ["", "kernels loaded", *(f"  {what}" for what in described.values())]
    return "\n".join(text)
