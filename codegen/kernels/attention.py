"""Attention with online softmax: the scores live in registers and in a few lines of private memory, never in a buffer.

    forward   each work item takes a block of queries and walks over the keys, block by block

Products are register tiles as in `codegen.kernels.matmul`; keys are copied across once for a block of queries.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import ceil
from typing import Any, NamedTuple

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import VARYING_LANES, at_most, by_registers, copy_block, lanes, store_row
from codegen.kernels.contraction import Store
from codegen.kernels.reduction import larger
from codegen.kernels.step import Step, Steps
from codegen.mathlib.exponential import EXP2
from codegen.mathlib.table import fma, nearest_power, polynomial
from ops_core.sizes import multiple, varies

# Queries of a work item: the copy of a block of keys is used this often. Half as many where that gives units less than
# ITEMS_PER_UNIT items, or where rows are longer than WIDE: an item's queries and results would not fit a private cache.
# (1, 8, 2048, 64) with 132 and 264, ms: 32.2, 31.1, causal 16.7, 15.6; (1, 8, 2048, 128) 57.8, 55.2; (4, 12, 512, 64)
# 12.8, 11.9 (Granite Rapids).
QUERY_ROWS, ITEMS_PER_UNIT, WIDE = 264, 4, 128
# Keys in a block.
BLOCK_KEYS = 64
# Vectors of a block of few keys, whose number varies.
FEWER_VECTORS = 4
# (rows, vectors) of a register tile by how many registers there are (see matmul.REGISTER_TILES): 6 x 4 and what they
# are made of fill 32, 4 x 3 fill 16. AVX-512, (1, 8, 2048, 128), ms: 4 rows 59.5, 6 54.9. AVX2 (Zen 3), GFLOP/s of
# (1, 8, 2048, 64), (4, 4, 256, 64) causal, (1, 4, 2048, 128) causal: 4 x 4 55, 42, 50, 4 x 3 103, 88, 107, 6 x 2 107,
# 73, 102, with blocks of 32 keys 105, 79, 103; torch's 102, 44, 92.
TILES = {32: (6, 4), 16: (4, 3)}
# Terms that the forward kernel adds a turn, as `matmul_registers.panel` does: (1, 8, 2048, 128) 52.6 -> 49.8 ms, and
# 10 ms longer to build. Left in the gradient: forward and gradient of (1, 8, 2048, 64) 51.3 -> 50.2, 13 to build.
TERMS = 2
# Fewer queries than this (decoding) do not pay for copying the keys: `attention_rows` reads them where they lie.
FEWEST_QUERIES = 8
# A longer row of q or v goes the same way: a block would be megabytes of private memory, which PoCL builds for minutes.
MOST_DEPTH = 512

# Scores are kept in units of log 2: a weight is then a power of two, which takes half the operations of exp.
LOG2_E, LN_2 = 1 / math.log(2), math.log(2)

Bind = Callable[[Builder], Callable[..., Any]]


class AttentionSpec(NamedTuple):
    """out[b, h, i] = softmax over j of (scale * q[b, h, i] . k[b, h, j] + bias[b, h, i, j]) @ v[b, h, j].

    Each of q, k, v, bias is a bind: read([b, h, i, d], along=None, width=1) -> V in float32 (bool for a boolean bias);
    vectors run along the last dim. out and lse are binds of write(index, [value], along=None); lse may be None.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int
    scale: float
    causal: bool
    q: Bind
    k: Bind
    v: Bind
    out: Bind
    lse: Bind | None = None
    bias: Bind | None = None
    boolean: bool = False
    index_bits: int = 32
    names: tuple[str, ...] = ("q", "k", "v", "bias", "out", "lse")


def claims(spec: AttentionSpec, caps: Any) -> bool:
    """Whether the kernel is better than two products and a softmax."""
    few, deep = min(spec.queries, spec.keys), max(spec.depth, spec.value_depth)
    return bool(caps.is_cpu) and few >= FEWEST_QUERIES and deep <= MOST_DEPTH


