"""What makes many objects at once, and no garbage, does without Python's cycle collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """The collector waits: it would walk all of torch (0.06 to 0.2 s each time) for the sake of what goes by itself.

    benchmarks: 0.45 s of the 3.4 s of the first step of examples/gpt.py where a window is compiled, 0.06 where the
    device is opened.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
