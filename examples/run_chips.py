"""Trains the demos' models for a few steps on eager CPU and on every chip, and compares each step's loss.

python examples/run_chips.py [opencl hostc simgpu simnpu] [--steps 4] [--json]

Each run is a process of its own: a process has one driver. Exits with 1 where a chip's losses are not the CPU's.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

DEMOS = ("gpt", "cnn")
CHIPS = ("opencl", "hostc", "simgpu", "simnpu")
TOLERANCE = 1e-4  # relative, of every step's loss


class Trained(Exception):
    """Leaves a demo behind its last step: what it does with the trained model is not asked for here."""


def losses(demo: str, device: str, steps: int) -> dict[str, Any]:
    """Runs one demo in this process: the loss of each step, and how many ops the device sent to the host."""
    values: list[torch.Tensor] = []

    def report(step: int, value: torch.Tensor) -> None:
        values.append(value.detach())
        if step == steps - 1:
            raise Trained

    try:
        importlib.import_module(demo).run(device, steps, report)
    except Trained:
        found = torch.stack(values).double().tolist()
    return {"losses": found, "host_ops": torch.lazy.stats()["host_ops"] if device == "lazy" else 0}


def run_apart(demo: str, chip: str, steps: int) -> dict[str, Any]:
    """`losses` in a fresh process; chip: a driver's name, or cpu for eager."""
    device = "cpu" if chip == "cpu" else "lazy"
    command = [sys.executable, __file__, "--steps", str(steps), "--measure", demo, device]
    done = subprocess.run(
        command, env={**os.environ, "LAZY_DRIVER": chip}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def gap(losses: list[float], expected: list[float]) -> float:
    """The largest relative difference of any step's loss; infinite where there is a NaN."""
    gaps = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    return max(gaps) if all(g == g for g in gaps) else float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chips", nargs="*", default=CHIPS, help="drivers; those of the tree by default")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print the losses as JSON")
    parser.add_argument("--measure", nargs=2, metavar=("DEMO", "DEVICE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(losses(*args.measure, args.steps)))
        return 0

    runs = [(demo, chip) for demo in DEMOS for chip in ("cpu", *args.chips)]
    shown = Console(stderr=args.json)
    found = {run: run_apart(*run, args.steps) for run in track(runs, "demos on each chip", console=shown)}
    table = Table("demo", "chip", *(f"step {i}" for i in range(args.steps)), "largest gap", "ops on the host")
    rows = []
    for (demo, chip), row in found.items():
        row |= {"demo": demo, "chip": chip, "gap": gap(row["losses"], found[demo, "cpu"]["losses"])}
        rows.append(row)
        table.add_row(demo, chip, *(f"{x:.6f}" for x in row["losses"]), f"{row['gap']:.1e}", str(row["host_ops"]))
    print(json.dumps(rows)) if args.json else shown.print(table)
    return 0 if all(row["gap"] <= TOLERANCE and row["host_ops"] == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
