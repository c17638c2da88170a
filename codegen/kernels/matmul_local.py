"""The matrix product of a GPU: a work-group shares tiles of both operands in its local memory."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import LEAST_ACCESS
from codegen.kernels.step import Step, Steps
from ops_core.sizes import multiple

if TYPE_CHECKING:
    from codegen.kernels.contraction import Operand
    from codegen.kernels.matmul import MatmulSpec, Tile

# A work-group is a square of this many work items, where the device allows: 256 items hide the latency of a load.
GROUP_SIDE = 16
# Terms that are staged at a time. 16 keeps two tiles of 128 x 16 floats and their padding within 17 KiB.
DEPTH = 16
# Elements in each direction for each work item: 8 x 8 reads 16 floats for 64 multiply-adds.
PER_ITEM = (8, 4, 2, 1)
# Elements of an access to local or global memory, where rows, columns and terms are multiples.
WIDTH = LEAST_ACCESS
# Bytes of a work item's sums: a quarter of the 255 registers of a lane, which leaves room for two work-groups a unit.
MOST_SUM_BYTES = 256
# What a term of a work item costs besides its multiply-adds, in multiply-adds: each element of A and B that it stages
# and reads again, and its share of the barriers. Reasoned, not measured.
OPERAND_COST, BARRIER_COST = 2, 8


def shapes(spec: MatmulSpec, caps: Any) -> list[tuple[int, int]]:
    """(rows, columns) for each work item whose tiles fit the local memory, best first: the least time of the busiest
    compute unit, by the count of its work-groups and the cost of a term."""
    side = group_side(caps)

    def cost(shape: tuple[int, int]) -> float:
        rows, columns = shape
        each = rows * columns + OPERAND_COST * (rows + columns) + BARRIER_COST
        return ceil(groups(spec, shape, caps) / caps.compute_units) * each

    found = [
        (rows, columns)
        for rows in PER_ITEM
        for columns in PER_ITEM
        if DEPTH * (side * (rows + columns) + 2 * WIDTH) * spec.itemsize <= caps.local_memory_bytes
        and (rows - 1) * side < spec.m
        and (columns - 1) * side < spec.n
        and rows * columns * spec.itemsize <= MOST_SUM_BYTES
    ]
    return sorted(found, key=lambda s: (cost(s), abs(s[0] - s[1])))


def groups(spec: MatmulSpec, shape: tuple[int, int], caps: Any) -> int:
    """Work-groups of the product, its sums whole."""
    side = group_side(caps)
    return spec.batch * ceil(spec.m / (side * shape[0])) * ceil(spec.n / (side * shape[1]))


def group_side(caps: Any) -> int:
    """The side of a work-group: a power of two."""
    side = GROUP_SIDE
    while side * side > caps.max_work_group_size:
        side //= 2
    return side


def local(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work-group makes (side x rows) x (side x columns) elements, each work item blocks of up to WIDTH x WIDTH of
    them: neighbours in a row are neighbours in memory."""
    side = group_side(caps)
    rows, columns = Side(tile.rows, side, spec.m), Side(tile.vectors, side, spec.n)
    k = Builder(name, spec.index_bits, (side, side, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.transposed.bind(k), spec.out.bind(k)
    a_tile, b_tile = k.local(spec.acc, DEPTH * rows.pitch), k.local(spec.acc, DEPTH * columns.pitch)
    x, y, z = k.local_id(0), k.local_id(1), k.group_id(2)
    i0, j0 = k.group_id(1) * rows.extent, k.group_id(0) * columns.extent
    batch, lo, hi = spec.part(k, z)
    item = y * side + x
    zero = k.const(0, spec.acc)
    whole = multiple(spec.k, WIDTH) and spec.piece % WIDTH == 0  # vectors of terms

    def stage(tile: Buf, side_of: Side, operand: Operand, load: Callable[..., V], first: V, p0: V, along: bool) -> None:
        """The elements (first + e, p0 + p) of an operand, p < DEPTH, into tile[p][e], spread over the work items so
        that neighbours read neighbours along the terms or across, by vectors where all are whole. Zeros where there
        are no terms."""
        extent, pitch = side_of.extent, side_of.pitch
        wide = operand.contiguous is not None and (whole if along else side_of.whole)
        width = WIDTH if wide else 1
        count = DEPTH * extent // width

        def put(at: V) -> None:
            if along:
                p, e = at % (DEPTH // width) * width, at // (DEPTH // width)
            else:
                p, e = at // (extent // width), at % (extent // width) * width
            i = k.map("minimum", first + e, side_of.size - (1 if along else width))
            v = load(batch, i, k.map("minimum", p0 + p, hi - (width if along else 1)), width)
            v = k.select(p0 + p < hi, v, k.broadcast(zero, width))
            if along:
                for n in range(width):
                    k.store(tile, (p + n) * pitch + e, k.lane(v, n))
            else:
                k.store(tile, p * pitch + e, v)

        for start in range(0, count, side * side):
            if start + side * side <= count:
                put(item + start)
            else:
                with k.if_(item + start < count):
                    put(item + start)

    with k.for_(lo, hi, DEPTH, init=[zero] * (tile.rows * tile.vectors)) as loop:
        k.barrier()
        stage(a_tile, rows, spec.a, load_a, i0, loop.iv, spec.a.contiguous != 0)
        # Where no dim of B is contiguous it is mostly the input of a convolution: neighbours along its last one.
        stage(b_tile, columns, spec.b.transposed, load_b, j0, loop.iv, spec.b.contiguous == 0)
        k.barrier()
        with k.for_(0, DEPTH, init=loop.args, unroll=True) as terms:
            a, b = rows.read(k, a_tile, terms.iv, y), columns.read(k, b_tile, terms.iv, x)
            sums = iter(terms.args)
            terms.yield_(*[k.multiply_add(u, v, next(sums)) for u in a for v in b])
        loop.yield_(*terms.results)
    width = columns.block if columns.whole and not spec.out.runs else 1
    for r, i in enumerate(rows.places(y)):
        for c, j in list(enumerate(columns.places(x)))[::width]:
            at = r * tile.vectors + c
            with k.if_((i0 + i < spec.m) & (j0 + j < spec.n)):
                store(z, i0 + i, j0 + j, k.pack(loop.results[at : at + width]), width)
    items = ceil(spec.n / columns.extent) * side, ceil(spec.m / rows.extent) * side, spec.batch * spec.pieces
    return Steps([Step(name, k.finish(), spec.names, items, (side, side, 1))], [])


class Side:
    """The rows or the columns of a work-group's tile, of `size` in all: `count` for each of `side` work items.

    An item's are in blocks, which are read in one access; whole: vectors and blocks of these are, at the edge too.
    """

    def __init__(self, count: int, side: int, size: int):
        self.count, self.side, self.size, self.extent = count, side, size, count * side
        self.block = min(count, WIDTH)
        self.whole = multiple(size, WIDTH) and self.extent % WIDTH == 0
        # Padding puts a term's first element in another bank than the one before, and keeps blocks aligned.
        self.pitch = self.extent + max(self.block, WIDTH if self.whole else 1)

    def places(self, item: V) -> list[V]:
        """Where in the tile the elements of a work item lie."""
        firsts = range(0, self.count, self.block)
        return [item * self.block + (first * self.side + n) for first in firsts for n in range(self.block)]

    def read(self, k: Builder, tile: Buf, term: V, item: V) -> list[V]:
        """The elements of a work item of one term."""
        vectors = [k.load(tile, term * self.pitch + at, self.block) for at in self.places(item)[:: self.block]]
        return [k.lane(v, n) for v in vectors for n in range(self.block)]
