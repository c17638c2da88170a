"""Statuses of `lazy_driver.h` as exceptions: one class each, so that `except OutOfMemory` means just that."""

from __future__ import annotations


class DriverError(RuntimeError):
    """A driver call failed. `status` is the number in `lazy_driver.h`."""

    status = 5


class OutOfMemory(DriverError):
    """The device cannot hold the allocation."""

    status = 1


class BuildFailed(DriverError):
    """The kernel compiler refused a program; the text is its log."""

    status = 2


class LaunchFailed(DriverError):
    """A kernel could not be started, or failed while it ran."""

    status = 3


class DeviceLost(DriverError):
    """The device is gone: nothing on it can be read back."""

    status = 4


class InvalidArgument(DriverError):
    """The host broke the contract: a range outside an allocation, a handle that does not exist."""

    status = 5


class TimedOut(DriverError):
    """A command did not end in the time that the driver allows."""

    status = 6


class Unsupported(DriverError):
    """An optional entry or an op that this driver does not offer."""

    status = 7


class MemoryFault(DriverError):
    """A kernel or copy touched memory that is not its own."""

    status = 8


class NotReady(DriverError):
    """An event whose commands have not run yet."""

    status = 9


BY_STATUS = {
    cls.status: cls
    for cls in (
        OutOfMemory,
        BuildFailed,
        LaunchFailed,
        DeviceLost,
        InvalidArgument,
        TimedOut,
        Unsupported,
        MemoryFault,
        NotReady,
    )
}


def error(status: int, text: str) -> DriverError:
    """The exception for a status; an unknown one gives a plain `DriverError`."""
    return BY_STATUS.get(status, DriverError)(text)
