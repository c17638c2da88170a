"""Streams and events. A device runs its work in the order it was recorded, whatever the stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.types import Device

from .devices import index_of


class Stream(torch.Stream):
    """A stream of a lazy device: `Stream(device=None, priority=0)`; also a context manager."""

    def __new__(cls, device: Device = None, priority: int = 0, **ids: Any) -> Stream:
        """A new stream, or with stream_id, device_index and device_type a handle of an existing one."""
        if ids:
            return super().__new__(cls, priority=priority, **ids)
        return super().__new__(cls, torch.device("lazy", index_of(device)), priority=priority)


class _EventType(type):
    """torch takes no subclass of its events, so `Event(...)` makes one of its own; this is how isinstance knows it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "lazy"


class Event(metaclass=_EventType):
    """A point in a device's work: `Event(enable_timing=False, blocking=False, device=None)`."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, device: Device = None) -> torch.Event:  # type: ignore[misc]
        """A new event, not recorded yet."""
        where = torch.device("lazy", index_of(device))
        return torch.Event(where, enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    """The calling thread's current stream of the device."""
    return torch.accelerator.current_stream(torch.device("lazy", index_of(device)))


def default_stream(device: Device = None) -> Stream:
    """The device's default stream."""
    return Stream(stream_id=0, device_index=index_of(device), device_type=DeviceType.PrivateUse1.value)


def set_stream(stream: torch.Stream) -> None:
    """Makes `stream` the calling thread's current one of its device."""
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes `stream` current inside; None does nothing."""
    if stream is None:
        yield
    else:
        with stream:
            yield
