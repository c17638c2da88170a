"""One workload on one engine, in a process of its own: runs steps when told, so that engines can take turns.

Reads a number of steps a line from stdin; answers each with one line of JSON: seconds per step and, on lazy, what the
device counted per step. The first line it writes is about the warm-up.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from .engines import ENGINES
from .workloads import WORKLOADS, Step

WARM_SECONDS = 2.0  # after the first step, at most
WARM_STEPS = 50


def counters() -> dict[str, float]:
    """Numbers that only grow."""
    stats = torch.lazy.stats()
    names = ("ops", "windows", "kernels_launched", "plans_compiled", "host_ops")
    return {name: stats[name] for name in names}


def timed(step: Step, steps: int, wait: Callable[[], None]) -> float:
    """Seconds per step. Each result is waited for while it is alive: the device leaves out what nobody can see."""
    start = time.perf_counter()
    for _ in range(steps):
        result = step()
        wait()
        del result
    return (time.perf_counter() - start) / steps


def warm_up(make: Callable[[], Step], wait: Callable[[], None]) -> tuple[Step, dict[str, Any]]:
    """Runs first steps one by one; says when each ended (seconds since the start), the model's making included."""
    start = time.perf_counter()
    step = make()
    made = time.perf_counter() - start
    ends: list[float] = []
    while not ends or (len(ends) < WARM_STEPS and ends[-1] - ends[0] < WARM_SECONDS):
        timed(step, 1, wait)
        ends.append(time.perf_counter() - start)
    return step, {"made_s": made, "ends_s": ends}


def main() -> None:
    """`python -m benchmarks.worker WORKLOAD ENGINE`."""
    workload, engine = WORKLOADS[sys.argv[1]], ENGINES[sys.argv[2]]
    torch.manual_seed(0)
    wrap = torch.compile if engine.compiled else lambda f: f
    wait = torch.lazy.synchronize if engine.device == "lazy" else lambda: None
    step, warm = warm_up(lambda: workload.make(engine.device, wrap), wait)
    print(json.dumps(warm), flush=True)
    for line in sys.stdin:
        steps = int(line)
        before = counters() if engine.device == "lazy" else {}
        row = {"step_s": timed(step, steps, wait)}
        after = counters() if engine.device == "lazy" else {}
        print(json.dumps(row | {name: (after[name] - before[name]) / steps for name in before}), flush=True)


if __name__ == "__main__":
    main()
