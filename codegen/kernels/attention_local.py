"""Attention of a GPU, forward: a work-group takes a tile of queries and walks over the keys, tile by tile, with online
softmax. Queries, keys, weights and values lie in its local memory, scores and results in registers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from math import ceil
from typing import Any

from codegen.builder import V
from codegen.kernels.attention import LN_2, AttentionSpec, renamed
from codegen.kernels.attention_group import Group
from codegen.kernels.attention_tiles import ACROSS, ROWS, WIDE, Cut, cut
from codegen.kernels.blocks import at_most
from codegen.kernels.reduction import larger
from codegen.kernels.step import Step, Steps
from ops_core.sizes import multiple


def attention_local(name: str, spec: AttentionSpec, caps: Any) -> Steps:
    """The forward kernel. caps: `Capabilities`, of a device that `claims_local` has been asked about."""
    c = cut(spec, caps)
    assert c
    mlir = _Forward(name, spec, c).kernel()
    args = ("q", "k", "v", *(("bias",) if spec.bias else ()), "out", *(("lse",) if spec.lse else ()))
    # Heads first: tiles of alike length start together.
    items = (spec.batch * spec.heads * c.items, ceil(spec.queries / c.queries), 1)
    return Steps([Step(name, mlir, renamed(spec, args), items, (c.items, 1, 1))], [])


class _Forward(Group):
    """Rows are queries, the others keys."""

    def __init__(self, name: str, spec: AttentionSpec, c: Cut):
        super().__init__(name, spec, c.queries, c.keys)
        self.c, k = c, self.k
        self.write_out = spec.out(k)
        self.write_lse = spec.lse(k) if spec.lse else None
        self.queries, self.keys = k.local("f32", c.queries * c.quads * ROWS), k.local("f32", c.key_elements)
        self.values = self.keys if c.shared else k.local("f32", c.keys * c.columns)
        self.weights, self.told = k.local("f32", c.keys * c.queries), k.local("f32", c.queries * ACROSS)

    def kernel(self) -> Any:
        """Queries, then for each tile of keys: its scores, their weights, and these times the values."""
        k, spec, c = self.k, self.spec, self.c
        self.stage_across(self.queries, c.queries, c.quads, functools.partial(self.query, self.first, c.queries))
        stop: V | int = ceil(spec.keys / c.keys)
        if spec.causal:
            stop = k.map("minimum", (self.first + (c.queries - 1)) // c.keys + 1, stop)
        least, zero = k.const(-math.inf, "f32"), k.const(0.0, "f32")
        start = [*[least] * ROWS, *[zero] * ROWS, *self.nothing(ROWS * c.blocks)]
        with k.for_(0, stop, init=start) as loop:
            tops, sums, results = loop.args[:ROWS], loop.args[ROWS : 2 * ROWS], loop.args[2 * ROWS :]
            key = loop.iv * c.keys
            k.barrier()  # the values before have been read
            self.stage_across(self.keys, c.keys, c.quads, functools.partial(self.key, key, c.keys))
            if not c.shared:
                self._stage_values(key)
            k.barrier()
            scores = self.masked(self.products(c.quads, self.queries, self.keys, self.nothing(ROWS)), key)
            tops, factors = self._tops(scores, tops)
            sums = self._soften(scores, tops, sums, factors)
            if c.shared:  # all have read the keys: they have told their maxima
                self._stage_values(key)
            k.barrier()
            results = [result * factors[n // c.blocks] for n, result in enumerate(results)]
            loop.yield_(*tops, *sums, *self._weighted(results))
        tops, sums = loop.results[:ROWS], loop.results[ROWS : 2 * ROWS]
        self._finish(tops, self.shared(sums, lambda a, b: a + b), loop.results[2 * ROWS :])
        return k.finish()

    def _stage_values(self, key: V) -> None:
        """A tile of values as it lies. Zeros where there are no more: a weight of 0 makes NaN of others."""
        k, c, count = self.k, self.c, self.spec.keys
        with self.turns(c.keys * c.columns // ROWS // c.items) as turn:
            at = turn * c.items + self.item
            row, column = at // (c.columns // ROWS), at % (c.columns // ROWS) * ROWS
            vector = self.vector(self.read_v, at_most(k, key + row, count - 1, count, c.keys), column, c.value_depth)
            if not multiple(count, c.keys):
                vector = k.select(key + row < count, vector, 0.0)
            k.store(self.values, row * c.columns + column, vector)

    def _tops(self, scores: list[V], old: Sequence[V]) -> tuple[list[V], list[V]]:
        """The maximum of each row so far, and by what its results shrink."""
        here = self.shared([self.k.reduce(larger, score) for score in scores], larger)
        tops = [larger(a, b) for a, b in zip(here, old, strict=True)]
        return tops, [self.power(before - self._shift(top)) for before, top in zip(old, tops, strict=True)]

    def _shift(self, top: V) -> V:
        return self.k.select(top == -math.inf, 0.0, top)

    def _soften(self, scores: list[V], tops: list[V], sums: Sequence[V], factors: list[V]) -> list[V]:
        """The weights go to local memory; an item's sums of each row so far."""
        shifted = [score - self._shift(top) for score, top in zip(scores, tops, strict=True)]
        weights = [self.powers(score) for score in shifted]
        self.put_weights(weights)
        parts = [functools.reduce(lambda a, b: a + b, row) for row in weights]
        return [self.k.multiply_add(a, f, part) for a, f, part in zip(sums, factors, parts, strict=True)]

    def _weighted(self, results: list[V]) -> list[V]:
        """Results, [query, vector of columns] of an item, and the weights of the tile times its values."""
        k, c = self.k, self.c

        def terms(j: V, n: V) -> tuple[V, list[V]]:
            places = [(j * ROWS + n) * c.columns + self.column + b * WIDE for b in range(c.blocks)]
            return self.weights_of(j, n), [k.load(self.values, at, ROWS) for at in places]

        return self.product(c.keys // ROWS, results, terms)

    def _finish(self, tops: Sequence[V], totals: list[V], results: Sequence[V]) -> None:
        """The rows there are."""
        k, c = self.k, self.c
        for r, (top, total) in enumerate(zip(tops, totals, strict=True)):
            i = self.first + self.row + r
            # top - top: a score that is infinite makes its row NaN.
            share = k.select(total == 0.0, 0.0, 1.0 / total + (top - top))
            with nullcontext() if multiple(self.spec.queries, c.queries) else k.if_(i < self.spec.queries):
                for b in range(c.blocks):
                    self.write(
                        self.write_out, i, self.column + b * WIDE, results[r * c.blocks + b] * share, c.value_depth
                    )
                if self.write_lse:
                    lse = k.select(total == 0.0, -math.inf, (k.map("log2", total) + top) * LN_2)
                    with k.if_(self.x == 0):
                        self.write_lse([*self.here, i], [lse])
