"""The persistent cache: kernels, plans and measured choices by what they were made from, on by default.

It is safe with many processes.

An entry is one file named by the digest of everything that decides its content: the kernel's MLIR or the window's
description, the device and driver, the version of what makes it. It begins with a checksum of the rest. Entries are
written under another name and renamed, dropped when they are damaged, and the least recently used ones go when the
cap is reached.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from lazy_backend import config

log = logging.getLogger("lazy_backend.cache")

# A kernel's binary is 20 to 100 KB: room for some ten thousand.
CAP_BYTES = 1 << 30
KINDS = (".kernel", ".plan", ".choice", ".run", ".program")
# What the entry of a kernel begins with that was built with others: the digest that names the entry of their binary
# follows, of 32 bytes.
_MEMBER = b"built with others: "
# Stores between two looks at the size of the whole: a look at ten thousand entries takes some 50 ms.
_PRUNE_EVERY = 64
_stores = itertools.count()
counts = {"hits": 0, "misses": 0, "stores": 0}
_SOURCES = Path(__file__).parents[1]


@functools.cache
def folder() -> Path | None:
    """Where entries lie; None where no folder can be written: the cache is then off."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(str(config.CACHE_DIR.get()) or str(Path(home) / "lazy-backend")) / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("no kernel cache: %s", error)
        return None
    return path


@functools.cache
def version(*packages: str) -> bytes:
    """A digest of the sources of these packages."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((_SOURCES / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()


def kernel_name(mlir: str, device: bytes) -> str:
    """The name of a kernel's entry. device: the bytes of the driver's properties."""
    return hashlib.sha256(b"\0".join((version("codegen"), device, mlir.encode()))).hexdigest() + ".kernel"


def plan_name(window: bytes, device: bytes) -> str:
    """The name of a plan's entry. window: the digest of its description."""
    made_by = version("codegen", "ops_core", "lazy_backend")
    # torch: its decompositions are part of the plan.
    return hashlib.sha256(b"\0".join((made_by, torch.__version__.encode(), device, window))).hexdigest() + ".plan"


def choice_name(product: str, device: bytes) -> str:
    """The name of the entry with the schedule that was measured for a product (see lazy_backend/tuning.py)."""
    parts = b"choice", version("codegen"), device, product.encode()
    return hashlib.sha256(b"\0".join(parts)).hexdigest() + ".choice"


def load(name: str) -> bytes | None:
    """The binary of an entry, or None. A damaged entry is removed."""
    where = folder()
    if where is None:
        return None
    path = where / name
    try:
        content = path.read_bytes()
    except OSError:
        counts["misses"] += 1
        return None
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        log.warning("dropped a damaged cache entry: %s", path)
        path.unlink(missing_ok=True)
        return None
    os.utime(path)
    if name.endswith(".kernel") and content.startswith(_MEMBER, 32) and len(content) == 64 + len(_MEMBER):
        if (binary := load(content[-32:].hex() + ".program")) is None:  # it was evicted, or damaged
            path.unlink(missing_ok=True)
        return binary
    counts["hits"] += 1
    return content[32:]


def store_program(kernels: list[str], binary: bytes) -> None:
    """Adds the binary of a program under the names of its kernels' entries."""
    if len(kernels) == 1:
        store(kernels[0], binary)
    elif binary:
        program = hashlib.sha256("".join(kernels).encode())
        store(program.hexdigest() + ".program", binary)
        for kernel in kernels:
            store(kernel, _MEMBER + program.digest())


def store(name: str, binary: bytes) -> None:
    """Add an entry; nothing happens where the folder cannot be written."""
    where = folder()
    if where is None or not binary:
        return
    try:
        with tempfile.NamedTemporaryFile(dir=where, delete=False) as file:
            file.write(hashlib.sha256(binary).digest() + binary)
        os.replace(file.name, where / name)
        counts["stores"] += 1
        if next(_stores) % _PRUNE_EVERY == 0:
            prune(CAP_BYTES)
    except OSError as error:
        log.warning("a kernel was not cached: %s", error)


def drop(name: str) -> None:
    """Remove an entry that the driver did not take."""
    where = folder()
    if where is not None:
        (where / name).unlink(missing_ok=True)


def entries() -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of every entry, the least recently used first."""
    found = []
    where = folder()
    for path in where.iterdir() if where else ():
        if path.suffix not in KINDS:
            continue
        try:
            status = path.stat()
        except OSError:  # another process removed it
            continue
        found.append((status.st_mtime, status.st_size, path))
    return sorted(found)


def summary() -> dict[str, Any]:
    """folder (or None), entries and bytes by kind, cap_bytes, and this process's hits, misses and stores."""
    found = entries()
    return {
        "folder": str(folder()) if folder() else None,
        "entries": {kind: sum(path.suffix == kind for *_, path in found) for kind in KINDS},
        "bytes": {kind: sum(size for _, size, path in found if path.suffix == kind) for kind in KINDS},
        "cap_bytes": CAP_BYTES,
        **counts,
    }


def prune(cap_bytes: int) -> int:
    """Remove the least recently used entries until the rest fits. Returns how many went."""
    listed = entries()
    total, removed = sum(size for _, size, _ in listed), 0
    for _, size, path in listed:
        if total <= cap_bytes:
            break
        path.unlink(missing_ok=True)
        total, removed = total - size, removed + 1
    return removed
