"""The matrix product of a GPU: a work-group shares tiles of both operands in its local memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import LEAST_ACCESS
from codegen.kernels.matmul_registers import ITEMS_PER_UNIT, MAX_PARTIAL_BYTES, MIN_DEPTH
from codegen.kernels.step import Step, Steps
from ops_core.sizes import multiple

if TYPE_CHECKING:
    from codegen.kernels.contraction import Operand
    from codegen.kernels.matmul import MatmulSpec, Tile

# A work-group is a square of this many work items for each slice, where the device allows: 256 items hide the latency
# of a load. Slices share the tile, and take a part of the terms of a stage each.
GROUP_SIDES = {1: 16, 4: 8}
# Terms that are staged at a time. Two tiles of 128 x 16 or of 64 x 32 floats and their padding are within 17 KiB.
DEPTHS = {1: 16, 4: 32}
# Elements in each direction for each work item: 8 x 8 reads 16 floats for 64 multiply-adds.
PER_ITEM = (8, 4, 2, 1)
# Elements of an access to local or global memory, where rows, columns and terms are multiples.
WIDTH = LEAST_ACCESS
# Banks of local memory, each of 4 bytes.
BANKS = 32
# Bytes of a work item's sums: a quarter of the 255 registers of a lane, which leaves room for two work-groups a unit.
MOST_SUM_BYTES = 256
# Sums of a work item, at least, where slices each store a part of them: whole accesses.
LEAST_SLICED = 16
# What a term of a work item costs besides its multiply-adds, in multiply-adds: each element of A and B that it reads,
# each that it stages, and its share of the barriers. Reasoned. What it adds up to for all terms of the busiest unit, in
# thousands, and what a kernel written by hand took on an H200, us (products of floats; rows x columns, slices):
# 1024^3 8x8 of 4 58, 58; 4x4 of 4 93, 72; 8x4 of 1 75, 60 (a stage ahead); 8x8 of 1 122, 119; 512^3 4x4 of 4 11, 13;
# 8x8 of 4 15, 18; 4096^3 8x8 of 1 3470, 3250. Without slices, with the sum in pieces: 1024^3 92, 512^3 28.
READ_COST, STAGE_COST, BARRIER_COST = 1.5, 8, 8
# ... what a group alone on its unit waits for its stages, as a part of its time, where none is held ahead.
WAITS = 0.15
# ... each sum that slices add up, and their barriers.
ADD_COST, ADD_BARRIERS = 4, 64
# ... of a second kernel that adds up pieces of the sum: the launch, and elements that a unit adds for one multiply-add.
# 1024^2 of 4 pieces took 7.5 us, 512^2 of 2 3.9.
LAUNCH_COST, ADDED_A_UNIT = 4000, 8


class Shape(NamedTuple):
    """What a `Tile` says of this schedule: elements of a work item, slices of a group, pieces of the sum."""

    rows: int
    columns: int
    slices: int
    splits: int


class Group(NamedTuple):
    """A work-group: `slices` squares of `side` x `side` work items, and the terms that it stages at a time."""

    side: int
    slices: int
    depth: int

    @property
    def plane(self) -> int:
        """Work items of a slice."""
        return self.side * self.side

    @property
    def items(self) -> int:
        """Work items of the group."""
        return self.plane * self.slices

    def tiles(self, spec: MatmulSpec, rows: int, columns: int) -> int:
        """Groups of a product whose work items have so many elements, its sums whole."""
        return spec.batch * ceil(spec.m / (self.side * rows)) * ceil(spec.n / (self.side * columns))

    def place(self, k: Builder) -> Item:
        """The work item. Of slices, 32 are 8 x 4, neighbours below each other: half of them read 8 and 2 blocks."""
        x, y = k.local_id(0), k.local_id(1)
        item = y * self.side + x
        if self.slices == 1:
            return Item(x, y, k.const(0, "index"), item)
        z = k.local_id(2)
        x, y = item // 2 % self.side, item // 32 * 4 + item % 32 // 16 * 2 + item % 2
        return Item(x, y, z, z * self.plane + item)


class Item(NamedTuple):
    """A work item: its columns and rows among those of the slice, its slice, its number in the group."""

    x: V
    y: V
    slice: V
    item: V


def group_of(caps: Any, slices: int) -> Group:
    """The work-group of so many slices; its side is a power of two."""
    side = GROUP_SIDES[slices]
    while side * side * slices > caps.max_work_group_size:
        side //= 2
    return Group(side, slices, DEPTHS[slices])


def shapes(spec: MatmulSpec, caps: Any) -> list[Shape]:
    """Shapes whose tiles fit the local memory, best first: the least time of the busiest compute unit, by the count of
    its work-groups and the cost of their terms, and of a kernel that adds up pieces."""
    found = list(dict.fromkeys(shape for slices in GROUP_SIDES for shape in _fitting(spec, caps, slices)))
    return sorted(found, key=lambda s: (_cost(spec, caps, s), s.slices, abs(s.rows - s.columns)))


def _fitting(spec: MatmulSpec, caps: Any, slices: int) -> Iterator[Shape]:
    group = group_of(caps, slices)
    if slices > 1 and (group.side < GROUP_SIDES[slices] or spec.k < group.depth):
        return
    side = group.side
    for rows in PER_ITEM:
        for columns in PER_ITEM:
            if (
                group.depth * (side * (rows + columns) + 2 * WIDTH) * spec.itemsize <= caps.local_memory_bytes
                and (rows - 1) * side < spec.m
                and (columns - 1) * side < spec.n
                and rows * columns * spec.itemsize <= MOST_SUM_BYTES
                and (slices == 1 or rows * columns >= LEAST_SLICED)
            ):
                for splits in _splits(spec, caps, group.tiles(spec, rows, columns)):
                    yield Shape(rows, columns, slices, splits)


def _splits(spec: MatmulSpec, caps: Any, tiles: int) -> list[int]:
    """Numbers of pieces that the sum may be in, where tiles leave compute units without work."""
    if spec.inner > 1 or tiles >= caps.compute_units:
        return [1]
    affordable = MAX_PARTIAL_BYTES // (spec.batch * spec.m * spec.n * spec.itemsize)
    most = min(caps.compute_units * ITEMS_PER_UNIT // tiles, spec.k // MIN_DEPTH, affordable)
    return [1, *(1 << n for n in range(1, most.bit_length()))] if most > 1 else [1]


def _cost(spec: MatmulSpec, caps: Any, shape: Shape) -> float:
    """What the busiest compute unit does, in multiply-adds of a work item."""
    rows, columns, slices, splits = shape
    group = group_of(caps, slices)
    term = rows * columns + (rows + columns) * (READ_COST + STAGE_COST / group.side) + BARRIER_COST
    each = ceil(ceil(spec.k / splits) / slices) * term
    turns = ceil(group.tiles(spec, rows, columns) * splits / caps.compute_units)
    added_up = rows * columns * ADD_COST + ADD_BARRIERS
    busiest = turns * (each + added_up) if slices > 1 else each * (turns + WAITS)
    if splits == 1:
        return busiest
    return busiest + LAUNCH_COST + spec.batch * spec.m * spec.n * splits / (caps.compute_units * ADDED_A_UNIT)


def local(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work-group makes (side x rows) x (side x columns) elements, each work item blocks of up to WIDTH x WIDTH of
    them: neighbours in a row are neighbours in memory. Slices add up their sums in the end."""
    group = group_of(caps, tile.slices)
    size = group.side, group.side, group.slices
    k = Builder(name, spec.index_bits, size)
    k.asked_once = True
    vectors = multiple(spec.k, WIDTH) and spec.piece % WIDTH == 0  # of terms
    # Where no dim of B is contiguous it is mostly the input of a convolution: neighbours along its last one.
    rows = Side(k, group, tile.rows, spec.m, spec.a, spec.a.contiguous != 0, vectors)
    columns = Side(k, group, tile.vectors, spec.n, spec.b.transposed, spec.b.contiguous == 0, vectors)
    store = spec.out.bind(k)
    memory = k.local(spec.acc, rows.size + columns.size)
    columns.base, z, at = rows.size, k.group_id(2), group.place(k)
    rows.memory = columns.memory = memory
    whole = multiple(spec.k, group.depth) and spec.piece % group.depth == 0
    rows.stages = columns.stages = whole and spec.varied != "terms"
    rows.first, columns.first = k.group_id(1) * rows.extent, k.group_id(0) * columns.extent
    sums, part = [k.const(0, spec.acc)] * (tile.rows * tile.vectors), spec.part(k, z)
    some = spec.groups if spec.varied == "rows" else None
    with k.if_(rows.first < some.end - some.first) if some else nullcontext():  # all items of a group say alike
        if tile.slices == 1:
            sums = _summed(k, group, (rows, columns), at, part, sums)
        else:
            sums = added(k, group, memory, _summed_ahead(k, group, (rows, columns), at, part, sums), at)
        width = min(columns.block, len(sums)) if columns.whole and not spec.out.runs else 1
        for n in range(0, len(sums), width):
            r, c = _element(at.slice, n, len(sums), tile.vectors)
            i, j = rows.first + rows.place(at.y, r), columns.first + columns.place(at.x, c)
            with k.if_((i < spec.m) & (j < spec.n)):
                store.put(z, i, j, k.pack(sums[n : n + width]), width)
    items = ceil(spec.n / columns.extent) * group.side, ceil(spec.m / rows.extent) * group.side
    return Steps([Step(name, k.finish(), spec.names, (*items, spec.batch * spec.pieces * group.slices), size)], [])


