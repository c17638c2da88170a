"""Device memory that watches itself.

An allocation ends just before a page that nobody may touch and begins after another; the few bytes
between it and those pages hold a pattern that is checked after each kernel. Fresh memory holds a word that is
NaN in every float type, so that a read of it is seen: exactly by copies, as NaN in results elsewhere.
"""

from __future__ import annotations

import ctypes as ct
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lazy_backend.driver.cc import shared_library
from lazy_backend.driver.errors import OutOfMemory

ALIGNMENT = 64
PAGE = 4096
POISON = 0x7FFD7FFD  # NaN as f32, f64 (doubled), f16 and bf16
EDGE = 0xCB


@functools.cache
def runner() -> ct.CDLL:
    """`runner.c`, compiled by the host."""
    library = ct.CDLL(str(shared_library(Path(__file__).with_name("runner.c").read_text(), "-O2", "-Wall")))
    if not library.sim_fresh(ct.c_uint32(POISON)):
        raise OutOfMemory("the simulating host has no room for the pattern of fresh memory")
    library.sim_map.restype = ct.c_void_p
    library.sim_map.argtypes = (ct.c_uint64,)
    library.sim_unmap.argtypes = (ct.c_void_p, ct.c_uint64)
    library.sim_find.restype = ct.c_uint64
    library.sim_find.argtypes = (ct.c_void_p, ct.c_uint64, ct.c_uint32, ct.c_int)
    library.sim_run.argtypes = (ct.c_void_p,) * 5
    return library


@dataclass(eq=False)
class Allocation:
    """One piece of device memory. serial: its number in order of allocation; address: for kernels alone."""

    serial: int
    device: object
    nbytes: int
    address: int
    pages: int
    page_bytes: int
    freed: bool = False

    def __str__(self) -> str:
        return f"allocation {self.serial} ({self.nbytes} bytes)"

    def array(self, offset: int = 0, nbytes: int | None = None) -> np.ndarray:
        """Its bytes, shared."""
        count = self.nbytes - offset if nbytes is None else nbytes
        return np.ctypeslib.as_array((ct.c_uint8 * count).from_address(self.address + offset))

    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes before and after it that are mapped and not its own."""
        whole = np.ctypeslib.as_array((ct.c_uint8 * self.page_bytes).from_address(self.pages))
        start = self.address - self.pages
        return whole[:start], whole[start + self.nbytes :]

    def overrun(self) -> str:
        """Where someone wrote beside it: "before", "after" or ""."""
        before, after = self._edges()
        return "before" if (before != EDGE).any() else "after" if (after != EDGE).any() else ""

    def mark_edges(self) -> None:
        """Write the pattern that `overrun` looks for."""
        for edge in self._edges():
            edge[...] = EDGE

    def uninitialised(self, offset: int, nbytes: int, wholly: bool = False) -> bool:
        """Whether any word (wholly: every word) of a range was never written. A word that the range cuts counts not."""
        start, words = -(-offset // 4) * 4, 0
        words = max(0, (offset + nbytes) // 4 - start // 4)
        if words == 0:
            return False
        found = runner().sim_find(self.address + start, words, POISON, 0 if wholly else 1)
        return (found == words) if wholly else (found < words)


class Memory:
    """The memory of one simulated device, `capacity` bytes."""

    def __init__(self, device: object, capacity: int):
        self.device, self.capacity, self.used, self.made = device, capacity, 0, 0
        self.alive: dict[int, Allocation] = {}

    def allocate(self, nbytes: int) -> Allocation:
        """Poisoned memory. Raises `OutOfMemory`."""
        if self.used + nbytes > self.capacity:
            raise OutOfMemory(f"{nbytes} bytes asked for, {self.used} of {self.capacity} in use")
        room = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        page_bytes = -(-room // PAGE) * PAGE
        pages = runner().sim_map(page_bytes)
        if not pages:
            raise OutOfMemory(f"the simulating host has no room for {nbytes} bytes")
        self.made += 1
        made = Allocation(self.made, self.device, nbytes, pages + page_bytes - room, pages, page_bytes)
        made.mark_edges()
        self.used += nbytes
        self.alive[made.serial] = made
        return made

    def free(self, allocation: Allocation) -> None:
        """Unmap: any later access faults."""
        allocation.freed = True
        self.used -= allocation.nbytes
        del self.alive[allocation.serial]
        runner().sim_unmap(allocation.pages, allocation.page_bytes)

    def nearest(self, address: int) -> Allocation | None:
        """The allocation whose pages lie around or next to a faulting address."""
        for allocation in self.alive.values():
            if allocation.pages - PAGE <= address < allocation.pages + allocation.page_bytes + PAGE:
                return allocation
        return None
