"""The matrix product of a GPU: a work-group shares tiles of both operands in its local memory."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from codegen.builder import Builder, V
from codegen.kernels.step import Step, Steps

if TYPE_CHECKING:
    from codegen.kernels.matmul import MatmulSpec, Tile

# A work-group is a square of this many work items, where the device allows: 256 items hide the latency of a load.
GROUP_SIDE = 16
# Terms that are staged at a time. 16 keeps two tiles of 64 x 16 floats and their padding within 8.5 KiB.
DEPTH = 16
# Elements in each direction for each work item, largest first: 4 x 4 reads 8 floats for 16 multiply-adds.
PER_ITEM = (8, 4, 2, 1)


def shapes(spec: MatmulSpec, caps: Any) -> list[tuple[int, int]]:
    """(rows, columns) for each work item whose tiles fit the local memory, best first.

    Best is the largest that still gives every compute unit a work-group.
    """
    side = group_side(caps)

    def groups(shape: tuple[int, int]) -> int:
        return spec.batch * ceil(spec.m / (side * shape[0])) * ceil(spec.n / (side * shape[1]))

    found = [
        (rows, columns)
        for rows in PER_ITEM
        for columns in PER_ITEM
        if DEPTH * (side * (rows + columns) + 2) * spec.itemsize <= caps.local_memory_bytes
        and (rows - 1) * side < spec.m
        and (columns - 1) * side < spec.n
        and rows * columns <= 16
    ]
    return sorted(found, key=lambda s: (groups(s) < caps.compute_units, -s[0] * s[1], abs(s[0] - s[1])))


def group_side(caps: Any) -> int:
    """The side of a work-group: a power of two."""
    side = GROUP_SIDE
    while side * side > caps.max_work_group_size:
        side //= 2
    return side


def local(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work-group makes (side x rows) x (side x vectors) elements; neighbours in a row are neighbours in memory."""
    side = group_side(caps)
    height, width = side * tile.rows, side * tile.vectors
    k = Builder(name, spec.index_bits, (side, side, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.bind(k), spec.out.bind(k)
    # One column of padding keeps a column's elements in different banks.
    a_tile, b_tile = k.local(spec.acc, DEPTH * (height + 1)), k.local(spec.acc, DEPTH * (width + 1))
    x, y, z = k.local_id(0), k.local_id(1), k.group_id(2)
    i0, j0 = k.group_id(1) * height, k.group_id(0) * width
    batch, lo, hi = spec.part(k, z)
    item = y * side + x
    zero = k.const(0, spec.acc)

    def stage(extent: int, along_k: bool, put: Callable[[V, V], None]) -> None:
        """put(p, e) for p < DEPTH and e < extent, spread over the work items so that neighbours read neighbours."""
        for start in range(0, DEPTH * extent, side * side):
            at = item + start
            p, e = (at % DEPTH, at // DEPTH) if along_k else (at // extent, at % extent)
            if start + side * side <= DEPTH * extent:
                put(p, e)
            else:
                with k.if_(at < DEPTH * extent):
                    put(p, e)

    with k.for_(lo, hi, DEPTH, init=[zero] * (tile.rows * tile.vectors)) as loop:
        p0 = loop.iv

        def put_a(p: V, e: V) -> None:
            v = load_a(batch, k.map("minimum", i0 + e, spec.m - 1), k.map("minimum", p0 + p, hi - 1))
            k.store(a_tile, p * (height + 1) + e, k.select(p0 + p < hi, v, zero))

        def put_b(p: V, e: V) -> None:
            v = load_b(batch, k.map("minimum", p0 + p, hi - 1), k.map("minimum", j0 + e, spec.n - 1))
            k.store(b_tile, p * (width + 1) + e, k.select(p0 + p < hi, v, zero))

        k.barrier()
        stage(height, spec.a.contiguous != 0, put_a)
        stage(width, spec.b.contiguous == 0, put_b)
        k.barrier()
        with k.for_(0, DEPTH, init=loop.args, unroll=True) as terms:
            a = [k.load(a_tile, terms.iv * (height + 1) + y + side * r) for r in range(tile.rows)]
            b = [k.load(b_tile, terms.iv * (width + 1) + x + side * c) for c in range(tile.vectors)]
            sums = iter(terms.args)
            terms.yield_(*[k.multiply_add(u, v, next(sums)) for u in a for v in b])
        loop.yield_(*terms.results)
    totals = iter(loop.results)
    for r in range(tile.rows):
        for c in range(tile.vectors):
            i, j, total = i0 + y + side * r, j0 + x + side * c, next(totals)
            with k.if_((i < spec.m) & (j < spec.n)):
                store(z, i, j, total)
    items = ceil(spec.n / width) * side, ceil(spec.m / height) * side, spec.batch * spec.pieces
    return Steps([Step(name, k.finish(), spec.names, items, (side, side, 1))], [])
