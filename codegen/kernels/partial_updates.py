"""Updates at indices that are read from memory, by work items that have results of their own (`codegen.updates`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from codegen.builder import Builder, V
from codegen.emit import registers
from codegen.index import contiguous
from codegen.kernels.operand import Read, Source
from codegen.kernels.reduction import identity
from codegen.kernels.rows import geometry, group_size, items, locate
from codegen.kernels.scatter import NAMES, Target, combine, lanes
from codegen.kernels.step import Step, Steps
from codegen.kernels.walk import tail
from ops_core.ir import Node
from ops_core.sizes import multiple, varies

# Bytes of each of the indices that a CPU's work item finds at a time, as a vector. benchmarks: particles 0.62 ms one by
# one, 0.57 eight at a time, 0.56 sixteen (Zen 4).
INDEX_BYTES = 4


def partial_updates(name: str, node: Node, sources: list[Source], target: Target, caps: Any) -> Steps:
    """[parts, places, row]: a work item makes its part anew. The operands are values [updates, ..], which are beside
    each other in a row, and the indices [updates] of the dims of `sizes`, whose places there are."""
    how, sizes = node.attrs["reduce"], node.attrs["sizes"]
    values, indices = sources[: -len(sizes)], sources[-len(sizes) :]
    (parts, places, row), (updates,) = target.shape, indices[0].shape
    k = Builder(name, 64 if target.wide or any(s.program.wide for s in sources) else 32)
    read, out, origin = [s.bind(k) for s in sources], k.buffer(target.dtype), k.arg("index")
    nothing = k.const(identity(NAMES[how], target.dtype), registers(target.dtype))
    vector, local = lanes((places * row,), target.dtype, caps, whole=False), group_size(caps)
    narrow = caps.is_cpu and not varies(row) and row <= vector  # a row is one vector
    many = caps.vector_bytes // INDEX_BYTES if narrow else 1

    def apply(begin: V, first: V, count: int) -> None:
        place: V = k.const(0, "index", count)
        for r, stride in zip(read[len(values) :], contiguous(sizes), strict=True):
            place = place + k.cast(r([first], 0 if count > 1 else None, count), "index") * stride
        for lane in range(count):
            at, update = begin + k.lane(place, lane) * row, first + lane
            if narrow:
                combine(k, how, out, at, _whole_row(k, values, read, update, row, nothing, caps), target.dtype)
                continue
            for source, r in zip(values, read, strict=False):
                rest = source.shape[1:]
                width = lanes(rest, target.dtype, caps)
                with k.for_(0, prod(rest) // width) as loop:
                    inside = locate(loop.iv * width, rest)
                    new = r([update, *inside], len(rest) if width > 1 else None, width)
                    combine(k, how, out, at + loop.iv * width, new, target.dtype)
                at = at + prod(rest)

    with items(k, parts, local) as item:
        begin = origin + item * target.strides[0]
        for lo, hi, fewer in ((0, places * row // vector * vector, vector), *tail(places * row, vector)):
            with k.for_(lo, hi, fewer) as loop:
                k.store(out, begin + loop.iv, k.broadcast(nothing, fewer))
        share = -(-updates // (parts * many)) * many
        start = k.map("minimum", item * share, updates)
        stop = k.map("minimum", start + share, updates)
        whole = stop - (stop - start) % many
        with k.for_(start, whole, many) as loop:
            apply(begin, loop.iv, many)
        if not multiple(updates, many):
            with k.for_(whole, stop) as loop:
                apply(begin, loop.iv, 1)
    names = tuple(f"in{i}" for i in range(len(sources)))
    return Steps([Step(name, k.finish(), (*names, "target"), *geometry(parts, local))], [])


def _whole_row(
    k: Builder, values: Sequence[Source], read: Sequence[Read], update: V, row: int, nothing: V, caps: Any
) -> V:
    """What a row is combined with, as one vector. Elements beside each other are read together: a pair and a count for
    200,000 of 4,096 places, two cores of Emerald Rapids, 188 -> 166 us."""
    found: list[V] = []
    for source, r in zip(values, read, strict=False):
        rest = source.shape[1:]
        width = lanes(rest, source.dtype, caps)
        for at in range(0, prod(rest), width):
            x = r([update, *locate(k.const(at, "index"), rest)], len(rest) if width > 1 else None, width)
            if width == row:
                return x
            found += [k.lane(x, lane) for lane in range(width)]
    return k.pack([*found, *[nothing] * (row - len(found))])
