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
from codegen.printer import print_kernel
from lazy_backend import _C, cache
from lazy_backend.driver import abi
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.variants import Family

log = logging.getLogger("lazy_backend")


@functools.cache
def capabilities(device: int) -> Capabilities:
    """What the device is, with defaults filled in."""
    return abi.unpack(abi.Properties.from_buffer_copy(_C.device_properties(device))).complete()


# What each kernel handle computes, for profiles: op names, first user line.
described: dict[int, str] = {}


# Loaded kernels by (device, MLIR without its name), and the structures that windows have had, by their key.
_kernels: dict[tuple[int, str], int] = {}
_families: dict[str, Family] = {}

# Structures whose kernels are remembered for sizes that vary; a family holds the texts of its kernels, some 200 KB.
MAX_FAMILIES = 512


def kernel(device: int, mlir: str, name: str) -> int:
    """The driver's handle of a kernel: loaded before, from the persistent cache, or built now."""
    key = (device, mlir.replace(f"@{name}(", "@("))
    if key in _kernels:
        return _kernels[key]
    entry = cache.key(key[1], _C.device_properties(device))
    name, mlir = f"k_{entry[:12]}", mlir.replace(f"@{name}(", f"@k_{entry[:12]}(")
    binary = cache.load(entry)
    if binary is not None:
        try:
            _kernels[key] = _C.create_kernel(device, _C.build_program(device, binary, True, ""), name)
            return _kernels[key]
        except RuntimeError as error:
            log.warning("dropped a cached kernel that the driver does not take: %s", error)
            cache.drop(entry)
    program = _C.build_program(device, print_kernel(mlir, capabilities(device).language).encode(), False, "")
    _C.count_built()
    cache.store(entry, _C.program_binary(device, program))
    _kernels[key] = _C.create_kernel(device, program, name)
    return _kernels[key]


def compile_window(source: dict[str, Any]) -> dict[str, Any]:
    """The plan of a window, as plain objects for csrc/module.cpp."""
    window = Window.from_recorded(source)
    if len(_families) >= MAX_FAMILIES:
        _families.clear()
    family = _families.setdefault(source["structure"], Family())
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
        steps += launches(plan, window, family)
        arena = max(arena, plan.arena_bytes)
    return {"arena_bytes": arena, "slots": sorted(touched(steps, window)), "steps": steps, "once": bool(statics)}


def launches(plan: Plan, window: Window, family: Family) -> list[tuple]:
    """The plan's launches with kernels loaded."""
    steps = []
    variants = [family.variant(source.mlir, source.name) for source in plan.kernels]
    handles = [kernel(window.device, v.mlir, s.name) for v, s in zip(variants, plan.kernels, strict=True)]
    for launch in plan.launches:
        handle = handles[launch.kernel]
        if handle not in described:
            origins = [window.nodes[i] for i in launch.origins]
            ops = dict.fromkeys(node.op.split(".")[1] for node in origins)
            described[handle] = f"{'+'.join(ops)} ({origins[0].line if origins else 'unknown line'})"
        args = [recipe(arg, plan) for arg in launch.args]
        args += [("bytes", value, type) for value, type in variants[launch.kernel].extra]
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
