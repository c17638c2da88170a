"""What makes many objects at once, and no garbage, does without Python's cycle collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected(lasting: bool = False) -> Iterator[None]:
    """The collector waits: it would walk all of torch (0.06 to 0.2 s each time) for the sake of what goes by itself.

    lasting: what is made stays. It is put among the old objects, and not counted as new ones, of which a quarter makes
    the collector walk all of them: it did so in the first step of each script, soon after the device's opening.
    benchmarks: 0.45 s of the 3.4 s of the first step of examples/gpt.py where a window is compiled, 0.08 where the
    device is opened and the compiler imported.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if lasting and not gc.get_freeze_count():  # else there is what the user froze, and would be thawed
            gc.freeze()
            gc.unfreeze()
        if collects:
            gc.enable()