def _summed(
    k: Builder, group: Group, sides: tuple[Side, Side], at: Item, part: tuple[V, V, V], sums: list[V]
) -> list[V]:  # fmt: skip
    """The sums of a work item over the terms of a part, stage by stage."""
    batch, lo, hi = part
    with k.for_(lo, hi, group.depth, init=sums) as loop:
        k.barrier()
        for side in sides:
            side.stage(batch, loop.iv, hi, at.item)
        k.barrier()
        loop.yield_(*_multiplied(k, group, sides, at, loop.args))
    return loop.results


def _summed_ahead(
    k: Builder, group: Group, sides: tuple[Side, Side], at: Item, part: tuple[V, V, V], sums: list[V]
) -> list[V]:  # fmt: skip
    """The same with the next stage in registers meanwhile. In the last turn that is for nothing: a compiler would sink
    terms after the loop into the guards of the stores, and spill."""
    batch, lo, hi = part
    rows, columns = sides

    def fetch(p0: V) -> list[V]:
        return [side.fetch(batch, p0, hi, at.item + start) for side in sides for start in side.starts]

    count = len(sums)
    with k.for_(lo, hi, group.depth, init=[*sums, *fetch(lo)]) as loop:
        held = loop.args[count:]
        k.barrier()
        rows.put(at.item, held[: len(rows.starts)], loop.iv, hi)
        columns.put(at.item, held[len(rows.starts) :], loop.iv, hi)
        k.barrier()
        held = fetch(loop.iv + group.depth)
        loop.yield_(*_multiplied(k, group, sides, at, loop.args[:count]), *held)
    return loop.results[:count]


