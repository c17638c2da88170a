"""A C driver seen as the Python twin: `NativeDriver(address)`. Conformance and tests talk to any chip this way."""

# ruff: noqa: D102  (the methods of the contract are documented in lazy_backend.driver.base)
from __future__ import annotations

import ctypes as ct
import json
from collections.abc import Callable
from typing import Any

from . import abi, errors
from .base import Address, Arg, Buffer, Device, Driver, Local, Tensor
from .capabilities import Capabilities


def load_library(path: str) -> int:
    """Address of the table that a driver's shared library gives. Raises `Unsupported` where it does not serve us."""
    try:
        library = ct.CDLL(path)
    except OSError as error:
        raise errors.Unsupported(f"the driver library does not load: {error}") from error
    try:
        get = library.lazy_driver_get
    except AttributeError:
        raise errors.Unsupported(f"{path} exports no lazy_driver_get") from None
    get.restype, get.argtypes = ct.c_void_p, (ct.c_uint32, ct.c_uint32)
    table = get(abi.MAJOR, abi.MINOR)
    if not table:
        raise errors.Unsupported(f"{path} does not serve driver contract {abi.MAJOR}.{abi.MINOR}")
    return table


def read_table(address: int) -> abi.DriverApi:
    """Our copy of a driver's table, entries beyond its own size NULL. Raises `Unsupported` on another major version."""
    size, major = (ct.c_uint32 * 2).from_address(address)
    if major != abi.MAJOR:
        raise errors.Unsupported(f"the driver was built for contract version {major}, this host serves {abi.MAJOR}")
    table = abi.DriverApi()
    ct.memmove(ct.addressof(table), address, min(size, ct.sizeof(table)))
    missing = [name for name in abi.ENTRIES if name not in abi.OPTIONAL and not getattr(table, name)]
    if missing:
        raise errors.Unsupported(f"the driver lacks the entries {', '.join(missing)}")
    return table


class NativeDriver(Driver):
    """A driver behind a table of C functions."""

    def __init__(self, table: int):
        self.api = read_table(table)
        self.name = (self.api.name or b"driver").decode()

    def check(self, status: int, what: str) -> None:
        """Raise the exception of a status, with the driver's own text."""
        if status:
            text = ct.cast(self.api.last_error(), ct.c_char_p).value if self.api.last_error else None
            raise errors.error(status, f"{what}: {(text or b'the driver gave no text').decode(errors='replace')}")

    def device_count(self) -> int:
        count = ct.c_uint32()
        self.check(self.api.device_count(ct.byref(count)), "device_count")
        return count.value

    def open(self, index: int) -> Device:
        handle = ct.c_void_p()
        self.check(self.api.open(index, ct.byref(handle)), "open")
        return NativeDevice(self, handle)


