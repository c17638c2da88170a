"""``python -m lazy_backend profile script.py``: what each kernel of a script takes, beside the least that it could."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from codegen.printer import print_kernel
from device_sim.clock import Work
from device_sim.cost import core_op_work, kernel_work
from lazy_backend.driver.base import Arg, Buffer, Local, Scalar, Tensor
from ops_core import dtypes

app = typer.Typer(add_completion=False)
WIDTH = 150  # of the table, where it goes to a file
# Operations of a dtype in the time of one of f32; of what is not here, as many as of f32.
_RATES = {"f64": 0.5}


@dataclass(frozen=True)
class Peak:
    """What a device can do at best: bandwidth in GB/s or rate of float32 in GFLOP/s. source: who says so."""

    value: float
    source: str


@dataclass
class Row:
    """A kernel, or the calls of one core op at one place. ns: all calls; floor_ns: the least that they could take.

    nbytes, flops: what all calls move and compute; None where nobody knows. line: the first Python line.
    """

    ops: str
    line: str
    calls: int = 0
    ns: int = 0
    nbytes: float | None = 0.0
    flops: float | None = 0.0
    floor_ns: float | None = 0.0

    def add(self, calls: int, ns: int, work: Work | None, floor_ns: float) -> None:
        """Add calls that take `ns` together, and each do `work` for which it needs `floor_ns` at least."""
        self.calls, self.ns = self.calls + calls, self.ns + ns
        if work is None or self.nbytes is None or self.flops is None or self.floor_ns is None:
            self.nbytes = self.flops = self.floor_ns = None
            return
        self.nbytes += calls * work.bytes
        self.flops += calls * sum(work.flops.values())
        self.floor_ns += calls * floor_ns

    def rate(self, amount: float | None) -> float | None:
        """Of bytes or flops: GB/s or GFLOP/s; of the floor: its share of the time."""
        return None if amount is None or not self.ns else amount / self.ns

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "ops": self.ops, "line": self.line, "calls": self.calls, "total_ms": self.ns / 1e6,
            "mean_us": self.ns / 1e3 / self.calls, "bytes": self.nbytes, "flops": self.flops,
            "gbs": self.rate(self.nbytes), "gflops": self.rate(self.flops), "floor_share": self.rate(self.floor_ns),
        }  # fmt: skip


@dataclass
class Profile:
    """One process: its kernels, the longest first. Times in seconds; wall_s: from the device's opening to the end."""

    driver: str
    device: str
    wall_s: float
    compile_s: float
    host_ops: int
    bandwidth: Peak
    compute: Peak
    rows: list[Row] = field(default_factory=list)

    @property
    def busy_s(self) -> float:
        """Time in kernels."""
        return sum(row.ns for row in self.rows) / 1e9

    @property
    def launches(self) -> int:
        """Calls of all kernels."""
        return sum(row.calls for row in self.rows)

    @property
    def host_share(self) -> float:
        """The part of the time in which no kernel ran."""
        return max(0.0, 1 - self.busy_s / self.wall_s) if self.wall_s else 0.0

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        found = {name: getattr(self, name) for name in ("driver", "device", "wall_s", "compile_s", "host_ops")}
        found |= {"busy_s": self.busy_s, "launches": self.launches, "host_share": self.host_share}
        found |= {"bandwidth_gbs": asdict(self.bandwidth), "peak_gflops_f32": asdict(self.compute)}
        return {**found, "kernels": [row.summary() for row in self.rows]}


class _Sized(NamedTuple):
    nbytes: int


_printed = functools.cache(print_kernel)


def work_of(entry: Mapping[str, Any], texts: list[str], language: str) -> Work | None:
    """What one launch does, as the simulator's cost model counts it; None where its text is not known."""
    match entry["kind"]:
        case "kernel":
            source, name = _printed(texts[entry["text"]], language), entry["name"]
            sizes, group = (tuple(size) for size in entry["sizes"])
            return kernel_work(source, name, sizes, group, [_argument(*arg) for arg in entry["args"]])
        case "custom":
            return Work(bytes=entry["reach"])
        case "call":
            tensors = [Tensor(None, 0, dtype, tuple(sizes), ()) for dtype, sizes in entry["tensors"]]
            names = {dtype.code: dtype.name for dtype in dtypes.BY_NAME.values()}
            outputs, inputs = tensors[: entry["outputs"]], tensors[entry["outputs"] :]
            return core_op_work(entry["op"], outputs, inputs, json.loads(entry["attrs"]), names)
    return None


def _argument(kind: str, value: float) -> Arg:
    if kind == "buffer":
        return Buffer(_Sized(int(value)))
    if kind == "local":
        return Local(int(value))
    # Only whole numbers say how far a kernel goes.
    return Scalar(int(value).to_bytes(8, "little", signed=True) if kind in ("bool", "i32", "i64") else bytes(8))


def floor_ns(work: Work, bandwidth: Peak, compute: Peak) -> float:
    """The least time: all bytes once at the bandwidth, or all operations at the peak. A special function counts one."""
    operations = sum(n / _RATES.get(dtype, 1.0) for dtype, n in work.flops.items())
    return max(work.bytes / bandwidth.value, operations / compute.value)


