"""Windows that wait for their turn, planned while the kernels of the one whose turn it is are built.

A script's first step is several windows that have no plan. The driver's compiler had nothing to do while one was
planned, and Python had nothing to do while its kernels were built. First steps with an empty cache: `resnet_train`
1.48 -> 1.35 s, `recommender_train` 0.98 -> 0.92 (Zen 5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lazy_backend import _C, builders

log = logging.getLogger("lazy_backend.compile")

# Windows that are planned before their turn, at most. benchmarks: a first step has up to four that are compiled.
MOST = 4

_Key = tuple[int, str, str, str, str]


class Planned(Protocol):
    """A plan that waits for its kernels."""

    device: int

    def wait(self) -> bool:
        """Whether the driver's compiler still has some of them to build."""

    def finish(self) -> dict[str, Any]:
        """The plan, when they are there."""

    def abandon(self) -> None:
        """Nobody needs it any more."""


class Upcoming:
    """The plans that were begun before their windows' turn. Used by one thread at a time."""

    def __init__(self) -> None:
        self._begun: dict[_Key, Planned] = {}

    def begin(self, before: Planned, begin: Callable[[dict[str, Any]], Planned | None]) -> None:
        """Plans what waits in the device's queue, as long as kernels of `before` are being built.

        begin: plans a window, or gives None where it has to wait for its turn.
        """
        if not before.wait():
            return
        waiting = {_key(source): source for source in _C.waiting_windows(before.device, MOST)}
        for passed in self._begun.keys() - waiting.keys():  # it came to a plan without this one
            self._begun.pop(passed).abandon()
        for key, source in waiting.items():
            if key in self._begun or not before.wait():
                continue
            builders.expect(source["structure"], len(source["nodes"]), source["device"])
            try:
                if planned := begin(source):
                    self._begun[key] = planned
            except Exception as error:  # comes again when it is the window's turn, and is told then
                log.info("a window could not be planned before its turn: %r", error)

    def finished(self, source: Mapping[str, Any]) -> dict[str, Any] | None:
        """The plan of a window that was begun; None where it was not, or came to nothing."""
        planned = self._begun.pop(_key(source), None)
        try:
            return planned.finish() if planned else None
        except (LookupError, RuntimeError) as error:
            log.info("a window is planned again: %r", error)
            return None

    def forget(self) -> None:
        """Abandons all of them."""
        for planned in self._begun.values():
            planned.abandon()
        self._begun.clear()


def _key(source: Mapping[str, Any]) -> _Key:
    """All that a plan may depend on: also bytes of slots, and values of scalars."""
    return source["device"], source["structure"], source["sizes"], repr(source["slots"]), repr(source["scalars"])
