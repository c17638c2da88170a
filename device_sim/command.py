"""``python -m lazy_backend sim``: run a script on a simulated chip, and ask what another chip would make of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import chip as chips
from .clock import Clock, Step, Work, replay
from .faults import BadPlan
from .faults import load as load_plan
from .report import summary, sweep_page

_BAR = 40  # characters of a sweep's longest bar


def sim(
    script: Annotated[Path, typer.Argument(exists=True, help="Python script that uses the lazy device.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    chip: Annotated[str, typer.Option(help=f"Description: {', '.join(chips.names())}, or a .toml file.")] = "gpu_mid",
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value of the description.")] = None,
    sweep: Annotated[
        str, typer.Option(help="key=a,b,c: the same trace at each value; window=a,b,c: the script again at each.")
    ] = "",
    faults: Annotated[str, typer.Option(help="TOML file of planned faults.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("out/sim"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a script on a simulated chip: predicted time, roofline, timeline; what-if by --set and --sweep."""
    try:
        description = chips.with_settings(chips.load(chip), set_ or [])
        load_plan(faults)
        settings = swept_settings(description, sweep)
    except (chips.BadChip, BadPlan) as error:
        raise typer.BadParameter(str(error)) from None
    driver = "simnpu" if description.kind == "npu" else "simgpu"
    env = {"LAZY_DRIVER": driver, "LAZY_SIM_CHIP": chip, "LAZY_SIM_SET": ",".join(set_ or [])}
    env |= {"LAZY_SIM_FAULTS": faults}
    command = [sys.executable, str(script), *(arguments or [])]
    code = run(command, env, out)
    found: dict[str, Any] = {"devices": json.loads((out / "report.json").read_text())}
    if sweep.startswith("window="):
        found["sweep"] = windows(command, env, settings, out)
    elif sweep:
        found["sweep"] = swept(description, read_trace(out / "trace.json"), settings)
    if sweep:
        (out / "sweep.html").write_text(sweep_page(description, found["sweep"]))
    print(json.dumps(found, indent=1) if as_json else text(found, out))
    raise typer.Exit(code)


def run(command: list[str], env: dict[str, str], out: Path) -> int:
    """Run a script with its report in a folder; its exit status. Exits where it used no simulated device."""
    (out / "report.json").unlink(missing_ok=True)
    code = subprocess.run(command, env={**os.environ, **env, "LAZY_SIM_REPORT": str(out)}).returncode
    if not (out / "report.json").exists() or not json.loads((out / "report.json").read_text()):
        if not code:  # a script that failed has said why
            print(f"{command[1]} used no simulated device", file=sys.stderr)
        raise typer.Exit(code or 1)
    return code


def swept_settings(chip: chips.Chip, sweep: str) -> list[str]:
    """The settings of `key=a,b,c`, one a value; none for an empty text. Raises `BadChip` before anything has run."""
    key, equals, values = sweep.partition("=")
    settings = [f"{key}={value}" for value in values.split(",")] if equals else [sweep] * bool(sweep)
    for setting in settings:
        if key != "window":
            chips.with_settings(chip, [setting])
        elif not (value := setting.removeprefix("window=")).isdecimal() or int(value) < 1:
            raise chips.BadChip(f"{setting!r}: a window has 1 op or more")
    return settings


def windows(command: list[str], env: dict[str, str], settings: list[str], out: Path) -> list[dict[str, Any]]:
    """The script once more for each greatest length of a window: what recording further ahead, and fusing, buys."""
    rows = []
    for setting in settings:
        length = setting.removeprefix("window=")
        folder = out / f"window_{length}"
        run(command, {**env, "LAZY_WINDOW": length}, folder)
        rows.append({"setting": setting, **json.loads((folder / "report.json").read_text())[0]})
    return rows


def read_trace(path: Path) -> list[Step]:
    """The first device's trace, as `report.write` wrote it."""
    return [Step(**{**entry, "work": Work(**entry["work"])}) for entry in json.loads(path.read_text())[0]]


def swept(chip: chips.Chip, trace: list[Step], settings: list[str]) -> list[dict[str, Any]]:
    """The trace replayed with each `key=value`: what the clock says, without running the script again."""
    rows = []
    for setting in settings:
        changed = chips.with_settings(chip, [setting])
        clock: Clock = replay(changed, trace)
        rows.append({"setting": setting, **summary(changed, clock)})
    return rows


def text(found: dict[str, Any], out: Path) -> str:
    """The headline numbers, and the sweep as a bar chart."""
    lines = []
    for i, device in enumerate(found["devices"]):
        parts = ", ".join(f"{key} {value:.0%}" for key, value in device["utilisation"].items())
        lines.append(f"lazy:{i} on {device['chip']}: {device['total_us']:,.0f} us predicted; {parts}")
        hidden, exposed = device["launch_hidden_us"], device["launch_exposed_us"]
        lines.append(
            f"  {device['kernels']} kernels, {device['copies']} copies; launch cost {exposed:,.0f} us exposed, "
            f"{hidden:,.0f} us hidden; peak memory {device['peak_memory_bytes'] / 2**20:.1f} MiB"
        )
        lines += [f"  finding: {finding}" for finding in device["findings"]]
    longest = max((row["total_us"] for row in found.get("sweep", [])), default=1)
    for row in found.get("sweep", []):
        bar = "#" * max(1, round(_BAR * row["total_us"] / longest))
        lines.append(f"{row['setting']:>28}  {row['total_us']:>12,.0f} us  {bar}")
    pages = f"report: {out / 'device_0.html'}; timeline for Perfetto: {out / 'timeline.json'}"
    return "\n".join([*lines, pages + (f"; sweep: {out / 'sweep.html'}" if "sweep" in found else "")])