def _multiplied(k: Builder, group: Group, sides: tuple[Side, Side], at: Item, sums: Sequence[V]) -> list[V]:
    """The sums with the terms of a stage that a slice takes."""
    each = group.depth // group.slices
    with k.for_(0, each, init=sums, unroll=True) as terms:
        term = at.slice * each + terms.iv
        a, b = sides[0].read(term, at.y), sides[1].read(term, at.x)
        found = iter(terms.args)
        terms.yield_(*[k.multiply_add(u, v, next(found)) for u in a for v in b])
    return terms.results


def added(k: Builder, group: Group, memory: Buf, sums: Sequence[V], at: Item) -> list[V]:
    """The sums of all slices, a part for each, in order: half of them are exchanged for those of a slice that holds the
    other half, then half of that half."""
    held = [k.pack(sums[n : n + WIDTH]) for n in range(0, len(sums), WIDTH)]
    most = memory.size // (group.items * WIDTH)  # type: ignore[operator]  # vectors of each item that the memory holds
    distance = group.slices // 2
    while distance:
        upper, half = at.slice // distance % 2 == 1, len(held) // 2
        pairs = list(zip(held[:half], held[half:], strict=True))
        given, kept = [k.select(upper, a, b) for a, b in pairs], [k.select(upper, b, a) for a, b in pairs]
        other = at.item + k.select(upper, k.const(-distance * group.plane, "index"), distance * group.plane)
        held = []
        for start in range(0, half, most):
            turn = list(enumerate(range(start, min(start + most, half))))
            k.barrier()
            for n, v in turn:
                k.store(memory, (at.item + n * group.items) * WIDTH, given[v])
            k.barrier()
            held += [kept[v] + k.load(memory, (other + n * group.items) * WIDTH, WIDTH) for n, v in turn]
        distance //= 2
    return [k.lane(v, n) for v in held for n in range(WIDTH)]


