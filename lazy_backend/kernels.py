"""The kernels that are loaded: where each came from, its binary for an archive, its description for profiles."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lazy_backend import _C, builders, cache, config
from lazy_backend.driver import origin

if TYPE_CHECKING:
    from codegen.source import Source

log = logging.getLogger("lazy_backend.kernels")

# What each kernel handle computes, for profiles: op names, first user line.
described: dict[int, str] = {}
origin.lookup = described.get

# (device, program, function) of each handle.
_programs: dict[int, tuple[int, int, str]] = {}
_tables: list[dict[Any, int]] = []


def table() -> dict[Any, int]:
    """A table of handles by (device, whatever), which loses those that are forgotten."""
    _tables.append({})
    return _tables[-1]


# Programs that were loaded from binaries, by the device and the binary's digest: a program may have several kernels.
_loaded = table()
# Whoever keeps plans forgets them before their kernels go.
before_forgetting: list[Callable[[], None]] = []
# Under which name the persistent cache has the binary of a handle.
entries: dict[int, str] = {}
_library_ops: list[str] = []
# Held while a binary is loaded: a thread loads ahead of need (lazy_backend.ahead).
loading = threading.Lock()
# What is wrong with a program whose build ended processes, by its kernel's name in the cache: not tried again.
_fatal: dict[str, str] = {}

# Kernels that a device has loaded at most, before a plan is made. With Intel's runtime each holds 1 MB, or 3 where it
# was built in this process: a script of ever new windows grew by that for each. A model's training has some 60 to 200.
MAX_LOADED = 1024


class NoCompile(RuntimeError):
    """LAZY_COMPILE=never, and a kernel or a whole window is in neither memory, the cache, nor an archive."""


def library_handle(op: str) -> int:
    """A number that stands for a library's op in profiles; no kernel's handle, which is an address."""
    if op not in _library_ops:
        _library_ops.append(op)
    handle = 1 + _library_ops.index(op)
    described[handle] = f"library: {op}"
    return handle


def library_op(handle: int) -> str:
    """The op that `library_handle` numbered; empty for any other handle."""
    return _library_ops[handle - 1] if 0 < handle <= len(_library_ops) else ""


def make_room(device: int) -> None:
    """Forgets all kernels and plans of a device that has as many loaded as it may. Before a plan is made for it."""
    if len(_programs) < MAX_LOADED or sum(d == device for d, _, _ in list(_programs.values())) < MAX_LOADED:
        return
    log.info("%d kernels are loaded: they are forgotten, and found in the cache when they are needed", MAX_LOADED)
    for forget in before_forgetting:
        forget()
    with loading:
        mine = {handle: program for handle, (d, program, _) in list(_programs.items()) if d == device}
        for handles in _tables:
            for key in [key for key in list(handles) if key[0] == device]:
                del handles[key]
        for handle in mine:
            for known in (_programs, described, entries):
                known.pop(handle, None)  # type: ignore[attr-defined]
        _C.forget_kernels(device, list(mine), list(set(mine.values())))


def create(device: int, program: int, function: str) -> int:
    """The handle of a function of a loaded program."""
    handle = _C.create_kernel(device, program, function)
    _programs[handle] = device, program, function
    return handle


def from_binary(device: int, binary: bytes, function: str) -> int:
    """The handle of a kernel from the driver's own binary. Raises RuntimeError where the driver does not take it."""
    key = device, hashlib.sha256(binary).digest()
    if key not in _loaded:
        _loaded[key] = _C.build_program(device, binary, True, "")
    return create(device, _loaded[key], function)


def binary_of(handle: int) -> tuple[bytes, str]:
    """The driver's binary of a kernel, empty where the driver gives none, and the function's name."""
    device, program, function = _programs[handle]
    return _C.program_binary(device, program), function


def function(handle: int) -> str:
    """The name of a kernel's function in its program."""
    return _programs[handle][2]


class Asked(NamedTuple):
    """A kernel that a plan needs. entry: its name in the cache; line: the user's; source: makes its source."""

    entry: str
    function: str
    line: str
    source: Callable[[], Source]


class Loading:
    """Kernels of a plan, no two alike: from the persistent cache, or built, together, from when they are asked for."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._handles: dict[str, int | None] = {}
        self._missing: list[Asked] = []
        self._building = builders.Building(device, _C.device_properties(device), self._load)

    def ask(self, kernel: Asked) -> None:
        """One more kernel.

        Raises NoCompile where nothing may be built, and RuntimeError where the driver's compiler died of it before.
        """
        found = self._handles[kernel.entry] = _from_cache(self._device, kernel)
        if found is not None:
            return
        if config.COMPILE.get() == "never":
            raise NoCompile(
                f"LAZY_COMPILE=never, and no kernel {kernel.function} is in the cache for {kernel.line}; "
                "run once with LAZY_COMPILE=sync"
            )
        if kernel.entry in _fatal:
            raise RuntimeError(_fatal[kernel.entry])
        self._missing.append(kernel)
        self._building.ask(kernel.source())

    def wait(self) -> bool:
        """Whether some are still to be built."""
        return self._building.wait()

    def finish(self) -> list[int]:
        """The handles, in the order of asking.

        Raises what the driver raises where it cannot build a kernel, and RuntimeError where its compiler dies of one.
        """
        errors = []
        for kernel, program in zip(self._missing, self._building.finish(), strict=True):
            if isinstance(program, builders.Died):
                what = f"the driver's compiler failed ({program}) when it built {kernel.function} for {kernel.line}"
                _fatal[kernel.entry] = what
                errors.append(RuntimeError(what))
            elif isinstance(program, RuntimeError):
                errors.append(program)
        if errors:
            raise errors[0]
        return [handle for handle in self._handles.values() if handle is not None]

    def _load(self, numbers: list[int], text: bytes, is_binary: bool) -> int:
        """The program of these kernels, whose handles and entries in the cache are made with it."""
        program = _C.build_program(self._device, text, is_binary, "")
        binary = text if is_binary else _C.program_binary(self._device, program)
        made = [self._missing[i] for i in numbers]
        for kernel in made:
            handle = self._handles[kernel.entry] = create(self._device, program, kernel.function)
            _C.count_built()
            if binary:
                entries[handle] = kernel.entry
        cache.store_program([kernel.entry for kernel in made], binary)
        return program

    def abandon(self) -> None:
        """Nobody needs the kernels any more."""
        self._building.abandon()


def _from_cache(device: int, kernel: Asked) -> int | None:
    binary = cache.load(kernel.entry)
    if binary is None:
        return None
    try:
        handle = from_binary(device, binary, kernel.function)
    except RuntimeError as error:
        log.warning("dropped a cached kernel that the driver does not take: %s", error)
        cache.drop(kernel.entry)
        return None
    entries[handle] = kernel.entry
    return handle
