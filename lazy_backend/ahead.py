"""Kernels and memory ahead of need, on a thread, from the device's opening on: an archive's, or those of the last run.

Intel's runtime reads a binary's LLVM IR: 1 to 20 ms each, one at a time whatever the number of threads, 0.25 s for the
50 of a training script. That passes beside the script's own start, and so do the faults of memory that is touched for
the first time (0.3 ms a MB). What a script used last time lies in the persistent cache, by the script's path. One that
used nothing will build its kernels: processes for that start instead.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from lazy_backend import _C, archive, builders, cache, config, plans
from lazy_backend.driver import discovery

log = logging.getLogger("lazy_backend.cache")

# Drivers that it was measured with. A simulator's clock would depend on when the thread comes to run.
DRIVERS = frozenset({"opencl"})
# Kernels of a run that are remembered: some 50 for a training script. 256 take 1.3 s of one core to load.
MOST = 256
# Bytes of memory that a run starts with at most: 0.3 s of one core.
MOST_BYTES = 1 << 30
Load = Callable[[], object]


def start(loads: Iterable[Load]) -> threading.Thread:
    """Does these on a thread, one after another, until the process ends. What fails fails again where it counts."""
    ending = threading.Event()

    def run() -> None:
        try:
            for load in loads:
                if ending.is_set():
                    return
                load()
        except Exception as error:
            log.info("no more kernels are loaded ahead of need: %s", error)

    def end() -> None:  # a thread that came back from C++ after Python's end would abort the process
        ending.set()
        thread.join()

    thread = threading.Thread(target=run, name="lazy-ahead", daemon=True)
    thread.start()
    atexit.register(end)
    return thread


def open_device() -> None:
    """Begins to load what this run will need, if that can be known. For a driver that has just been opened.

    Of several devices nobody knows yet which ones this process will use; opening others would take their memory.
    """
    if discovery.selected() not in DRIVERS or _C.device_count() != 1:
        return
    if archive.recording is not None or config.PROFILE.get():
        return
    if archive.opened is not None:
        start(_with_memory(archive.opened.loads(0), archive.opened.segments(0)))
    elif (script := _script()) and cache.folder():
        if last := _of_last_run(script):
            start(_with_memory(*last))
        elif config.COMPILE.get() == "sync":
            builders.start_first()
        atexit.register(remember, script)


def _script() -> str:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else ""


def _name(script: str) -> str:
    key = hashlib.sha256(script.encode()).digest()
    return cache.plan_name(key, _C.device_properties(0)).removesuffix(".plan") + ".run"


def _with_memory(loads: Iterable[Load], segments: Sequence[int]) -> Iterator[Load]:
    """The loads, then the first touch of the device's memory, which has these segments from now on."""
    positive = [n for n in segments if n > 0]
    total = itertools.accumulate(positive)
    within = [n for n, sum in zip(positive, total, strict=True) if sum <= MOST_BYTES]
    _C.reserve(0, within)
    return itertools.chain(loads, [functools.partial(_C.touch, 0)])


def _of_last_run(script: str) -> tuple[list[Load], list[int]] | None:
    """Its kernels, and the bytes of its segments of memory."""
    try:  # anyone can write an entry
        used = json.loads(cache.load(_name(script)) or "null")
        if used is None:
            return None
        loads: list[Load] = [
            functools.partial(plans.cached_kernel, 0, entry, function) for entry, function in used["kernels"][:MOST]
        ]
        return loads, [int(n) for n in used["segments"]]
    except (ValueError, TypeError, KeyError) as error:
        log.info("what the script used last time cannot be read: %r", error)
        return None


def remember(script: str) -> None:
    """Notes which kernels of the cache this run has used, for the next one of the script."""
    if not ((folder := cache.folder()) and folder.is_dir()):
        return  # it was there for this run only, as in tests
    used = [[entry, function] for device, entry, function in plans.used if device == 0][:MOST]
    text = json.dumps({"kernels": used, "segments": sorted(_C.segments(0))}).encode()
    if used and cache.load(_name(script)) != text:
        cache.store(_name(script), text)
