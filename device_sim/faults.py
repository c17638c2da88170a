"""Planned faults: a TOML plan says what goes wrong at which call, so that a host's behaviour under faults is a test.

[[fault]]
kind = "launch_failed"   # a row of KINDS
at = 3                   # at the third call of that kind (from 1); every = 5: at each fifth
kernel = "softmax.*"     # only calls whose kernel has this in its name, its ops or its Python line
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# kind -> the call it strikes, what happens
KINDS = {
    "out_of_memory": ("alloc", "the allocation is refused"),
    "build_failed": ("build", "the compiler refuses the program"),
    "slow_build": ("build", "the compiler takes `seconds` of wall time"),
    "launch_failed": ("kernel", "the kernel fails when it runs"),
    "hang": ("kernel", "the kernel never ends: the watchdog stops it after the chip's timeout_us"),
    "device_lost": ("kernel", "the device is gone from here on"),
    "corrupt_copy": ("copy", "the link's checksum finds a copy damaged"),
    "flip_bits": ("copy", "one bit of a copy is flipped, and nobody notices"),
}


class BadPlan(ValueError):
    """A fault plan that says something impossible."""


@dataclass(frozen=True)
class Fault:
    """One planned fault; at and every count the calls that match."""

    kind: str
    at: int = 0
    every: int = 0
    kernel: str = ""
    seconds: float = 1.0


class Plan:
    """The faults of one run. Deterministic: only calls are counted."""

    def __init__(self, faults: list[Fault]):
        for fault in faults:
            if fault.kind not in KINDS:
                raise BadPlan(f"unknown fault {fault.kind!r}; there are {', '.join(KINDS)}")
            if any(type(n) is not int or n < 0 for n in (fault.at, fault.every)) or not (fault.at or fault.every):
                raise BadPlan(f"{fault.kind}: say at = n or every = n, which count calls from 1")
            if type(fault.seconds) not in (int, float) or not 0 <= fault.seconds < float("inf"):
                raise BadPlan(f"{fault.kind}: seconds = {fault.seconds!r} is no time")
            try:
                re.compile(fault.kernel)
            except (re.error, TypeError) as error:
                raise BadPlan(f"{fault.kind}: kernel = {fault.kernel!r} is no regular expression: {error}") from None
        self.faults = faults
        self._calls: Counter[int] = Counter()

    def strike(self, call: str, name: str = "") -> Fault | None:
        """Count one call ("alloc", "build", "kernel", "copy") and give the fault that strikes it."""
        struck = None
        for index, fault in enumerate(self.faults):
            if KINDS[fault.kind][0] != call or (fault.kernel and not re.search(fault.kernel, name)):
                continue
            self._calls[index] += 1
            count = self._calls[index]
            if count == fault.at or (fault.every and count % fault.every == 0):
                struck = struck or fault
        return struck


def load(path: str) -> Plan:
    """The plan of a TOML file; an empty path is no faults. Raises `BadPlan`."""
    if not path:
        return Plan([])
    try:
        plan = tomllib.loads(Path(path).read_text())
        if not set(plan) <= {"fault"}:
            raise BadPlan(
                f"{path}: a plan is made of [[fault]] tables, not of {', '.join(sorted(set(plan) - {'fault'}))}"
            )
        return Plan([Fault(**entry) for entry in plan.get("fault", [])])
    except (TypeError, tomllib.TOMLDecodeError, OSError) as error:
        raise BadPlan(f"{path}: {error}") from None
