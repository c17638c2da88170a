"""Which windows are one family: those of one structure, but products that are a window each also need to be of a kind.

In windows of one op all products of a network have one structure, and their numbers do not say what varies: another
weight is no size that comes again. With the shares of a mixture's experts, which do vary, six kinds of products used up
the traces of their structure, and each further share was compiled: 8 experts, 4 layers, the sixth to the 24th step of
training 7.6 s, and 4.6 s with families by kind (eager 4.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lazy_backend.numbering import Numbers, node_numbers
from lazy_backend.variants import Family

# Families whose kernels are remembered for sizes that vary; one holds the texts of its kernels, some 200 KB.
MAX_FAMILIES = 512
# Kinds of products of one structure, as a layer has them. Where all numbers vary, so many are built before one for all.
MAX_KINDS = 8
PRODUCTS = frozenset(f"aten.{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))

Key = tuple[str, int]


class Families:
    """All that this process knows."""

    def __init__(self) -> None:
        self._all: dict[Key, Family] = {}
        self._kinds: dict[str, list[Numbers]] = {}  # structure -> the first product of each kind

    def clear(self) -> None:
        """Forgets them."""
        self._all.clear()
        self._kinds.clear()

    def of(self, source: Mapping[str, Any]) -> Family:
        """The family of a window, a new one if need be."""
        if len(self._all) >= MAX_FAMILIES:
            self.clear()
        return self._all.setdefault((source["structure"], self._kind(source, True)), Family())

    def known(self, source: Mapping[str, Any]) -> Family | None:
        """The family of a window, if there is one."""
        return self._all.get((source["structure"], self._kind(source, False)))

    def _kind(self, source: Mapping[str, Any], new: bool) -> int:
        """The number of the window's kind: products of a kind differ in one number, wherever it stands. Those of later
        kinds than there may be are of the nearest."""
        node, *others = source["nodes"]
        if others or node[0].rpartition(".")[0] not in PRODUCTS:
            return 0
        now, kinds = node_numbers(node), self._kinds.setdefault(source["structure"], [])
        apart = [_apart(now, first) for first in kinds]
        if min(apart, default=2) > 1 and len(kinds) < MAX_KINDS:
            if new:
                kinds.append(now)
            return len(apart)
        return apart.index(min(apart))


def _apart(numbers: Numbers, others: Numbers) -> int:
    """In how many numbers two products differ: 28 rows and 39, of both an operand and the result, are one."""
    return len({(a, b) for a, b in zip(numbers, others, strict=True) if a != b})
