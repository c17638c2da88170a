"""The device under test: open, with a queue, and with what checks need to write and read its memory."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any

import numpy as np

from lazy_backend.driver import discovery
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.driver.errors import DriverError, Unsupported
from lazy_backend.driver.native import NativeDevice


class CheckFailed(AssertionError):
    """The device did something wrong; the text says what, and what usually causes it."""


class NotOffered(Exception):
    """The driver does not have what the check needs; the text names the entry to write."""


def expect(holds: Any, text: str) -> None:
    """Raise `CheckFailed` unless something holds."""
    if not holds:
        raise CheckFailed(text)


class Bench:
    """One driver by name, one device of it, one queue. Everything that a check allocates is freed after it."""

    def __init__(self, name: str, index: int = 0):
        self.name, self.index = name, index
        self._mems: list[Any] = []
        self._programs: list[tuple[Any, Any]] = []

    @cached_property
    def driver(self) -> Any:
        """The driver, as Python calls."""
        return discovery.load(self.name).open()

    @cached_property
    def device(self) -> NativeDevice:
        """Its device, opened."""
        return self.driver.open(self.index)

    @cached_property
    def caps(self) -> Capabilities:
        """What the device is, defaults filled in."""
        return self.device.properties().complete()

    @cached_property
    def queue(self) -> Any:
        """A queue that every check shares."""
        return self.device.queue_create()

    @cached_property
    def entries(self) -> frozenset[str]:
        """The core ops that a level 3 driver has library entries for. The device is not opened for one without any."""
        from codegen.externs import CLAIMS

        if not self.driver.api.core_op or self.caps.level < 3:
            return frozenset()
        return frozenset(filter(self._has_entry, CLAIMS))

    def _has_entry(self, op: str) -> bool:
        try:
            self.device.core_op(self.queue, op, [], [], {})
        except Unsupported:
            return False
        return True

    def needs(self, *entries: str) -> None:
        """Raise `NotOffered` for the first entry of the table that is NULL."""
        for entry in entries:
            if not self.device.offers(entry):
                raise NotOffered(f"write {entry}")

    def alloc(self, nbytes: int) -> Any:
        """Device memory until the end of the check."""
        mem = self.device.alloc(nbytes)
        self._mems.append(mem)
        return mem

    def free(self, mem: Any) -> None:
        """Give memory back before the end of the check."""
        self._mems.remove(mem)
        self.device.free(mem)

    def put(self, mem: Any, array: np.ndarray, offset: int = 0) -> None:
        """Blocking copy to the device; offset in bytes."""
        data = np.ascontiguousarray(array)
        self.device.copy_h2d(self.queue, mem, offset, data.ctypes.data, data.nbytes, True)

    def get(self, mem: Any, count: int, dtype: Any = np.uint8, offset: int = 0) -> np.ndarray:
        """Blocking copy of `count` elements from the device; offset in bytes."""
        out = np.zeros(count, dtype)
        self.device.copy_d2h(self.queue, out.ctypes.data, mem, offset, out.nbytes, True)
        return out

    def upload(self, array: np.ndarray) -> Any:
        """New device memory that holds an array."""
        mem = self.alloc(max(1, array.nbytes))
        self.put(mem, array)
        return mem

    def kernel(self, source: str, name: str) -> Any:
        """A kernel of a program of its own, until the end of the check."""
        program = self.device.program_load(source.encode(), False, "")
        kernel = self.device.kernel_create(program, name)
        self._programs.append((program, kernel))
        return kernel

    def clean_up(self) -> None:
        """Free what the check left, also after its failure."""
        try:
            if "queue" in self.__dict__:
                self.device.synchronize(self.queue)
        except DriverError:
            pass  # the failed check has reported it
        while self._programs:
            program, kernel = self._programs.pop()
            with contextlib.suppress(DriverError):
                self.device.kernel_destroy(kernel)
                self.device.program_destroy(program)
        while self._mems:
            try:
                self.device.free(self._mems.pop())
            except DriverError:
                continue


def bytes_of(seed: int, nbytes: int) -> np.ndarray:
    """Reproducible random bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
