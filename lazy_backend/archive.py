"""Precompiled runs: every plan and kernel binary of a run in one file, and runs from such a file without a compiler.

`with precompile("app.lzpack"):` or LAZY_RECORD=app.lzpack writes one; LAZY_ARCHIVE=app.lzpack runs from it. A window
is found by its description (lazy_backend.identity), without looking into any IR. What an archive holds (a
lazy_backend.pack), by key:

    digest of "about"                 JSON: format, torch, device, window length, static arguments, the plans' keys,
                                      bytes of the memory's segments
    digest of "plan" + window         the plan (lazy_backend.plans)
    digest of "window" + window       the description, deflated, for the error that explains a missing window
    digest of a binary                the driver's binary of a kernel

An archive's kernels are programs: as with any program, run those of people whom you trust.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lazy_backend import _C, config, identity, kernels, pack, plans
from lazy_backend.driver import abi

log = logging.getLogger("lazy_backend.archive")

# Changes with the meaning of plans or descriptions: what an older release recorded is refused, not guessed at.
FORMAT = 4
_ABOUT = hashlib.sha256(b"about").digest()
# A description of a window of 512 ops has 200 KB; one that says it unpacks to more than this is not one.
_MAX_TEXT = 64 << 20


def _key(kind: str, digest: bytes) -> bytes:
    return hashlib.sha256(kind.encode() + b"\0" + digest).digest()


def _device(index: int) -> dict[str, str]:
    """What the kernels of a device depend on."""
    raw = _C.device_properties(index)
    known = abi.unpack(abi.Properties.from_buffer_copy(raw))
    named = {"name": known.name, "vendor": known.vendor, "driver_version": known.driver_version}
    return named | {"properties": hashlib.sha256(raw).hexdigest()}


# --- recording ----------------------------------------------------------------------------------------------------


class Recording:
    """The windows of a run with their plans, as they are compiled."""

    def __init__(self) -> None:
        self._taken: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []

    def take(self, window: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """A window as the recorder wrote it, and the plan that runs it."""
        self._taken.append((window, plan))

    def save(self, path: str | Path) -> None:
        """Writes the archive. Raises RuntimeError where the driver gives no binaries, OSError where writing fails."""
        if not _C.driver_opened():
            log.warning("nothing ran on the device: %s is not written", path)
            return
        blobs: dict[bytes, bytes] = {}
        keys = []

        def keep(handle: int) -> tuple[str, str]:
            binary, function = kernels.binary_of(handle)
            if not binary:
                raise RuntimeError("the driver gives no binaries of its kernels, so a run on it cannot be recorded")
            digest = hashlib.sha256(binary).digest()
            blobs[digest] = binary
            return digest.hex(), function

        for window, plan in self._taken:
            description = identity.describe(window, identity.statics)
            digest = description.digest()
            keys.append(digest.hex())
            blobs[_key("plan", digest)] = plans.written(plan, description, window["scalars"], keep)
            blobs[_key("window", digest)] = zlib.compress(description.text().encode())
        about = {
            "format": FORMAT,
            "torch": torch.__version__,
            "device": _device(0),
            "window": _C.window(),
            "statics": {op: sorted(names) for op, names in identity.statics.items()},
            "windows": keys,
            "segments": sorted(_C.segments(0)),
        }
        blobs[_ABOUT] = json.dumps(about).encode()
        pack.write(path, blobs)
        log.info("%d windows in %s", len(keys), path)


recording: Recording | None = None


def _drain() -> None:
    for index in range(_C.device_count()):
        _C.synchronize(index)


@contextlib.contextmanager
def precompile(path: str | Path) -> Iterator[None]:
    """Writes every plan and kernel that the code inside needs to an archive at `path`; nothing if the code raises.

    Everything is compiled where it is met: also windows of sizes that come only once. Raises RuntimeError inside
    another recording, or where the driver gives no binaries; OSError where the file cannot be written.
    """
    global recording
    if recording is not None:
        raise RuntimeError("a recording is under way")
    _drain()
    for index in range(_C.device_count()):
        _C.forget_plans(index)
    mine = recording = Recording()
    _C.compile_all(True)
    try:
        yield
        _drain()
        mine.save(path)
    finally:
        recording = None
        _C.compile_all(False)


def record_from_environment() -> None:
    """LAZY_RECORD: from now, with the device just opened, to the end of the process."""
    if not (path := str(config.RECORD.get())):
        return
    context = precompile(path)

    def finish() -> None:
        try:
            context.__exit__(None, None, None)
        except Exception as error:  # at exit there is nobody to raise it to
            log.error("LAZY_RECORD=%s: %s", path, error)

    context.__enter__()
    atexit.register(finish)


# --- running from one ---------------------------------------------------------------------------------------------


class Archive:
    """An open archive. Raises `pack.BadPack` where the file is none, is damaged, or is of another version."""

    def __init__(self, path: str | Path):
        self.path = path
        self._pack = pack.Pack(path)
        try:
            self._about = json.loads(self._pack[_ABOUT])
        except (KeyError, ValueError) as error:
            raise pack.BadPack(f"{path} is not an archive of precompiled plans") from error
        for what, here in (("format", FORMAT), ("torch", torch.__version__)):
            if self._about[what] != here:
                raise pack.BadPack(f"{path} was recorded with {what} {self._about[what]}; this process has {here}")
        self._handles = kernels.table()

    def apply_statics(self) -> None:
        """Tells the recorder what it had learnt when the archive was recorded. Before the first op."""
        for op, names in self._about["statics"].items():
            identity.mark_static(op, set(names))

    @functools.cache  # noqa: B019 - one archive a process
    def mismatch(self, device: int) -> str:
        """Why the kernels are not for this device; empty where they are."""
        here, there = _device(device), self._about["device"]
        different = [f"{what} {there[what]!r}, here {here[what]!r}" for what in here if here[what] != there[what]]
        return f"{self.path} was recorded on another device or driver: {', '.join(different)}" if different else ""

    def plan(self, window: Mapping[str, Any]) -> dict[str, Any] | None:
        """The plan of a window, its kernels loaded, or None. Raises `pack.BadPack` where it does not fit the window."""
        if self.mismatch(window["device"]):
            return None
        blob = self._pack.get(_key("plan", identity.describe(window).digest()))
        if blob is None:
            return None
        try:
            return plans.read(blob, window, functools.partial(self._kernel, window["device"]))
        except plans.Misfit as error:
            raise pack.BadPack(f"{self.path}: {error}") from error

    def _kernel(self, device: int, digest: str, function: str) -> int:
        key = (device, digest, function)
        with kernels.loading:
            if key not in self._handles:
                self._handles[key] = kernels.from_binary(device, self._pack[bytes.fromhex(digest)], function)
            return self._handles[key]

    def loads(self, device: int) -> Iterator[Callable[[], int]]:
        """Loads every kernel, those of the first windows first. Raises as `plan` does."""
        for key in () if self.mismatch(device) else self._about["windows"]:
            for digest, function, _ in json.loads(self._pack[_key("plan", bytes.fromhex(key))])["kernels"]:
                yield functools.partial(self._kernel, device, digest, function)

    def segments(self, device: int) -> list[int]:
        """Bytes of the pieces of memory that the run had taken from the driver when it ended."""
        return [] if self.mismatch(device) else [int(n) for n in self._about["segments"]]

    def missing(self, window: Mapping[str, Any]) -> str:
        """Why there is no plan for a window: the device, or in what the nearest one of the archive differs."""
        if mismatch := self.mismatch(window["device"]):
            return mismatch
        mine = identity.describe(window)
        known = (
            identity.parsed(_inflated(self._pack[_key("window", bytes.fromhex(key))])) for key in self._about["windows"]
        )
        different = identity.difference(mine, identity.nearest(mine, known))
        line = window["nodes"][different.node or 0][4]
        text = f"{self.path} has no plan for a window of {len(mine.nodes)} ops: {different.text} (at {line})"
        if (length := _C.window()) != self._about["window"]:
            text += f"; it was recorded with LAZY_WINDOW={self._about['window']}, this process has {length}"
        return text


def _inflated(blob: bytes) -> str:
    inflater = zlib.decompressobj()
    text = inflater.decompress(blob, _MAX_TEXT)
    if not inflater.eof:
        raise pack.BadPack("a window's description in the archive is damaged")
    return text.decode()


opened: Archive | None = None


def open_from_environment() -> None:
    """LAZY_ARCHIVE, before the first op is recorded. Raises `pack.BadPack` or OSError."""
    global opened
    if path := str(config.ARCHIVE.get()):
        opened = Archive(path)
        opened.apply_statics()


def plan(window: Mapping[str, Any]) -> dict[str, Any] | None:
    """The archive's plan of a window, or None where there is no archive or no such plan.

    Raises `kernels.NoCompile`, saying what is missing, where LAZY_COMPILE=never forbids to make one instead.
    """
    if opened is None:
        return None
    found = opened.plan(window)
    if found is None and config.COMPILE.get() == "never":
        raise kernels.NoCompile(f"LAZY_COMPILE=never: {opened.missing(window)}")
    if found is None and (mismatch := opened.mismatch(window["device"])):
        _warn(mismatch)
    return found


@functools.cache
def _warn(mismatch: str) -> None:
    log.warning("%s; its plans are not used", mismatch)
