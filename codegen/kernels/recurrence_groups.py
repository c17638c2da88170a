"""Recurrent layers on a GPU: a work-group takes rows of the batch through the whole sequence, and hands the state from
step to step in its local memory.

    pack      forward, the weight turned over, so that neighbours read neighbours
    walk      for each step a product, whose terms the parts of a group share out, then the cell's own arithmetic
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from math import ceil
from typing import Any, NamedTuple

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import at_most
from codegen.kernels.recurrence_walk import Cell, Put, Recurrence
from codegen.kernels.rows import geometry, items
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.sizes import multiple, tied, usual

# Work items of a group, where the device allows: what they wait for is the weight, so many loads have to be under way.
GROUP = 512
# Sums of a work item at most: as many weights are under way beside them, within the registers of 512 items.
MOST_SUMS = 16
# Terms whose weights are asked for together, and the least that a part of a group takes.
TERMS = 8


class Group(NamedTuple):
    """How a work-group is cut: `parts` of `lanes` work items, each for `columns` columns of `blocks` gates and `rows`
    rows of the batch, which share out `depth` terms."""

    blocks: int
    depth: int
    size: int
    rows: int
    lanes: int
    columns: int
    parts: int
    batch: int

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.lanes * self.parts

    @property
    def share(self) -> int:
        """Terms for each part."""
        return ceil(self.depth / self.parts)

    @property
    def line(self) -> int:
        """Sums of a row."""
        return self.blocks * self.size

    @property
    def local_elements(self) -> int:
        """What lies in local memory: the terms of the product, the parts' sums, another state."""
        return self.rows * (self.depth + self.parts * self.line + self.size)


