"""``python -m lazy_backend conform``: run the suite, show progress, write results, list failures by cause."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .case import VARIANTS
from .results import BAD, GOOD, STATUSES, ResultFile, UnitResult
from .runner import Shard, run
from .worker import Settings, all_units

RESULTS = Path("out/conformance.jsonl")
MESSAGE_WIDTH = 110
CONSOLE_WIDTH = 120


def conform(
    device: Annotated[str, typer.Option(help="Device under test; cpu is a dry run of the suite itself.")] = "lazy",
    samples: Annotated[int, typer.Option(help="Samples of each unit, spread evenly; 0 for all.")] = 0,
    only: Annotated[str, typer.Option(help="Regular expression that a unit's name must match.")] = "",
    dtypes: Annotated[str, typer.Option(help="Comma-separated dtypes; all of them if empty.")] = "",
    variants: Annotated[str, typer.Option(help="Comma-separated variants.")] = ",".join(VARIANTS),
    shard: Annotated[str, typer.Option(help="I/N: only part I of N of the units.")] = "0/1",
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds that one case may take.")] = 60.0,
    window: Annotated[int, typer.Option(help="Ops in a window; 0 for the default.")] = 0,
    results: Annotated[Path, typer.Option(help="Results, a JSON line a unit; a run resumes from them.")] = RESULTS,
    fresh: Annotated[bool, typer.Option(help="Forget earlier results.")] = False,
    again: Annotated[bool, typer.Option(help="Run the units that failed once more.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Run PyTorch's operator, module and optimizer samples on the device and compare with the CPU."""
    part = Shard(*map(int, shard.split("/")))
    wanted = set(dtypes.split(",")) if dtypes else None
    names = [unit.name for unit in all_units()]
    if device == "lazy" and not torch.get_device_module(device).get_device_properties(0).capabilities["has_f64"]:
        names = [n for n in names if not n.endswith(":float64")]
    names = [n for n in names if n in part and re.search(only, n) and (wanted is None or n.split(":")[1] in wanted)]
    settings = Settings(device, samples, frozenset(variants.split(",")), window or None)
    if fresh:
        results.unlink(missing_ok=True)
    done = _with_progress(names, settings, ResultFile(results), jobs, timeout, again)
    if as_json:
        print(json.dumps(summary(done), indent=1))
    else:
        show(done, Console(width=CONSOLE_WIDTH))
    raise typer.Exit(any(result.total(BAD) for result in done.values()))


def _with_progress(
    names: list[str], settings: Settings, results: ResultFile, jobs: int, timeout: float, again: bool
) -> dict[str, UnitResult]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task("", total=len(names))
        bad = 0

        def progress(result: UnitResult) -> None:
            nonlocal bad
            bad += bool(result.total(BAD))
            bar.update(task, advance=1, description=f"{bad} failing, last {result.unit:<44.44}")

        return run(names, settings, results, jobs=jobs, timeout=timeout, again=again, progress=progress)


def summary(done: dict[str, UnitResult]) -> dict[str, object]:
    """Return pass rates by family, dtype and variant, in units and in cases, and the failures by cause."""
    return {"rates": rates(done), "causes": causes(done), "skips": skips(done)}


def rates(done: dict[str, UnitResult]) -> list[dict[str, object]]:
    """Return a row for each family, dtype and variant; a unit passes when none of its cases fails."""
    rows: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for result in done.values():
        family, dtype = result.unit.split("/")[0], result.unit.split(":")[1]
        for variant, counts in result.counts.items():
            row = rows[family, dtype, variant]
            row.update(counts)
            tested = bool(result.total(GOOD + BAD, variant))
            row["units_tested"] += tested
            row["units_pass"] += tested and not result.total(BAD, variant)
            row["on_host"] += result.on_host.get(variant, 0)
    keys = ("family", "dtype", "variant")
    return [dict(zip(keys, key, strict=True)) | dict(row) for key, row in sorted(rows.items())]


def causes(done: dict[str, UnitResult]) -> list[dict[str, object]]:
    """Return failures grouped by blamed overload, status and message, most frequent first."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for result in done.values():
        for failure in result.failures:
            message = re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", failure["message"])[:MESSAGE_WIDTH]
            found[failure["blame"] or "", failure["status"], message].append(f"{result.unit} {failure['variant']}")
    ranked = sorted(found.items(), key=lambda item: -len(set(item[1])))
    return [
        {"blame": blame, "status": status, "message": message, "count": len(set(where)), "where": sorted(set(where))}
        for (blame, status, message), where in ranked
    ]


def skips(done: dict[str, UnitResult]) -> dict[str, int]:
    """Return how often each reason for a skip was met."""
    total: Counter[str] = Counter()
    for result in done.values():
        total.update(result.skips)
    return dict(total.most_common())


def show(done: dict[str, UnitResult], console: Console) -> None:
    """Print the rates and the failures by cause."""
    table = Table(title="Conformance: units that pass, and cases by status", box=None)
    for name in ("family", "dtype", "variant", "units", *STATUSES, "on host"):
        table.add_column(name, no_wrap=True)
    for row in rates(done):
        share = f"{row['units_pass']}/{row['units_tested']}"
        counts = [str(row.get(status, "")) for status in (*STATUSES, "on_host")]
        table.add_row(str(row["family"]), str(row["dtype"]), str(row["variant"]), share, *counts)
    console.print(table)
    for cause in causes(done):
        where = list(cause["where"])  # type: ignore[call-overload]
        console.print(
            f"{cause['count']:>4} {cause['status']:<8} {cause['blame']}  {cause['message']}\n"
            f"      {', '.join(where[:4])}",
            highlight=False,
            markup=False,
        )
