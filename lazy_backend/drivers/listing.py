"""Every OpenCL device of this machine, asked of the ICD loader itself.

pyopencl would tell too, and takes 0.07 to 0.12 s to import, in the script and again in each process that builds for it.
"""

from __future__ import annotations

import ctypes as ct
from typing import Any, NamedTuple

# Keys and bits of CL/cl.h.
_PLATFORM_NAME = 0x0902
_TYPE, _AVAILABLE, _COMPILER_AVAILABLE, _NAME, _VENDOR, _VERSION = 0x1000, 0x1027, 0x1028, 0x102B, 0x102C, 0x102F
_ALL_TYPES = 0xFFFFFFFF
_KINDS = {1 << 1: "cpu", 1 << 2: "gpu", 1 << 3: "accelerator"}


class Device(NamedTuple):
    """What a choice asks for. id: its cl_device_id in this process; kind: cpu, gpu, accelerator or other."""

    id: int
    platform: str
    name: str
    vendor: str
    kind: str
    version: str
    available: bool
    compiler_available: bool


def devices(loader: str) -> list[Device]:
    """The devices of each platform in the loader's order. Empty where there is no platform, or no loader."""
    try:
        cl = ct.CDLL(loader or "libOpenCL.so.1")
    except OSError:
        return []
    found = []
    for platform in _ids(cl.clGetPlatformIDs):
        for device in _ids(cl.clGetDeviceIDs, ct.c_void_p(platform), ct.c_uint64(_ALL_TYPES)):
            bits = _number(cl, device, _TYPE, ct.c_uint64)
            found.append(
                Device(
                    id=device,
                    platform=_text(cl.clGetPlatformInfo, platform, _PLATFORM_NAME),
                    name=_text(cl.clGetDeviceInfo, device, _NAME),
                    vendor=_text(cl.clGetDeviceInfo, device, _VENDOR),
                    kind=next((kind for bit, kind in _KINDS.items() if bits & bit), "other"),
                    version=_text(cl.clGetDeviceInfo, device, _VERSION),
                    available=bool(_number(cl, device, _AVAILABLE, ct.c_uint32)),
                    compiler_available=bool(_number(cl, device, _COMPILER_AVAILABLE, ct.c_uint32)),
                )
            )
    return found


def _ids(get: Any, *of: Any) -> list[int]:
    """What a clGet...IDs function lists. An error is none: a loader without platforms calls that one."""
    count = ct.c_uint32(0)
    if get(*of, ct.c_uint32(0), None, ct.byref(count)):
        return []
    ids = (ct.c_void_p * count.value)()
    return [] if get(*of, count, ids, None) else [i for i in ids if i]


def _text(get: Any, of: int, key: int) -> str:
    size = ct.c_size_t(0)
    if get(ct.c_void_p(of), ct.c_uint32(key), ct.c_size_t(0), None, ct.byref(size)):
        return ""
    text = ct.create_string_buffer(size.value + 1)
    get(ct.c_void_p(of), ct.c_uint32(key), size, text, None)
    return text.value.decode(errors="replace").strip()


def _number(cl: Any, device: int, key: int, kind: type[Any]) -> int:
    value = kind(0)
    cl.clGetDeviceInfo(ct.c_void_p(device), ct.c_uint32(key), ct.c_size_t(ct.sizeof(value)), ct.byref(value), None)
    return int(value.value)
