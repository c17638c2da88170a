"""The driver contract as Python classes, for a first bring-up: same calls, same rules as `lazy_driver.h`.

Subclass `Device`, write the methods that your chip has, name it in a `Driver`. Handles
(memory, queues, events, programs, kernels) are whatever objects you like. Failures are
the exceptions of `errors`. Sizes and offsets are in bytes. Commands on one queue run in
order and may run later than the call; memory they name stays valid until they have run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .capabilities import Capabilities
from .errors import InvalidArgument, Unsupported


class Buffer(NamedTuple):
    """A kernel argument: device memory from `offset` bytes on."""

    mem: Any
    offset: int = 0


class Address(NamedTuple):
    """As `Buffer`, to a kernel that has a number there: with the property `address_args`."""

    mem: Any
    offset: int = 0


class Scalar(NamedTuple):
    """A kernel argument by value: `data` is 1, 2, 4 or 8 bytes, little endian."""

    data: bytes


class Local(NamedTuple):
    """A kernel argument: work-group memory of so many bytes."""

    nbytes: int


Arg = Buffer | Address | Scalar | Local


class Tensor(NamedTuple):
    """A strided view of an allocation. offset: bytes; strides: elements, >= 0; dtype: a `lazy_dtype` number."""

    mem: Any
    offset: int
    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Device:
    """One opened device. A method that is not overridden is an entry that the driver does not have."""

    def properties(self) -> Capabilities:
        """What the chip is; zeros are unknown."""
        raise self._missing("properties")

    def close(self) -> None:
        """Give the device up. Nothing is called on it afterwards."""

    # memory
    def alloc(self, nbytes: int) -> Any:
        """Memory of `nbytes`, uninitialised. Raises `OutOfMemory`."""
        raise self._missing("alloc")

    def free(self, mem: Any) -> None:
        """Give memory back. No queued command names it."""
        raise self._missing("free")

    def host_pointer(self, mem: Any) -> int:
        """Optional, with `host_visible`: the address for the host."""
        raise self._missing("host_pointer")

    # queues, copies, events; src and dst of the host are addresses
    def queue_create(self) -> Any:
        """An in-order queue."""
        raise self._missing("queue_create")

    def queue_destroy(self, queue: Any) -> None:
        """Give a queue up that has nothing left to run."""
        raise self._missing("queue_destroy")

    def copy_h2d(self, queue: Any, dst: Any, dst_offset: int, src: int, nbytes: int, blocking: bool) -> None:
        """Copy from host address `src`. blocking: host memory may be reused on return."""
        raise self._missing("copy_h2d")

    def copy_d2h(self, queue: Any, dst: int, src: Any, src_offset: int, nbytes: int, blocking: bool) -> None:
        """Copy to host address `dst`. blocking: it may be read on return."""
        raise self._missing("copy_d2h")

    def copy_d2d(self, queue: Any, dst: Any, dst_offset: int, src: Any, src_offset: int, nbytes: int) -> None:
        """Copy inside the device. The ranges do not overlap."""
        raise self._missing("copy_d2d")

    def event_record(self, queue: Any) -> Any:
        """An event that completes when everything queued so far has run."""
        raise self._missing("event_record")

    def event_query(self, event: Any) -> bool:
        """Whether it has completed. From any thread."""
        raise self._missing("event_query")

    def event_wait(self, event: Any) -> None:
        """Return once it has completed. From any thread."""
        raise self._missing("event_wait")

    def event_time_ns(self, event: Any) -> int:
        """Optional: the device's clock when it completed."""
        raise self._missing("event_time_ns")

    def event_destroy(self, event: Any) -> None:
        """Give an event up."""
        raise self._missing("event_destroy")

    def flush(self, queue: Any) -> None:
        """Optional: start what is queued."""
        raise self._missing("flush")

    def synchronize(self, queue: Any) -> None:
        """Return once all that is queued has run; raise what went wrong."""
        raise self._missing("synchronize")

    # programs and launches: levels 2 and 3
    def program_load(self, source: bytes, is_binary: bool, options: str) -> Any:
        """A program from source in the chip's language, or from `program_binary`. Raises `BuildFailed`."""
        raise self._missing("program_load")

    def program_binary(self, program: Any) -> bytes:
        """Optional: the built form, for the cache on disk."""
        raise self._missing("program_binary")

    def program_destroy(self, program: Any) -> None:
        """Give a program up."""
        raise self._missing("program_destroy")

    def kernel_create(self, program: Any, name: str) -> Any:
        """The kernel of that name."""
        raise self._missing("kernel_create")

    def kernel_destroy(self, kernel: Any) -> None:
        """Give a kernel up."""
        raise self._missing("kernel_destroy")

    def launch(
        self,
        queue: Any,
        kernel: Any,
        global_size: tuple[int, int, int],
        local_size: tuple[int, int, int],
        args: list[Arg],
    ) -> None:
        """Queue a kernel. Sizes count work-items; global is a multiple of local; local 0, 0, 0: the driver chooses."""
        raise self._missing("launch")

    # core ops: level 1; library entries: level 3
    def core_op(self, queue: Any, name: str, outputs: list[Tensor], inputs: list[Tensor], attrs: dict) -> None:
        """Queue a core op of `ops_core`'s table on tensors of any strides. Raises `Unsupported` for what it has not.

        Level 3 is asked with no tensors which ops it has library entries for.
        """
        raise self._missing("core_op")

    # a CPU whose threads spin between kernels
    def run_tasks(self, queue: Any, tasks: list[Callable[[], None]]) -> None:
        """Call each, side by side on the threads that run kernels, and return when all have ended; nothing is queued.

        Must be safe from any thread. Raises `Unsupported` where the device has no way: the host's threads do it then.
        """
        raise self._missing("run_tasks")

    def _missing(self, name: str) -> Unsupported:
        return Unsupported(f"{type(self).__name__}.{name} is not written")

    @classmethod
    def has(cls, name: str) -> bool:
        """Whether a subclass has written the method."""
        return getattr(cls, name) is not getattr(Device, name)


class Driver:
    """What an entry point of the group `lazy_backend.drivers` gives. `device_class` must be set."""

    name = "driver"
    device_class: type[Device] = Device

    def device_count(self) -> int:
        """Number of devices present; 0 is no error."""
        return 1

    def open(self, index: int) -> Device:
        """Open a device. Raises `InvalidArgument` for one that does not exist."""
        if index >= self.device_count():
            raise InvalidArgument(f"no device {index}: {self.name} has {self.device_count()}")
        return self.device_class()
