"""What a GPU's attention and its gradients have in common: a work-group takes a tile of rows and walks over the others,
tile by tile. Rows are queries and the others keys, or rows are keys and the others queries.

    scores    an item has ROWS rows x ROWS others of a tile, 8 items share a row
    results   and ROWS rows x 4 of every 32 columns

Queries, keys and weights lie across in local memory, [dim, row], so that a product's terms are vectors of rows. Rows
are xor'ed by the dim: a warp's stores, which turn vectors over, then meet all banks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil, gcd

from codegen.builder import Buf, Builder, V
from codegen.kernels.attention import LOG2_E, AttentionSpec
from codegen.kernels.attention_tiles import ACROSS, ROWS, WIDE
from codegen.kernels.blocks import at_most
from ops_core.sizes import multiple

# Vectors of terms after one another in a product's loop, and of what an item brings to local memory: with more of these
# under way a head of 128 needs more registers than there are.
TURNS = 4
Read = Callable[..., V]
Write = Callable[..., None]


class Group:
    """Where the items of a group are, what they bring to local memory and multiply, and which scores count.

    rows, others: of a tile. over_queries: rows are keys, the others queries.
    """

    # [other, row], and what items of a row tell each other.
    weights: Buf
    told: Buf

    def __init__(self, name: str, spec: AttentionSpec, rows: int, others: int, over_queries: bool = False):
        self.spec, self.rows, self.others, self.over_queries = spec, rows, others, over_queries
        self.items = rows // ROWS * ACROSS
        self.k = k = Builder(name, spec.index_bits, (self.items, 1, 1))
        k.asked_once = True
        self.read_q, self.read_k, self.read_v = spec.q(k), spec.k(k), spec.v(k)
        self.read_bias = spec.bias(k) if spec.bias else None
        # A warp is 4 x 8 items, interleaved: halves of it read the same 16 bytes of either operand.
        self.item = k.local_id(0)
        lane = self.item % 32
        self.x = lane // 2 % ACROSS
        self.row = (self.item // 32 * 4 + lane // 16 * 2 + lane % 2) * ROWS
        self.column = self.x * ROWS
        self.head = k.group_id(0)
        self.here = [self.head // spec.heads, self.head % spec.heads]
        counts = spec.queries, spec.keys
        self.count, self.other_count = reversed(counts) if over_queries else counts
        self.first = self._tile() * rows

    def _tile(self) -> V:
        """Which tile of rows. Causal ones start with the longest, and the second half with the shortest: a unit that
        has one of each has as much to do as another. The last queries and the first keys have the longest."""
        k, number = self.k, self.k.group_id(1)
        if not self.spec.causal:
            return number
        tiles = k.const(ceil(self.count / self.rows), "index")
        first_half = number < tiles // 2
        if self.over_queries:
            return k.select(first_half, number, tiles - 1 - (number - tiles // 2))
        return k.select(first_half, tiles - 1 - number, number - tiles // 2)

    # To local memory

    @contextmanager
    def turns(self, count: int) -> Iterator[V]:
        """Each of `count` turns, some after one another."""
        few = gcd(count, TURNS)
        with self.k.for_(0, count, few) as outer, self.k.for_(0, few, unroll=True) as turn:
            yield outer.iv + turn.iv

    def stage_across(self, tile: Buf, extent: int, quads: int, load: Callable[[V, V], V]) -> None:
        """Vectors load(row, dim) of `extent` rows, `quads` a row, into tile[dim][row]. A warp takes 8 of 4 rows."""
        k = self.k
        across = ceil(quads / 8)
        with self.turns(across * extent * 8 // self.items) as turn:
            lane, block = self.item % 32, turn * (self.items // 32) + self.item // 32
            d, row = block % across * 8 + lane % 8, block // across * 4 + lane // 8
            with k.if_(d < quads) if quads % 8 else nullcontext():
                vector, at = load(row, d * ROWS), d * (ROWS * extent) + (row ^ turned(d, extent))
                for n in range(ROWS):
                    k.store(tile, at + n * extent, k.lane(vector, n))

    def query(self, first: V, step: int, row: V, d: V) -> V:
        """Elements of a row of the tile of `step` queries from `first` on: their scores are in units of log 2."""
        return self.at_row(self.read_q, self.spec.queries, self.spec.depth, first, step, row, d) * (
            self.spec.scale * LOG2_E
        )

    def key(self, first: V, step: int, row: V, d: V) -> V:
        """Elements of a row of the tile of `step` keys from `first` on."""
        return self.at_row(self.read_k, self.spec.keys, self.spec.depth, first, step, row, d)

    def at_row(self, read: Read, count: int, depth: int, first: V, step: int, row: V, d: V) -> V:
        """Elements of a row of a tile, or of the last of the `count` rows where there are no more."""
        return self.vector(read, at_most(self.k, first + row, count - 1, count, step), d, depth)

    def vector(self, read: Read, row: V, d: V, depth: int) -> V:
        """Elements of a row from d on; any after its end."""
        k = self.k
        if depth % ROWS == 0:
            return read([*self.here, row, k.map("minimum", d, depth - ROWS) if depth % WIDE else d], 3, ROWS)
        places = [d + n for n in range(ROWS)]
        lanes = [read([*self.here, row, k.map("minimum", at, depth - 1)]) for at in places]
        return k.pack([k.select(at < depth, lane, 0.0) for at, lane in zip(places, lanes, strict=True)])

    # A tile of others

    def product(self, count: int, init: Sequence[V], terms: Callable[[V, V], tuple[V, list[V]]]) -> list[V]:
        """init[r, c] + sum over p < count of lane r of a times b[c], where a and b are terms(p // 4, p % 4)."""
        k, turns = self.k, gcd(count, TURNS)
        with k.for_(0, count, turns, init=init) as outer:
            with k.for_(0, turns, init=outer.args, unroll=True) as turn:
                with k.for_(0, ROWS, init=turn.args, unroll=True) as term:
                    a, b = terms(outer.iv + turn.iv, term.iv)
                    term.yield_(*self.added(a, b, term.args))
                turn.yield_(*term.results)
            outer.yield_(*turn.results)
        return outer.results

    def added(self, a: V, b: Sequence[V], sums: Sequence[V]) -> list[V]:
        """sums[r, c] + lane r of a times b[c]."""
        k, given = self.k, iter(sums)
        return [k.multiply_add(k.lane(a, r), v, next(given)) for r in range(ROWS) for v in b]

    def products(self, quads: int, rows: Buf, others: Buf, init: Sequence[V], start: V | int = 0) -> list[V]:
        """init[r] + those of each row of an item with its others: `quads` vectors of terms, of others from element
        `start` of their memory on."""
        k = self.k

        def terms(d: V, n: V) -> tuple[V, list[V]]:
            i, j = self.row ^ turned(d, self.rows), self.column ^ turned(d, self.others)
            term = d * ROWS + n
            return k.load(rows, term * self.rows + i, ROWS), [k.load(others, term * self.others + j + start, ROWS)]

        return self.product(quads, init, terms)

    def nothing(self, count: int) -> list[V]:
        """So many vectors of sums, before anything has been added."""
        return [self.k.const(0.0, "f32", ROWS)] * count

    def masked(self, scores: list[V], start: V) -> list[V]:
        """With their bias; -inf where there is no other or a query may not look. start: of the tile of others."""
        k, spec = self.k, self.spec
        rows = [self.first + self.row + r for r in range(ROWS)]
        if self.read_bias:
            least, unit = k.const(-math.inf, "f32", ROWS), k.const(LOG2_E, "f32", ROWS)
            pairs = list(zip(scores, self._biases(rows, start + self.column), strict=True))
            scores = [k.select(b, s, least) if spec.boolean else k.multiply_add(b, unit, s) for s, b in pairs]
        ragged = not multiple(self.other_count, self.others)
        ends = start + self.others, self.first + self.rows
        keys_end, query = (ends[1], start) if self.over_queries else (ends[0], self.first)
        edges = [keys_end > query + 1] * spec.causal + [ends[0] > self.other_count] * ragged

        def at_edge() -> list[V]:
            other = start + self.column + k.iota(ROWS)
            looks = [row <= other if self.over_queries else other <= row for row in rows]
            seen = [[look] * spec.causal + [other < self.other_count] * ragged for look in looks]
            both = [functools.reduce(lambda a, b: a & b, tests) for tests in seen]
            return [k.select(test, score, -math.inf) for test, score in zip(both, scores, strict=True)]

        return k.either(functools.reduce(lambda a, b: a | b, edges), at_edge, lambda: scores) if edges else scores

    def _biases(self, rows: list[V], other: V) -> list[V]:
        """Those of each row of an item and of its others."""
        if not self.over_queries:
            return [self._bias(row, other) for row in rows]
        lines = [self._bias(other + n, rows[0]) for n in range(ROWS)]
        return [self.k.pack([self.k.lane(line, r) for line in lines]) for r in range(ROWS)]

    def _bias(self, i: V, j: V) -> V:
        """Those of a query and of ROWS keys; any where there is none."""
        k, (queries, keys) = self.k, (self.spec.queries, self.spec.keys)
        assert self.read_bias
        steps = (self.others, self.rows) if self.over_queries else (self.rows, self.others)
        i = at_most(k, i, queries - 1, queries, steps[0])
        if not multiple(keys, ROWS):
            places = [k.map("minimum", j + n, keys - 1) for n in range(ROWS)]
            return k.pack([self.read_bias([*self.here, i, at]) for at in places])
        return self.read_bias([*self.here, i, at_most(k, j, keys - ROWS, keys, steps[1])], 3, ROWS)

    def shared(self, mine: Sequence[V], both: Callable[[V, V], V]) -> list[V]:
        """A value a row out of those that its items have, by way of local memory. They have read what was there."""
        k, row = self.k, self.row * ACROSS
        for r, value in enumerate(mine):
            k.store(self.told, row + self.x + r * ACROSS, value)
        k.barrier()
        places = [[row + (r * ACROSS + n) for n in range(0, ACROSS, ROWS)] for r in range(len(mine))]
        vectors = [[k.load(self.told, at, ROWS) for at in parts] for parts in places]
        return [k.reduce(both, functools.reduce(both, parts)) for parts in vectors]

    def powers(self, x: V) -> list[V]:
        """2^x, lane by lane."""
        return [self.power(self.k.lane(x, n)) for n in range(ROWS)]

    def power(self, x: V) -> V:
        """2^x, the language's own: a GPU has an instruction for it. H200, 64 x 64: 200 us, 249 by a polynomial."""
        return self.k.emit("func.call @builtin_exp2", x)

    def put_weights(self, weights: Sequence[Sequence[V]]) -> None:
        """Those of each row of an item, for each of its others, to local memory."""
        k = self.k
        at = self.column * self.rows + (self.row ^ turned_weights(self.x, self.rows))
        for n, across in enumerate(zip(*weights, strict=True)):
            k.store(self.weights, at + n * self.rows, k.pack(across))

    def weights_of(self, j: V, n: V | int) -> V:
        """Those of the rows of an item for other number n of vector j."""
        i = self.row ^ turned_weights(j, self.rows)
        return self.k.load(self.weights, (j * ROWS + n) * self.rows + i, ROWS)

    # To memory

    def write(self, put: Write, i: V, column: V, values: V, depth: int) -> None:
        """The columns there are, of `depth`."""
        k = self.k
        if depth % ROWS == 0:
            with k.if_(column < depth) if depth % WIDE else nullcontext():
                put([*self.here, i, column], [values], 3)
            return
        for n in range(ROWS):
            with k.if_(column + n < depth):
                put([*self.here, i, column + n], [k.lane(values, n)])


def turned(d: V, extent: int) -> V:
    """What rows of vector d of queries or keys are xor'ed by."""
    return d % min(8, extent // ROWS) * ROWS


def turned_weights(other: V, extent: int) -> V:
    """What rows of the weights of a vector of others are xor'ed by."""
    return other % min(4, extent // 8) * 8
