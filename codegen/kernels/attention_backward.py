"""The gradients of attention: scores are made again, a block at a time, from the logsumexp of the forward pass.

Each work item takes a part of the keys of one head. For each block of keys it walks over the queries, keeps the
gradients of keys and values in private memory and adds to those of the queries in a temp, which a second kernel sums
over the parts. Five products for each pair of blocks, none of them stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import ceil
from typing import Any, NamedTuple

from codegen.builder import Buf, Builder, V
from codegen.kernels.attention import (
    LN_2,
    LOG2_E,
    AttentionSpec,
    Bind,
    Keys,
    by_keys,
    clear,
    column_offsets,
    key_blocks,
    key_tiles,
    load_keys,
    masked,
    multiply,
    power,
    query_block,
    renamed,
    row_lanes,
    tile_columns,
)  # fmt: skip
from codegen.kernels.blocks import at_most, by_registers, lanes, store_row
from codegen.kernels.contraction import Store
from codegen.kernels.step import Step, Steps
from ops_core.sizes import deferred, multiple

# Queries that are worked on at a time: their weights and both gradients stay in the first-level cache.
# benchmarks/kernels.py `attention_backward`.
QUERY_ROWS = 32
# (rows, vectors) of a register tile by how many registers there are; rows divide them and the keys in a block.
# AVX2 (Zen 3), GFLOP/s, cases as there: 4 x 4 52, 44, 48, 4 x 3 101, 70, 97, 4 x 2 91, 65, 82;
# torch's 90, 43, 85.
TILES = {32: (4, 4), 16: (4, 3)}
# Parts for each compute unit that let an uneven split even out.
PARTS_PER_UNIT = 2

Read = Callable[..., V]


class Gradients(NamedTuple):
    """What the backward pass reads and writes besides `AttentionSpec` (whose out and lse it does not use).

    grad, out: binds of read([b, h, i, d], ..), lse: of read([b, h, i]); dq, dk, dv: binds of write([b, h, i, d], ..).
    names: of these in `Step.args`.
    """

    grad: Bind
    out: Bind
    lse: Bind
    dq: Bind
    dk: Bind
    dv: Bind
    names: tuple[str, ...] = ("grad", "out", "lse", "dq", "dk", "dv")


class Private(NamedTuple):
    """Private memory of the backward kernel."""

    q: Buf
    k: Buf
    v: Buf
    grad: Buf
    p: Buf
    ds: Buf
    dk: Buf
    dv: Buf


@deferred
def key_parts(blocks: int, heads: int, units: int) -> int:
    """Into how many parts the keys of each of the heads are split."""
    return min(blocks, ceil(units * PARTS_PER_UNIT / heads))


def attention_backward(name: str, spec: AttentionSpec, gradients: Gradients, caps: Any) -> Steps:
    """Kernels for dq, dk and dv. caps: `Capabilities`."""
    ways = key_blocks(spec.keys, caps)
    heads = spec.heads * spec.batch
    parts = key_parts(ways[-1].blocks, heads, caps.compute_units)
    first = gradient_step(name, spec, gradients, ways, parts, caps)
    last = query_step(f"{name}_dq", spec, gradients, parts, caps)
    return Steps([first, last], [4 * parts * heads * spec.queries * spec.depth, 4 * parts * heads * spec.queries * 2])


def gradient_step(
    name: str, spec: AttentionSpec, gradients: Gradients, ways: list[Keys], parts: int, caps: Any
) -> Step:
    """dk and dv of a part of the keys, and what this part adds to dq."""
    most_rows, vectors = by_registers(TILES, caps)
    rows = min(most_rows, spec.queries)
    block = query_block(spec, rows, QUERY_ROWS)
    blocks, tiles = ceil(spec.queries / block), block // rows
    depth, value_depth = spec.depth, spec.value_depth

    k = Builder(name, spec.index_bits, (1, 1, 1))
    read_q, read_k, read_v = spec.q(k), spec.k(k), spec.v(k)
    read_bias = spec.bias(k) if spec.bias else None
    read_grad, read_out, read_lse = gradients.grad(k), gradients.out(k), gradients.lse(k)
    write_dk, write_dv = gradients.dk(k), gradients.dv(k)
    queries, rest = k.buffer("f32"), k.buffer("f32")
    here = [k.global_id(2), k.global_id(1)]
    head = (k.global_id(0) * spec.batch + here[0]) * spec.heads + here[1]
    most = ways[0].block
    sizes = (block * depth, depth * most, value_depth * most, block * value_depth, block * most, block * most,
             most * depth, most * value_depth)  # fmt: skip
    m = Private(*(k.private("f32", n) for n in sizes))

    # For each query its logsumexp, in units of log 2, and grad . out; the gradient starts at 0.
    with k.for_(0, spec.queries) as query:
        lse = read_lse([*here, query.iv])
        k.store(rest, (head * spec.queries + query.iv) * 2, k.select(lse == -math.inf, math.inf, lse * LOG2_E))
        total = row_dot(k, read_grad, read_out, [*here, query.iv], value_depth, caps)
        k.store(rest, (head * spec.queries + query.iv) * 2 + 1, total)
        fill_row(k, queries, (head * spec.queries + query.iv) * depth, depth, caps)

    def walk(keys: Keys) -> None:
        each = ceil(keys.blocks / parts)
        stop = k.map("minimum", k.global_id(0) * each + each, keys.blocks)
        with k.for_(k.global_id(0) * each, stop) as outer:
            load_keys(k, depth, m.k, read_k, here, keys, outer.iv)
            load_keys(k, value_depth, m.v, read_v, here, keys, outer.iv)
            clear(k, m.dk, 0.0, caps)
            clear(k, m.dv, 0.0, caps)
            start: V | int = outer.iv * keys.block // block if spec.causal else 0
            with k.for_(start, blocks) as inner:

                def row(tile: V, inner: Any = inner) -> V:
                    """The first query of a tile, moved back at the end."""
                    return at_most(k, inner.iv * block + tile * rows, spec.queries - rows, spec.queries, block)

                with k.for_(0, tiles) as tile:
                    at, i, nominal = tile.iv * rows, row(tile.iv), inner.iv * block + tile.iv * rows
                    with k.for_(0, rows) as r:
                        copy_row(
                            k, m.q, (at + r.iv) * depth, read_q, [*here, i + r.iv], depth, spec.scale * LOG2_E, caps
                        )
                        copy_row(
                            k, m.grad, (at + r.iv) * value_depth, read_grad, [*here, i + r.iv], value_depth, 1.0, caps
                        )
                    key_tiles(k, keys, rows, vectors, depth, (m.q, at), m.k, (m.p, at))
                    key_tiles(k, keys, rows, vectors, value_depth, (m.grad, at), m.v, (m.ds, at))
                    with k.for_(0, rows) as r:
                        number = i + r.iv
                        lse = k.load(rest, (head * spec.queries + number) * 2)
                        # A query that belongs to another tile has no weight here.
                        lse = lse if multiple(spec.queries, block) else k.select(number >= nominal, lse, math.inf)
                        delta = k.load(rest, (head * spec.queries + number) * 2 + 1)
                        places = [(at + r.iv) * keys.block + v * keys.width for v in range(keys.vectors)]
                        line = [k.load(m.p, p, keys.width) for p in places]
                        line = masked(k, spec, keys, outer.iv, line, number, read_bias, here)
                        for p, scores in zip(places, line, strict=True):
                            weight = power(k, scores - lse)
                            k.store(m.ds, p, weight * (k.load(m.ds, p, keys.width) - delta))
                            k.store(m.p, p, weight)
                    base = (head * spec.queries + i) * depth
                    add_queries(k, spec, m, queries, base, keys, rows, at, read_k, here, outer.iv, caps)
                add_keys(k, m.dv, m.p, m.grad, keys, block, value_depth, caps)
                add_keys(k, m.dk, m.ds, m.q, keys, block, depth, caps)
            store_keys(k, m.dk, write_dk, here, keys, outer.iv, depth, LN_2, caps)
            store_keys(k, m.dv, write_dv, here, keys, outer.iv, value_depth, 1.0, caps)

    by_keys(k, ways, walk)
    names = dict(zip(Gradients._field_defaults["names"], gradients.names, strict=True))
    read = renamed(spec, ("q", "k", "v", *(("bias",) if spec.bias else ())))
    args = (*read, *(names[n] for n in ("grad", "out", "lse", "dk", "dv")), 0, 1)
    return Step(name, k.finish(), args, (parts, spec.heads, spec.batch), (1, 1, 1))


def query_step(name: str, spec: AttentionSpec, gradients: Gradients, parts: int, caps: Any) -> Step:
    """dq: the sum over the parts, in order."""
    width = lanes(caps, 4, spec.depth)
    k = Builder(name, spec.index_bits, (1, 1, 1))
    write, queries = gradients.dq(k), k.buffer("f32", readonly=True)
    here = [k.global_id(2), k.global_id(1)]
    line = k.private("f32", spec.depth)
    first = k.global_id(0) * QUERY_ROWS
    with k.for_(first, k.map("minimum", first + QUERY_ROWS, spec.queries)) as query:
        for offset in column_offsets(spec.depth, width):
            with k.for_(0, parts, init=[k.const(0.0, "f32", width)]) as part:
                head = (part.iv * spec.batch + here[0]) * spec.heads + here[1]
                value = k.load(queries, (head * spec.queries + query.iv) * spec.depth + offset, width)
                part.yield_(part.args[0] + value)
            k.store(line, offset, part.results[0])

        def put(_: Any, i: V, j: V, value: V, width: int = 1) -> None:
            write([*here, i, j], [value * spec.scale], 3 if width > 1 else None)

        zero = k.const(0, "index")
        store_row(k, Store(put), line, zero, query.iv, zero, zero, (0, spec.depth), width)
    name_of_dq = gradients.names[Gradients._field_defaults["names"].index("dq")]
    return Step(name, k.finish(), (name_of_dq, 0), (ceil(spec.queries / QUERY_ROWS), spec.heads, spec.batch), (1, 1, 1))


def row_dot(k: Builder, a: Read, b: Read, index: Sequence[V], count: int, caps: Any) -> V:
    """The scalar product of two rows."""
    width = lanes(caps, 4, count)
    along = 3 if width > 1 else None
    with k.for_(0, count // width, init=[k.const(0.0, "f32", width)]) as loop:
        at = [*index, loop.iv * width]
        loop.yield_(k.multiply_add(a(at, along, width), b(at, along, width), loop.args[0]))
    total = k.reduce("add", loop.results[0])
    with k.for_(count // width * width, count, init=[total]) as loop:
        at = [*index, loop.iv]
        loop.yield_(k.multiply_add(a(at), b(at), loop.args[0]))
    return loop.results[0]


def fill_row(k: Builder, buffer: Buf, base: V, count: int, caps: Any) -> None:
    """Zeros."""
    width = lanes(caps, 4, count)
    for offset in column_offsets(count, width):
        k.store(buffer, base + offset, k.const(0.0, "f32", width))


def copy_row(
    k: Builder, buffer: Buf, base: V, read: Read, index: Sequence[V], count: int, factor: float, caps: Any
) -> None:
    """A row times a factor, into private memory."""
    width = lanes(caps, 4, count)
    for offset in column_offsets(count, width):
        v = read([*index, offset], 3 if width > 1 else None, width)
        k.store(buffer, base + offset, v if factor == 1.0 else v * factor)


def add_queries(
    k: Builder, spec: AttentionSpec, m: Private, queries: Buf, base: V, keys: Keys, rows: int, at: V, read: Read,
    here: list[V], number: V, caps: Any,
) -> None:  # fmt: skip
    """dq += ds @ k for a tile of queries."""
    vectors = by_registers(TILES, caps)[1]
    width = row_lanes(spec.depth, vectors, caps)
    for part in tile_columns(spec.depth, vectors, width):
        places = [base + (r * spec.depth + offset) for r in range(rows) for offset in part]
        with k.for_(0, keys.vectors, init=[k.load(queries, p, width) for p in places]) as loop:
            first = keys.start(k, number, loop.iv)

            def keys_at(lane: V, first: V = first, part: list[int] = part) -> list[V]:
                return [read([*here, first + lane, at], 3 if width > 1 else None, width) for at in part]

            loop.yield_(
                *multiply(
                    k, loop.args, rows, keys.width,
                    lambda r, lane: k.load(m.ds, (at + r) * keys.block + loop.iv * keys.width + lane), keys_at,
                )
            )  # fmt: skip
        for p, v in zip(places, loop.results, strict=True):
            k.store(queries, p, v)


def add_keys(k: Builder, target: Buf, weights: Buf, rows: Buf, keys: Keys, block: int, depth: int, caps: Any) -> None:
    """target[key] += sum over queries of weights[query, key] rows[query]."""
    most_rows, vectors = by_registers(TILES, caps)
    width = row_lanes(depth, vectors, caps)
    high = min(most_rows, keys.block)
    with k.for_(0, keys.block, high) as tile:
        for part in tile_columns(depth, vectors, width):
            places = [(tile.iv + r) * depth + offset for r in range(high) for offset in part]
            sums = multiply(
                k, [k.load(target, p, width) for p in places], high, block,
                lambda r, query: k.load(weights, query * keys.block + tile.iv + r),
                lambda query, part=part: [k.load(rows, query * depth + at, width) for at in part],  # type: ignore[misc]
            )  # fmt: skip
            for p, v in zip(places, sums, strict=True):
                k.store(target, p, v)


def store_keys(
    k: Builder, buffer: Buf, write: Callable[..., None], here: list[V], keys: Keys, number: V, depth: int,
    factor: float, caps: Any,
) -> None:  # fmt: skip
    """Write the gradients of a block of keys, each key once."""
    width = lanes(caps, 4, depth)

    def put(_: Any, i: V, j: V, value: V, width: int = 1) -> None:
        write([*here, i, j], [value if factor == 1.0 else value * factor], 3 if width > 1 else None)

    zero = k.const(0, "index")
    with k.for_(0, keys.vectors) as v, k.for_(0, keys.width) as lane:
        key = keys.start(k, number, v.iv) + lane.iv
        mine = key >= number * keys.block + v.iv * keys.width
        with nullcontext() if multiple(keys.total, keys.block) else k.if_(mine):
            base = (v.iv * keys.width + lane.iv) * depth
            store_row(k, Store(put), buffer, base, key, zero, zero, (0, depth), width)
