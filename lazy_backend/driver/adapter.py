"""A Python driver seen as a C table: `table(driver)` is the address that C++ calls.

ctypes takes the GIL around each call, so the C++ side may call from any thread that does
not hold a lock which a GIL holder waits for. Python objects cross as numbers.
"""

from __future__ import annotations

import ctypes as ct
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from . import abi, errors, origin
from .base import Address, Arg, Buffer, Device, Driver, Local, Scalar, Tensor

# Handles are no addresses on any 64-bit machine: a host that touches one faults at once.
_FIRST = 0xDEAD_0000_0000_0000
_FAILED = errors.InvalidArgument.status
_made: dict[Driver, Adapter] = {}  # tables live as long as the process: C++ holds their addresses


def table(driver: Driver) -> int:
    """Address of a `lazy_driver_api` that calls `driver`."""
    if driver not in _made:
        _made[driver] = Adapter(driver)
    return ct.addressof(_made[driver].api)


class Adapter:
    """The handles and callbacks of one Python driver."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self.objects: dict[int, Any] = {}
        self.next = _FIRST
        self.local = threading.local()  # .error: the bytes of last_error()
        # A device entry stays NULL where the class has not written the method.
        self.entries = {
            name: prototype(self._entry(name))
            for name, prototype in abi.PROTOTYPES.items()
            if name in _DRIVER_CALLS or name == "last_error" or driver.device_class.has(name)
        }
        self.api = abi.DriverApi(ct.sizeof(abi.DriverApi), abi.MAJOR, abi.MINOR, driver.name.encode(), **self.entries)

    def keep(self, value: Any) -> int:
        """A number for an object, until `drop`."""
        self.next += 1
        self.objects[self.next] = value
        return self.next

    def object(self, number: int | None) -> Any:
        """The object of a number. Raises `MemoryFault` for one given back, `InvalidArgument` for one never ours."""
        try:
            return self.objects[number or 0]
        except KeyError:
            if _FIRST < (number or 0) <= self.next:
                raise errors.MemoryFault(f"handle {number:#x} is used after it was freed or destroyed") from None
            raise errors.InvalidArgument(f"no such handle: {number or 0:#x}") from None

    def _entry(self, name: str) -> Callable[..., Any]:
        if name == "last_error":
            return self._last_error
        body = (_DRIVER_CALLS | _DEVICE_CALLS)[name]

        def entry(*args: Any) -> int:
            try:
                target = self if name in _DRIVER_CALLS else self.object(args[0])
                return body(self, target, *args[0 if name in _DRIVER_CALLS else 1 :]) or 0
            except BaseException as error:  # an exception cannot cross C; its text does
                self.local.error = (str(error) or type(error).__name__).encode()
                return getattr(error, "status", _FAILED) if isinstance(error, errors.DriverError) else _status(error)

        return entry

    def _last_error(self) -> int:
        self.local.kept = ct.create_string_buffer(getattr(self.local, "error", b""))
        return ct.addressof(self.local.kept)


def _status(error: BaseException) -> int:
    return errors.OutOfMemory.status if isinstance(error, MemoryError) else _FAILED


def _open(a: Adapter, _: Adapter, index: int, out: Any) -> None:
    out[0] = a.keep(a.driver.open(index))


def _device_count(a: Adapter, _: Adapter, out: Any) -> None:
    out[0] = a.driver.device_count()


def _close(a: Adapter, _: Adapter, device: int) -> None:
    a.object(device).close()
    del a.objects[device]


def _properties(_: Adapter, device: Device, out: Any) -> None:
    packed = abi.pack(device.properties())
    packed.struct_size = min(out[0].struct_size, ct.sizeof(packed))
    ct.memmove(out, ct.addressof(packed), packed.struct_size)


def _makes(name: str) -> Callable[..., None]:
    """An entry whose handles are objects and whose last parameter receives a new one."""

    def body(a: Adapter, device: Device, *args: Any) -> None:
        *handles, out = args
        out[0] = a.keep(getattr(device, name)(*map(a.object, handles)))

    return body


def _drops(name: str) -> Callable[..., None]:
    def body(a: Adapter, device: Device, number: int) -> None:
        getattr(device, name)(a.object(number))
        del a.objects[number]

    return body


def _takes(name: str) -> Callable[..., Any]:
    def body(a: Adapter, device: Device, *handles: int) -> None:
        getattr(device, name)(*map(a.object, handles))

    return body


def _alloc(a: Adapter, device: Device, nbytes: int, out: Any) -> None:
    out[0] = a.keep(device.alloc(nbytes))


def _host_pointer(a: Adapter, device: Device, mem: int, out: Any) -> None:
    out[0] = device.host_pointer(a.object(mem))


def _copy_h2d(
    a: Adapter, device: Device, queue: int, dst: int, offset: int, src: int | None, nbytes: int, blocking: int
) -> None:
    device.copy_h2d(a.object(queue), a.object(dst), offset, src or 0, nbytes, bool(blocking))


def _copy_d2h(
    a: Adapter, device: Device, queue: int, dst: int | None, src: int, offset: int, nbytes: int, blocking: int
) -> None:
    device.copy_d2h(a.object(queue), dst or 0, a.object(src), offset, nbytes, bool(blocking))


def _copy_d2d(
    a: Adapter, device: Device, queue: int, dst: int, dst_offset: int, src: int, src_offset: int, nbytes: int
) -> None:
    device.copy_d2d(a.object(queue), a.object(dst), dst_offset, a.object(src), src_offset, nbytes)


def _event_query(a: Adapter, device: Device, event: int) -> int:
    return 0 if device.event_query(a.object(event)) else errors.NotReady.status


def _event_time_ns(a: Adapter, device: Device, event: int, out: Any) -> None:
    out[0] = device.event_time_ns(a.object(event))


def _program_load(
    a: Adapter, device: Device, source: int, nbytes: int, is_binary: int, options: bytes | None, out: Any
) -> None:
    text = ct.string_at(source, nbytes)
    out[0] = a.keep(device.program_load(text, bool(is_binary), (options or b"").decode()))


def _program_binary(a: Adapter, device: Device, program: int, out: int | None, nbytes: Any) -> None:
    binary = device.program_binary(a.object(program))
    if out is not None:
        if nbytes[0] < len(binary):
            raise errors.InvalidArgument(f"program_binary: {len(binary)} bytes needed, room for {nbytes[0]}")
        ct.memmove(out, binary, len(binary))
    nbytes[0] = len(binary)


def _kernel_create(a: Adapter, device: Device, program: int, name: bytes, out: Any) -> None:
    out[0] = a.keep(device.kernel_create(a.object(program), name.decode()))


def _launch(
    a: Adapter, device: Device, queue: int, kernel: int, global_size: Any, local_size: Any, nargs: int, args: Any
) -> None:
    unpacked = [_unpack_arg(a, args[i]) for i in range(nargs)]
    with origin.launching(kernel):
        device.launch(a.object(queue), a.object(kernel), tuple(global_size[:3]), tuple(local_size[:3]), unpacked)


def _core_op(
    a: Adapter, device: Device, queue: int, name: bytes, n_outputs: int, n_tensors: int, tensors: Any, attrs: bytes
) -> None:
    views = [_unpack_tensor(a, tensors[i]) for i in range(n_tensors)]
    device.core_op(a.object(queue), name.decode(), views[:n_outputs], views[n_outputs:], json.loads(attrs or b"{}"))


def _run_tasks(a: Adapter, device: Device, queue: int, task: Any, items: Any, count: int) -> None:
    device.run_tasks(a.object(queue), [partial(task, items[i]) for i in range(count)])


def _unpack_arg(a: Adapter, arg: abi.Arg) -> Arg:
    if arg.kind == abi.ARG_BUFFER:
        return Buffer(a.object(arg.mem), arg.offset)
    if arg.kind == abi.ARG_ADDRESS:
        return Address(a.object(arg.mem), arg.offset)
    if arg.kind == abi.ARG_LOCAL:
        return Local(arg.size)
    return Scalar(arg.bits.to_bytes(8, "little")[: arg.size])


def _unpack_tensor(a: Adapter, t: abi.Tensor) -> Tensor:
    return Tensor(a.object(t.mem), t.offset, t.dtype, tuple(t.sizes[: t.rank]), tuple(t.strides[: t.rank]))


_DRIVER_CALLS: dict[str, Callable[..., Any]] = {"device_count": _device_count, "open": _open, "close": _close}
_DEVICE_CALLS: dict[str, Callable[..., Any]] = {
    "properties": _properties,
    "alloc": _alloc,
    "free": _drops("free"),
    "host_pointer": _host_pointer,
    "queue_create": _makes("queue_create"),
    "queue_destroy": _drops("queue_destroy"),
    "copy_h2d": _copy_h2d,
    "copy_d2h": _copy_d2h,
    "copy_d2d": _copy_d2d,
    "event_record": _makes("event_record"),
    "event_query": _event_query,
    "event_wait": _takes("event_wait"),
    "event_time_ns": _event_time_ns,
    "event_destroy": _drops("event_destroy"),
    "flush": _takes("flush"),
    "synchronize": _takes("synchronize"),
    "program_load": _program_load,
    "program_binary": _program_binary,
    "program_destroy": _drops("program_destroy"),
    "kernel_create": _kernel_create,
    "kernel_destroy": _drops("kernel_destroy"),
    "launch": _launch,
    "core_op": _core_op,
    "run_tasks": _run_tasks,
}
