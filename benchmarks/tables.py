"""The results as Markdown."""

import math
import statistics
from collections.abc import Collection, Iterable

from .floor import Floor
from .harness import Measured


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; NaN of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def markdown(header: list[str], rows: Iterable[list[str]]) -> str:
    """A table."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(base: Measured, other: Measured) -> float:
    """How many times faster `other` is than `base`: the median of the rounds, whose machine is the same for both."""
    pairs = list(zip(base.rounds_s, other.rounds_s, strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else base.step_s / other.step_s


def by_workload(results: list[Measured]) -> dict[str, dict[str, Measured]]:
    """workload -> engine -> result."""
    table: dict[str, dict[str, Measured]] = {}
    for result in results:
        table.setdefault(result.workload, {})[result.engine] = result
    return table


def speed_table(results: list[Measured], subject: str, python: Collection[str] = ()) -> str:
    """Milliseconds per step of each engine, and how much faster `subject` is than each other one.

    python: workloads that Python bounds; there is a mean without them.
    """
    table = by_workload(results)
    engines = list(next(iter(table.values())))
    others = [engine for engine in engines if engine != subject]
    rows = []
    ratios: dict[str, dict[str, float]] = {engine: {} for engine in others}
    for workload, row in table.items():
        cells = [workload] + ["failed" if row[e].error else f"{row[e].step_s * 1e3:.3g}" for e in engines]
        for engine in others:
            value = ratio(row[engine], row[subject])
            cells.append("" if math.isnan(value) else f"{value:.2f}x")
            if not math.isnan(value):
                ratios[engine][workload] = value
        rows.append(cells)
    for title, left_out in ("geometric mean", ()), ("without those that Python bounds", python):
        if not left_out or (set(left_out) & set(table) and set(table) - set(left_out)):
            kept = ([v for w, v in ratios[engine].items() if w not in left_out] for engine in others)
            rows.append([title, *[""] * len(engines), *(f"{geometric_mean(values):.2f}x" for values in kept)])
    header = ["workload", *(f"{e}, ms" for e in engines), *(f"{subject} vs {e}" for e in others)]
    return markdown(header, rows)


def floor_table(results: list[Measured], floors: list[Floor], op_us: float, subject: str) -> str:
    """What each step cannot do without, and how much of that is reached: medians of the rounds, as ratios are.

    Python: what is between ops, and `op_us` for each op that is asked for.
    """
    rows, table = [], by_workload(results)
    for floor in floors:
        parts, measured = floor.parts(op_us), table[floor.workload][subject]
        whole = [sum(part) for part in parts]
        if not whole or measured.error:
            continue
        medians = [*map(statistics.median, zip(*parts, strict=True)), statistics.median(whole), measured.step_s]
        reached = statistics.median(a / b for a, b in zip(whole, measured.rounds_s, strict=True))
        rows.append([floor.workload, *(f"{seconds * 1e3:.3g}" for seconds in medians), f"{reached:.0%}"])
    header = ["ms", "contractions", "memory", "Python", "floor", f"{subject}", "reached"]
    return markdown(header, rows)


def warm_table(results: list[Measured]) -> str:
    """Seconds to the end of the first step, and to 90 % of steady-state speed."""
    table = by_workload(results)
    engines = list(next(iter(table.values())))
    header = ["workload", *(f"{e}: first step, s" for e in engines), *(f"{e}: 90 %, s" for e in engines)]
    first = {w: [f"{row[e].first_step_s:.2f}" for e in engines] for w, row in table.items()}
    warm = {w: [f"{row[e].warm_s:.2f}" for e in engines] for w, row in table.items()}
    return markdown(header, ([w, *first[w], *warm[w]] for w in table))


def count_table(results: list[Measured]) -> str:
    """Per step on lazy: ops, windows, kernels, plans compiled, ops on the host."""
    counted = [result for result in results if result.counts]
    if not counted:
        return ""
    names = list(counted[0].counts)
    rows = ([f"{r.workload} ({r.engine})", *(f"{r.counts[name]:.4g}" for name in names)] for r in counted)
    return markdown(["per step", *names], rows)


def overhead_table(costs: dict[str, dict[str, float]]) -> str:
    """Host microseconds per op, a column per device."""
    rows = ([op, *(f"{costs[device][op]:.2f}" for device in costs)] for op in next(iter(costs.values())))
    return markdown(["host cost per op, us", *costs], rows)