def group(spec: Recurrence, backward: bool, caps: Any) -> Group:
    """Rows are shared out among the compute units; the items that columns leave share out the terms."""
    size = tied(spec.size)
    blocks, depth = spec._replace(size=size).product(backward)
    most = min(GROUP, 1 << caps.max_work_group_size.bit_length() - 1)
    lanes = min(most, 1 << (size - 1).bit_length())
    columns = ceil(size / lanes)
    rows = max(1, min(ceil(usual(spec.batch) / caps.compute_units), MOST_SUMS // (blocks * columns)))
    rows = rows if rows <= spec.batch else 1
    parts = max(1, min(most // lanes, depth // TERMS))
    cut = Group(blocks, depth, size, rows, lanes, columns, parts, spec.batch)
    fits = cut.local_elements * BY_NAME[spec.sums].bytes <= caps.local_memory_bytes
    return cut if fits else cut._replace(rows=1)


def fits(spec: Recurrence, caps: Any) -> bool:
    """Whether a group's local memory holds a row, both ways."""
    held = [group(spec, backward, caps).local_elements for backward in (False, True)]
    return max(held) * BY_NAME[spec.sums].bytes <= caps.local_memory_bytes


def pack(name: str, spec: Recurrence, g: Group) -> Step:
    """The weight (gates * H, H) as [term, block, column]: a work item for each element."""
    count = g.depth * g.line
    k = Builder(name, spec.index_bits)
    read, out = spec.binds["weight"](k), k.buffer(spec.sums)
    with items(k, count, g.items) as at:
        k.store(out, at, read([at % g.line, at // g.line], None, 1))
    return Step(name, k.finish(), ("weight", 0), *geometry(count, g.items))


class Shared:
    """A state in local memory, `width` elements a row: barriers are between who reads it and who writes it."""

    def __init__(self, k: Builder, buffer: Buf, width: int):
        self.k, self.buffer, self.width = k, buffer, width

    def turn(self, step: V) -> None:
        """There is one only."""

    def before(self, row: V | int, column: V | int, width: int = 1) -> V:
        """An element as the step finds it."""
        return self.k.load(self.buffer, row * self.width + column)

    def after(self, row: V, column: V | int, value: V) -> None:
        """An element for the next step."""
        self.k.store(self.buffer, row * self.width + column, value)

    begin = after


class Groups:
    """See `recurrence_walk.Walk`."""

    width = 1

    def __init__(self, name: str, spec: Recurrence, backward: bool, caps: Any):
        self.spec, self.backward, self.g = spec, backward, group(spec, backward, caps)
        g, k = self.g, Builder(name, spec.index_bits, (self.g.items, 1, 1))
        self.k, self.item = k, k.local_id(0)
        self.first = at_most(k, k.group_id(0) * g.rows, g.batch - g.rows, g.batch, g.rows)

    def terms(self) -> Shared:
        """The product's other operand is declared before it: backward as it lies, forward turned over."""
        k, g = self.k, self.g
        if self.backward:
            read = self.spec.binds["weight"](k)
            self.weight: Callable[[V, V], V] = lambda term, column: read([term, column], None, 1)
        else:
            packed = k.buffer(self.spec.sums, readonly=True)
            self.weight = lambda term, column: k.load(packed, term * g.line + column)
        self.state_of_terms = self._state(g.depth)
        return self.state_of_terms

    def state(self) -> Shared:
        """As many elements as columns."""
        return self._state(self.g.size)

    def _state(self, width: int) -> Shared:
        return Shared(self.k, self.k.local(self.spec.sums, self.g.rows * width), width)

    def each(self, put: Put) -> None:
        """All elements, which an item has the same of in each step."""
        for own, column in self._elements():
            put(own, self.first + own, column)

    def _elements(self) -> Iterator[tuple[V, V]]:
        """(row of the group, column)."""
        count, step = self.g.rows * self.g.size, self.g.items
        for start in range(0, count, step):
            at = self.item + start
            with nullcontext() if start + step <= count else self.k.if_(at < count):
                yield at // self.g.size, at % self.g.size

    def steps(self, bias: Callable[[V, int], V] | None, cell: Cell, backwards: bool) -> None:
        """A barrier before each product, which reads what cells wrote, and one after it."""
        k, g = self.k, self.g
        partial = k.local(self.spec.sums, g.parts * g.rows * g.line)
        with k.for_(0, self.spec.steps) as step:
            time = step.iv if not backwards else self.spec.steps - 1 - step.iv
            k.barrier()
            self._product(partial)
            k.barrier()
            for own, column in self._elements():
                blocks = [self._sum(partial, own, column + b * g.size) for b in range(g.blocks)]
                if bias:
                    blocks = [h + bias(column, b) for b, h in enumerate(blocks)]
                cell(time, own, self.first + own, column, blocks)

    def _product(self, partial: Buf) -> None:
        """The sums of each part, to local memory."""
        k, g = self.k, self.g
        lane, part = self.item % g.lanes, self.item // g.lanes
        places = [lane + n * g.lanes for n in range(g.columns)]
        columns = [k.map("minimum", at, g.size - 1) + b * g.size for b in range(g.blocks) for at in places]

        def add(term: V, sums: Sequence[V]) -> list[V]:
            weights = [self.weight(term, column) for column in columns]
            terms = [self.state_of_terms.before(r, term) for r in range(g.rows)]
            totals = iter(sums)
            return [k.multiply_add(a, b, next(totals)) for a in terms for b in weights]

        even = multiple(g.depth, g.parts)
        first = part * g.share
        last = first + g.share if even else k.map("minimum", first + g.share, g.depth)
        rounds = g.share // TERMS if even else k.map("maximum", last - first, 0) // TERMS
        middle = first + rounds * TERMS
        start = [k.const(0.0, self.spec.sums)] * (g.rows * len(columns))
        with k.for_(first, middle, TERMS, init=start) as loop:
            with k.for_(0, TERMS, init=loop.args, unroll=True) as few:
                few.yield_(*add(loop.iv + few.iv, few.args))
            loop.yield_(*few.results)
        sums = loop.results
        if not even or g.share % TERMS:
            with k.for_(middle, last, init=sums) as rest:
                rest.yield_(*add(rest.iv, rest.args))
            sums = rest.results
        totals = iter(sums)
        for r in range(g.rows):
            for b in range(g.blocks):
                for n, at in enumerate(places):
                    with nullcontext() if (n + 1) * g.lanes <= g.size else k.if_(at < g.size):
                        k.store(partial, (part * g.rows + r) * g.line + b * g.size + at, next(totals))

    def _sum(self, partial: Buf, own: V, column: V) -> V:
        """What the parts have, added up as a tree."""
        g = self.g
        parts = [self.k.load(partial, (p * g.rows + own) * g.line + column) for p in range(g.parts)]
        while len(parts) > 1:
            odd = parts[len(parts) & ~1 :]
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
        return parts[0]

    def finish(self, args: Sequence[str]) -> Steps:
        """Forward the weight is packed first."""
        g, name = self.g, self.k.name
        groups = (ceil(g.batch / g.rows) * g.items, 1, 1)
        weight = "weight" if self.backward else 0
        walk = Step(name, self.k.finish(), (*args, weight), groups, (g.items, 1, 1))
        if self.backward:
            return Steps([walk], [])
        first = pack(name.removesuffix("_walk"), self.spec, g)
        return Steps([first, walk], [g.depth * g.line * BY_NAME[self.spec.sums].bytes])
