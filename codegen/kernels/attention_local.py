"""Attention of a GPU, forward: a work-group takes a tile of queries and walks over the keys, tile by tile, with online
softmax. Queries, keys, weights and values lie in its local memory, scores and results in registers.

    scores    an item has ROWS queries x ROWS keys of a tile, 8 items share a row
    values    and ROWS queries x 4 of every 32 columns of the output

Queries, keys and weights lie across in local memory, [dim, row], so that a product's terms are vectors of rows. Rows
are xor'ed by the dim: a warp's stores, which turn vectors over, then meet all banks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil, gcd
from typing import Any

from codegen.builder import Buf, Builder, V
from codegen.kernels.attention import LN_2, LOG2_E, AttentionSpec, renamed
from codegen.kernels.attention_tiles import ACROSS, ROWS, WIDE, Cut, cut
from codegen.kernels.blocks import at_most
from codegen.kernels.reduction import larger
from codegen.kernels.step import Step, Steps
from ops_core.sizes import multiple

# Vectors of terms after one another in a product's loop, and of what an item brings to local memory: with more of these
# under way a head of 128 needs more registers than there are.
TURNS = 4
Read = Callable[..., V]


def attention_local(name: str, spec: AttentionSpec, caps: Any) -> Steps:
    """The forward kernel. caps: `Capabilities`, of a device that `claims_local` has been asked about."""
    c = cut(spec, caps)
    assert c
    mlir = _Group(name, spec, c).kernel()
    args = ("q", "k", "v", *(("bias",) if spec.bias else ()), "out", *(("lse",) if spec.lse else ()))
    # Heads first: tiles of alike length start together.
    items = (spec.batch * spec.heads * c.items, ceil(spec.queries / c.queries), 1)
    return Steps([Step(name, mlir, renamed(spec, args), items, (c.items, 1, 1))], [])


class _Group:
    """What the items of a group have in common: operands, local memory, and where an item is."""

    def __init__(self, name: str, spec: AttentionSpec, c: Cut):
        self.spec, self.c = spec, c
        self.k = k = Builder(name, spec.index_bits, (c.items, 1, 1))
        k.asked_once = True
        self.read_q, self.read_k, self.read_v = spec.q(k), spec.k(k), spec.v(k)
        self.read_bias = spec.bias(k) if spec.bias else None
        self.write_out = spec.out(k)
        self.write_lse = spec.lse(k) if spec.lse else None
        self.queries, self.keys = k.local("f32", c.queries * c.quads * ROWS), k.local("f32", c.key_elements)
        self.values = self.keys if c.shared else k.local("f32", c.keys * c.columns)
        self.weights, self.told = k.local("f32", c.keys * c.queries), k.local("f32", c.queries * ACROSS)
        # A warp is 4 x 8 items, interleaved: halves of it read the same 16 bytes of either operand.
        self.item = k.local_id(0)
        lane = self.item % 32
        self.x = lane // 2 % ACROSS
        self.row = (self.item // 32 * 4 + lane // 16 * 2 + lane % 2) * ROWS
        self.column = self.x * ROWS
        head = k.group_id(0)
        self.here = [head // spec.heads, head % spec.heads]
        self.first = self._tile() * c.queries

    def _tile(self) -> V:
        """Which tile of queries. Causal ones start with the longest, and the second half with the shortest: a unit that
        has one of each has as much to do as another."""
        k, number = self.k, self.k.group_id(1)
        if not self.spec.causal:
            return number
        tiles = k.const(ceil(self.spec.queries / self.c.queries), "index")
        return k.select(number < tiles // 2, tiles - 1 - number, number - tiles // 2)

    def kernel(self) -> Any:
        """Queries, then for each tile of keys: its scores, their weights, and these times the values."""
        k, spec, c = self.k, self.spec, self.c
        self._stage_across(self.queries, c.queries, self._query)
        stop: V | int = ceil(spec.keys / c.keys)
        if spec.causal:
            stop = k.map("minimum", (self.first + (c.queries - 1)) // c.keys + 1, stop)
        least, zero, zeros = k.const(-math.inf, "f32"), k.const(0.0, "f32"), k.const(0.0, "f32", ROWS)
        start = [*[least] * ROWS, *[zero] * ROWS, *[zeros] * (ROWS * c.blocks)]
        with k.for_(0, stop, init=start) as loop:
            tops, sums, results = loop.args[:ROWS], loop.args[ROWS : 2 * ROWS], loop.args[2 * ROWS :]
            key = loop.iv * c.keys
            k.barrier()  # the values before have been read
            self._stage_across(self.keys, c.keys, functools.partial(self._key, key))
            if not c.shared:
                self._stage_values(key)
            k.barrier()
            scores = self._masked(self._scores(), key)
            tops, factors = self._tops(scores, tops)
            sums = self._soften(scores, tops, sums, factors)
            if c.shared:  # all have read the keys: they have told their maxima
                self._stage_values(key)
            k.barrier()
            results = [result * factors[n // c.blocks] for n, result in enumerate(results)]
            loop.yield_(*tops, *sums, *self._weighted(results))
        tops, sums = loop.results[:ROWS], loop.results[ROWS : 2 * ROWS]
        self._finish(tops, self._shared(sums, lambda a, b: a + b), loop.results[2 * ROWS :])
        return k.finish()

    # To local memory

    @contextmanager
    def _turns(self, count: int) -> Iterator[V]:
        """Each of `count` turns, some after one another."""
        few = gcd(count, TURNS)
        with self.k.for_(0, count, few) as outer, self.k.for_(0, few, unroll=True) as turn:
            yield outer.iv + turn.iv

    def _stage_across(self, tile: Buf, extent: int, load: Callable[[V, V], V]) -> None:
        """Vectors load(row, dim) of `extent` rows into tile[dim][row]. A warp takes 8 vectors of 4 rows."""
        k, quads = self.k, self.c.quads
        across = ceil(quads / 8)
        with self._turns(across * extent * 8 // self.c.items) as turn:
            lane, block = self.item % 32, turn * (self.c.items // 32) + self.item // 32
            d, row = block % across * 8 + lane % 8, block // across * 4 + lane // 8
            with k.if_(d < quads) if quads % 8 else nullcontext():
                vector, at = load(row, d * ROWS), d * (ROWS * extent) + (row ^ _turned(d, extent))
                for n in range(ROWS):
                    k.store(tile, at + n * extent, k.lane(vector, n))

    def _stage_values(self, key: V) -> None:
        """A tile of values as it lies. Zeros where there are no more: a weight of 0 makes NaN of others."""
        k, c, count = self.k, self.c, self.spec.keys
        with self._turns(c.keys * c.columns // ROWS // c.items) as turn:
            at = turn * c.items + self.item
            row, column = at // (c.columns // ROWS), at % (c.columns // ROWS) * ROWS
            vector = self._vector(self.read_v, at_most(k, key + row, count - 1, count, c.keys), column, c.value_depth)
            if not multiple(count, c.keys):
                vector = k.select(key + row < count, vector, 0.0)
            k.store(self.values, row * c.columns + column, vector)

    def _query(self, row: V, d: V) -> V:
        count = self.spec.queries
        i = at_most(self.k, self.first + row, count - 1, count, self.c.queries)
        return self._vector(self.read_q, i, d, self.c.depth) * (self.spec.scale * LOG2_E)

    def _key(self, key: V, row: V, d: V) -> V:
        count = self.spec.keys
        return self._vector(self.read_k, at_most(self.k, key + row, count - 1, count, self.c.keys), d, self.c.depth)

    def _vector(self, read: Read, row: V, d: V, depth: int) -> V:
        """Elements of a row from d on, zeros after its end."""
        k = self.k
        if depth % ROWS == 0:
            return read([*self.here, row, k.map("minimum", d, depth - ROWS) if depth % WIDE else d], 3, ROWS)
        places = [d + n for n in range(ROWS)]
        lanes = [read([*self.here, row, k.map("minimum", at, depth - 1)]) for at in places]
        return k.pack([k.select(at < depth, lane, 0.0) for at, lane in zip(places, lanes, strict=True)])

    # A tile of keys

    def _product(self, count: int, init: Sequence[V], terms: Callable[[V, V], tuple[V, list[V]]]) -> list[V]:
        """init[r, c] + sum over p < count of lane r of a times b[c], where a and b are terms(p // 4, p % 4)."""
        k, turns = self.k, gcd(count, TURNS)
        with k.for_(0, count, turns, init=init) as outer:
            with k.for_(0, turns, init=outer.args, unroll=True) as turn:
                with k.for_(0, ROWS, init=turn.args, unroll=True) as term:
                    a, b = terms(outer.iv + turn.iv, term.iv)
                    sums = iter(term.args)
                    term.yield_(*[k.multiply_add(k.lane(a, r), v, next(sums)) for r in range(ROWS) for v in b])
                turn.yield_(*term.results)
            outer.yield_(*turn.results)
        return outer.results

    def _scores(self) -> list[V]:
        """Those of each query of an item with its keys, in units of log 2."""
        k, c = self.k, self.c

        def terms(d: V, n: V) -> tuple[V, list[V]]:
            i, j = self.row ^ _turned(d, c.queries), self.column ^ _turned(d, c.keys)
            term = d * ROWS + n
            return k.load(self.queries, term * c.queries + i, ROWS), [k.load(self.keys, term * c.keys + j, ROWS)]

        return self._product(c.quads, [k.const(0.0, "f32", ROWS)] * ROWS, terms)

    def _masked(self, scores: list[V], key: V) -> list[V]:
        """With their bias; -inf where there is no key or a query may not look."""
        k, spec, c = self.k, self.spec, self.c
        rows, start = [self.first + self.row + r for r in range(ROWS)], key + self.column
        if self.read_bias:
            pairs = [(score, self._bias(i, start)) for score, i in zip(scores, rows, strict=True)]
            least, unit = k.const(-math.inf, "f32", ROWS), k.const(LOG2_E, "f32", ROWS)
            scores = [k.select(b, s, least) if spec.boolean else k.multiply_add(b, unit, s) for s, b in pairs]
        ragged = not multiple(spec.keys, c.keys)
        edges = [key + c.keys > self.first + 1] * spec.causal + [key + c.keys > spec.keys] * ragged

        def at_edge() -> list[V]:
            j = start + k.iota(ROWS)
            seen = [[j <= i] * spec.causal + [j < spec.keys] * ragged for i in rows]
            both = [functools.reduce(lambda a, b: a & b, tests) for tests in seen]
            return [k.select(test, score, -math.inf) for test, score in zip(both, scores, strict=True)]

        return k.either(functools.reduce(lambda a, b: a | b, edges), at_edge, lambda: scores) if edges else scores

    def _bias(self, i: V, j: V) -> V:
        """Those of a query and of ROWS keys; any where there is none."""
        k, (queries, keys) = self.k, (self.spec.queries, self.spec.keys)
        assert self.read_bias
        i = at_most(k, i, queries - 1, queries, self.c.queries)
        if not multiple(keys, ROWS):
            places = [k.map("minimum", j + n, keys - 1) for n in range(ROWS)]
            return k.pack([self.read_bias([*self.here, i, at]) for at in places])
        return self.read_bias([*self.here, i, at_most(k, j, keys - ROWS, keys, self.c.keys)], 3, ROWS)

    def _shared(self, mine: Sequence[V], both: Callable[[V, V], V]) -> list[V]:
        """A value a row out of those that its items have, by way of local memory. They have read what was there."""
        k, row = self.k, self.row * ACROSS
        for r, value in enumerate(mine):
            k.store(self.told, row + self.x + r * ACROSS, value)
        k.barrier()
        places = [[row + (r * ACROSS + n) for n in range(0, ACROSS, ROWS)] for r in range(len(mine))]
        vectors = [[k.load(self.told, at, ROWS) for at in parts] for parts in places]
        return [k.reduce(both, functools.reduce(both, parts)) for parts in vectors]

    def _tops(self, scores: list[V], old: Sequence[V]) -> tuple[list[V], list[V]]:
        """The maximum of each row so far, and by what its results shrink."""
        here = self._shared([self.k.reduce(larger, score) for score in scores], larger)
        tops = [larger(a, b) for a, b in zip(here, old, strict=True)]
        return tops, [self._power(before - self._shift(top)) for before, top in zip(old, tops, strict=True)]

    def _shift(self, top: V) -> V:
        return self.k.select(top == -math.inf, 0.0, top)

    def _power(self, x: V) -> V:
        """2^x, the language's own: a GPU has an instruction for it. H200, 64 x 64: 200 us, 249 by a polynomial."""
        return self.k.emit("func.call @builtin_exp2", x)

    def _soften(self, scores: list[V], tops: list[V], sums: Sequence[V], factors: list[V]) -> list[V]:
        """The weights go to local memory; an item's sums of each row so far."""
        k, c = self.k, self.c
        shifted = [score - self._shift(top) for score, top in zip(scores, tops, strict=True)]
        weights = [[self._power(k.lane(score, n)) for n in range(ROWS)] for score in shifted]
        at = self.column * c.queries + (self.row ^ _turned_weights(self.x, c.queries))
        for n, across in enumerate(zip(*weights, strict=True)):
            k.store(self.weights, at + n * c.queries, k.pack(across))
        parts = [functools.reduce(lambda a, b: a + b, row) for row in weights]
        return [k.multiply_add(a, f, part) for a, f, part in zip(sums, factors, parts, strict=True)]

    def _weighted(self, results: list[V]) -> list[V]:
        """Results, [query, vector of columns] of an item, and the weights of the tile times its values."""
        k, c = self.k, self.c

        def terms(j: V, n: V) -> tuple[V, list[V]]:
            i, term = self.row ^ _turned_weights(j, c.queries), j * ROWS + n
            places = [term * c.columns + self.column + b * WIDE for b in range(c.blocks)]
            values = [k.load(self.values, at, ROWS) for at in places]
            return k.load(self.weights, term * c.queries + i, ROWS), values

        return self._product(c.keys // ROWS, results, terms)

    # To memory

    def _finish(self, tops: Sequence[V], totals: list[V], results: Sequence[V]) -> None:
        """The rows there are."""
        k, c = self.k, self.c
        for r, (top, total) in enumerate(zip(tops, totals, strict=True)):
            i = self.first + self.row + r
            # top - top: a score that is infinite makes its row NaN.
            share = k.select(total == 0.0, 0.0, 1.0 / total + (top - top))
            with nullcontext() if multiple(self.spec.queries, c.queries) else k.if_(i < self.spec.queries):
                for b in range(c.blocks):
                    self._write(i, self.column + b * WIDE, results[r * c.blocks + b] * share)
                if self.write_lse:
                    lse = k.select(total == 0.0, -math.inf, (k.map("log2", total) + top) * LN_2)
                    with k.if_(self.x == 0):
                        self.write_lse([*self.here, i], [lse])

    def _write(self, i: V, column: V, values: V) -> None:
        """The columns there are."""
        k, depth = self.k, self.c.value_depth
        if depth % ROWS == 0:
            with k.if_(column < depth) if depth % WIDE else nullcontext():
                self.write_out([*self.here, i, column], [values], 3)
            return
        for n in range(ROWS):
            with k.if_(column + n < depth):
                self.write_out([*self.here, i, column + n], [k.lane(values, n)])


def _turned(d: V, extent: int) -> V:
    """What rows of vector d of queries or keys are xor'ed by."""
    return d % min(8, extent // ROWS) * ROWS


def _turned_weights(key: V, extent: int) -> V:
    """What rows of the weights of a vector of keys are xor'ed by."""
    return key % min(4, extent // 8) * 8