def _element(part: V, n: int, count: int, columns: int) -> tuple[V | int, V | int]:
    """Row and column of sum number n of a part of so many."""
    if part.const == 0:
        return divmod(n, columns)
    if count >= columns:
        return part * (count // columns) + n // columns, n % columns
    parts = columns // count
    return part // parts, part % parts * count + n


class Side:
    """The rows or the columns of a work-group's tile, of `extent` in all: `count` for each of `side` work items.

    An item's are in blocks, which are read in one access; whole: vectors and blocks of these are, at the edge too.
    along: neighbours read neighbours along the terms, not across; vectors: terms may be read as such.
    """

    memory: Buf
    first: V  # of the group's tile
    base = 0  # of it in the memory
    stages = False  # terms come in whole stages

    def __init__(
        self, k: Builder, group: Group, count: int, extent: int, operand: Operand, along: bool, vectors: bool
    ):  # fmt: skip
        self.k, self.group, self.count, self.all, self.along = k, group, count, extent, along
        self.load, self.extent, self.block = operand.bind(k), count * group.side, min(count, WIDTH)
        self.whole = multiple(extent, WIDTH) and self.extent % WIDTH == 0
        wide = operand.contiguous is not None and (vectors if along else self.whole)
        self.width = WIDTH if wide else 1
        # Stores that transpose spread over all banks where blocks of each four terms are in another order.
        self.mixed = group.slices > 1 and along and wide and self.extent % BANKS == 0
        # Padding puts a term's first element in another bank than the one before, and keeps blocks aligned.
        padding = 0 if self.mixed else max(self.block, WIDTH if self.whole else 1)
        self.pitch = self.extent + padding
        self.size = group.depth * self.pitch
        self.count_of_accesses = group.depth * self.extent // self.width
        self.starts = range(0, self.count_of_accesses, group.items)

    def access(self, at: V) -> tuple[V, V]:
        """The element and the term, the first of an access that has this number."""
        if self.along:
            each = self.group.depth // self.width
            return at // each, at % each * self.width
        each = self.extent // self.width
        return at % each * self.width, at // each

    def fetch(self, batch: V, p0: V, hi: V, at: V) -> V:
        """What an access reads of the terms from p0 on, or others where there are none."""
        k, width = self.k, self.width
        e, p = self.access(at)
        i = k.map("minimum", self.first + e, self.all - (1 if self.along else width))
        return self.load(batch, i, k.map("minimum", p0 + p, hi - (width if self.along else 1)), width)

    def write(self, at: V, v: V, p0: V, hi: V) -> None:
        """What an access has read, into the tile: term by term. Zeros where there are none."""
        k, (e, p) = self.k, self.access(at)
        if not self.stages:  # asked for here, since what is held ahead arrives while others are multiplied
            v = k.select(p0 + p < hi, v, k.broadcast(k.const(0, v.dtype), self.width))
        if not self.along:
            k.store(self.memory, p * self.pitch + e + self.base, v)
            return
        e = k.map("xor", e, p) if self.mixed else e
        for n in range(self.width):
            k.store(self.memory, (p + n) * self.pitch + e + self.base, k.lane(v, n))

    def stage(self, batch: V, p0: V, hi: V, item: V) -> None:
        """Read and write all accesses, spread over the work items so that neighbours read neighbours."""
        for start in self.starts:
            with self.existing(item, start) as at:
                self.write(at, self.fetch(batch, p0, hi, at), p0, hi)

    def put(self, item: V, held: Sequence[V], p0: V, hi: V) -> None:
        """Write what all accesses have read."""
        for start, v in zip(self.starts, held, strict=True):
            with self.existing(item, start) as at:
                self.write(at, v, p0, hi)

    @contextmanager
    def existing(self, item: V, start: int) -> Iterator[V]:
        """The access of a work item of those from `start` on, where there is one."""
        if start + self.group.items <= self.count_of_accesses:
            yield item + start
        else:
            with self.k.if_(item + start < self.count_of_accesses):
                yield item + start

    def place(self, item: V, n: V | int) -> V:
        """Where in the tile element n of a work item lies."""
        return item * self.block + (n // self.block * (self.block * self.group.side) + n % self.block)

    def read(self, term: V, item: V) -> list[V]:
        """The elements of a work item of one term."""
        k, found = self.k, []
        mixed = term // WIDTH * WIDTH if self.mixed else None
        for n in range(0, self.count, self.block):
            at = self.place(item, 0) if mixed is None else k.map("xor", self.place(item, 0), mixed)
            at = at + n // self.block * (self.block * self.group.side)
            v = k.load(self.memory, term * self.pitch + at + self.base, self.block)
            found += [k.lane(v, lane) for lane in range(self.block)]
        return found
