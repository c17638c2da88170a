"""Precompiled runs: every plan and kernel binary of a run in one file, and runs from such a file without a compiler.

`with precompile("app.lzpack"):` or LAZY_RECORD=app.lzpack writes one; LAZY_ARCHIVE=app.lzpack runs from it. A window
is found by its description (lazy_backend.identity), without looking into any IR. What an archive holds (a
lazy_backend.pack), by key:

    digest of "about"                 JSON: format, torch, device, window length, static arguments, the plans' keys
    digest of "plan" + window         JSON: arena, slots, steps; kernels as (digest, function, description)
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lazy_backend import _C, config, identity, kernels, pack
from lazy_backend.driver import abi
from lazy_backend.identity import Description

log = logging.getLogger("lazy_backend.archive")

# Changes with the meaning of plans or descriptions: what an older release recorded is refused, not guessed at.
FORMAT = 1
_ABOUT = hashlib.sha256(b"about").digest()
# A description of a window of 512 ops has 200 KB; one that says it unpacks to more than this is not one.
_MAX_TEXT = 64 << 20

# Arguments whose scalars compiled code knows, by op: what the compiler has told the recorder since the start.
statics: dict[str, set[str]] = {}


def mark_static(op: str, names: set[str]) -> None:
    """From now on the scalars of these arguments are part of what a window is."""
    statics.setdefault(op, set()).update(names)
    _C.mark_static_scalars(op, sorted(names))


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
        for window, plan in self._taken:
            description = identity.describe(window, statics)
            digest = description.digest()
            keys.append(digest.hex())
            written = _written(plan, description, window["scalars"], blobs)
            blobs[_key("plan", digest)] = json.dumps(written, separators=(",", ":")).encode()
            blobs[_key("window", digest)] = zlib.compress(description.text().encode())
        about = {
            "format": FORMAT,
            "torch": torch.__version__,
            "device": _device(0),
            "window": _C.window(),
            "statics": {op: sorted(names) for op, names in statics.items()},
            "windows": keys,
        }
        blobs[_ABOUT] = json.dumps(about).encode()
        pack.write(path, blobs)
        log.info("%d windows in %s", len(keys), path)


def _written(
    plan: Mapping[str, Any], window: Description, scalars: Sequence[float], blobs: dict[bytes, bytes]
) -> dict[str, Any]:
    """The plan as JSON takes it: kernels by number, scalars as in the description. Adds binaries to `blobs`."""
    numbers = dict(zip(window.scalars, range(len(window.scalars)), strict=True))
    used: dict[int, int] = {}

    def kernel(handle: int) -> int:
        return used.setdefault(handle, len(used))

    def argument(arg: tuple) -> list:
        kind, value, type = arg
        if kind != "scalar":
            return [kind, value, type]
        # A scalar that is part of what the window is, since it was recorded, is the number that it was.
        return [kind, numbers[value], type] if value in numbers else ["bytes", scalars[value], type]

    steps: list[list] = []
    for step in plan["steps"]:
        match step:
            case ("launch", handle, work, group, args):
                steps.append(["launch", kernel(handle), list(work), list(group), [argument(a) for a in args]])
            case ("core", op, attrs, outputs, tensors, handle):
                places = [[argument(place), *rest] for place, *rest in tensors]
                steps.append(["core", op, attrs, outputs, places, kernels.library_op(handle)])
            case (kind, node):
                steps.append([kind, node])
    table = []
    for handle in used:
        binary, function = kernels.binary_of(handle)
        if not binary:
            raise RuntimeError("the driver gives no binaries of its kernels, so a run on it cannot be recorded")
        digest = hashlib.sha256(binary).digest()
        blobs[digest] = binary
        table.append([digest.hex(), function, kernels.described.get(handle, "")])
    return {
        "arena_bytes": plan["arena_bytes"], "slots": list(plan["slots"]), "scalars": len(window.scalars),
        "steps": steps, "kernels": table,
    }  # fmt: skip


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
    try:
        yield
        _drain()
        mine.save(path)
    finally:
        recording = None


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
        self._handles: dict[tuple[int, str, str], int] = {}

    def apply_statics(self) -> None:
        """Tells the recorder what it had learnt when the archive was recorded. Before the first op."""
        for op, names in self._about["statics"].items():
            mark_static(op, set(names))

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
        plan = json.loads(blob)
        _check(plan, window, self.path)
        handles = [self._kernel(window["device"], *row) for row in plan["kernels"]]
        steps: list[tuple] = []
        for step in plan["steps"]:
            match step:
                case ["launch", number, work, group, args]:
                    steps.append(("launch", handles[number], work, group, [tuple(a) for a in args]))
                case ["core", op, attrs, outputs, tensors, of_library]:
                    places = [(tuple(place), *rest) for place, *rest in tensors]
                    handle = kernels.library_handle(of_library) if of_library else 0
                    steps.append(("core", op, attrs, outputs, places, handle))
                case [kind, node]:
                    if kind == "host":
                        op, *_, line = window["nodes"][node]
                        _C.announce_host_op(op, line)
                    steps.append((kind, node))
        return {"arena_bytes": plan["arena_bytes"], "slots": plan["slots"], "steps": steps, "once": False}

    def _kernel(self, device: int, digest: str, function: str, description: str) -> int:
        key = (device, digest, function)
        if key not in self._handles:
            self._handles[key] = handle = kernels.from_binary(device, self._pack[bytes.fromhex(digest)], function)
            kernels.described[handle] = description
        return self._handles[key]

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


_KINDS = {"slot", "temp", "bytes", "scalar", "local"}


def _check(plan: Mapping[str, Any], window: Mapping[str, Any], path: Any) -> None:
    """What the executor takes on trust: numbers of slots, scalars, nodes and kernels, offsets inside the arena."""
    bounds = {"slot": len(window["slots"]), "scalar": len(window["scalars"]), "temp": max(plan["arena_bytes"], 1)}
    ranges = [(slot, len(window["slots"])) for slot in plan["slots"]]
    for step in plan["steps"]:
        match step:
            case ["launch", number, [_, _, _], [_, _, _], args]:
                ranges.append((number, len(plan["kernels"])))
            case ["core", str(), str(), _, tensors, str()]:
                args = [tensor[0] for tensor in tensors]
            case ["host" | "interpret", node]:
                args = []
                ranges.append((node, len(window["nodes"])))
            case _:
                raise pack.BadPack(f"{path}: a plan has a step {step[0]!r}, which this version does not know")
        for kind, value, _ in args:
            if kind not in _KINDS or (kind == "slot" and value not in plan["slots"]):
                raise pack.BadPack(f"{path}: a plan has an argument {kind!r} {value!r} that it cannot have")
            if kind in bounds:
                ranges.append((value, bounds[kind]))
    if plan["scalars"] != bounds["scalar"] or any(not isinstance(n, int) or not 0 <= n < end for n, end in ranges):
        raise pack.BadPack(f"{path}: a plan does not fit its window")


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
    if opened is None or recording is not None:
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
