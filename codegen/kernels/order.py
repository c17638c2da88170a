"""Sorting, selecting and searching.

Sort: each work item orders a block, then runs are merged pairwise, each work item making one segment of the result
after a binary search for where it starts (merge path). Stable, any length, one launch a doubling. A work item of a CPU
orders a row, or its unit's part of one, by the digits of its keys (radix sort), a short row by counting what stands
before each element, others a short block by insertion.

Selecting some places of the order: each work item writes a row's keys, unsigned integers that compare as the elements
do, and finds the key of the last place bit by bit, counting what is smaller. It then picks the elements in front of it,
and only these are sorted.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import Any

from codegen.builder import Buf, Builder, Operand, V
from codegen.kernels.operand import Read, Sink, Source
from codegen.kernels.rows import geometry, group_size, items, locate, shares
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node
from ops_core.sizes import deferred, multiple, varies

# Elements that one work item orders by insertion: quadratic, so short. benchmarks: sort in the surface suite.
BLOCK = 16
# Elements from which a CPU's row is cut into blocks, one for each unit, and these merged. benchmarks: sort of 2^20
# floats, two units: 8.6 ms as one block, 7.5 as two; of 200,000 doubles 9.9 and 5.4.
CUT_FROM = 1 << 15
# Selected elements that one work item orders by insertion as it finds them: quadratic, but it spares a launch for each
# doubling and passes through memory. benchmarks: topk in the surface suite.
INSERTED = 64
# Elements that one work item merges: long enough to pay for its binary search.
SEGMENT = 256


def sort(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    """Kernels that sort rows along `dim`; results are values and their positions (i64)."""
    return _Sort(name, node, sources[0], sink, caps).steps()


class _Sort:
    """n: elements of a row that are sorted. start, count: the places of the order that are results."""

    def __init__(self, name: str, node: Node, source: Source, sink: Sink, caps: Any):
        self.name, self.source, self.sink = name, source, sink
        self.dim, self.descending = node.attrs["dim"], node.attrs["descending"]
        self.start, self.count = node.attrs["start"], node.attrs["count"]
        self.n = source.shape[self.dim]
        self.rows = [n for d, n in enumerate(source.shape) if d != self.dim]
        self.caps, self.local = caps, group_size(caps)
        self.bits = 64 if source.program.wide or sink.program.wide else 32
        # A row is one work item's: right for the few and strong units of a CPU.
        self.selects = caps.is_cpu and self.n > BLOCK and self.count < self.n and (not self.start or self.count == 1)
        self.is_cpu, self.units = caps.is_cpu, caps.compute_units
        self.key = "u64" if BY_NAME[source.dtype].bytes == 8 else "u32"
        self.width = max(1, caps.vector_bytes // BY_NAME[self.key].bytes)
        loads = self.source.contiguous((self.dim,), self.width)
        self.vectors = loads is not None or not self.source.loads
        self.padded = -(-self.n // self.width) * self.width  # keys of a row
        if self.selects and prod(self.rows) * self.padded >= 1 << 31:
            self.bits = 64

    def steps(self) -> Steps:
        steps, keys = [], []
        if self.selects:
            keys = [prod(self.rows) * self.padded * BY_NAME[self.key].bytes]
            if self.count <= INSERTED:
                return Steps([self._select(last=True)], keys)
            steps = [self._select(last=False)]
            self.n, self.start = self.count, 0
        by_digits = self.is_cpu and self.n > BLOCK
        runs = [self._block() if by_digits else BLOCK]
        while runs[-1] < self.n:
            runs.append(2 * runs[-1])
        # Values and positions ping-pong between temps 0, 1 and 2, 3.
        one_block = len(runs) == 1
        if by_digits:
            steps.append(self._digits(runs[0]))
        else:
            steps.append(self._ranked() if one_block and self.is_cpu else self._blocks(last=one_block))
        for i, run in enumerate(runs[:-1]):
            steps.append(self._merge(i, run, 2 * (i % 2), last=run * 2 >= self.n))
        elements = prod(self.rows) * self.n
        temps = [elements * BY_NAME[self.source.dtype].bytes, elements * 4]
        return Steps(steps, temps * (2 if by_digits else min(2, len(runs) - 1)) + keys)

    def _select(self, last: bool) -> Step:
        """The wanted elements of each row: in order if `last`, else as they lie, values and positions in temps 2, 3."""
        k = Builder(f"{self.name}_select", self.bits)
        read = self.source.bind(k)
        write = self.sink.bind(k) if last else None
        out = [] if last else [k.buffer(self.source.dtype), k.buffer("i32")]
        keys = k.buffer(self.key)
        if last:
            out = [k.private(self.source.dtype, int(self.count)), k.private("i32", int(self.count))]
        shared = shares(prod(self.rows), self.n, self.caps)
        with shared.rows(k) as row:
            base = row * self.padded
            low, high, below = self._bounds(k, keys, base, *self._keys(k, read, keys, row, base))
            wanted = self.start + self.count - below  # of those between the bounds
            zero, one = k.const(0, "index"), k.const(1, "index")
            with k.for_(0, self.padded, self.width, init=[zero, zero]) as loop:
                found = k.any(k.load(keys, base + loop.iv, self.width) <= high)
                with k.for_(0, k.select(found, self.width, zero), init=loop.args) as lane:
                    done, seen = lane.args
                    place = loop.iv + lane.iv
                    key = k.load(keys, base + place)
                    between = (key >= low) & (key <= high)
                    taken = between & (seen + 1 == wanted) if self.count == 1 else (
                        (key < low) | (between & (seen < wanted))
                    )  # fmt: skip
                    with k.if_(taken):
                        value = read(self._index(row, place))
                        if last:
                            self._insert(k, out[0], out[1], done, value, k.cast(place, "i32"))
                        else:
                            k.store(out[0], row * self.count + done, value)
                            k.store(out[1], row * self.count + done, k.cast(place, "i32"))
                    lane.yield_(done + k.select(taken, one, zero), seen + k.select(between, one, zero))
                loop.yield_(*lane.results)
            if write:
                with k.for_(0, self.count) as loop:
                    write(self._index(row, loop.iv), [k.load(out[0], loop.iv), k.cast(k.load(out[1], loop.iv), "i64")])
        return Step(k.name, k.finish(), ("in0", "out", 0) if last else ("in0", 2, 3, 4), *shared.geometry)

    def _keys(self, k: Builder, read: Read, keys: Buf, row: V, base: V) -> tuple[V, V]:
        """Write the keys of a row, behind them the greatest key up to a whole vector. Returns the bits in which all
        agree, and those in which they differ."""
        first = self._key(k, read(self._index(row, k.const(0, "index"))))
        whole = self.n // self.width * self.width if self.vectors else 0
        with k.for_(0, whole, self.width, init=[k.const(0, self.key, self.width)]) as loop:
            key = self._key(k, read(self._index(row, loop.iv), self.dim, self.width))
            k.store(keys, base + loop.iv, key)
            loop.yield_(loop.args[0] | (key ^ first))
        with k.for_(whole, self.padded, init=[k.reduce("or", loop.results[0])]) as rest:
            key = self._key(k, read(self._index(row, k.map("minimum", rest.iv, self.n - 1))))
            k.store(keys, base + rest.iv, k.select(rest.iv < self.n, key, -1))
            rest.yield_(rest.args[0] | (key ^ first))
        different = rest.results[0]
        return first & ~different, different

    def _key(self, k: Builder, x: V) -> V:
        """An unsigned integer that stands before another where x stands before the other; equal where they are."""
        kind = BY_NAME[x.dtype].kind
        signed = "i" + self.key[1:]
        sign = -1 << int(self.key[1:]) - 1
        if kind == "f":
            bits = k.bitcast(k.select(x == 0.0, 0.0, x), signed)  # -0 is 0
            key = k.select(x != x, -1, k.select(bits < 0, ~bits, bits ^ sign))
        else:
            key = k.cast(x, signed) ^ sign if kind == "i" else k.cast(x, self.key)
        key = k.cast(key, self.key)
        return ~key if self.descending else key

    def _bounds(self, k: Builder, keys: Buf, base: V, low: V, different: V) -> tuple[V, V, V]:
        """The least and the greatest key that the last wanted place may have, and how many are less: one element lies
        between, or equal ones do. From the highest bit on, it is set if no more than the places before are less."""
        bits = int(self.key[1:])
        zero = k.const(0, "index")
        with k.for_(0, bits, init=[low, different, zero, k.const(self.n, "index")]) as loop:
            low, rest, below, end = loop.args
            bit = k.const(1, self.key) << k.cast(bits - 1 - loop.iv, self.key)
            open_ = ((rest & bit) != 0) & (end - below > 1)
            middle = low | bit
            # Asked to unroll a row of 20,000, whose length it knows, Intel's compiler unrolls it all, and does not end.
            with k.for_(
                0, k.select(open_, self.padded, zero), self.width, init=[k.const(0, self.key, self.width)]
            ) as inner:
                less = k.load(keys, base + inner.iv, self.width) < middle
                inner.yield_(inner.args[0] + k.select(less, k.const(1, self.key, self.width), 0))
            count = k.cast(k.reduce("add", inner.results[0]), "index")
            up = open_ & (count < self.start + self.count)
            down = open_ & (count >= self.start + self.count)
            loop.yield_(
                k.select(up, middle, low),
                k.select(open_, rest ^ bit, rest),
                k.select(up, count, below),
                k.select(down, count, end),
            )
        low, rest, below, _ = loop.results
        return low, low | rest, below

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
        shared = shares(prod(self.rows) * blocks, BLOCK, self.caps)
        values, places = k.private(self.source.dtype, BLOCK), k.private("i32", BLOCK)
        with shared.rows(k) as item:
            row, start = item // blocks, item % blocks * BLOCK
            size = k.map("minimum", k.const(self.n, "index") - start, BLOCK)
            with k.for_(0, size) as loop:
                at = start + loop.iv
                self._insert(k, values, places, loop.iv, read(self._index(row, at)), k.cast(at, "i32"))
            if write:  # one block
                with k.for_(0, self.count) as loop:
                    at = self.start + loop.iv
                    write(self._index(row, loop.iv), [k.load(values, at), k.cast(k.load(places, at), "i64")])
            else:
                with k.for_(0, size) as loop:
                    k.store(out[0], row * self.n + start + loop.iv, k.load(values, loop.iv))
                    k.store(out[1], row * self.n + start + loop.iv, k.load(places, loop.iv))
        return Step(k.name, k.finish(), ("in0", "out") if last else ("in0", 0, 1), *shared.geometry)

    def _ranked(self) -> Step:
        """Short rows: where an element stands is how many stand before it, counted for a vector of elements at once.

        Two cores of Zen 5, us, by insertion / so / eager: sort of (4096, 10) 647 / 69 / 257, of (384, 16) 49 / 31 / 26;
        two of the topk of (16384, 7) 785 / 141 / 510.
        """
        k = Builder(f"{self.name}_ranked", self.bits)
        read, write = self.source.bind(k), self.sink.bind(k)
        shared = shares(prod(self.rows), BLOCK, self.caps)
        starts = range(0, BLOCK if varies(self.n) else self.n, self.width)
        room = -(-BLOCK // self.width) * self.width
        values, order = k.private(self.source.dtype, BLOCK), k.private("i32", BLOCK)
        keys, ranks = k.private(self.key, room), k.private(self.key, room)
        numbers = [k.cast(k.iota(self.width), self.key) + start for start in starts]
        zeros, ones = (k.const(n, self.key, self.width) for n in (0, 1))
        with shared.rows(k) as row:
            with k.for_(0, self.n) as loop:
                value = read(self._index(row, loop.iv))
                k.store(values, loop.iv, value)
                k.store(keys, loop.iv, self._key(k, value))
            all_keys = [k.load(keys, k.const(start, "index"), self.width) for start in starts]
            with k.for_(0, self.n, init=[zeros] * len(starts)) as loop:
                key, number = k.load(keys, loop.iv), k.cast(loop.iv, self.key)
                earlier = [(key < x) | ((x == key) & (at > number)) for x, at in zip(all_keys, numbers, strict=True)]
                loop.yield_(*(n + k.select(e, ones, zeros) for n, e in zip(loop.args, earlier, strict=True)))
            for start, rank in zip(starts, loop.results, strict=True):
                k.store(ranks, k.const(start, "index"), rank)
            with k.for_(0, self.n) as loop:
                k.store(order, k.cast(k.load(ranks, loop.iv), "index"), k.cast(loop.iv, "i32"))
            with k.for_(0, self.count) as loop:
                place = k.load(order, self.start + loop.iv)
                write(self._index(row, loop.iv), [k.load(values, k.cast(place, "index")), k.cast(place, "i64")])
        return Step(k.name, k.finish(), ("in0", "out"), *shared.geometry)

    def _block(self) -> int:
        """Elements that a work item of a CPU orders: rows, or parts of them where there are too few rows."""
        parts, rows = 1, prod(self.rows)
        while parts * rows < self.units and self.n > parts * CUT_FROM:
            parts *= 2
        return -(-self.n // parts)

    def _digits(self, block: int) -> Step:
        """Radix sort of blocks, eight bits of the key a pass, the lowest first. What was selected is in temps 2, 3."""
        last = block >= self.n
        k = Builder(f"{self.name}_digits", self.bits, (1, 1, 1))
        read = None if self.selects else self.source.bind(k)
        write = self.sink.bind(k) if last else None
        first, other = ((k.buffer(self.source.dtype), k.buffer("i32")) for _ in range(2))
        blocks = -(-self.n // block)
        count = prod(self.rows) * blocks
        passes, offset = BY_NAME[self.key].bytes, f"i{self.bits}"
        counts = k.private(offset, passes * 256)
        zero, one = k.const(0, "index"), k.const(1, offset)
        item = k.global_id(0)
        row, start = item // blocks, item % blocks * block
        size = k.map("minimum", k.const(self.n, "index") - start, block)
        base = row * self.n + start
        with k.for_(0, passes * 256, 8) as loop:
            k.store(counts, loop.iv, k.const(0, offset, 8))

        def count_from(lo: V, hi: Operand, width: int) -> None:
            with k.for_(lo, hi, width) as loop:
                at, index = base + loop.iv, self._index(row, start + loop.iv)
                k.store(first[0], at, read(index, self.dim, width) if read else k.load(other[0], at, width))
                with k.for_(loop.iv, loop.iv + width) as lane:
                    at = base + lane.iv
                    k.store(first[1], at, k.cast(start + lane.iv, "i32") if read else k.load(other[1], at))
                    key = self._key(k, k.load(first[0], at))
                    for number in range(passes):
                        at = k.cast((key >> 8 * number) & 255, "index") + 256 * number
                        k.store(counts, at, k.load(counts, at) + one)

        whole = size // self.width * self.width if self.vectors or not read else zero
        count_from(zero, whole, self.width)
        count_from(whole, size, 1)
        with k.for_(0, passes, init=[k.const(False, "bool")]) as loop:
            swapped = loop.args[0]
            given = [k.select_buffer(swapped, b, a) for a, b in zip(first, other, strict=True)]
            taken = [k.select_buffer(swapped, a, b) for a, b in zip(first, other, strict=True)]
            shift, table = k.cast(loop.iv * 8, self.key), loop.iv * 256

            def digit(at: V) -> tuple[V, V]:
                value = k.load(given[0], base + at)
                return value, table + k.cast((self._key(k, value) >> shift) & 255, "index")

            differ = k.cast(k.load(counts, digit(zero)[1]), "index") < size
            with k.if_(differ):
                with k.for_(0, 256, init=[k.cast(base, offset)]) as starts:
                    seen = k.load(counts, table + starts.iv)
                    k.store(counts, table + starts.iv, starts.args[0])
                    starts.yield_(starts.args[0] + seen)
                with k.for_(0, size) as inner:
                    value, at = digit(inner.iv)
                    place = k.load(given[1], base + inner.iv)
                    target = k.load(counts, at)
                    k.store(counts, at, target + one)
                    k.store(taken[0], k.cast(target, "index"), value)
                    k.store(taken[1], k.cast(target, "index"), place)
            loop.yield_(swapped ^ differ)
        swapped = loop.results[0]
        if write:
            with k.for_(0, self.count) as loop:
                at = base + self.start + loop.iv
                values, places = (k.select_buffer(swapped, b, a) for a, b in zip(first, other, strict=True))
                write(self._index(row, loop.iv), [k.load(values, at), k.cast(k.load(places, at), "i64")])
        else:
            with k.for_(0, k.select(swapped, size, zero)) as loop:
                for a, b in zip(first, other, strict=True):
                    k.store(a, base + loop.iv, k.load(b, base + loop.iv))
        operands = [] if self.selects else ["in0"]
        return self._step(k, (*operands, *(["out"] if last else []), 0, 1, 2, 3), count)

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
        k.store(places, target, place)

    def _merge(self, number: int, run: int, source: int, last: bool) -> Step:
        """Merge runs of `run` elements pairwise, one segment a work item."""
        k = Builder(f"{self.name}_merge{number}", self.bits)
        values, places = k.buffer(self.source.dtype, readonly=True), k.buffer("i32", readonly=True)
        write = self.sink.bind(k) if last else None
        out = [] if last else [k.buffer(self.source.dtype), k.buffer("i32")]
        length = min(SEGMENT, 2 * run)
        skipped, made = (self.start, self.count) if last else (0, self.n)
        segments = -(-made // length)
        count = prod(self.rows) * segments
        with items(k, count, self.local) as item:
            row, start = item // segments, item % segments * length + skipped
            size = k.map("minimum", skipped + made - start, length)
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
                    write(self._index(row, start - skipped + loop.iv), [value, k.cast(place, "i64")])
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


# Searches that a work item of a CPU makes side by side: each waits for one entry after the other, together they do not.
# 262,144 values among 4,096, ms: 9.3 one by one, 2.3 by fours, 2.0 by eights and sixteens.
SIDE_BY_SIDE = 8


@deferred
def _halvings(n: int) -> int:
    """How often n entries are halved until one is left, the larger half each time."""
    return (n - 1).bit_length()


def searchsorted(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    """Insertion points of values in sorted rows: a binary search of fixed depth for each."""
    table, values = sources
    n, shape = table.shape[-1], values.shape
    k = Builder(name, 64 if table.program.wide or values.program.wide else 32)
    read_table, read, write = table.bind(k), values.bind(k), sink.bind(k)
    total, local = prod(shape), min(64, caps.max_work_group_size)
    each = SIDE_BY_SIDE if caps.is_cpu else 1
    count = -(-total // each)

    def below(row: list[V], at: V, value: V) -> V:
        entry = read_table([*row, at])
        found = entry <= value if node.attrs["right"] else entry < value
        if BY_NAME[table.dtype].kind == "f":  # what is no number comes last
            found = found | ((value != value) & ((entry == entry) | k.const(bool(node.attrs["right"]), "bool")))
        return found

    with items(k, count, local) as item:
        places = [locate(k.map("minimum", item * each + lane, total - 1), shape) for lane in range(each)]
        rows = [place[:-1] if len(table.shape) > 1 else [] for place in places]
        wanted = [read(place) for place in places]
        # the answer is `first` plus none to `left` entries; the same number is left to all
        first = [k.const(0, "index")] * each
        if n:
            with k.for_(0, _halvings(n), init=[k.const(n, "index"), *first]) as loop:
                left, *first = loop.args
                half = left // 2
                beyond = [below(row, at + half - 1, v) for row, at, v in zip(rows, first, wanted, strict=True)]
                loop.yield_(left - half, *(k.select(b, at + half, at) for b, at in zip(beyond, first, strict=True)))
            ends = zip(rows, loop.results[1:], wanted, strict=True)
            first = [at + k.select(below(row, at, v), k.const(1, "index"), 0) for row, at, v in ends]
        for lane, (place, at) in enumerate(zip(places, first, strict=True)):
            with nullcontext() if multiple(total, each) else k.if_(item * each + lane < total):
                write(place, [k.cast(at, "i64")])
    return Steps([Step(name, k.finish(), ("in0", "in1", "out"), *geometry(count, local))], [])
