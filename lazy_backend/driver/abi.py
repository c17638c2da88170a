"""`lazy_driver.h` for ctypes: the same structs and entries, in the same order (a test compares both)."""

from __future__ import annotations

import ctypes as ct
from dataclasses import fields
from typing import Any

from .capabilities import Capabilities

MAJOR, MINOR = 1, 1
MAX_RANK = 16
ARG_BUFFER, ARG_BYTES, ARG_LOCAL, ARG_ADDRESS = 0, 1, 2, 3

u32, u64, i32, handle, text = ct.c_uint32, ct.c_uint64, ct.c_int32, ct.c_void_p, ct.c_char_p


class Properties(ct.Structure):
    """`lazy_properties`."""

    _fields_ = [
        ("struct_size", u32),
        ("level", u32),
        ("name", ct.c_char * 128),
        ("vendor", ct.c_char * 64),
        ("driver_version", ct.c_char * 64),
        ("language", ct.c_char * 16),
        ("is_cpu", u32),
        ("compute_units", u32),
        ("max_work_group_size", u32),
        ("max_local_size", u32 * 3),
        ("subgroup_size", u32),
        ("vector_bytes", u32),
        ("local_memory_bytes", u64),
        ("global_memory_bytes", u64),
        ("max_alloc_bytes", u64),
        ("cache_bytes", u64),
        ("mem_alignment", u32),
        ("max_kernel_args", u32),
        ("max_arg_bytes", u32),
        ("max_private_bytes", u32),
        ("host_visible", u32),
        ("has_f16", u32),
        ("has_bf16", u32),
        ("has_f64", u32),
        ("has_i64_atomics", u32),
        ("has_f32_atomics", u32),
        ("launch_us", ct.c_double),
        ("bandwidth_gbs", ct.c_double),
        ("peak_gflops_f32", ct.c_double),
        ("address_args", u32),
    ]


class Arg(ct.Structure):
    """`lazy_arg`."""

    _fields_ = [("kind", u32), ("size", u32), ("mem", handle), ("offset", u64), ("bits", u64)]


class Tensor(ct.Structure):
    """`lazy_tensor`."""

    _fields_ = [
        ("mem", handle),
        ("offset", u64),
        ("dtype", u32),
        ("rank", u32),
        ("sizes", ct.c_int64 * MAX_RANK),
        ("strides", ct.c_int64 * MAX_RANK),
    ]


_out = ct.POINTER
_size3 = ct.POINTER(u64)

TASK = ct.CFUNCTYPE(None, handle)

# Name and parameters of every entry of `lazy_driver_api`; all return a lazy_status but last_error.
ENTRIES: dict[str, tuple[Any, ...]] = {
    "device_count": (_out(u32),),
    "open": (u32, _out(handle)),
    "close": (handle,),
    "properties": (handle, _out(Properties)),
    "last_error": (),
    "alloc": (handle, u64, _out(handle)),
    "free": (handle, handle),
    "host_pointer": (handle, handle, _out(handle)),
    "queue_create": (handle, _out(handle)),
    "queue_destroy": (handle, handle),
    "copy_h2d": (handle, handle, handle, u64, handle, u64, i32),
    "copy_d2h": (handle, handle, handle, handle, u64, u64, i32),
    "copy_d2d": (handle, handle, handle, u64, handle, u64, u64),
    "event_record": (handle, handle, _out(handle)),
    "event_query": (handle, handle),
    "event_wait": (handle, handle),
    "event_time_ns": (handle, handle, _out(u64)),
    "event_destroy": (handle, handle),
    "flush": (handle, handle),
    "synchronize": (handle, handle),
    "program_load": (handle, handle, u64, i32, text, _out(handle)),
    "program_binary": (handle, handle, handle, _out(u64)),
    "program_destroy": (handle, handle),
    "kernel_create": (handle, handle, text, _out(handle)),
    "kernel_destroy": (handle, handle),
    "launch": (handle, handle, handle, _size3, _size3, u32, ct.POINTER(Arg)),
    "core_op": (handle, handle, text, u32, u32, ct.POINTER(Tensor), text),
    "run_tasks": (handle, handle, TASK, ct.POINTER(handle), u32),
}
OPTIONAL = frozenset(
    {"host_pointer", "event_time_ns", "flush", "program_load", "program_binary", "program_destroy"}
    | {"kernel_create", "kernel_destroy", "launch", "core_op", "run_tasks"}
)
PROTOTYPES = {
    name: ct.CFUNCTYPE(handle if name == "last_error" else i32, *parameters) for name, parameters in ENTRIES.items()
}


class DriverApi(ct.Structure):
    """`lazy_driver_api`."""

    _fields_ = [("struct_size", u32), ("major", u32), ("minor", u32), ("name", text), *PROTOTYPES.items()]


def pack(capabilities: Capabilities) -> Properties:
    """Capabilities as the C struct."""
    packed = Properties(struct_size=ct.sizeof(Properties))
    for field in fields(capabilities):
        value = getattr(capabilities, field.name)
        if isinstance(value, str):
            # One byte short of the field, so that the text ends in NUL.
            value = value.encode()[: getattr(Properties, field.name).size - 1]
        setattr(packed, field.name, value)
    return packed


def unpack(packed: Properties) -> Capabilities:
    """The C struct as capabilities, before defaults. `Properties.from_buffer_copy(bytes)` reads one from C++."""
    values: dict[str, Any] = {}
    for field in fields(Capabilities):
        value = getattr(packed, field.name)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif field.name == "max_local_size":
            value = tuple(value)
        elif field.type == "bool":
            value = bool(value)
        values[field.name] = value
    return Capabilities(**values)
