"""`python -m benchmarks`: the measured suite."""

import json
import platform
import statistics
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .engines import DEFAULT, ENGINES
from .floor import Floor
from .harness import FLOOR, Measured, measure, to_json
from .overhead import host_us
from .tables import count_table, floor_table, overhead_table, speed_table, warm_table
from .workloads import WORKLOADS


def chosen(names: str, table: dict, what: str) -> list[str]:
    """A comma-separated choice out of `table`; all of it where empty."""
    picked = [name for name in names.split(",") if name] or list(table)
    if unknown := [name for name in picked if name not in table]:
        raise typer.BadParameter(f"no such {what}: {', '.join(unknown)}; there are {', '.join(table)}")
    return picked


def sections(results: list[Measured], costs: dict[str, dict[str, float]], floors: list[Floor]) -> str:
    """The Markdown report."""
    subject = "lazy" if any(result.engine == "lazy" for result in results) else results[0].engine
    op_us = statistics.median(costs[ENGINES[subject].device].values()) if costs else 0.0
    head = f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
    failed = [f"- {failure(r)}" for r in [*results, *floors] if r.error]
    parts = {
        "Speed": speed_table(results, subject, [name for name, w in WORKLOADS.items() if w.python]),
        "Floors": floor_table(results, floors, op_us, subject) if floors else "",
        "Warm-up, empty caches": warm_table(results),
        "Counted": count_table(results),
        "Host cost": overhead_table(costs) if costs else "",
        "Failures": "\n".join(failed),
    }
    return "\n\n".join([f"# Benchmarks\n\n{head}", *(f"## {title}\n\n{text}" for title, text in parts.items() if text)])


def failure(result: Measured | Floor) -> str:
    """Which worker failed, and the last line that it wrote."""
    engine = result.engine if isinstance(result, Measured) else FLOOR
    return f"{result.workload} on {engine}: `{result.error.splitlines()[-1]}`"


def main(
    workloads: Annotated[str, typer.Option(help="comma-separated; all by default")] = "",
    engines: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(ENGINES)}")] = ",".join(DEFAULT),
    rounds: Annotated[int, typer.Option(min=1, help="turns of every engine")] = 15,
    floors: Annotated[bool, typer.Option(help="what each step cannot do without, too")] = True,
    out: Annotated[Path, typer.Option(help="folder for results.json and results.md")] = Path("out/benchmarks"),
) -> None:
    """Run workloads on engines that take turns; write medians, ratios and counts as Markdown and JSON."""
    console = Console()
    names, columns = chosen(workloads, WORKLOADS, "workload"), chosen(engines, ENGINES, "engine")
    results: list[Measured] = []
    needed: list[Floor] = []
    turns = [*columns, FLOOR] if floors else columns
    bar = Progress(TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with bar:
        task = bar.add_task("", total=len(names) * len(turns) * (rounds + 1))
        for name in names:
            bar.update(task, description=name)
            for result in measure(name, turns, rounds):
                if result is None:
                    bar.advance(task)
                else:
                    if isinstance(result, Floor):
                        needed.append(result)
                    else:
                        results.append(result)
                    if result.error:  # who waits for the rest should know
                        bar.console.print(failure(result), markup=False)
    devices = dict.fromkeys(ENGINES[engine].device for engine in columns)
    costs = host_us(devices)
    out.mkdir(parents=True, exist_ok=True)
    content = {"results": to_json(results), "host_us": costs, "floors": to_json(needed)}
    (out / "results.json").write_text(json.dumps(content, indent=1))
    text = sections(results, costs, needed)
    (out / "results.md").write_text(text + "\n")
    console.print(text, markup=False)
    console.print(f"\nwritten to {out}/results.md and {out}/results.json")


if __name__ == "__main__":
    typer.run(main)
