"""`python -m benchmarks.first_steps`: what the first steps of a training script cost, from each of its starts.

Fresh processes train examples/gpt.py's model (or run a workload of the suite): eager CPU, with an empty cache, with an
empty cache and LAZY_COMPILE=async, with a cache that is full, and from an archive with compilers that cannot be
imported. Each takes one eager CPU step first: what torch itself imports at its first use is nobody's loading.
"""

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import nn

from .workloads import WORKLOADS, Step

STEPS = 20
# Environment of each start. {work}: a folder of the round, in which "cold" fills a cache, and "record", which is not
# timed, writes an archive.
STARTS = {
    "eager": {},
    "cold": {"LAZY_CACHE_DIR": "{work}/cache"},
    "async": {"LAZY_CACHE_DIR": "{work}/async", "LAZY_COMPILE": "async"},
    "warm": {"LAZY_CACHE_DIR": "{work}/cache"},
    "record": {"LAZY_CACHE_DIR": "{work}/cache", "LAZY_RECORD": "{work}/app.lzpack"},
    "archive": {"LAZY_CACHE_DIR": "{work}/none", "LAZY_COMPILE": "never", "LAZY_ARCHIVE": "{work}/app.lzpack"},
}
COMPILERS = ("mlir", "torch_mlir", "codegen", "lazy_backend.compiler")
COUNTS = ("plans_compiled", "plans_assembled", "kernels_built", "host_ops")


class Refused:
    """An import hook under which there are no compilers."""

    def find_spec(self, name: str, *_: Any) -> None:
        """Raises ImportError for a compiler."""
        if name in COMPILERS:
            raise ImportError(f"{name} must not be needed here")


def gpt(device: str) -> Step:
    """A training step of examples/gpt.py, whose loss is read."""
    example = importlib.import_module("examples.gpt")
    torch.manual_seed(0)
    model = example.GPT(100).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1)

    def step() -> torch.Tensor:
        window = torch.randint(100, (example.BATCH, example.CONTEXT + 1), generator=batches).to(device)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


class Driver:
    """Programs handed to the driver in this process: seconds and numbers, from source and from binaries."""

    def __init__(self, refuse: bool) -> None:
        from lazy_backend import _C

        self.seconds, self.programs = [0.0, 0.0], [0, 0]
        self._build, self._refuse = _C.build_program, refuse
        _C.build_program = self

    def __call__(self, device: int, text: bytes, is_binary: bool, options: str) -> int:
        if self._refuse and not is_binary:
            raise RuntimeError("a program is built from source")
        start = time.perf_counter()
        program = self._build(device, text, is_binary, options)
        self.seconds[is_binary] += time.perf_counter() - start
        self.programs[is_binary] += 1
        return program


def worker(start: str, workload: str) -> dict[str, Any]:
    """One process: seconds and counts."""
    make = gpt if workload == "gpt" else lambda device: WORKLOADS[workload].make(device, lambda f: f)
    clock = time.perf_counter
    if start == "archive":
        sys.meta_path.insert(0, Refused())  # type: ignore[arg-type]
    device = "cpu" if start == "eager" else "lazy"
    driver = Driver(refuse=start == "archive") if device == "lazy" else None
    begin = clock()
    torch.empty(1, device=device)
    row: dict[str, Any] = {"open": clock() - begin}
    begin = clock()
    make("cpu")().sum().item()
    row["before"] = clock() - begin
    begin = clock()
    step = make(device)
    row["make"] = clock() - begin
    if driver:
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        row |= {"ahead": sum(driver.programs), "ahead_s": sum(driver.seconds)}
    ends, system = [clock()], resource.getrusage(resource.RUSAGE_SELF).ru_stime
    for number in range(STEPS):
        step().sum().item()
        ends.append(clock())
        if number == 0:
            row["system"] = resource.getrusage(resource.RUSAGE_SELF).ru_stime - system
        if driver and number == 0:
            stats = torch.lazy.stats()
            row |= {"load": stats["compile_seconds"], "programs": sum(driver.programs) - row["ahead"]}
            row["driver"] = sum(driver.seconds) - row["ahead_s"]
    steps = [b - a for a, b in pairwise(ends)]
    row |= {"first": steps[0], "steady": statistics.median(steps[STEPS // 2 :]), "total": ends[-1] - ends[0]}
    if driver:
        stats = torch.lazy.stats()
        row |= {name: stats[name] for name in COUNTS} | {"from source": driver.programs[False]}
        row["modules"] = sorted(set(COMPILERS) & set(sys.modules))
    return row


def rounds(workload: str, starts: list[str], count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of fresh processes, in turns."""
    for _ in range(count):
        with tempfile.TemporaryDirectory() as work:
            for start in STARTS:
                if start not in starts and not (start == "record" and "archive" in starts):
                    continue
                environment = {name: value.format(work=work) for name, value in STARTS[start].items()}
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.first_steps", "--worker", start, "--workload", workload],
                    env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True,
                    cwd=Path(__file__).parents[1],
                )  # fmt: skip
                if start != "record":
                    yield start, json.loads(done.stdout.splitlines()[-1])


Cell = Callable[[dict[str, Any]], str]
COLUMNS: dict[str, Cell] = {
    "open, s": lambda row: f"{row['open']:.2f}",
    "before, s": lambda row: f"{row['before']:.2f}",
    "make, s": lambda row: f"{row['make']:.2f}",
    "programs before, s": lambda row: f"{row['ahead_s']:.3f} ({row['ahead']:.0f})" if "load" in row else "",
    "first step, s": lambda row: f"{row['first']:.3f}",
    "of which plans, s": lambda row: f"{row['load']:.3f}" if "load" in row else "",
    "of which programs, s": lambda row: f"{row['driver']:.3f} ({row['programs']:.0f})" if "load" in row else "",
    "system's time, s": lambda row: f"{row['system']:.3f}",
    "steady, s": lambda row: f"{row['steady']:.3f}",
    "(first - plans) / steady": lambda row: f"{(row['first'] - row.get('load', 0)) / row['steady']:.2f}",
    f"{STEPS} steps, s": lambda row: f"{row['total']:.2f}",
    **{name: (lambda row, name=name: f"{row[name]:.0f}" if name in row else "") for name in (*COUNTS, "from source")},
}


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each number."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0] if key != "modules"}


def main(
    workload: Annotated[str, typer.Option(help="gpt: examples/gpt.py's; or one of the suite")] = "gpt",
    starts: Annotated[str, typer.Option(help="comma-separated")] = ",".join(s for s in STARTS if s != "record"),
    turns: Annotated[int, typer.Option(min=1, help="fresh processes of each start, in turns")] = 3,
    worker_of: Annotated[str, typer.Option("--worker", hidden=True)] = "",
) -> None:
    """Prints a Markdown table of medians.

    `before`: the eager step. `plans`: all work on plans, with `programs` handed to the driver. `system's time`:
    processor time of the first step in the operating system, which clears memory when it is touched first.
    """
    if worker_of:
        print(json.dumps(worker(worker_of, workload)))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for start, row in rounds(workload, starts.split(","), turns):
        found.setdefault(start, []).append(row)
        if start == "archive" and (row["modules"] or row["from source"] or row["kernels_built"]):
            raise SystemExit(f"a run from an archive asked a compiler: {row}")
    print("| start | " + " | ".join(COLUMNS) + " |\n" + "| --- " * (len(COLUMNS) + 1) + "|")
    for start, rows in found.items():
        print(f"| {start} | " + " | ".join(cell(median(rows)) for cell in COLUMNS.values()) + " |")


if __name__ == "__main__":
    typer.run(main)
