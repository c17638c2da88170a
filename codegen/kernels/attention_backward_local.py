"""The gradients of a GPU's attention, none of whose scores are in memory: two kernels make them again, tile by tile.

    queries   a work-group takes a tile of queries and walks over the keys: dq
    keys      ... takes a tile of keys and walks over the queries: dk and dv

Either multiplies the rows of its tile with the others of a tile (q . k and grad . v), which lie across in local memory,
and adds the weights or the scores' gradients, by way of local memory, times the others to results in registers.
The first also leaves grad . out and the logsumexp of each query for the second. Seven products in place of five,
and no sum is made by two groups: every run gives the same bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import ceil
from typing import Any

from codegen.builder import Buf, V
from codegen.kernels.attention import LN_2, LOG2_E, AttentionSpec, renamed
from codegen.kernels.attention_backward import Gradients
from codegen.kernels.attention_group import Group, Write, turned
from codegen.kernels.attention_tiles import ACROSS, ROWS, WIDE, GradientCut, gradient_cut
from codegen.kernels.blocks import at_most, transpose
from codegen.kernels.step import Step, Steps
from ops_core.sizes import multiple

# Which of the two products, and which part of a side: q . k, and q or k; grad . v, and grad or v.
SCORES, VALUES = 0, 1


def attention_backward_local(name: str, spec: AttentionSpec, gradients: Gradients, caps: Any) -> Steps:
    """Kernels for dq, dk and dv. caps: `Capabilities`, of a device that `claims_gradients` has been asked about."""
    c = gradient_cut(spec, caps)
    assert c
    known = dict(zip(Gradients._field_defaults["names"], gradients.names, strict=True))
    heads, read = spec.batch * spec.heads, renamed(spec, ("q", "k", "v", *(("bias",) if spec.bias else ())))
    steps = []
    for kind, count in ((_Queries, spec.queries), (_Keys, spec.keys)):
        args = (*read, *(known[n] for n in kind.operands), 0)
        items = heads * c.items, ceil(count / c.rows), 1
        title = f"{name}_{kind.operands[-1]}"
        steps.append(Step(title, kind(title, spec, gradients, c).kernel(), args, items, (c.items, 1, 1)))
    return Steps(steps, [4 * 2 * heads * spec.queries])


class _Gradient(Group):
    """What both kernels do. A side is (q, grad) or (k, v)."""

    over_queries: bool
    # Of `Gradients`, in the order in which they are bound.
    operands: tuple[str, ...]
    # The sums, in order: VALUES are of the weights, SCORES of the scores' gradients.
    sums: tuple[int, ...]

    def __init__(self, name: str, spec: AttentionSpec, gradients: Gradients, c: GradientCut):
        super().__init__(name, spec, c.rows, c.others, self.over_queries)
        self.c, k = c, self.k
        self.bound = {n: getattr(gradients, n)(k) for n in self.operands}
        # For each head the logsumexp of all queries, in units of log 2, then their grad . out.
        self.rest = k.buffer("f32", readonly=self.over_queries)
        self.near = [k.local("f32", n) for n in c.row_elements]
        self.far = [k.local("f32", n) for n in c.other_elements]
        self.weights = self.told = k.local("f32", c.rows * c.others)
        sides = (self._query, self._grad), (self._key, self._value)
        self.near_side, self.far_side = reversed(sides) if self.over_queries else sides

    def kernel(self) -> Any:
        """Rows, if they are held; then for each tile of others: both products, and the sums."""
        k, c = self.k, self.c
        self._start()
        if c.held:
            for n in (SCORES, VALUES):
                self._stage(self.near[n], c.rows, c.quads[n], self.near_side[n], self.first)
        lo, hi = self._walk()
        init = [self.nothing(ROWS * c.blocks[n]) for n in self.sums]
        with k.for_(lo, hi, init=[v for part in init for v in part]) as loop:
            carried = self._parts(loop.args)
            other = loop.iv * c.others
            k.barrier()  # those before have been read
            for n in (SCORES, VALUES):
                self._stage(self.far[n], c.others, c.quads[n], self.far_side[n], other)
            k.barrier()
            lse, delta = self._statistics(other)
            scores = self.masked(self._products(SCORES), other)
            weights = [k.pack(self.powers(score - shift)) for score, shift in zip(scores, lse, strict=True)]
            slopes = [p - d for p, d in zip(self._products(VALUES), delta, strict=True)]
            summed = {VALUES: weights, SCORES: [w * s for w, s in zip(weights, slopes, strict=True)]}
            for turn, n in enumerate(self.sums):
                if turn:
                    k.barrier()  # the weights before have been read
                self.put_weights([[k.lane(v, at) for at in range(ROWS)] for v in summed[n]])
                k.barrier()
                carried[turn] = self._added(carried[turn], n)
            loop.yield_(*(v for part in carried for v in part))
        results = self._parts(loop.results)
        for n, part, (put, factor) in zip(self.sums, results, self._writes(), strict=True):
            self._finish(part, n, factor, put)
        return k.finish()

    def _parts(self, values: Sequence[V]) -> list[list[V]]:
        """Those of each sum."""
        found, rest = [], list(values)
        for n in self.sums:
            count = ROWS * self.c.blocks[n]
            found.append(rest[:count])
            rest = rest[count:]
        return found

    # What differs

    def _start(self) -> None:
        """What comes before all tiles."""

    def _walk(self) -> tuple[V | int, V | int]:
        """The first tile of others, and the one after the last."""
        raise NotImplementedError

    def _statistics(self, other: V) -> tuple[list[V], list[V]]:
        """For each row of an item logsumexp, in units of log 2, and grad . out: its own, or those of the others."""
        raise NotImplementedError

    def _writes(self) -> list[tuple[Write, float]]:
        """What writes each sum, and by what it is multiplied."""
        raise NotImplementedError

    # To local memory

    def _stage(self, tile: Buf, extent: int, quads: int, load: Callable[..., V], first: V, start: V | int = 0) -> None:
        """Dims of the rows from `first` on, `quads` vectors from dim `start` on."""
        self.stage_across(tile, extent, quads, lambda row, d: load(first, extent, row, d + start))

    def _query(self, first: V, step: int, row: V, d: V) -> V:
        return self._ended(self.query(first, step, row, d), d, self.spec.depth)

    def _key(self, first: V, step: int, row: V, d: V) -> V:
        return self._ended(self.key(first, step, row, d), d, self.spec.depth)

    def _grad(self, first: V, step: int, row: V, d: V) -> V:
        spec, read = self.spec, self.bound["grad"]
        return self._ended(self.at_row(read, spec.queries, spec.value_depth, first, step, row, d), d, spec.value_depth)

    def _value(self, first: V, step: int, row: V, d: V) -> V:
        spec, read = self.spec, self.read_v
        return self._ended(self.at_row(read, spec.keys, spec.value_depth, first, step, row, d), d, spec.value_depth)

    def _ended(self, vector: V, d: V, depth: int) -> V:
        """Zeros after the end of a row."""
        return self.k.select(d < depth, vector, 0.0) if depth % WIDE and depth % ROWS == 0 else vector

    # A tile of others

    def _products(self, n: int) -> list[V]:
        """Of the rows of an item and its others."""
        k, c = self.k, self.c
        if c.held:
            return self.products(c.quads[n], self.near[n], self.far[n], self.nothing(ROWS))
        (piece,) = self.near
        with k.for_(0, c.blocks[n], init=self.nothing(ROWS)) as loop:
            d = loop.iv * WIDE
            k.barrier()  # the piece before has been read
            self._stage(piece, c.rows, ACROSS, self.near_side[n], self.first, d)
            k.barrier()
            loop.yield_(*self.products(ACROSS, piece, self.far[n], loop.args, d * c.others))
        return loop.results

    def _added(self, results: Sequence[V], n: int) -> list[V]:
        """results[row, vector of columns] of an item and its rows' weights times the others, which lie across."""
        k, c, blocks = self.k, self.c, self.c.blocks[n]
        with k.for_(0, c.others // ROWS, init=results) as loop:
            weights = [self.weights_of(loop.iv, term) for term in range(ROWS)]
            parts = []
            for block in range(blocks):
                at = (self.column + block * WIDE) * c.others + (loop.iv * ROWS ^ turned(self.x, c.others))
                columns = [k.load(self.far[n], at + d * c.others, ROWS) for d in range(ROWS)]
                part: Sequence[V] = loop.args[block::blocks]
                for weight, line in zip(weights, transpose(k, columns), strict=True):
                    part = self.added(weight, [line], part)
                parts.append(part)
            loop.yield_(*(v for row in zip(*parts, strict=True) for v in row))
        return loop.results

    # To memory

    def _finish(self, results: Sequence[V], n: int, factor: float, put: Write) -> None:
        """The rows there are."""
        k, c, blocks = self.k, self.c, self.c.blocks[n]
        depth = (c.depth, c.value_depth)[n]
        for r in range(ROWS):
            i = self.first + self.row + r
            with nullcontext() if multiple(self.count, c.rows) else k.if_(i < self.count):
                for b in range(blocks):
                    self.write(put, i, self.column + b * WIDE, results[r * blocks + b] * factor, depth)


class _Queries(_Gradient):
    """Rows are queries, the others keys."""

    over_queries = False
    operands = ("grad", "out", "lse", "dq")
    sums = (SCORES,)

    def _walk(self) -> tuple[V | int, V | int]:
        stop: V | int = ceil(self.spec.keys / self.c.others)
        if self.spec.causal:
            stop = self.k.map("minimum", (self.first + (self.c.rows - 1)) // self.c.others + 1, stop)
        return 0, stop

    def _start(self) -> None:
        """Logsumexp and grad . out of each row. A row that sees nothing has an infinite one, and no weights."""
        k, queries = self.k, self.spec.queries
        rows = [self.first + self.row + r for r in range(ROWS)]
        there = [at_most(k, i, queries - 1, queries, self.c.rows) for i in rows]
        self.delta = self.shared([self._dot(i) for i in there], operator.add)
        found = [self.bound["lse"]([*self.here, i]) for i in there]
        self.lse = [k.select(lse == -math.inf, math.inf, lse * LOG2_E) for lse in found]
        for i, *both in zip(rows, self.lse, self.delta, strict=True):
            mine = self.x == 0 if multiple(queries, self.c.rows) else (self.x == 0) & (i < queries)
            with k.if_(mine):
                for n, value in enumerate(both):
                    k.store(self.rest, (self.head * 2 + n) * queries + i, value)

    def _dot(self, i: V) -> V:
        """An item's part of grad . out of a row."""
        k, depth = self.k, self.spec.value_depth
        (total,) = self.nothing(1)
        for b in range(self.c.blocks[VALUES]):
            column = self.column + b * WIDE
            parts = (self.vector(self.bound[n], i, column, depth) for n in ("grad", "out"))
            total = k.multiply_add(*(self._ended(part, column, depth) for part in parts), total)
        return k.reduce("add", total)

    def _statistics(self, other: V) -> tuple[list[V], list[V]]:
        return self.lse, self.delta

    def _writes(self) -> list[tuple[Write, float]]:
        return [(self.bound["dq"], self.spec.scale)]


class _Keys(_Gradient):
    """Rows are keys, the others queries."""

    over_queries = True
    operands = ("grad", "dv", "dk")
    sums = (VALUES, SCORES)

    def _walk(self) -> tuple[V | int, V | int]:
        start = self.first // self.c.others if self.spec.causal else 0
        return start, ceil(self.spec.queries / self.c.others)

    def _statistics(self, other: V) -> tuple[list[V], list[V]]:
        k, queries, at = self.k, self.spec.queries, other + self.column

        def line(n: int) -> V:
            base = (self.head * 2 + n) * queries
            if multiple(queries, ROWS):
                return k.load(self.rest, base + at_most(k, at, queries - ROWS, queries, self.c.others), ROWS)
            places = [k.map("minimum", at + lane, queries - 1) for lane in range(ROWS)]
            return k.pack([k.load(self.rest, base + place) for place in places])

        return [line(0)] * ROWS, [line(1)] * ROWS

    def _writes(self) -> list[tuple[Write, float]]:
        """The queries that dk sums are scaled, and in units of log 2."""
        return [(self.bound["dv"], 1.0), (self.bound["dk"], LN_2)]
