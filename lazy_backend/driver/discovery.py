"""Finding drivers: the entry-point group `lazy_backend.drivers`, and LAZY_DRIVER.

An entry point is a function without arguments that returns a `Driver` (Python) or the path of a
shared library that exports `lazy_driver_get` (C). LAZY_DRIVER is the name of one, or such a path itself.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from .adapter import table
from .base import Driver
from .errors import Unsupported
from .native import NativeDriver, load_library

GROUP = "lazy_backend.drivers"
DEFAULT = "opencl"


@dataclass(frozen=True)
class Loaded:
    """A driver ready for C++. table: address of its `lazy_driver_api`, valid as long as the process."""

    name: str
    table: int

    def open(self) -> Driver:
        """The same driver as Python calls (conformance, tests, doctor)."""
        return NativeDriver(self.table)


def names() -> list[str]:
    """The announced drivers, the default first."""
    return sorted({point.name for point in entry_points(group=GROUP)}, key=lambda name: (name != DEFAULT, name))


@functools.cache
def load(name: str) -> Loaded:
    """The driver of that name or at that path. Raises `Unsupported` with what is announced, or why it does not load."""
    if "/" in name:
        return Loaded(Path(name).stem, load_library(name))
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise Unsupported(f"no driver is called {name!r}; announced: {', '.join(names()) or 'none'}")
    return from_factory(name, points[name].load())


def from_factory(name: str, factory: Callable[[], Driver | str | Path]) -> Loaded:
    """What an entry point's function stands for."""
    made = factory()
    if not isinstance(made, (Driver, str, Path)):
        raise Unsupported(f"the entry point {name} gave {made!r}: it must return a Driver, or a shared library's path")
    return Loaded(name, table(made) if isinstance(made, Driver) else load_library(str(made)))


def selected() -> str:
    """The name or path of the process's driver: LAZY_DRIVER, else OpenCL."""
    return os.environ.get("LAZY_DRIVER") or DEFAULT


def select() -> Loaded:
    """The process's driver."""
    return load(selected())


def count() -> int:
    """How many devices the process's driver has, without opening any. Raises what is wrong with the driver."""
    return select().open().device_count()


_opening = threading.Lock()
_opened = False


def open_selected() -> None:
    """Give the selected driver to the C++ side, once. Raises `DriverError` saying what was tried when there is none."""
    global _opened
    from lazy_backend import _C

    with _opening:
        if not _C.driver_opened():
            _C.use_driver(select().table)
            _opened = True


def opened_as_selected() -> bool:
    """Whether another process with this one's environment would open the same driver."""
    return _opened
