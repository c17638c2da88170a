"""The OpenCL driver: devices found and ranked, for `_opencl` (C++, lazy_driver.h), which does all the work.

LAZY_OPENCL_PLATFORM=substring of a platform's, vendor's or device's name picks; LAZY_OPENCL_MEMORY says what memory is
(see opencl_driver.cpp) where it is not to be the best that the device has; LAZY_OPENCL_AS=gpu has a CPU say of itself
what a GPU would, so that schedules for GPUs can be tried without one.
"""

from __future__ import annotations

import ctypes
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from lazy_backend.driver.errors import Unsupported

from . import icd
from .listing import Device, devices

# LAZY_OPENCL_MEMORY -> `Memory` of opencl_driver.cpp.
MEMORY = {"": 0, "coarse": 1, "addresses": 2, "buffers": 3}


class Candidate(NamedTuple):
    """One OpenCL device. rank: smaller is preferred; problem: why it cannot be used, or empty."""

    device: Device
    platform: str
    name: str
    kind: str
    rank: int
    problem: str


# (kind, what the platform's name contains) in order of preference. A real accelerator beats every CPU driver;
# Intel's CPU runtime builds kernels three times faster than PoCL and vectorises more of them.
PREFERENCE = (("gpu", ""), ("accelerator", ""), ("cpu", "intel"), ("cpu", ""))
_FPGA_EMULATION = "fpga"  # Intel's emulator offers itself as an accelerator


def candidates() -> list[Candidate]:
    """Every OpenCL device of this machine, the preferred first. Empty where there is no platform."""
    icd.set_vendors()
    found = {}  # by id: a driver that two .icd files name is listed twice
    for d in devices(icd.loader() or ""):
        fits = (i for i, (k, p) in enumerate(PREFERENCE) if k == d.kind and p in d.platform.lower())
        found[d.id] = Candidate(d, d.platform, d.name, d.kind, next(fits, len(PREFERENCE)), _problem(d))
    return sorted(found.values(), key=lambda c: (bool(c.problem), c.rank))


def _problem(device: Device) -> str:
    if _FPGA_EMULATION in device.name.lower():
        return "emulates an FPGA"
    if not device.compiler_available:
        return "has no compiler"
    if not device.available:
        return "is not available"
    if not device.version.startswith("OpenCL ") or float(device.version.split()[1]) < 2:
        return f"is {device.version}, older than 2.0"
    return ""


def _alias(candidate: Candidate) -> str:
    """The name by which people know a platform that calls itself otherwise."""
    return "PoCL" if candidate.platform == "Portable Computing Language" else ""


def choose(found: list[Candidate], wanted: str = "") -> tuple[list[Candidate], str]:
    """The devices to use, which are alike and of one platform, and why them. None: an empty list and what to do."""
    matching = [c for c in found if wanted.lower() in f"{c.platform} {c.device.vendor} {c.name} {_alias(c)}".lower()]
    usable = [c for c in matching if not c.problem]
    if usable:
        best = usable[0]
        asked = f"LAZY_OPENCL_PLATFORM={wanted}" if wanted else f"preferred of {len(found)} found"
        return [c for c in usable if (c.platform, c.kind) == (best.platform, best.kind)], asked
    if not found:
        return [], (
            f"no OpenCL platform was found. Install a GPU's own driver, or a CPU driver from PyPI: "
            f"pip install {icd.INTEL_WHEEL} (x86-64), or pip install pocl-binary-distribution"
        )
    listing = "; ".join(f"{c.platform}: {c.name} {c.problem or 'does not match'}".strip() for c in found)
    return [], f"no OpenCL device fits{f' LAZY_OPENCL_PLATFORM={wanted}' if wanted else ''}: {listing}"


def chosen(found: list[Candidate], wanted: str = "") -> tuple[list[Candidate], str, list[Candidate]]:
    """What `choose` chooses among those that can build a program; and all, with what is wrong with the others."""
    while True:
        best, reason = choose(found, wanted)
        if not best or not (problem := refusal(best[0])):
            return best, reason, found
        found = [c._replace(problem=problem) if c.platform == best[0].platform else c for c in found]


# Platforms whose compiler may be older than the processor: PoCL 3.0 (LLVM 14) builds nothing on Zen 5. Others take
# 0.14 s for a process's first program.
_MAY_REFUSE = ("Portable Computing Language",)


def refusal(candidate: Candidate) -> str:
    """Why a device builds not even an empty program, or nothing."""
    if candidate.platform not in _MAY_REFUSE:
        return ""
    import pyopencl as cl

    try:
        cl.Program(cl.Context([cl.Device.from_int_ptr(candidate.device.id)]), "__kernel void nothing(void) {}").build()
    except cl.Error as error:
        said = next((line for line in str(error).splitlines() if "error" in line), "its compiler fails")
        return f"builds nothing here ({said.strip()})"
    return ""


def library() -> Path:
    """The driver's shared library, built with the package."""
    folder = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        if (path := folder / f"_opencl{suffix}").exists():
            return path
    raise Unsupported(
        f"the OpenCL driver is not built: no _opencl{EXTENSION_SUFFIXES[0]} in {folder}; install the package"
    )


def driver() -> str:
    """Entry point: chooses devices and configures the C++ driver. Raises `Unsupported` where there is none."""
    best, reason, _ = chosen(candidates(), os.environ.get("LAZY_OPENCL_PLATFORM", ""))
    if not best:
        raise Unsupported(reason)
    as_gpu = os.environ.get("LAZY_OPENCL_AS") == "gpu"
    wanted = os.environ.get("LAZY_OPENCL_MEMORY", "coarse" if as_gpu else "")
    if wanted not in MEMORY:
        raise Unsupported(f"LAZY_OPENCL_MEMORY is {wanted!r}; it must be one of {', '.join(filter(None, MEMORY))}")
    configure = ctypes.CDLL(str(library())).lazy_opencl_configure
    configure.argtypes = (ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int)
    loader = icd.loader() or ""
    ids = (ctypes.c_void_p * len(best))(*(c.device.id for c in best))
    if configure(loader.encode(), len(best), ids, MEMORY[wanted], as_gpu):
        raise Unsupported(f"the OpenCL loader {loader!r} cannot be used; it must offer OpenCL 2.0")
    return str(library())
