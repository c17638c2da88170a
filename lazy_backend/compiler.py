"""A window without a plan -> a plan: lowering, scheduling, building. Runs on an executor thread, with the GIL.

The window arrives as plain objects (written by csrc/module.cpp):

    {"device": int, "nodes": [(op name, args, outs, seed, user line)], "slots": [(nbytes, alive, had data)],
     "scalars": [value, ..]}

An argument is None, a Python number, a list of arguments, or a tagged tuple: ("tensor", slot, dtype, sizes, strides,
offset), ("scalar", index, kind), ("host_scalar", dtype, wrapped, scalar), ("enum", number), ("device", index).
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from codegen import schedule
from codegen.functionalize import Window, functionalize
from codegen.plan import Arg, Plan
from lazy_backend import _C
from lazy_backend.driver import abi
from lazy_backend.driver.capabilities import Capabilities

log = logging.getLogger("lazy_backend")


@functools.cache
def capabilities(device: int) -> Capabilities:
    """What the device is, with defaults filled in."""
    return abi.unpack(abi.Properties.from_buffer_copy(_C.device_properties(device))).complete()


# What each kernel handle computes, for profiles: op names, first user line.
described: dict[int, str] = {}


@functools.cache
def kernel(device: int, source: str, name: str) -> int:
    """The driver's handle of a kernel."""
    return _C.create_kernel(device, _C.build_program(device, source, False, ""), name)


def compile_window(source: dict[str, Any]) -> dict[str, Any]:
    """The plan of a window, as plain objects for csrc/module.cpp."""
    window = Window.from_recorded(source)
    steps: list[tuple] = []
    arena = 0
    segments, statics = functionalize(window)
    for op, names in statics:
        _C.mark_static_scalars(op, sorted(names))
    for segment in segments:
        if segment.host_node is not None:
            node = window.nodes[segment.host_node]
            _C.announce_host_op(node.op, node.line)
            steps.append(("host", segment.host_node))
            continue
        plan = schedule.plan(segment.graph, window.slot_infos(), capabilities(window.device))
        steps += launches(plan, window)
        arena = max(arena, plan.arena_bytes)
    return {"arena_bytes": arena, "slots": sorted(touched(steps, window)), "steps": steps, "once": bool(statics)}


def launches(plan: Plan, window: Window) -> list[tuple]:
    """The plan's launches with kernels built."""
    steps = []
    for launch in plan.launches:
        source = plan.kernels[launch.kernel]
        handle = kernel(window.device, source.source, source.name)
        if handle not in described:
            origins = [window.nodes[i] for i in launch.origins or source.origins]
            ops = dict.fromkeys(node.op.split(".")[1] for node in origins)
            described[handle] = f"{source.name} {'+'.join(ops)} ({origins[0].line if origins else 'unknown line'})"
        args = [recipe(arg, plan) for arg in launch.args]
        steps.append(("launch", handle, launch.global_size, launch.local_size, args))
    return steps


def recipe(arg: Arg, plan: Plan) -> tuple:
    """A temp is its place in the arena; everything else is as it stands."""
    return ("temp", plan.temps[int(arg.value)].offset, "") if arg.kind == "temp" else tuple(arg)


def touched(steps: list[tuple], window: Window) -> set[int]:
    """The slots that must have memory: those that a kernel names or a host step reads or writes."""
    slots: set[int] = set()
    for step in steps:
        if step[0] == "launch":
            slots |= {arg[1] for arg in step[4] if arg[0] == "slot"}
        elif step[0] == "host":
            slots |= window.nodes[step[1]].slots()
    return slots
