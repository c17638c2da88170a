"""Plans as JSON: how an archive and the persistent cache keep what a window was compiled to.

    {"pieces": [bytes], "temps": [[piece, offset]], "scalars": how many the window has, "steps": [step],
     "checks": [[node, exception, text, size]], "kernels": [[where its binary is, function, description]],
     "tiles": {product: the schedule that was known to be its best}}, the last with LAZY_TUNE=on only

Steps are those that the compiler gives to csrc/module.cpp, with a kernel's number in place of its handle and a
library op's name in place of its. Scalars are numbered as in the window's description. The slot after a window's last
is the words of its checks, in order.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lazy_backend import _C, cache, custom, identity, kernels, repeats, tuning
from lazy_backend.identity import Description
from lazy_backend.reports import compiles

log = logging.getLogger("lazy_backend.plans")

_KINDS = {"slot", "temp", "bytes", "scalar", "local"}


class Misfit(ValueError):
    """A plan that cannot be one of its window."""


def written(
    plan: Mapping[str, Any],
    window: Description,
    scalars: Sequence[float],
    keep: Callable[[int], tuple[str, str]],
) -> bytes:
    """The plan as JSON. scalars: the window's values; `keep(handle)`: keeps a binary, says where, and its function."""
    numbers = dict(zip(window.scalars, range(len(window.scalars)), strict=True))
    used: dict[int, int] = {}

    def argument(arg: Sequence[Any]) -> list[Any]:
        kind, value, type = arg
        if kind != "scalar":
            return [kind, value, type]
        # A scalar that is part of what the window is, since it was recorded, is the number that it was.
        return [kind, numbers[value], type] if value in numbers else ["bytes", scalars[value], type]

    steps: list[list] = []
    for step in plan["steps"]:
        match step:
            case ("launch", handle, work, group, args):
                number = used.setdefault(handle, len(used))
                steps.append(["launch", number, list(work), list(group), [argument(a) for a in args]])
            case ("core", op, attrs, outputs, tensors, handle):
                places = [[argument(place), *rest] for place, *rest in tensors]
                steps.append(["core", op, attrs, outputs, places, kernels.library_op(handle)])
            case (kind, node):
                steps.append([kind, node])
    table = [[*keep(handle), kernels.described.get(handle, "")] for handle in used]
    whole = {"pieces": plan["pieces"], "temps": plan["temps"], "scalars": len(window.scalars)}
    whole["checks"] = [list(check) for check in plan["checks"]]
    whole |= {"tiles": plan["tiles"]} if "tiles" in plan else {}
    return json.dumps(whole | {"steps": steps, "kernels": table}, separators=(",", ":")).encode()


def read(blob: bytes, window: Mapping[str, Any], kernel: Callable[[str, str], int]) -> dict[str, Any]:
    """The plan of a window, as csrc/module.cpp takes it. `kernel(where, function)`: loads a kernel.

    Raises `Misfit` where the executor would be given a slot, scalar, node, kernel or temp that there is not.
    """
    plan = json.loads(blob)
    _check(plan, window)
    handles = []
    for where, function, description in plan["kernels"]:
        handles.append(kernel(where, function))
        kernels.described[handles[-1]] = description
    steps: list[tuple] = []
    for step in plan["steps"]:
        match step:
            case ["launch", number, work, group, args]:
                steps.append(("launch", handles[number], work, group, [tuple(a) for a in args]))
            case ["core", op, attrs, outputs, tensors, of_library]:
                places = [(tuple(place), *rest) for place, *rest in tensors]
                handle = kernels.library_handle(of_library) if of_library else 0
                steps.append(("core", op, attrs, outputs, places, handle))
            case [kind, node]:
                if kind == "host":
                    op, *_, line = window["nodes"][node]
                    _C.announce_host_op(op, line)
                steps.append((kind, node))
    same = {key: plan[key] for key in ("pieces", "temps", "checks", "tiles") if key in plan}
    return {**same, "steps": steps, "once": False}