def claims_rows(spec: AttentionSpec, caps: Any) -> bool:
    """Whether the kernel for few queries is better."""
    return bool(caps.is_cpu) and spec.queries < FEWEST_QUERIES and max(spec.depth, spec.value_depth) <= MOST_DEPTH


class Keys(NamedTuple):
    """The keys as blocks of vectors. The last vectors are moved back to stay within the keys."""

    total: int
    width: int
    vectors: int

    @property
    def block(self) -> int:
        """Keys in a block."""
        return self.vectors * self.width

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return ceil(self.total / self.block)

    def start(self, k: Builder, number: V, v: V | int) -> V:
        """The first key of vector v of a block."""
        return at_most(k, number * self.block + v * self.width, self.total - self.width, self.total, self.block)

    def fresh(self, k: Builder, number: V, v: int) -> V | None:
        """Which lanes are keys that no other vector has; None for all."""
        if multiple(self.total, self.block):
            return None
        return self.start(k, number, v) + k.iota(self.width) >= number * self.block + v * self.width


def key_blocks(count: int, caps: Any) -> list[Keys]:
    """How `count` keys are cut into blocks. A number that varies has two ways, the first from one block on: neither
    leaves a guard, by which lengths on both sides of it would be kernels of two classes, nor do long ones lose."""
    full = caps.vector_bytes // 4
    if varies(count):
        ways = {(full, BLOCK_KEYS // full), (min(full, VARYING_LANES), FEWER_VECTORS)}
        return [Keys(count, *way) for way in sorted(ways, reverse=True)]
    width = lanes(caps, 4, count)
    return [Keys(count, width, min(BLOCK_KEYS // width, ceil(count / width)))]


def by_keys(k: Builder, ways: list[Keys], do: Callable[[Keys], None]) -> None:
    """What is done with the keys cut in the way that their number asks for."""
    first, *others = ways
    with k.if_(k.const(first.total, "index") >= first.block) if others else nullcontext():
        do(first)
    for keys in others:
        with k.else_():
            do(keys)


def most_queries(spec: AttentionSpec, caps: Any) -> int:
    """Queries of a work item, at most."""
    wide = max(spec.depth, spec.value_depth) > WIDE
    if wide or any(map(varies, (spec.batch, spec.heads, spec.queries))):
        return QUERY_ROWS // 2
    items = spec.batch * spec.heads * ceil(spec.queries / QUERY_ROWS)
    return QUERY_ROWS if items >= caps.compute_units * ITEMS_PER_UNIT else QUERY_ROWS // 2


def query_block(spec: AttentionSpec, rows: int, most: int) -> int:
    """Queries that a work item has in private memory, in tiles of `rows`; the same for all numbers that vary."""
    return most if varies(spec.queries) else ceil(ceil(spec.queries / ceil(spec.queries / most)) / rows) * rows


def row_lanes(count: int, vectors: int, caps: Any) -> int:
    """Vector width for a row of `count` elements: the last vector may overlap another of the same tile only."""
    full = lanes(caps, 4, count)
    alone = ceil(count / full) % vectors == 1 and count > full
    return min(full, count & -count) if alone else full


def tile_columns(count: int, vectors: int, width: int) -> list[list[int]]:
    """Where the vectors of a row of `count` elements start, by the tiles that they are of."""
    offsets = column_offsets(count, width)
    return [offsets[start : start + vectors] for start in range(0, len(offsets), vectors)]


def column_offsets(count: int, width: int) -> list[int]:
    """Where the vectors of a row of `count` elements start; the last overlaps the one before."""
    return [min(v * width, count - width) for v in range(ceil(count / width))]


def multiply(
    k: Builder, init: Sequence[V], rows: int, count: int, a: Callable[[int, V], V], b: Callable[[V], list[V]],
    terms: int = 1,
) -> list[V]:  # fmt: skip
    """A register tile: init[r, v] + sum over p < count of a(r, p) * b(p)[v], `terms` of them a turn."""

    def add(p: V, totals: Sequence[V]) -> list[V]:
        vectors = b(p)
        sums = iter(totals)
        return [k.multiply_add(x, y, next(sums)) for x in [a(r, p) for r in range(rows)] for y in vectors]

    terms = terms if multiple(count, terms) else 1
    with k.for_(0, count, terms, init=init) as loop:
        sums = add(loop.iv, loop.args)
        for n in range(1, terms):
            k.separate()
            sums = add(loop.iv + n, sums)
        loop.yield_(*sums)
    return loop.results


def fold(k: Builder, both: Callable[[V, V], V], vectors: Sequence[V]) -> V:
    """One scalar out of the lanes of several vectors."""
    return k.reduce(both, functools.reduce(both, vectors))


def power(k: Builder, x: V) -> V:
    """2^x for x <= 0, within 2 ulp; 0 below the normal numbers, where a weight no longer counts."""
    n, power = nearest_power(k, x, 1.0)
    r = x - n
    return k.select(x < -126.0, 0.0, fma(k, r, polynomial(k, r, EXP2["f32"]), 1.0) * power)


def attention(name: str, spec: AttentionSpec, caps: Any) -> Steps:
    """The forward kernel. caps: `Capabilities`."""
    ways = key_blocks(spec.keys, caps)
    most_rows, vectors = by_registers(TILES, caps)
    rows = min(most_rows, spec.queries)
    block = query_block(spec, rows, most_queries(spec, caps))
    width = row_lanes(spec.value_depth, vectors, caps)

    k = Builder(name, spec.index_bits, (1, 1, 1))
    read_q, read_k, read_v = spec.q(k), spec.k(k), spec.v(k)
    read_bias = spec.bias(k) if spec.bias else None
    write_out = spec.out(k)
    write_lse = spec.lse(k) if spec.lse else None
    here = [k.global_id(2), k.global_id(1)]
    scratch = {
        "q": k.private("f32", block * spec.depth), "k": k.private("f32", spec.depth * ways[0].block),
        "p": k.private("f32", rows * ways[0].block), "out": k.private("f32", block * spec.value_depth),
        "top": k.private("f32", block), "sum": k.private("f32", block),
    }  # fmt: skip
    first = k.global_id(0) * block
    tiles: V | int = block // rows
    if not multiple(spec.queries, block):
        tiles = k.map("minimum", (spec.queries - first + (rows - 1)) // rows, tiles)

    def row(tile: V) -> V:
        """The first query of a tile, moved back at the end."""
        return at_most(k, first + tile * rows, spec.queries - rows, spec.queries, block)

    load_queries(k, spec, scratch["q"], read_q, here, row, (tiles, rows), caps)
    clear(k, scratch["out"], 0.0, caps)
    clear(k, scratch["sum"], 0.0, caps)
    clear(k, scratch["top"], -math.inf, caps)

    def walk(keys: Keys) -> None:
        stop: V | int = keys.blocks
        if spec.causal:
            stop = k.map("minimum", (first + (block - 1)) // keys.block + 1, keys.blocks)
        with k.for_(0, stop) as outer:
            load_keys(k, spec.depth, scratch["k"], read_k, here, keys, outer.iv)
            with k.for_(0, tiles) as inner:
                i, at = row(inner.iv), inner.iv * rows
                with k.if_(outer.iv * keys.block < i + rows) if spec.causal else nullcontext():
                    key_tiles(
                        k, keys, rows, vectors, spec.depth, (scratch["q"], at), scratch["k"], (scratch["p"], 0), TERMS
                    )
                    with k.for_(0, rows) as r:
                        places = [r.iv * keys.block + v * keys.width for v in range(keys.vectors)]
                        line = [k.load(scratch["p"], p, keys.width) for p in places]
                        line = masked(k, spec, keys, outer.iv, line, i + r.iv, read_bias, here)
                        soften(k, scratch, line, at + r.iv, r.iv, keys, spec.value_depth, width)
                    for part in tile_columns(spec.value_depth, vectors, width):
                        add_values(k, spec, scratch, keys, rows, at, part, width, read_v, here, outer.iv)

    by_keys(k, ways, walk)
    with k.for_(0, tiles) as last, k.for_(0, rows) as r:
        at, i = last.iv * rows + r.iv, row(last.iv) + r.iv
        with k.if_(i >= first + last.iv * rows):
            total = k.load(scratch["sum"], at)
            top = k.load(scratch["top"], at)
            # top - top: a score that is infinite or NaN makes its row NaN.
            share = k.select(total == 0.0, 0.0, 1.0 / total + (top - top))

            def put(_: Any, i: V, j: V, value: V, width: int = 1) -> None:
                write_out([*here, i, j], [value * share], 3 if width > 1 else None)

            line = scratch["out"], at * spec.value_depth, i, here[0], k.const(0, "index")
            store_row(k, Store(put), *line, (0, spec.value_depth), width)
            if write_lse:
                write_lse([*here, i], [k.select(total == 0.0, -math.inf, (k.map("log2", total) + top) * LN_2)])
    args = ("q", "k", "v", *(("bias",) if spec.bias else ()), "out", *(("lse",) if spec.lse else ()))
    step = Step(name, k.finish(), renamed(spec, args), (ceil(spec.queries / block), spec.heads, spec.batch), (1, 1, 1))
    return Steps([step], [])


def renamed(spec: AttentionSpec, args: Sequence[str]) -> tuple[str, ...]:
    """The caller's names of these operands."""
    known = dict(zip(AttentionSpec._field_defaults["names"], spec.names, strict=True))
    return tuple(known[a] for a in args)


def clear(k: Builder, buffer: Buf, value: float, caps: Any) -> None:
    """Fill private memory."""
    size = buffer.size or 0
    width = lanes(caps, 4, size)
    with k.for_(0, size // width) as loop:
        k.store(buffer, loop.iv * width, k.const(value, "f32", width))
    with k.for_(size // width * width, size) as loop:
        k.store(buffer, loop.iv, k.const(value, "f32"))


def load_queries(
    k: Builder, spec: AttentionSpec, buffer: Buf, read: Callable[..., V], here: list[V], row: Callable[[V], V],
    tiles: tuple[V | int, int], caps: Any,
) -> None:  # fmt: skip
    """The block's queries, scaled, row by row."""
    width = lanes(caps, 4, spec.depth)
    with k.for_(0, tiles[0]) as tile, k.for_(0, tiles[1]) as r:
        base = (tile.iv * tiles[1] + r.iv) * spec.depth
        for offset in column_offsets(spec.depth, width):
            v = read([*here, row(tile.iv) + r.iv, offset], 3 if width > 1 else None, width)
            k.store(buffer, base + offset, v * (spec.scale * LOG2_E))


def load_keys(
    k: Builder, depth: int, buffer: Buf, read: Callable[..., V], here: list[V], keys: Keys, number: V
) -> None:
    """A block of keys (or values), across: [depth, block]."""

    def load(_: V, d: V, key: V, width: int = 1) -> V:
        return read([*here, key, d], 3 if width > 1 else None, width)

    with k.for_(0, keys.vectors) as v:
        bounds = k.const(0, "index"), k.const(depth, "index")
        copy_block(
            k, load, here[0], bounds, keys.start(k, number, v.iv), keys.width, 0,
            lambda d, x: k.store(buffer, d * keys.block + v.iv * keys.width, x),
        )  # fmt: skip


def key_tiles(
    k: Builder, keys: Keys, rows: int, vectors: int, depth: int, row: tuple[Buf, V], across: Buf,
    out: tuple[Buf, V | int], terms: int = 1,
) -> None:  # fmt: skip
    """Products of `rows` rows with a block of keys (or values) that lies across, as lines of a block.

    row, out: a buffer and the row from which on it is read, or written.
    """
    for start in range(0, keys.vectors, vectors):
        places = [v * keys.width for v in range(start, min(start + vectors, keys.vectors))]

        def read(d: V, places: list[int] = places) -> list[V]:
            return [k.load(across, d * keys.block + place, keys.width) for place in places]

        zeros = [k.const(0.0, "f32", keys.width)] * (rows * len(places))
        tile = iter(multiply(k, zeros, rows, depth, lambda r, d: k.load(row[0], (row[1] + r) * depth + d), read, terms))
        for r in range(rows):
            for place in places:
                k.store(out[0], (out[1] + r) * keys.block + place, next(tile))


def masked(
    k: Builder, spec: AttentionSpec, keys: Keys, number: V, line: Sequence[V], i: V,
    read_bias: Callable[..., V] | None, here: list[V],
) -> list[V]:  # fmt: skip
    """A row of scores with its bias; -inf where the query may not look or the key has been met before."""
    found = []
    for v, scores in enumerate(line):
        start = keys.start(k, number, v)
        if read_bias:
            bias = read_bias([*here, i, start], 3 if keys.width > 1 else None, keys.width)
            scaled = k.const(LOG2_E, "f32", keys.width)
            scores = k.select(bias, scores, -math.inf) if spec.boolean else k.multiply_add(bias, scaled, scores)
        seen = keys.fresh(k, number, v)
        if spec.causal:
            past = start + k.iota(keys.width) <= i
            seen = past if seen is None else seen & past
        found.append(scores if seen is None else k.select(seen, scores, -math.inf))
    return found


def soften(
    k: Builder, scratch: dict[str, Buf], line: Sequence[V], at: V, r: V, keys: Keys, depth: int, width: int
) -> None:
    """One online softmax step for a row: its weights go to scratch, its sum and output so far are rescaled."""
    old = k.load(scratch["top"], at)
    top = larger(fold(k, larger, line), old)
    shift = k.select(top == -math.inf, 0.0, top)
    factor = power(k, old - shift)
    weights = [power(k, scores - shift) for scores in line]
    for v, w in enumerate(weights):
        k.store(scratch["p"], r * keys.block + v * keys.width, w)
    total = fold(k, operator.add, weights)
    k.store(scratch["sum"], at, k.multiply_add(k.load(scratch["sum"], at), factor, total))
    k.store(scratch["top"], at, top)
    with k.if_(top != old):
        offsets = column_offsets(depth, width)
        so_far = [k.load(scratch["out"], at * depth + offset, width) for offset in offsets]
        for offset, value in zip(offsets, so_far, strict=True):
            k.store(scratch["out"], at * depth + offset, value * factor)


def add_values(
    k: Builder, spec: AttentionSpec, scratch: dict[str, Buf], keys: Keys, rows: int, at: V, offsets: Sequence[int],
    width: int, read: Callable[..., V], here: list[V], number: V,
) -> None:  # fmt: skip
    """Add weights x values to some columns of the output of a tile."""
    places = [(at + r) * spec.value_depth + offset for r in range(rows) for offset in offsets]
    with k.for_(0, keys.vectors, init=[k.load(scratch["out"], p, width) for p in places]) as loop:
        start = keys.start(k, number, loop.iv)
        loop.yield_(
            *multiply(
                k, loop.args, rows, keys.width,
                lambda r, lane: k.load(scratch["p"], r * keys.block + loop.iv * keys.width + lane),
                lambda lane: [read([*here, start + lane, at], 3 if width > 1 else None, width) for at in offsets],
                TERMS,
            )
        )  # fmt: skip
    for p, v in zip(places, loop.results, strict=True):
        k.store(scratch["out"], p, v)
