"""``python -m lazy_backend port``: the vendor's two commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from . import check as checking
from . import show
from .new import Language, scaffold
from .stages import STAGES

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Bring a new chip up: write a skeleton, check it.")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the chip: a Python identifier.")],
    level: Annotated[int, typer.Option(min=1, max=3, help="1: core ops, 2: kernels, 3: tuned.")] = 1,
    language: Annotated[Language, typer.Option(help="Language to write the driver in.")] = Language.python,
    folder: Annotated[Path, typer.Option(help="Where the package's folder goes.")] = Path(),
) -> None:
    """Write a driver package whose stubs are the checklist."""
    try:
        made = scaffold(name, level, language, folder)
    except (ValueError, FileExistsError) as error:
        raise typer.BadParameter(str(error)) from None
    install = f"pip install --no-build-isolation --no-deps -e {made}"
    print(f"wrote {made}\nnext: {install} && python -m lazy_backend port check {name}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Driver: a name, or a shared library's path.")],
    stage: Annotated[
        list[int] | None,
        typer.Option(min=0, max=len(STAGES) - 1, help="Only these stages; all that the level claims by default."),
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Run also what passed before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results and the HTML page; a run resumes from it.")] = Path(
        "out/port"
    ),
) -> None:
    """Run the conformance stages; exit 0 when every stage that was asked for passes."""
    stem = Path(name).stem

    def told(result: checking.Result) -> None:
        typer.echo(
            f"stage {result.stage}  {result.status:<7}  {result.title}  {result.text.splitlines()[:1]}", err=True
        )

    report = checking.run(name, stage or [], out / f"{stem}.json", fresh, told)
    (out / f"{stem}.html").write_text(show.page(report))
    print(json.dumps(show.summary(report), indent=1) if as_json else show.text(report))
    wanted = [r for r in report.results if not stage or r.stage in stage]
    raise typer.Exit(0 if (report.passed if not stage else all(r.status == "pass" for r in wanted)) else 1)