def _check(plan: Mapping[str, Any], window: Mapping[str, Any]) -> None:
    slots = len(window["slots"]) + bool(plan["checks"])  # the last is the checks' words
    bounds = {"slot": slots, "scalar": len(window["scalars"]), "temp": len(plan["temps"])}
    ranges: list[tuple[Any, int]] = [(node, len(window["nodes"])) for node, _, _, _ in plan["checks"]]
    room = {piece: max(nbytes, 1) for piece, nbytes in enumerate(plan["pieces"])}
    ranges += [(offset, room.get(piece, 0)) for piece, offset in plan["temps"]]
    for step in plan["steps"]:
        match step:
            case ["launch", number, [_, _, _], [_, _, _], args]:
                ranges.append((number, len(plan["kernels"])))
            case ["core", str(), str(), _, tensors, str()]:
                args = [tensor[0] for tensor in tensors]
            case ["host" | "interpret", node]:
                args = []
                ranges.append((node, len(window["nodes"])))
            case _:
                raise Misfit(f"a plan has a step {step[0]!r}, which this version does not know")
        for kind, value, _ in args:
            if kind not in _KINDS:
                raise Misfit(f"a plan has an argument {kind!r} {value!r} that it cannot have")
            if kind in bounds:
                ranges.append((value, bounds[kind]))
    if plan["scalars"] != bounds["scalar"] or any(not isinstance(n, int) or not 0 <= n < end for n, end in ranges):
        raise Misfit("a plan does not fit its window")


# --- the persistent cache -----------------------------------------------------------------------------------------


def _name(window: Mapping[str, Any], description: Description) -> str:
    # Without tuning nothing that was measured is used.
    digest = description.digest() + (b"tuned" if tuning.on() else b"")
    return cache.plan_name(digest, _C.device_properties(window["device"]))


def remember(window: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Puts a plan into the persistent cache, if all its kernels are there."""
    handles = {step[1] for step in plan["steps"] if step[0] == "launch"}
    if not handles <= kernels.entries.keys() or any(node[0] in custom.KERNELS for node in window["nodes"]):
        return  # a kernel of the user's own may be another one next time

    def keep(handle: int) -> tuple[str, str]:
        used[window["device"], kernels.entries[handle], kernels.function(handle)] = None
        return kernels.entries[handle], kernels.function(handle)

    description = identity.describe(window, identity.statics)
    cache.store(_name(window, description), written(plan, description, window["scalars"], keep))


# The first window of each structure whose plan came from the cache, for the compiler: it starts from two sizes of a
# structure. As many as it keeps structures.
met: dict[str, Mapping[str, Any]] = {}
MAX_MET = 512


def remembered(window: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan of a window from the persistent cache with its kernels loaded, or None."""
    description = identity.describe(window)
    name = _name(window, description)
    if (blob := cache.load(name)) is None:
        return None
    try:
        plan = read(blob, window, functools.partial(_used_kernel, window["device"]))
        if not tuning.current(window["device"], plan.get("tiles", {})):
            raise Misfit("another schedule was measured to be the best since")
    except (ValueError, TypeError, LookupError, RuntimeError) as error:  # whoever may write there may write anything
        log.info("a cached plan is made anew: %s", error)
        cache.drop(name)
        return None
    compiles.known(description)
    repeats.learn(window)
    if len(met) < MAX_MET:
        met.setdefault(window["structure"], window)
    return plan


_handles = kernels.table()
# (device, entry, function) of the kernels that plans of this process have, in the order in which they came.
used: dict[tuple[int, str, str], None] = {}


def _used_kernel(device: int, entry: str, function: str) -> int:
    used[device, entry, function] = None
    return cached_kernel(device, entry, function)


def cached_kernel(device: int, entry: str, function: str) -> int:
    """The handle of a kernel in the persistent cache, loaded once. Raises LookupError where it is not there."""
    with kernels.loading:
        if (device, entry) not in _handles:
            if (binary := cache.load(entry)) is None:
                raise LookupError(f"the cache has no kernel {entry}")
            _handles[device, entry] = handle = kernels.from_binary(device, binary, function)
            kernels.entries[handle] = entry
        return _handles[device, entry]
