"""LAZY_COMPILE=async: windows are compiled by a process of its own, which shares nothing with the script but the cache.

The compiler is Python, MLIR and the driver's compiler: on a thread it would hold the script's interpreter. A window
waits for it once it is in use for as long as compiling it may take; the first that does starts it. It compiles one
window at a time, the one that ran most often meanwhile, and puts plan and kernels into the persistent cache; from then
on the window's next run finds them there. When no window waits it times schedules of products (LAZY_TUNE=on,
lazy_backend/tuning.py), with what the script leaves of the processor.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import torch

from lazy_backend import _C, cache, identity, pipes
from lazy_backend.driver import abi

log = logging.getLogger("lazy_backend.compile")
tuning_log = logging.getLogger("lazy_backend.tuning")

# Seconds an op, from a window's first run on, until it is compiled: about what its compile takes on two cores (gpt.py's
# 205 ops take 3.3 s). A script that ends before then is better off without, and one that goes on loses at most as much
# again.
# Beside a compile the first 20 steps of gpt.py took 1.27 times eager's, without it 1.05 times.
PATIENCE = 0.02


class Compiler:
    """The process, and the windows that will want it. `windows`: by name, as the recorder wrote them."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self.windows: dict[str, dict[str, Any]] = {}
        # When each is in use for long enough, in the monotonic clock's seconds; and those that are.
        self.due: dict[str, float] = {}
        self.waiting: set[str] = set()
        # What runs in a window's place.
        self.rungs: dict[str, dict[str, Any]] = {}
        self.runs: Counter[str] = Counter()
        # What has been compiled, or could not be: the next run of such a window asks no more.
        self.done: dict[str, int] = {}
        self.failed = False
        threading.Thread(target=self._serve, name="lazy-compile", daemon=True).start()

    def add(self, name: str, window: dict[str, Any], rung: dict[str, Any]) -> None:
        """A window to compile when it has been in use for long enough, and its turn comes."""
        with self._lock:
            self.rungs[name], self.windows[name] = rung, window
            self.due[name] = time.monotonic() + PATIENCE * len(window["nodes"])

    def tune(self, device: int, product: str) -> None:
        """A product whose schedules are to be timed when no window waits: those have run, and run more often."""
        with self._lock:
            name = f"{device} {product}"
            if not self.failed and name not in self.windows and name not in self.done:
                self.windows[name] = {"device": device, "product": product}
                self.waiting.add(name)
                self._lock.notify()

    def ran(self, name: str) -> dict[str, Any] | None:
        """What runs in the window's place. Counts the run."""
        with self._lock:
            if rung := self.rungs.get(name):
                self.runs[name] += 1
                if name not in self.waiting and time.monotonic() >= self.due[name]:
                    self.waiting.add(name)
                    self._lock.notify()
            return rung

    def _serve(self) -> None:
        try:
            name, window = self._next()
            process = subprocess.Popen(
                [sys.executable, "-c", "from lazy_backend.background import main; main()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                # Ctrl-C is the script's. No session of its own: the scheduler would give it half the machine.
                process_group=0,
                env=pipes.environment(**_ENVIRONMENT),
            )  # fmt: skip
            assert process.stdin and process.stdout
            while True:
                pipes.send(process.stdin, window)
                answer = pipes.receive(process.stdout)
                for op, names in answer["statics"]:
                    identity.mark_static(op, set(names))
                for device, product in answer["products"]:
                    self.tune(device, product)
                if answer["tuned"]:
                    tuned.append(answer["tuned"])
                    tuning_log.info("%s", answer["tuned"])
                if answer["error"]:
                    what = "product could not be tuned" if "product" in window else "window could not be compiled"
                    log.warning("a %s in the background: %s", what, answer["error"])
                self._finish(name, answer["built"])
                name, window = self._next()
        except (OSError, EOFError) as error:
            log.warning(
                "the compiler's process ended (%r); from here on windows are compiled where they are met", error
            )
        with self._lock:
            self.failed = True
            left = list(self.windows)
        for name in left:
            self._finish(name, 0)

    def _next(self) -> tuple[str, dict[str, Any]]:
        with self._lock:
            self._lock.wait_for(lambda: self.waiting)
            name = max(self.waiting, key=self.runs.__getitem__)
            return name, self.windows[name]

    def _finish(self, name: str, built: int) -> None:
        with self._lock:
            self.waiting.discard(name)
            del self.windows[name]
            self.rungs.pop(name, None)
            self.due.pop(name, None)
            self.done[name] = built


_compiler: Compiler | None = None
# Products that were timed for this process, a line each.
tuned: list[str] = []
# In the background's process: products that it met itself, which the script's process will ask it to tune.
_met: list[tuple[int, str]] | None = None
_starting = threading.Lock()
# How the script's processes are scheduled.
_scheduling = (os.sched_getscheduler(0), os.sched_getparam(0)) if hasattr(os, "SCHED_IDLE") else None
# What the process sees differently: it compiles, records nothing, and warns of nothing that the script warns of.
_ENVIRONMENT = {
    "LAZY_COMPILE": "sync", "LAZY_RECORD": "", "LAZY_ARCHIVE": "", "LAZY_PROFILE": "", "LAZY_FALLBACK": "silent",
}  # fmt: skip


def op_by_op(window: dict[str, Any], step: str) -> dict[str, Any]:
    """A plan of host steps: "interpret" for this one run, until there are kernels, "host" for want of any, for good."""
    steps = [(step, i) for i in range(len(window["nodes"]))]
    return {"pieces": [], "temps": [], "steps": steps, "checks": [], "once": step == "interpret"}


# Structures of fills that the host has made once. As many as the compiler keeps.
_filled: set[str] = set()
MAX_FILLED = 512
_FILLS = frozenset({"aten.zero_.default", "aten.fill_.Scalar"})


def filled(window: dict[str, Any]) -> dict[str, Any] | None:
    """What an optimizer's state or the like runs as when it comes for the first time, which is often the last.

    The host fills it, before a compiler is imported and its processes start (0.5 s of processor time) for a kernel.
    """
    nodes = window["nodes"]
    if window["structure"] in _filled or len(nodes) < _C.FILLS_APART or any(node[0] not in _FILLS for node in nodes):
        return None
    if not abi.unpack(abi.Properties.from_buffer_copy(_C.device_properties(window["device"]))).host_visible:
        return None
    if len(_filled) >= MAX_FILLED:
        _filled.clear()
    _filled.add(window["structure"])
    return op_by_op(window, "interpret")


def rung(window: dict[str, Any]) -> dict[str, Any] | None:
    """What a window runs as which is being compiled, or waits for it. Counts the run."""
    return _compiler.ran(_name(window)) if _compiler else None


def _name(window: dict[str, Any]) -> str:
    return f"{window['structure']}/{window['sizes']}"


def takes(window: dict[str, Any]) -> bool:
    """Whether a window (as the recorder wrote it) can be left to the background. False: compile it now.

    That is so where there is no cache to find the plan in, where the background has tried already, and where results
    must not depend on when a plan is ready (`torch.use_deterministic_algorithms`).
    """
    global _compiler
    if cache.folder() is None or torch.are_deterministic_algorithms_enabled():
        return False
    with _starting:
        _compiler = _compiler or Compiler()
    return not _compiler.failed and _name(window) not in _compiler.done


def compile_later(window: dict[str, Any], rung: dict[str, Any]) -> None:
    """Leaves a window to the background, and runs it as `rung` until its plan is ready."""
    assert _compiler is not None
    _compiler.add(_name(window), window, rung)


def tune_later(device: int, product: str) -> None:
    """Leaves a product's schedules to the background."""
    global _compiler
    if _met is not None:
        _met.append((device, product))
        return
    with _starting:
        _compiler = _compiler or Compiler()
    _compiler.tune(device, product)


def built(window: dict[str, Any]) -> int:
    """How many kernels the background has built for a window, told once."""
    if _compiler is None:
        return 0
    name = _name(window)
    count, _compiler.done[name] = _compiler.done.get(name, 0), 0
    return count


def _yield_cores(yes: bool) -> None:
    """Whether the process, with the driver's threads, takes only what others leave: for measurements, which are in no
    hurry. A window's compile has had its PATIENCE, and shares the cores: at idle priority gpt.py got its kernels after
    38 s, so after 12 to 16 (with the first 100 steps as long)."""
    if _scheduling is not None:
        policy, parameters = (os.SCHED_IDLE, os.sched_param(0)) if yes else _scheduling
        for thread in os.listdir("/proc/self/task"):
            with suppress(PermissionError, ProcessLookupError):  # some systems let nobody back; a thread may have ended
                os.sched_setscheduler(int(thread), policy, parameters)
    elif yes:
        os.nice(19)


def main() -> None:
    """The process: one window or product after another from stdin, until it is closed."""
    global _met
    requests, answers = pipes.ends()
    torch.set_num_threads(1)
    _C.device_count()
    from lazy_backend import compiler, tuning

    while True:
        _met = []
        try:
            window = pipes.receive(requests)
        except EOFError:
            os._exit(0)  # the drivers' threads are not waited for
        before = _C.stats()["kernels_built"]
        error = line = ""
        try:
            _yield_cores("product" in window)
            if "product" in window:
                line = tuning.tune(window["device"], window["product"])
            else:
                compiler.compile_now(window)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        made = _C.stats()["kernels_built"] - before
        statics = [(op, sorted(names)) for op, names in identity.statics.items()]
        try:
            answer = {"built": made, "error": error, "statics": statics, "products": _met, "tuned": line}
            pipes.send(answers, answer)
        except BrokenPipeError:
            os._exit(0)
