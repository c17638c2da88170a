"""Geometry shared by the kernels that give each work item a row, or a vector of neighbouring rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from codegen.builder import Builder, V
from ops_core.sizes import deferred, varies

# Work items per work-group of these kernels: rows are long, so groups are small and balance well.
ROW_GROUP = {True: 1, False: 64}


# A CPU's work item takes some 25 ns to start: short rows share one until it has so many elements, as long as so many
# items are left for each unit. Two cores of Zen 5, us, a row each / shared / eager: cumsum of (32, 512, 7) 79 / 29 /
# 54, of (4, 96, 49) along its first dim 27 / 10 / 10; two of the topk of (4096, 8) 176 / 146 / 197; a median of each of
# (2000, 20) 198 / 156 / 283; sorts of (32, 96, 7) 91 / 97 / 60.
SHARED_ELEMENTS, ITEMS_PER_UNIT = 256, 8


class Shares(NamedTuple):
    """How `total` rows are given to work items: `each` neighbours to one, in groups of `local` items."""

    total: int
    each: int
    local: int

    @contextmanager
    def rows(self, k: Builder) -> Iterator[V]:
        """The body for each of a work item's rows."""
        if not varies(self.each) and self.each == 1:
            with items(k, self.total, self.local) as row:
                yield row
        else:
            first = k.global_id(0) * self.each
            with k.for_(first, k.map("minimum", first + self.each, self.total)) as loop:
                yield loop.iv

    @property
    def geometry(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Global and local size."""
        return geometry(-(-self.total // self.each), self.local)


def shares(count: int, length: int, caps: Any) -> Shares:
    """Rows of so many elements each, as a device's work items take them."""
    return Shares(count, rows_each(count, length, caps.compute_units) if caps.is_cpu else 1, group_size(caps))


@deferred
def rows_each(count: int, length: int, units: int) -> int:
    """How many rows share a work item of a CPU."""
    return max(1, min(SHARED_ELEMENTS // max(1, length), count // (ITEMS_PER_UNIT * units)))


def locate(item: V, sizes: Sequence[int]) -> list[V]:
    """The row-major index of element number `item`; the outermost coordinate takes what is left."""
    index: list[V] = []
    for i, n in enumerate(reversed(sizes)):
        index.append(item if i == len(sizes) - 1 else item % n)
        item = item // n
    return index[::-1]


@contextmanager
def items(k: Builder, count: int, local: int) -> Iterator[V]:
    """The body for each of `count` work items, launched in groups of `local`."""
    item = k.global_id(0)
    if count % local == 0:
        yield item
    else:
        with k.if_(item < count):
            yield item


def geometry(count: int, local: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Global and local size of `count` work items."""
    return (-(-count // local) * local, 1, 1), (local, 1, 1)


def group_size(caps: Any) -> int:
    """Work items of a work-group."""
    return min(ROW_GROUP[bool(caps.is_cpu)], caps.max_work_group_size)
