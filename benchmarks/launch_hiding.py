"""`python -m benchmarks.launch_hiding`: whether recording, launch cost and device work overlap, on a simulated GPU.

A script of 1,000 ops runs on a chip whose launches take 20 us to arrive. Its trace is replayed on the virtual clock
with the recording thread's time in it: another thread submits a window's launches once its last op is recorded.
host: of recording, at the measured cost an op; device: kernels and the gaps between them, as if all were there from
the start; wall: from the first op to the end of the last kernel.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from device_sim import chip as chips
from device_sim.chip import Chip
from device_sim.clock import Step, replay
from device_sim.command import read_trace

OPS, LAUNCH_US = 1000, 20
SIZES = (8, 64, 256, 512)
ROUNDS = 9
CHIP, SETTING = "gpu_mid", f"launch_us={LAUNCH_US}"


class Times(NamedTuple):
    """Microseconds of virtual time."""

    host: float
    device: float
    wall: float

    @property
    def ratio(self) -> float:
        """Of the wall to what it would be if everything overlapped."""
        return self.wall / max(self.host, self.device)


def script(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """OPS ops, one at a time: sums, products, functions, a scalar."""
    for _ in range(OPS // 5):
        yield (a := a + b)
        yield (a := torch.relu(a))
        yield (a := a @ b)
        yield (a := torch.tanh(a))
        yield (a := a * 0.5)


def record(size: int) -> dict[str, list[float]]:
    """Ops recorded by the time that each window of the script is submitted, and microseconds an op of several runs.

    The last run is the last in the trace.
    """
    a, b = torch.randn(size, size).to("lazy"), torch.randn(size, size).to("lazy")

    def run() -> list[float]:
        start = torch.lazy.stats()["windows"]
        ready: list[float] = []
        for number, _ in enumerate(script(a, b), 1):  # the name keeps the result alive, or nothing would be computed
            ready += [number] * (torch.lazy.stats()["windows"] - start - len(ready))
        torch.lazy.synchronize()
        return ready + [OPS] * (torch.lazy.stats()["windows"] - start - len(ready))

    def timed() -> float:
        start = time.thread_time()
        for _ in script(a, b):
            pass
        recorded = time.thread_time() - start
        torch.lazy.synchronize()
        return recorded / OPS * 1e6

    with torch.no_grad():
        torch.lazy.synchronize()
        run()
        ready = run()
        costs = [timed() for _ in range(ROUNDS)]
    return {"ready": ready, "op_us": costs}


def of_windows(trace: Sequence[Step], count: int) -> list[list[Step]]:
    """What the last `count` windows of a trace submitted."""
    found: list[list[Step]] = [[]]
    for step in trace:
        if step.kind == "flush":
            found.append([])
        elif step.kind not in ("wait", "build", "load", "h2d", "d2h"):
            found[-1].append(step)
    return found[-1 - count : -1]


def overlapped(chip: Chip, submitted: Sequence[Sequence[Step]], ready: Sequence[float], op_us: float) -> Times:
    """The script's times where each window is submitted once `ready` ops are recorded, at `op_us` each."""
    steps: list[Step] = []
    for window, ops in zip(submitted, ready, strict=True):
        steps += [Step("record", amount=round(1e3 * ops * op_us)), *window]
    spans = replay(chip, steps).spans
    device = sum(span.end - span.start for span in spans) + chip.gap_us * (len(spans) - 1)
    return Times(ready[-1] * op_us, device, spans[-1].end)


def traced(size: int) -> tuple[list[Step], dict[str, list[float]]]:
    """The trace of `record` in a process of its own, and what it returned."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {
            "LAZY_DRIVER": "simgpu",
            "LAZY_SIM_CHIP": CHIP,
            "LAZY_SIM_SET": SETTING,
            "LAZY_SIM_REPORT": folder,
        }
        command = [sys.executable, "-m", "benchmarks.launch_hiding", str(size)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        return read_trace(Path(folder) / "trace.json"), json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a Markdown table."""
    chip = chips.with_settings(chips.load(CHIP), [SETTING])
    print("| tensors | windows | launches | host us | device us | wall us | wall / max(host, device) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        trace, found = traced(size)
        ready = found["ready"]
        submitted = of_windows(trace, len(ready))
        times = overlapped(chip, submitted, ready, statistics.median(found["op_us"]))
        launches = sum(step.kind == "kernel" for window in submitted for step in window)
        row = f"| {size} x {size} | {len(ready)} | {launches} |"
        print(row, *(f"{us:.0f} |" for us in times), f"{times.ratio:.3f} |", flush=True)


if __name__ == "__main__":
    if sizes := sys.argv[1:]:
        print(json.dumps(record(int(sizes[0]))))
    else:
        main()
