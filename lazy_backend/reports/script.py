"""``coverage --script train.py``: the ops that a real script runs, by route, and what it sends to the CPU."""

import runpy
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from lazy_backend import torch_lazy as lazy
from lazy_backend.conformance.place import tensors_of
from ops_core import routes
from ops_core.lowering.schema import op_of


class _Calls(TorchDispatchMode):
    """Counts the ops that touch a device and keeps the first Python line of each."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.counts: Counter[torch._ops.OpOverload] = Counter()
        self.lines: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if tensors_of([args, kwargs, result], lambda t: t.device.type == self.device):
            self.counts[func] += 1
            if str(func) not in self.lines:
                self.lines[str(func)] = _user_line()
        return result


def _user_line() -> str:
    """Return file, line and text of the innermost frame that is neither torch's nor ours."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen")
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(ours)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else "(autograd)"


def run_script(path: Path, arguments: list[str], device: str = "lazy") -> dict[str, Any]:
    """Run the script as ``__main__`` and return its ops by route, its counters and the first line of each fallback."""
    calls = _Calls(device)
    saved, sys.argv = sys.argv, [str(path), *arguments]
    lazy.reset_stats()
    began = time.perf_counter()
    try:
        with calls:
            runpy.run_path(str(path), run_name="__main__")
        lazy.synchronize()
    finally:
        sys.argv = saved
    stats = lazy.stats()
    host: dict[str, int] = stats["host_ops_by_name"]
    ops: list[dict[str, Any]] = [
        {
            "name": str(func),
            "route": routes.route_of(op_of(func)),
            "calls": count,
            "host_calls": host.get(str(func), 0),
            "first_line": calls.lines[str(func)],
        }
        for func, count in calls.counts.most_common()
    ]
    by_route: Counter[str] = Counter()
    for op in ops:
        by_route[op["route"]] += op["calls"]
    return {
        "script": str(path),
        "seconds": time.perf_counter() - began,
        "routes": dict(by_route),
        "stats": stats,
        "ops": ops,
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print a script's report, fallbacks first."""
    stats = report["stats"]
    table = Table(title=f"{report['script']}: {stats['ops']} ops in {report['seconds']:.1f} s", box=None)
    for name in ("op", "route", "calls", "on host", "first line"):
        table.add_column(name, no_wrap=name != "first line")
    for op in sorted(report["ops"], key=lambda op: (-op["host_calls"], -op["calls"])):
        shown = op["first_line"] if op["host_calls"] else ""
        table.add_row(op["name"], op["route"], str(op["calls"]), str(op["host_calls"] or ""), shown)
    console.print(table)
    counters = ("windows", "reads", "plans_compiled", "plans_hit", "kernels_launched", "host_ops", "host_bytes")
    console.print(", ".join(f"{stats[name]} {name}" for name in counters), highlight=False)
