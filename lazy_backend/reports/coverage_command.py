"""``python -m lazy_backend coverage``: every ATen overload, its route, and what verified it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lazy_backend.conformance.results import ResultFile
from lazy_backend.conformance.worker import all_units

from . import coverage_html, coverage_text, evidence
from . import script as scripts
from .coverage import report as make_report

PAGE = Path("docs/op-coverage.md")
CONSOLE_WIDTH = 120


def coverage(
    results: Annotated[
        Path | None, typer.Option(help="Conformance results; the committed evidence if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one searchable page.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a Markdown page.")] = None,
    update: Annotated[bool, typer.Option(help=f"Commit-ready: renew the evidence and {PAGE} from --results.")] = False,
    script: Annotated[Path | None, typer.Option(help="Report on the ops that this script runs.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
) -> None:
    """Report the route of every operator and what the tests have shown of it."""
    console = Console(width=CONSOLE_WIDTH)
    if script is not None:
        ran = scripts.run_script(script, arguments or [])
        print(json.dumps(ran, indent=1)) if as_json else scripts.show(ran, console)
        return
    archive = _gathered(results) if results else evidence.load()
    if update:
        evidence.save(archive)
        markdown = PAGE
    report = make_report(archive)
    if html:
        html.write_text(coverage_html.page(report))
    if markdown:
        markdown.write_text(coverage_text.markdown(report))
    if as_json:
        print(json.dumps(report, indent=1))
    elif not (html or markdown):
        coverage_text.show(report, console)


def _gathered(results: Path) -> evidence.Archive:
    """Return the evidence of the results of units that there still are."""
    current = {unit.name for unit in all_units()}
    return evidence.gather({name: result for name, result in ResultFile(results).load().items() if name in current})
