"""Sorting and searching.

Sort: each work item orders a short block by insertion, then runs are merged pairwise, each work item making one
segment of the result after a binary search for where it starts (merge path). Stable, any length, one launch a doubling.
"""

from __future__ import annotations

from math import prod
from typing import Any

from codegen.builder import Buf, Builder, V
from codegen.kernels.operand import Sink, Source
from codegen.kernels.rows import geometry, group_size, items, locate
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node

# Elements that one work item orders by insertion: quadratic, so short. benchmarks: sort in the surface suite.
BLOCK = 16
# Elements that one work item merges: long enough to pay for its binary search.
SEGMENT = 256


def sort(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    """Kernels that sort rows along `dim`; results are values and their positions (i64)."""
    return _Sort(name, node, sources[0], sink, caps).steps()


class _Sort:
    def __init__(self, name: str, node: Node, source: Source, sink: Sink, caps: Any):
        self.name, self.source, self.sink = name, source, sink
        self.dim, self.descending = node.attrs["dim"], node.attrs["descending"]
        self.n = source.shape[self.dim]
        self.rows = [n for d, n in enumerate(source.shape) if d != self.dim]
        self.local = group_size(caps)
        self.bits = 64 if source.program.wide or sink.program.wide else 32

    def steps(self) -> Steps:
        runs = [BLOCK]
        while runs[-1] < self.n:
            runs.append(2 * runs[-1])
        # Values and positions ping-pong between temps 0, 1 and 2, 3.
        steps = [self._blocks(last=len(runs) == 1)]
        for i, run in enumerate(runs[:-1]):
            steps.append(self._merge(i, run, 2 * (i % 2), last=run * 2 >= self.n))
        elements = prod(self.source.shape)
        temps = [elements * BY_NAME[self.source.dtype].bytes, elements * 4]
        return Steps(steps, temps * min(2, len(runs) - 1))

    def _less(self, k: Builder, a: V, b: V) -> V:
        """Whether a stands strictly before b: NaN counts as largest."""
        first = a > b if self.descending else a < b
        if BY_NAME[self.source.dtype].kind != "f":
            return first if a.dtype != "bool" else (a & ~b) if self.descending else (~a & b)
        nan_a, nan_b = a != a, b != b
        return first | ((nan_a & ~nan_b) if self.descending else (nan_b & ~nan_a))

    def _index(self, row: V, at: V) -> list[V]:
        index = locate(row, self.rows)
        return [*index[: self.dim], at, *index[self.dim :]]

    def _step(self, k: Builder, args: tuple[str | int, ...], count: int) -> Step:
        return Step(k.name, k.finish(), args, *geometry(count, self.local))

    def _blocks(self, last: bool) -> Step:
        """Insertion sort of blocks in private memory."""
        k = Builder(f"{self.name}_blocks", self.bits)
        read = self.source.bind(k)
        write = self.sink.bind(k) if last else None
        out = [] if last else [k.buffer(self.source.dtype), k.buffer("i32")]
        blocks = -(-self.n // BLOCK)
        count = prod(self.rows) * blocks
        values, places = k.private(self.source.dtype, BLOCK), k.private("i32", BLOCK)
        with items(k, count, self.local) as item:
            row, start = item // blocks, item % blocks * BLOCK
            size = k.map("minimum", k.const(self.n, "index") - start, BLOCK)
            with k.for_(0, size) as loop:
                self._insert(k, values, places, loop.iv, read(self._index(row, start + loop.iv)), start + loop.iv)
            with k.for_(0, size) as loop:
                value, place = k.load(values, loop.iv), k.load(places, loop.iv)
                if write:
                    write(self._index(row, start + loop.iv), [value, k.cast(place, "i64")])
                else:
                    k.store(out[0], row * self.n + start + loop.iv, value)
                    k.store(out[1], row * self.n + start + loop.iv, place)
        return self._step(k, ("in0", "out") if last else ("in0", 0, 1), count)

    def _insert(self, k: Builder, values: Buf, places: Buf, count: V, value: V, place: V) -> None:
        """Put a value behind all that need not stand after it."""
        with k.for_(0, count, init=[k.const(0, "index")]) as loop:
            stays = ~self._less(k, value, k.load(values, loop.iv))
            loop.yield_(loop.args[0] + k.select(stays, k.const(1, "index"), 0))
        target = loop.results[0]
        with k.for_(target, count) as loop:
            at = count - 1 - (loop.iv - target)
            k.store(values, at + 1, k.load(values, at))
            k.store(places, at + 1, k.load(places, at))
        k.store(values, target, value)
        k.store(places, target, k.cast(place, "i32"))

    def _merge(self, number: int, run: int, source: int, last: bool) -> Step:
        """Merge runs of `run` elements pairwise, one segment a work item."""
        k = Builder(f"{self.name}_merge{number}", self.bits)
        values, places = k.buffer(self.source.dtype, readonly=True), k.buffer("i32", readonly=True)
        write = self.sink.bind(k) if last else None
        out = [] if last else [k.buffer(self.source.dtype), k.buffer("i32")]
        length = min(SEGMENT, 2 * run)
        segments = -(-self.n // length)
        count = prod(self.rows) * segments
        with items(k, count, self.local) as item:
            row, start = item // segments, item % segments * length
            size = k.map("minimum", k.const(self.n, "index") - start, length)
            pair = start // (2 * run) * (2 * run)
            middle = k.map("minimum", pair + run, self.n)
            end = k.map("minimum", pair + 2 * run, self.n)
            base = row * self.n
            left, right = self._split(k, values, base, start - pair, pair, middle, end, run)
            with k.for_(0, size, init=[left, right]) as loop:
                i, j = loop.args
                a_at, b_at = k.map("minimum", i, middle - 1), k.map("minimum", j, self.n - 1)
                a, b = k.load(values, base + a_at), k.load(values, base + b_at)
                from_right = (i >= middle) | ((j < end) & self._less(k, b, a))
                value, at = k.select(from_right, b, a), k.select(from_right, b_at, a_at)
                place = k.load(places, base + at)
                if write:
                    write(self._index(row, start + loop.iv), [value, k.cast(place, "i64")])
                else:
                    k.store(out[0], base + start + loop.iv, value)
                    k.store(out[1], base + start + loop.iv, place)
                one, zero = k.const(1, "index"), k.const(0, "index")
                loop.yield_(i + k.select(from_right, zero, one), j + k.select(from_right, one, zero))
        args: tuple[str | int, ...] = (source, source + 1)
        return self._step(k, (*args, "out") if last else (*args, 2 - source, 3 - source), count)

    def _split(self, k: Builder, values: Buf, base: V, count: V, pair: V, middle: V, end: V, run: int) -> tuple[V, V]:
        """Where the first `count` elements of a merged pair end in its left and right run: a binary search."""
        lengths = middle - pair, end - middle
        lo = k.map("maximum", count - lengths[1], 0)
        hi = k.map("minimum", count, lengths[0])
        with k.for_(0, run.bit_length(), init=[lo, hi]) as loop:
            lo, hi = loop.args
            mid = (lo + hi) // 2
            open_ = lo < hi
            a = k.load(values, base + pair + k.map("minimum", mid, run - 1))
            other = k.map("maximum", k.map("minimum", middle + count - 1 - mid, self.n - 1), 0)
            stays = ~self._less(k, k.load(values, base + other), a)
            loop.yield_(k.select(open_ & stays, mid + 1, lo), k.select(open_ & ~stays, mid, hi))
        left = pair + loop.results[0]
        return left, middle + count - loop.results[0]


def searchsorted(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    """Insertion points of values in sorted rows: a binary search of fixed depth for each."""
    table, values = sources
    n, shape = table.shape[-1], values.shape
    k = Builder(name, 64 if table.program.wide or values.program.wide else 32)
    read_table, read, write = table.bind(k), values.bind(k), sink.bind(k)
    count, local = prod(shape), min(64, caps.max_work_group_size)
    with items(k, count, local) as item:
        index = locate(item, shape)
        row = index[:-1] if len(table.shape) > 1 else []
        value = read(index)
        with k.for_(0, n.bit_length(), init=[k.const(0, "index"), k.const(n, "index")]) as loop:
            lo, hi = loop.args
            mid = (lo + hi) // 2
            entry = read_table([*row, k.map("minimum", mid, max(n - 1, 0))])
            below = entry <= value if node.attrs["right"] else entry < value
            if BY_NAME[table.dtype].kind == "f":
                below = below | ((value != value) & ((entry == entry) | k.const(bool(node.attrs["right"]), "bool")))
            below, open_ = below & (lo < hi), lo < hi
            loop.yield_(k.select(below, mid + 1, lo), k.select(open_ & ~below, mid, hi))
        write(index, [k.cast(loop.results[0], "i64")])
    return Steps([Step(name, k.finish(), ("in0", "in1", "out"), *geometry(count, local))], [])
