"""A pack: many blobs by 32-byte key in one file, read through a memory map, every byte under a checksum.

    magic "LZPACK", version (2 bytes) | number of blobs (8 bytes) | SHA-256 of the table
    table, sorted by key: key (32 bytes), offset, size (8 bytes each), SHA-256 of the blob
    blobs

Numbers are little-endian. A pack may come from anyone: nothing in it is executed or unpickled by reading it, and
whatever does not add up is a `BadPack`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

MAGIC, VERSION = b"LZPACK", 1
_HEAD = struct.Struct("<6sHQ32s")
_ROW = struct.Struct("<32sQQ32s")


class BadPack(RuntimeError):
    """A file that is not a pack, not one of this version, or damaged; the text names the file and says which."""


class Pack(Mapping[bytes, bytes]):
    """An open pack. A look-up is a binary search in the file. Raises `BadPack`, or OSError where it cannot be read."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEAD.size:
                raise BadPack(f"{path} is not an archive: it has {size} bytes")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, version, self._count, checksum = _HEAD.unpack_from(self._map)
        if magic != MAGIC:
            raise BadPack(f"{path} is not an archive: it begins with {magic!r}")
        if version != VERSION:
            raise BadPack(f"{path} is an archive of version {version}; this is lazy-backend for version {VERSION}")
        end = _HEAD.size + self._count * _ROW.size
        if end > size or hashlib.sha256(memoryview(self._map)[_HEAD.size : end]).digest() != checksum:
            raise BadPack(f"{path} is damaged: its table does not have the checksum that its head states")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return (self._row(i)[0] for i in range(self._count))

    def __getitem__(self, key: bytes) -> bytes:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._row(middle)[0] < key:
                low = middle + 1
            else:
                high = middle
        if low == self._count or self._row(low)[0] != key:
            raise KeyError(key)
        _, offset, size, checksum = self._row(low)
        blob = self._map[offset : offset + size]
        if len(blob) != size or hashlib.sha256(blob).digest() != checksum:
            raise BadPack(f"{self.path} is damaged: entry {key.hex()[:12]} does not have its checksum")
        return blob

    def _row(self, index: int) -> tuple[bytes, int, int, bytes]:
        return _ROW.unpack_from(self._map, _HEAD.size + index * _ROW.size)


def write(path: str | Path, blobs: Mapping[bytes, bytes]) -> None:
    """Writes a pack, under another name first: `path` is the old file or the new one, never a part of it."""
    table, offset = [], _HEAD.size + len(blobs) * _ROW.size
    for key in sorted(blobs):
        table.append(_ROW.pack(key, offset, len(blobs[key]), hashlib.sha256(blobs[key]).digest()))
        offset += len(blobs[key])
    rows = b"".join(table)
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(_HEAD.pack(MAGIC, VERSION, len(blobs), hashlib.sha256(rows).digest()) + rows)
            for key in sorted(blobs):
                file.write(blobs[key])
            file.close()
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
