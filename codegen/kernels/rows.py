"""Geometry shared by the kernels that give each work item a row, or a vector of neighbouring rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from codegen.builder import Builder, V

# Work items per work-group of these kernels: rows are long, so groups are small and balance well.
ROW_GROUP = {True: 1, False: 64}


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
