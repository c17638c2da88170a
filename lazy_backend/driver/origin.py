"""Where a command comes from in the user's program, for the messages of a driver that is written in Python.

The host sets `lookup`. A driver asks `current()` while it is being called: a launch is known by its kernel, another
call by the Python line that made it, where it was made on the user's own thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# Kernel handle, as the host numbers them -> what it computes, and the lines that use it.
lookup: Callable[[int], str | None] = dict[int, str]().get

_local = threading.local()
# Whose lines are not the user's: this package's, installed ones, Python's own.
_OURS = (str(Path(__file__).parents[1]), "site-packages", str(Path(threading.__file__).parent), "<frozen")


@contextmanager
def launching(kernel: int) -> Iterator[None]:
    """While this thread serves the launch of a kernel."""
    _local.kernel = kernel
    try:
        yield
    finally:
        _local.kernel = 0


def current(ours: str = _OURS[0]) -> str:
    """What the call that this thread serves comes from; "" where nobody knows. ours: the driver's own folder."""
    if kernel := getattr(_local, "kernel", 0):
        return lookup(kernel) or ""
    frame: FrameType | None = sys._getframe(1)
    while frame and any(part in frame.f_code.co_filename for part in (*_OURS, ours)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else ""
