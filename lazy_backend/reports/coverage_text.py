"""The coverage report as a terminal table and as Markdown."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from .coverage import STATES

OPEN_STATES = ("wrong", "missing", "untested", "fallback")
CAUSES_SHOWN = 40


def headline(report: dict[str, Any]) -> str:
    """Return the one line that sums the report up."""
    share = 100 * report["device"] / report["denominator"]
    return f"{report['device']} of {report['denominator']} kernel groups run on the device, verified ({share:.1f} %)"


def by_kind(report: dict[str, Any]) -> list[tuple[str, Counter[str]]]:
    """Return the states of the groups of each kind, largest kind first."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for group in report["groups"]:
        kinds[group["kind"]][group["state"]] += 1
    return sorted(kinds.items(), key=lambda item: -item[1].total())


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report."""
    states = Table(title=headline(report), box=None)
    for name in ("kind", *STATES):
        states.add_column(name, no_wrap=True)
    for kind, counts in by_kind(report):
        states.add_row(kind, *(str(counts[state] or "") for state in STATES))
    console.print(states)
    composites = report["composites"]
    console.print("composites: " + ", ".join(f"{count} {state}" for state, count in composites.items()))
    console.print("overloads by route: " + ", ".join(f"{count} {route}" for route, count in report["routes"].items()))
    console.print(f"core ops: {len(report['core_ops'])}, scalar functions: {len(report['scalar_functions'])}")
    for state in OPEN_STATES:
        names = [group["name"] for group in report["groups"] if group["state"] == state]
        if names:
            console.print(f"[bold]{state}[/bold] ({len(names)}): {', '.join(names)}", highlight=False)


def markdown(report: dict[str, Any]) -> str:
    """Return the report as a page for docs/."""
    return "\n".join(_page(report)) + "\n"


def _page(report: dict[str, Any]) -> Iterator[str]:
    yield "# Operator coverage"
    yield ""
    yield "Written by `python -m lazy_backend coverage --update`; nothing here is typed by hand."
    yield ""
    yield f"**{headline(report)}.** torch {report['torch']}."
    yield ""
    yield (
        "A group is the functional, in-place and out= faces of one signature that a device gets nothing for. *native*:"
    )
    yield "ran without a fallback and agreed with the CPU in a test; *decomposed*: the same, through a decomposition;"
    yield "*fallback*: right, but some case of it ran on the CPU; *wrong*, *missing* (raises), *untested*."
    yield ""
    yield from _table(("kind", *STATES), ((kind, *(c[s] or "" for s in STATES)) for kind, c in by_kind(report)))
    yield from _table(("composites", "overloads"), report["composites"].items())
    yield from _table(("route", "overloads"), report["routes"].items())
    yield f"Core ops ({len(report['core_ops'])} and `map` over {len(report['scalar_functions'])} scalar functions): "
    yield ", ".join(f"`{name}`" for name in report["core_ops"]) + "."
    yield ""
    yield "## What the tests show"
    yield ""
    yield f"Runs: {'; '.join(f'`{settings}`' for settings in report['settings']) or 'none yet'}."
    yield "*loose* cases are right by PyTorch's tolerance for accelerators (1e-3), or no further from the float64"
    yield "result than three times the CPU's own error, as its compiler's tests allow; so all float32 errors together."
    yield ""
    columns = (
        "family", "dtype", "variant", "units_pass", "units_tested",
        "pass", "loose", "differ", "raise", "timeout", "crash", "skip", "on_host",
    )  # fmt: skip
    yield from _table(columns, (tuple(row.get(name, "") for name in columns) for row in report["rates"]))
    yield "## Failures by cause"
    yield ""
    causes = report["causes"][:CAUSES_SHOWN]
    cells = ((c["count"], c["status"], f"`{c['blame']}`" if c["blame"] else "", _cell(c["message"])) for c in causes)
    yield from _table(("places", "status", "blame", "message"), cells)
    for state in OPEN_STATES:
        members = [group for group in report["groups"] if group["state"] == state]
        if not members:
            continue
        yield f"## Groups: {state} ({len(members)})"
        yield ""
        cells = ((f"`{group['name']}`", group["kind"], group["route"], _cell(group["why"])) for group in members)
        yield from _table(("group", "kind", "route", "why"), cells)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "&lt;")[:160]


def _table(head: tuple[Any, ...], rows: Any) -> Iterator[str]:
    yield "| " + " | ".join(map(str, head)) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""
