"""What a process notes while LAZY_PROFILE names a folder: what each launch is, and at the end how long they took.

The executor counts launches by the number of their step; `launches` says what such a number is: the kernel's text,
sizes and ops. Nothing is reckoned here, so that the script is disturbed little: `profile_command` does it afterwards.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazy_backend import _C

if TYPE_CHECKING:  # what compiles is imported where something is compiled
    from codegen.core_calls import CorePlan
    from codegen.functionalize import Window, WindowNode
    from codegen.plan import CoreCall, Launch, Plan

# Whether plans are numbered. They are compiled anew then: a plan from the cache has no text to reckon work from.
active = False
# By number; 0: what has none, as the plans of an archive and the scalars of a level 1 chip.
launches: list[dict[str, Any]] = [{"kind": "unknown", "key": "", "ops": "(not numbered)", "line": ""}]
# The texts of generated kernels, MLIR, each once.
_texts: dict[str, int] = {}


def begin(folder: Path) -> None:
    """Note from now, with the device just opened, to the end of the process, which writes <its number>.json."""
    global active
    active = True
    _C.set_profiling(True)
    began, process = time.perf_counter(), os.getpid()

    def finish() -> None:
        if os.getpid() == process:  # not in what was forked
            _write(folder / f"{process}.json", began)

    atexit.register(finish)


def _write(path: Path, began: float) -> None:
    from lazy_backend.driver import abi, discovery

    for index in range(_C.device_count()):
        with contextlib.suppress(RuntimeError):  # of a result that nobody read: no news of the profile's
            _C.synchronize(index)
    properties = abi.unpack(abi.Properties.from_buffer_copy(_C.device_properties(0)))
    stats = _C.stats()
    found = {
        "driver": discovery.selected(),
        "device": properties.name,
        "language": properties.language,
        "stated": {"bandwidth_gbs": properties.bandwidth_gbs, "peak_gflops_f32": properties.peak_gflops_f32},
        "wall_s": time.perf_counter() - began,
        "compile_s": stats["compile_seconds"],
        "host_ops": stats["host_ops"],
        "times": [[number, *time] for number, time in _C.launch_times().items()],
        "launches": launches,
        "texts": list(_texts),
    }
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").replace(path)


def numbers(window: Window, plan: Plan | CorePlan, steps: Sequence[tuple]) -> list[int]:
    """A number for each of the steps that a plan became."""
    from codegen.core_calls import CorePlan
    from codegen.plan import CoreCall

    if isinstance(plan, CorePlan):
        scalars = len(steps) - len(plan.calls)
        return [0] * scalars + [_call(call, window) for call in plan.calls]
    return [
        _call(launch, window) if isinstance(launch, CoreCall) else _kernel(launch, plan, window, step[1])
        for launch, step in zip(plan.launches, steps, strict=True)
    ]


def _kernel(launch: Launch, plan: Plan, window: Window, handle: int) -> int:
    nodes, kernel = [window.nodes[i] for i in launch.origins], plan.kernels[launch.kernel]
    reach = {"slot": lambda i: _nbytes(window, i), "temp": lambda i: plan.temps[i].nbytes}
    args = [
        ("buffer", reach[kind](int(value)))
        if kind in reach
        else (kind if kind == "local" else type, window.scalars[int(value)] if kind == "scalar" else value)
        for kind, value, type in launch.args
    ]
    return _number(
        kind="kernel", key=f"{handle:x}", ops="+".join(dict.fromkeys(node.op.split(".")[1] for node in nodes)),
        line=nodes[0].line if nodes else "", text=_texts.setdefault(kernel.mlir, len(_texts)), name=kernel.name,
        sizes=(launch.global_size, launch.local_size), args=args,
    )  # fmt: skip


def custom(window: Window, node: WindowNode, step: tuple) -> int:
    """The number of a launch of a user's own kernel."""
    _, handle, *_, args = step
    reach = sum(_nbytes(window, value) for kind, value, _ in args if kind == "slot")
    return _number(kind="custom", key=f"{handle:x}", ops=node.op.removesuffix(".default"), line=node.line, reach=reach)


def _call(call: CoreCall, window: Window) -> int:
    from ops_core import dtypes

    line = window.nodes[call.origin].line if call.origin >= 0 else ""
    tensors = [(dtypes.BY_NAME[t.dtype].code, t.sizes) for t in call.tensors]
    return _number(
        kind="call", key=f"{call.op} {line}", ops=f"library: {call.op}", line=line, op=call.op,
        outputs=call.n_outputs, tensors=tensors, attrs=call.attrs,
    )  # fmt: skip


def _nbytes(window: Window, slot: int) -> int:
    return window.slots[slot].nbytes if slot < len(window.slots) else 8  # behind the last: a word of the checks


def _number(**entry: Any) -> int:
    launches.append(entry)
    return len(launches) - 1