def profile_of(found: Mapping[str, Any], measure: Callable[[str, str], float]) -> Profile:
    """What a process wrote (`reports.profile`), reckoned. `measure(driver, what)`: a peak that is not stated."""
    peaks = []
    for what, value in found["stated"].items():
        peaks.append(Peak(value, "stated by the driver") if value else Peak(measure(found["driver"], what), "measured"))
    profile = Profile(*(found[k] for k in ("driver", "device", "wall_s", "compile_s", "host_ops")), *peaks)
    rows: dict[str, Row] = {}
    for number, calls, ns in found["times"]:
        entry = found["launches"][number]
        work = work_of(entry, found["texts"], found["language"])
        row = rows.setdefault(entry["key"], Row(entry["ops"], entry["line"]))
        row.add(calls, ns, work, floor_ns(work, *peaks) if work else 0.0)
    profile.rows = sorted(rows.values(), key=lambda row: -row.ns)
    return profile


ROUNDS = 10
TRIAD_FLOATS = 1 << 24
MATMUL = 1024


def measured(driver: str, what: str) -> float:
    """The best of ROUNDS: GB/s of a triad for "bandwidth_gbs", GFLOP/s of a product for "peak_gflops_f32"."""
    os.environ["LAZY_DRIVER"] = driver
    import torch

    from lazy_backend import _C, torch_lazy

    size = (TRIAD_FLOATS,) if what == "bandwidth_gbs" else (MATMUL, MATMUL)
    a, b, out = (torch.zeros(size, device="lazy") for _ in range(3))
    best = float("inf")
    for _ in range(ROUNDS + 1):  # the first takes what others need once
        torch_lazy.synchronize()
        _C.set_profiling(True)
        torch.add(a, b, alpha=2.0, out=out) if what == "bandwidth_gbs" else torch.mm(a, b, out=out)
        torch_lazy.synchronize()
        best = min(best, sum(ns for _, ns in _C.launch_times().values()))
        _C.set_profiling(False)
    return (3 * 4 * TRIAD_FLOATS if what == "bandwidth_gbs" else 2 * MATMUL**3) / best


def show(profile: Profile, title: str, top: int, console: Console) -> None:
    """Print the table of one process."""
    peaks = f"{profile.bandwidth.value:.1f} GB/s ({profile.bandwidth.source})"
    peaks += f" or its operations at {profile.compute.value:.0f} GFLOP/s ({profile.compute.source})"
    caption = (
        f"Floor: a kernel's bytes at {peaks}, whichever takes longer; over 100 % where data is in a cache. "
        f"Times are those of {profile.device}'s own clock."
    )
    table = Table(title=title, caption=caption, caption_justify="left", box=None, title_justify="left")
    for name in ("calls", "total ms", "mean us", "GB/s", "GFLOP/s", "of floor"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ops", overflow="fold")
    table.add_column("first line", overflow="fold")
    for row in profile.rows[:top]:
        times = f"{row.ns / 1e6:.3f}", f"{row.ns / 1e3 / row.calls:.1f}"
        rates = (_shown(row.rate(row.nbytes)), _shown(row.rate(row.flops)), _shown(row.rate(row.floor_ns), "{:.0%}"))
        table.add_row(str(row.calls), *times, *rates, row.ops, row.line)
    if left := profile.rows[top:]:
        total = f"{sum(row.ns for row in left) / 1e6:.3f}"
        table.add_row(str(sum(row.calls for row in left)), total, "", "", "", "", f"{len(left)} more kernels", "")
    console.print(table)
    host = f"{profile.host_ops} ops on the CPU, " if profile.host_ops else ""
    console.print(
        f"total: device busy {profile.busy_s:.3f} s of {profile.wall_s:.3f} s, {profile.launches} launches, {host}"
        f"host share {profile.host_share:.0%} (compiling {profile.compile_s:.3f} s)",
        highlight=False,
    )


def _shown(value: float | None, form: str = "{:.1f}") -> str:
    return "" if value is None else form.format(value)


@app.command(context_settings={"allow_interspersed_args": False})
def profile(
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Python script that uses the device.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all rows as JSON there.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
) -> None:
    """Run a script, then list its kernels: time, GB/s, GFLOP/s, share of the floor, ops, Python line.

    The script's exit status is the command's.
    """
    with tempfile.TemporaryDirectory(prefix="lazy_profile_") as folder:
        code = run([sys.executable, str(script), *(arguments or [])], {"LAZY_PROFILE": folder})
        files = sorted(Path(folder).glob("*.json"))
        written = {path.stem: json.loads(path.read_text()) for path in files}
    profiles = {process: profile_of(found, measured) for process, found in written.items() if found["times"]}
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    for process, found in profiles.items():
        show(found, f"{script}" + (f", process {process}" if len(profiles) > 1 else ""), top, console)
    if json_file:
        whole = {"script": str(script), "exit_code": code, "processes": [p.summary() for p in profiles.values()]}
        json_file.write_text(json.dumps(whole, indent=1))
    if not profiles:
        print(f"{script} ran nothing on a lazy device", file=sys.stderr)
    raise typer.Exit(code)


def run(command: list[str], env: dict[str, str]) -> int:
    """Run a script as a shell would; its exit status, 128 and more for a signal."""
    with subprocess.Popen(command, env={**os.environ, **env}) as process:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:
                """The script has it too; what it did until then is still shown."""
