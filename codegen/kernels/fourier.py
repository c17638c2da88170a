"""Discrete Fourier transforms: one launch, in which a work item takes a row through all passes (Stockham).

A pass of radix r transforms r elements n / r apart and turns the results. Passes before it have left s neighbours that
all do the same: these are a vector's lanes. The first pass has s = 1: its lanes are elements that follow each other,
its results are transposed in registers. Where it is rows that lie side by side in memory (transforms of columns), the
lanes are a tile of rows instead; where a length has no square that makes whole vectors, or only short ones, too: rows
are transposed into scratch memory then, and back. Between passes a row lies in scratch memory, real parts and
imaginary ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import at_most, transpose
from codegen.kernels.operand import Sink, Source
from codegen.kernels.rows import geometry, group_size, locate
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node, Value
from ops_core.lowering.fourier import radices

# Work items per compute unit: each goes on with other rows, in scratch memory that its cache holds by then.
ITEMS_PER_UNIT = 4

# Rows whose first radix is less than half a vector are taken as a tile of rows where that fits this part of a cache.
# 2 MiB, 16 lanes, us, row by row / as tiles: 512 rows of 500 439 / 365, 64 of 2,000 234 / 201, 32 of 4,000 267 / 330.
ROOM = 4

Number = Sequence[V]


def claims(value: Value, caps: Any) -> bool:
    """Whether there are vectors for the transform of the last dim: along each row, or as many rows as lanes."""
    *lead, n = value.shape
    lanes = _lanes(value.dtype, caps)
    return _in_rows(n) or (n >= lanes and math.prod(lead) >= lanes)


def _lanes(dtype: str, caps: Any) -> int:
    return max(1, caps.vector_bytes // BY_NAME[dtype].bytes)


def _in_rows(n: int) -> bool:
    return n % radices(n)[0] ** 2 == 0


def transform(name: str, node: Node, sources: Sequence[Source], sink: Sink, caps: Any, index_bits: int) -> Steps:
    """The launch of `composite.fourier` (ops_core.lowering.fourier says what its operands are)."""
    *lead, n = sources[0].shape
    dtype, sign, (first, *others) = sources[0].dtype, node.attrs["sign"], radices(n)
    lanes = _lanes(dtype, caps)
    dims = [len(lead), *(d for d in range(len(lead)) if lead[d] >= lanes)]
    along = sources[0].contiguous(dims, lanes, apart=2)
    along = len(lead) if along is None else along
    tiled = 4 * n * lanes * BY_NAME[dtype].bytes <= caps.cache_bytes // ROOM and math.prod(lead) >= lanes
    across = along == len(lead) and not (_in_rows(n) and (2 * first >= lanes or not tiled))
    tile = lanes if along < len(lead) or across else 1  # rows
    rows = math.prod(lead)
    tiles = [-(-rows // tile)] if across else [-(-size // tile) if d == along else size for d, size in enumerate(lead)]
    size = geometry(min(math.prod(tiles), caps.compute_units * ITEMS_PER_UNIT), group_size(caps))
    items = size[0][0]
    k = Builder(name, index_bits)
    *reads, turns, turns_i = (s.bind(k) for s in sources)
    write = sink.bind(k)
    scratch = [(k.buffer(dtype), k.buffer(dtype)) for _ in range(2)]
    points = n + 1 if node.attrs["around"] else n
    room = (points if across else n) * tile
    base = k.global_id(0) * room

    def root(j: V | int, at: V, width: int = 1) -> Number:
        return turns([j, at], 1, width), turns_i([j, at], 1, width)

    def put(to: Sequence[Buf], place: V, value: Sequence[V]) -> None:
        for buffer, part in zip(to, value, strict=True):
            k.store(buffer, base + place * tile, part)

    def kept(of: Sequence[Buf], place: V, width: int) -> Number:
        return [k.load(part, base + place * tile, width) for part in of]

    each = -(-math.prod(tiles) // items)  # that follow each other: tiles share the lines at their edges
    begin = k.global_id(0) * each
    with k.for_(begin, k.map("minimum", begin + each, math.prod(tiles))) as task:
        at = locate(task.iv, tiles) if lead else []
        if across:
            row = k.map("minimum", at[0] * tile, rows - tile)
            places = [locate(row + lane, lead) for lane in range(tile)]
            with k.for_(0, n, tile) as c:
                column = at_most(k, c.iv, n - tile, n, tile)
                parts = [transpose(k, [read([*place, column], along, tile) for place in places]) for read in reads]
                for j, z in enumerate(zip(*parts, strict=True)):
                    put(scratch[1], column + j, z)
        elif tile > 1:
            at[along] = k.map("minimum", at[along] * tile, lead[along] - tile)

        def give(place: V, values: Sequence[V]) -> None:
            write([*at, place], values, along if values[0].width > 1 else None)

        width = math.gcd(lanes, first) if tile == 1 else 1
        with k.for_(0, n // first, width) as p:
            taken = [p.iv + i * (n // first) for i in range(first)]
            if across:
                given: list[Number] = [kept(scratch[1], i, tile) for i in taken]
            else:
                given = [[read([*at, i], along, width * tile) for read in reads] for i in taken]
            made = _transformed(k, given, sign)
            made = [made[0], *(_times(k, z, root(j, p.iv, width)) for j, z in enumerate(made[1:], 1))]
            for start in range(0, first, width):
                parts = [transpose(k, [z[part] for z in made[start : start + width]]) for part in range(2)]
                for lane, z in enumerate(zip(*parts, strict=True)):
                    put(scratch[0], (p.iv + lane) * first + start, z)
        s = first
        for number, radix in enumerate(others):
            m, width = n // (s * radix), math.gcd(lanes, s) if tile == 1 else 1
            source, to = scratch[number % 2], scratch[1 - number % 2]
            with k.for_(0, m) as p:
                turn = [root(first, p.iv * (j * s // first)) for j in range(1, radix)] if m > 1 else []
                with k.for_(0, s, width) as q:
                    given = [kept(source, q.iv + (p.iv + i * m) * s, width * tile) for i in range(radix)]
                    made = _transformed(k, given, sign)
                    for j, z in enumerate(made):
                        if m > 1:
                            put(to, q.iv + (p.iv * radix + j) * s, _times(k, z, turn[j - 1]) if j else z)
                        else:
                            (partial(put, to) if across else give)(q.iv + j * s, z)
                    if m == 1 and node.attrs["around"]:
                        with k.if_(q.iv == 0):
                            again = [*made[0]] if tile > 1 else [k.lane(part, 0) for part in made[0]]
                            (partial(put, to) if across else give)(k.const(n, "index"), again)
            s *= radix
        if across:
            with k.for_(0, points, tile) as c:
                column = at_most(k, c.iv, points - tile, points, tile)
                block = [kept(to, column + j, tile) for j in range(tile)]
                vectors = (transpose(k, [z[part] for z in block]) for part in range(2))
                for place, *pair in zip(places, *vectors, strict=True):
                    write([*place, column], pair, along)
    args = *(f"in{i}" for i in range(len(sources))), "out0", *range(4)
    return Steps([Step(name, k.finish(), args, *size)], [items * room * BY_NAME[dtype].bytes] * 4)


def _transformed(k: Builder, x: Sequence[Any], sign: float) -> list[Any]:
    """The transform of a few numbers in registers."""
    n = len(x)
    factor = next(f for f in range(2, n + 1) if n % f == 0)
    if factor == n:
        return _prime(k, x, sign)
    each = n // factor
    parts = [_transformed(k, x[i::factor], sign) for i in range(factor)]
    out = [x[0]] * n
    for j in range(each):
        out[j::each] = _prime(k, [_turned(k, part[j], i * j, n, sign) for i, part in enumerate(parts)], sign)
    return out


def _prime(k: Builder, x: Sequence[Number], sign: float) -> list[Number]:
    """The transform of a prime number of numbers, of which those with opposite angles share their products."""
    n = len(x)
    if n == 2:
        (a, ai), (b, bi) = x
        return [(a + b, ai + bi), (a - b, ai - bi)]
    pairs = [(x[i], x[n - i]) for i in range(1, n // 2 + 1)]
    sums = [(a + b, ai + bi) for (a, ai), (b, bi) in pairs]
    differences = [(a - b, ai - bi) for (a, ai), (b, bi) in pairs]
    out = [x[0]] * n
    re, im = x[0]
    for a, ai in sums:
        re, im = re + a, im + ai
    out[0] = re, im
    for j in range(1, n // 2 + 1):
        angles = [2 * math.pi * (i * j % n) / n for i in range(1, n // 2 + 1)]
        (re, im), (across, across_i) = x[0], (differences[0][part] * (sign * math.sin(angles[0])) for part in range(2))
        for i, angle in enumerate(angles):
            cos, sin = math.cos(angle), sign * math.sin(angle)
            re, im = k.multiply_add(sums[i][0], cos, re), k.multiply_add(sums[i][1], cos, im)
            if i:
                across, across_i = (
                    k.multiply_add(differences[i][0], sin, across),
                    k.multiply_add(differences[i][1], sin, across_i),
                )
        out[j], out[n - j] = (re - across_i, im + across), (re + across_i, im - across)
    return out


def _turned(k: Builder, x: Number, turn: int, n: int, sign: float) -> Number:
    """x turned by turn / n of a circle; quarters are exact."""
    re, im = x
    if 4 * turn % n == 0:
        quarters = (int(sign) * 4 * turn // n) % 4
        return [(re, im), (-im, re), (-re, -im), (im, -re)][quarters]
    angle = 2 * math.pi * turn / n
    return _times(k, x, (math.cos(angle), sign * math.sin(angle)))


def _times(k: Builder, x: Number, y: Any) -> Number:
    """The complex product, each part rounded twice."""
    return k.multiply_add(x[0], y[0], -(x[1] * y[1])), k.multiply_add(x[0], y[1], x[1] * y[0])
