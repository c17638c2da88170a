"""Runs the example scripts on eager CPU and on the lazy device and compares them, in turns.

python examples/run_demo.py [gpt cnn stencil] [--json]

The scripts know nothing of lazy; each run is a process of its own. Exits with 1 where the two devices disagree.
"""

import argparse
import importlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

DEVICES = ("cpu", "lazy")
DEMOS = {"gpt": 100, "cnn": 300, "stencil": 300}  # steps
READ_EVERY = 10  # steps between two looks at the loss, as training scripts do
WARM_STEPS = 20  # not timed
TOLERANCE = 1e-4  # relative, of every step's loss
REPORTS = Path("out") / "demo"


def measure(name: str, device: str) -> dict[str, Any]:
    """Runs one demo in this process: losses, seconds per step, and on lazy the device's counters."""
    values: list[torch.Tensor] = []
    chunks: list[float] = []
    counters: list[dict[str, Any]] = []
    lazy = device == "lazy"
    mark = start = time.perf_counter()
    first = 0.0

    def report(step: int, value: torch.Tensor) -> None:
        nonlocal mark, first
        values.append(value.detach())
        if step == 0:
            value.item()
            first = time.perf_counter() - start
        if step == 1:
            value.item()  # when its windows have run, they are compiled
        if lazy and step == 1:
            counters.append(torch.lazy.stats())
        if step % READ_EVERY == READ_EVERY - 1:
            value.item()
            now = time.perf_counter()
            chunks.append((now - mark) / READ_EVERY)
        if lazy and step == steps - 1:
            counters.append(torch.lazy.stats())
        if step % READ_EVERY == READ_EVERY - 1:
            os.kill(os.getpid(), signal.SIGSTOP)  # the other device's turn
            mark = time.perf_counter()

    steps = DEMOS[name]
    result = importlib.import_module(name).run(device, steps, report)
    row: dict[str, Any] = {
        "losses": torch.stack(values).double().tolist(),
        "result": result,
        "first_step_s": first,
        "steps_ms": [chunk * 1e3 for chunk in chunks[WARM_STEPS // READ_EVERY :]],
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if lazy:
        row |= counted(name, steps, *counters, torch.lazy.stats())
    return row


def counted(
    name: str, steps: int, early: dict[str, Any], trained: dict[str, Any], end: dict[str, Any]
) -> dict[str, Any]:
    """What the device did, from its counters after two steps, after the last step, and at the end."""
    kernels = trained["kernels_launched"] - early["kernels_launched"]
    return {
        "windows": (trained["windows"] - early["windows"]) / (steps - 2),
        "kernels": kernels / (steps - 2),
        "ops_per_kernel": (trained["ops"] - early["ops"]) / max(kernels, 1),
        "compile_s": end["compile_seconds"],
        "late_compiles": trained["plans_compiled"] - early["plans_compiled"],
        "result_compiles": end["plans_compiled"] - trained["plans_compiled"],
        "fallbacks": end["host_ops"],
        "peak_mb": torch.lazy.max_memory_allocated() / 2**20,
        "report": str(write_report(name, end)),
    }


def write_report(name: str, stats: dict[str, Any]) -> Path:
    """The counters, and every kernel with its ops and the Python line that they come from."""
    from lazy_backend.kernels import described

    lines = [f"{key}: {value}" for key, value in stats.items()] + ["", "kernels:", *described.values()]
    path = REPORTS / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def take_turns(name: str) -> Iterator[dict[str, dict[str, Any]]]:
    """`measure` on both devices, each in a process of its own, some steps each in turn, so that a machine that is fast
    or slow for a while is so for both. Yields the rows that are complete after each turn."""
    command = [sys.executable, __file__, name, "--measure"]
    running: dict[str, subprocess.Popen[str]] = {}
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < len(DEVICES):
        for device in DEVICES:
            if device in rows:
                continue
            if device in running:
                running[device].send_signal(signal.SIGCONT)
            else:
                running[device] = subprocess.Popen([*command, device], stdout=subprocess.PIPE, text=True)
            child = running[device]
            if os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code == os.CLD_STOPPED:
                os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            else:
                text, _ = child.communicate()
                if child.returncode:
                    raise subprocess.CalledProcessError(child.returncode, child.args)
                rows[device] = json.loads(text.splitlines()[-1])
            yield rows


def compare(cpu: dict[str, Any], lazy: dict[str, Any]) -> dict[str, Any]:
    """The two runs as one row of the summary."""
    gap = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(cpu["losses"], lazy["losses"], strict=True))
    # Of turns that follow each other: a machine that drifts moves the two medians apart, but not the pairs.
    ratios = sorted(a / b for a, b in zip(cpu["steps_ms"], lazy["steps_ms"], strict=True))
    agrees = gap <= TOLERANCE and lazy["fallbacks"] == 0
    return {"cpu": cpu, "lazy": lazy, "gap": gap, "ratios": ratios, "agrees": agrees}


def speed_up(ratios: list[float]) -> str:
    """The median of the turns, and the middle half of them."""
    low, _, high = statistics.quantiles(ratios)
    return f"{statistics.median(ratios):.2f}x ({low:.2f} to {high:.2f})"


def outcome(row: dict[str, Any]) -> str:
    """What the script found, in short: numbers, or the end of a text."""
    return ", ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"...{v[-20:]!r}" for k, v in row["result"].items())


ROWS = {  # label: cell of (comparison)
    "largest relative gap of the loss": lambda c: f"{c['gap']:.1e} {'ok' if c['gap'] <= TOLERANCE else 'TOO LARGE'}",
    "last loss, cpu": lambda c: f"{c['cpu']['losses'][-1]:.6f}",
    "last loss, lazy": lambda c: f"{c['lazy']['losses'][-1]:.6f}",
    "result, cpu": lambda c: outcome(c["cpu"]),
    "result, lazy": lambda c: outcome(c["lazy"]),
    "step, cpu (ms)": lambda c: f"{statistics.median(c['cpu']['steps_ms']):.2f}",
    "step, lazy (ms)": lambda c: f"{statistics.median(c['lazy']['steps_ms']):.2f}",
    "speed-up (middle half of turns)": lambda c: speed_up(c["ratios"]),
    "first step, cpu / lazy (s)": lambda c: f"{c['cpu']['first_step_s']:.2f} / {c['lazy']['first_step_s']:.2f}",
    "windows per step": lambda c: f"{c['lazy']['windows']:.1f}",
    "kernels per step": lambda c: f"{c['lazy']['kernels']:.1f}",
    "ops per kernel": lambda c: f"{c['lazy']['ops_per_kernel']:.1f}",
    "compile time (s)": lambda c: f"{c['lazy']['compile_s']:.2f}",
    "plans compiled from step 3 on": lambda c: str(c["lazy"]["late_compiles"]),
    "plans compiled after the steps": lambda c: str(c["lazy"]["result_compiles"]),
    "ops on the host (fallbacks)": lambda c: str(c["lazy"]["fallbacks"]),
    "device memory, peak (MB)": lambda c: f"{c['lazy']['peak_mb']:.1f}",
    "process memory, cpu / lazy (MB)": lambda c: f"{c['cpu']['resident_mb']:.0f} / {c['lazy']['resident_mb']:.0f}",
    "report": lambda c: c["lazy"]["report"],
}


def summary(compared: dict[str, dict[str, Any]]) -> Table:
    """One column per demo."""
    table = Table("", *(f"{name} ({DEMOS[name]} steps)" for name in compared))
    for label, cell in ROWS.items():
        table.add_row(label, *(cell(c) for c in compared.values()))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*DEMOS, []], help="which demos; all by default")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.add_argument("--measure", metavar="DEVICE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.names[0], args.measure)))
        return 0

    console = Console(stderr=args.json)
    compared = {}
    for name in args.names or DEMOS:
        turns = len(DEVICES) * (DEMOS[name] // READ_EVERY + 1)
        *_, rows = track(take_turns(name), f"{name}, cpu and lazy in turns", turns, console=console)
        compared[name] = compare(**rows)
    if args.json:
        print(json.dumps(compared))
    else:
        console.print(summary(compared))
        if "gpt" in compared:
            console.print("The GPT on lazy writes:", compared["gpt"]["lazy"]["result"]["text"], sep="\n", markup=False)
    return 0 if all(c["agrees"] for c in compared.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