class NativeDevice(Device):
    """One device of a `NativeDriver`. Handles are `ctypes.c_void_p`."""

    def __init__(self, driver: NativeDriver, handle: ct.c_void_p):
        self.driver, self.handle = driver, handle

    def offers(self, name: str) -> bool:
        """Whether the table has the entry."""
        return bool(getattr(self.driver.api, name))

    def _call(self, name: str, *args: Any) -> None:
        if not self.offers(name):
            raise errors.Unsupported(f"the driver has no entry {name}")
        self.driver.check(getattr(self.driver.api, name)(self.handle, *args), name)

    def _make(self, name: str, *args: Any) -> ct.c_void_p:
        out = ct.c_void_p()
        self._call(name, *args, ct.byref(out))
        return out

    def close(self) -> None:
        self._call("close")

    def properties(self) -> Capabilities:
        packed = abi.Properties(struct_size=ct.sizeof(abi.Properties))
        self._call("properties", ct.byref(packed))
        return abi.unpack(packed)

    def alloc(self, nbytes: int) -> ct.c_void_p:
        return self._make("alloc", nbytes)

    def free(self, mem: ct.c_void_p) -> None:
        self._call("free", mem)

    def host_pointer(self, mem: ct.c_void_p) -> int:
        return self._make("host_pointer", mem).value or 0

    def queue_create(self) -> ct.c_void_p:
        return self._make("queue_create")

    def queue_destroy(self, queue: ct.c_void_p) -> None:
        self._call("queue_destroy", queue)

    def copy_h2d(
        self, queue: ct.c_void_p, dst: ct.c_void_p, dst_offset: int, src: int, nbytes: int, blocking: bool
    ) -> None:
        self._call("copy_h2d", queue, dst, dst_offset, src, nbytes, blocking)

    def copy_d2h(
        self, queue: ct.c_void_p, dst: int, src: ct.c_void_p, src_offset: int, nbytes: int, blocking: bool
    ) -> None:
        self._call("copy_d2h", queue, dst, src, src_offset, nbytes, blocking)

    def copy_d2d(
        self, queue: ct.c_void_p, dst: ct.c_void_p, dst_offset: int, src: ct.c_void_p, src_offset: int, nbytes: int
    ) -> None:
        self._call("copy_d2d", queue, dst, dst_offset, src, src_offset, nbytes)

    def event_record(self, queue: ct.c_void_p) -> ct.c_void_p:
        return self._make("event_record", queue)

    def event_query(self, event: ct.c_void_p) -> bool:
        try:
            self._call("event_query", event)
        except errors.NotReady:
            return False
        return True

    def event_wait(self, event: ct.c_void_p) -> None:
        self._call("event_wait", event)

    def event_time_ns(self, event: ct.c_void_p) -> int:
        ns = ct.c_uint64()
        self._call("event_time_ns", event, ct.byref(ns))
        return ns.value

    def event_destroy(self, event: ct.c_void_p) -> None:
        self._call("event_destroy", event)

    def flush(self, queue: ct.c_void_p) -> None:
        self._call("flush", queue)

    def synchronize(self, queue: ct.c_void_p) -> None:
        self._call("synchronize", queue)

    def program_load(self, source: bytes, is_binary: bool, options: str) -> ct.c_void_p:
        return self._make(
            "program_load", ct.cast(ct.c_char_p(source), ct.c_void_p), len(source), is_binary, options.encode()
        )

    def program_binary(self, program: ct.c_void_p) -> bytes:
        nbytes = ct.c_uint64()
        self._call("program_binary", program, None, ct.byref(nbytes))
        out = ct.create_string_buffer(nbytes.value)
        self._call("program_binary", program, out, ct.byref(nbytes))
        return out.raw

    def program_destroy(self, program: ct.c_void_p) -> None:
        self._call("program_destroy", program)

    def kernel_create(self, program: ct.c_void_p, name: str) -> ct.c_void_p:
        return self._make("kernel_create", program, name.encode())

    def kernel_destroy(self, kernel: ct.c_void_p) -> None:
        self._call("kernel_destroy", kernel)

    def launch(
        self,
        queue: ct.c_void_p,
        kernel: ct.c_void_p,
        global_size: tuple[int, int, int],
        local_size: tuple[int, int, int],
        args: list[Arg],
    ) -> None:
        size3 = ct.c_uint64 * 3
        packed = (abi.Arg * max(1, len(args)))(*map(_pack_arg, args))
        self._call("launch", queue, kernel, size3(*global_size), size3(*local_size), len(args), packed)

    def core_op(self, queue: ct.c_void_p, name: str, outputs: list[Tensor], inputs: list[Tensor], attrs: dict) -> None:
        tensors = [_pack_tensor(t) for t in (*outputs, *inputs)]
        packed = (abi.Tensor * max(1, len(tensors)))(*tensors)
        self._call(
            "core_op",
            queue,
            name.encode(),
            len(outputs),
            len(tensors),
            packed,
            json.dumps(attrs, sort_keys=True).encode(),
        )

    def run_tasks(self, queue: ct.c_void_p, tasks: list[Callable[[], None]]) -> None:
        numbers = (ct.c_void_p * len(tasks))(*range(1, len(tasks) + 1))  # a null pointer would come as None
        self._call("run_tasks", queue, abi.TASK(lambda number: tasks[number - 1]()), numbers, len(tasks))


def _pack_arg(arg: Arg) -> abi.Arg:
    match arg:
        case Buffer(mem, offset):
            return abi.Arg(kind=abi.ARG_BUFFER, mem=mem, offset=offset)
        case Address(mem, offset):
            return abi.Arg(kind=abi.ARG_ADDRESS, mem=mem, offset=offset)
        case Local(nbytes):
            return abi.Arg(kind=abi.ARG_LOCAL, size=nbytes)
        case _:
            return abi.Arg(kind=abi.ARG_BYTES, size=len(arg.data), bits=int.from_bytes(arg.data, "little"))


def _pack_tensor(t: Tensor) -> abi.Tensor:
    dims = ct.c_int64 * abi.MAX_RANK
    return abi.Tensor(t.mem, t.offset, t.dtype, len(t.sizes), dims(*t.sizes), dims(*t.strides))
