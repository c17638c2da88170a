"""`python -m lazy_backend doctor`: which device was chosen and why, what else is there, and what is missing."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from lazy_backend.driver import discovery

from . import icd, opencl


def facts() -> dict[str, Any]:
    """driver, reason, devices (one dict of capabilities each), drivers, opencl (candidates), error; JSON-able."""
    name = discovery.selected()
    found: dict[str, Any] = {"driver": name, "drivers": discovery.names(), "devices": [], "error": "", "opencl": []}
    found["reason"] = f"LAZY_DRIVER={name}" if os.environ.get("LAZY_DRIVER") else "the default driver"
    if name == discovery.DEFAULT:
        chosen, reason, candidates = opencl.chosen(opencl.candidates(), os.environ.get("LAZY_OPENCL_PLATFORM", ""))
        found["reason"] = reason
        found["opencl"] = [
            {"platform": c.platform, "device": c.name, "kind": c.kind, "problem": c.problem, "chosen": c in chosen}
            for c in candidates
        ]
        found["icd"] = {"vendors": os.environ.get("OCL_ICD_VENDORS", ""), "libraries": icd.driver_libraries()}
    try:
        driver = discovery.load(name).open()
        for index in range(driver.device_count()):
            device = driver.open(index)
            found["devices"].append(vars(device.properties().complete()))
            device.close()
    except Exception as error:  # whatever keeps a driver from opening: a description, an import, a library
        found["error"] = str(error) or type(error).__name__
    return found


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say which device was chosen and why, and what is missing when there is none."""
    found = facts()
    print(json.dumps(found, indent=1) if as_json else text(found))
    raise typer.Exit(0 if found["devices"] else 1)


def text(found: dict[str, Any]) -> str:
    """The facts for a terminal; the first line says which device runs `lazy` and why, or that there is none."""
    lines = []
    for index, device in enumerate(found["devices"]):
        lines.append(
            f"lazy:{index} is {device['name']} ({device['vendor']}), driver {found['driver']} "
            f"{device['driver_version']}: {found['reason']}"
        )
        lines.append(
            f"  level {device['level']}, {device['compute_units']} compute units, "
            f"{device['vector_bytes'] * 8}-bit vectors, {device['global_memory_bytes'] / 2**30:.1f} GiB, "
            f"{'shared with the host' if device['host_visible'] else 'separate memory'}, "
            f"about {device['bandwidth_gbs']:.0f} GB/s and {device['peak_gflops_f32']:.0f} GFLOP/s in float32"
        )
    if not lines:
        lines.append(f"no device: {found['error'] or found['reason']}")
    for c in found["opencl"]:
        state = "chosen" if c["chosen"] else c["problem"] or "not chosen"
        lines.append(f"OpenCL {c['kind']}: {c['device']} on {c['platform']}: {state}")
    lines.append(f"drivers announced: {', '.join(found['drivers']) or 'none'}")
    return "\n".join(lines)
