"""The matrix product of a CPU: tiles of the result live in registers, or its few rows in the first-level cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import TYPE_CHECKING, Any

from codegen.builder import Builder, V
from codegen.kernels.blocks import at_most, copy_block, lanes, store_row, store_runs
from codegen.kernels.contraction import Load, Runs, Term
from codegen.kernels.step import Step, Steps
from ops_core.sizes import deferred, multiple, usual, varies

if TYPE_CHECKING:
    from codegen.kernels.matmul import MatmulSpec, Tile

# Work items for each compute unit that let an uneven split even out. More repeat the packing.
ITEMS_PER_UNIT = 4
# A sum that gives less work items than compute units is split along k, into pieces not shorter than this.
MIN_DEPTH = 256
# Partial sums of a split product may take this much memory.
MAX_PARTIAL_BYTES = 64 << 20

# Bytes of a cache line, at least: those of x86 and most Arm cores.
LINE = 64

# Rows whose sums wait for the next rows of B, beside which they lie in a private cache.
BLOCK_ROWS = 1024
# A depth that varies and is usually less than this part of a block has none: they cost it another pass of the sums.
BLOCK_SHARE = 16

# Elements between the rows of an evaluated A: without them, rows of a power of two would share a cache set.
EVALUATE_GAP = 16
# Where B is small, a work item walks its columns with so many rows of A, which then stay in a private cache, as does a
# B that is read as it lies; another is packed for each item. Two cores of Emerald Rapids (2 MB a core), us.
# A that is evaluated (A transposed): in a kernel beforehand, whose lines are in the cache of the core that wrote them /
# by the items, B packed / by the items, B as it lies; MKL: 256^3 129 / 123 / 119; 114. 512^3 1110 / 971 / 920; 887.
# 768 x 768 x 512 2450 / 2200 / 2070; 1970. 512 x 256 x 1024 1430 / 1010 / 940; 940. 512 x 2048 x 256 1930 / 1970 /
# 1870; 1810. 512 x 1024 x 512 2280 / 2000 / 3750; 1950. Too large: 1024^3 7700 / 8000 / 17400; 7100.
# A that is read as it lies, m x k x n, by panels / by rows; MKL: 4096 x 256 x 256 2940 / 2490; 2605, with B transposed
# 2590 / 2270; 2210; 2048 x 256 x 256 transposed 1450 / 1210; 1360; 1024 x 256 x 256 712 / 540; 680; 4096 x 128 x 128
# 731 / 633; 640; 8192 x 32 x 128 467 / 313; 336; 1024 x 128 x 128 173 / 158; 149; 2048 x 512 x 512 4560 / 4350; 4170.
# Fewer rows: 512^3 1250 / 1290; 1024 x 512 x 512 2620 / 2610; 1024 x 128 x 512 602 / 629; 540; 768 x 768 x 512 2770 /
# 2790.
WALK_ROWS = 128
A_PART_OF_CACHE = 4  # rows that an item evaluates take at most this part
B_PART_OF_CACHE = 2  # and a B that is read as it lies this
WALK_TALL = 4  # rows for each column from which on A is read as it lies by items that walk
WALK_SHARE = 0.9  # of the time, how much units are busy at least with such items

# Columns whose sums a work item of `stream` keeps: four rows of them fill a first-level cache of 32 KiB. Eight have as
# many: Zen 4, ms, two runs, 8 x 4096 x 4096 and 8 x 2048 x 2048: 2048 columns 3.5, 3.2 and 0.66, 0.67; 1024 3.7, 3.6
# and 0.67, 0.68; 512 4.4, 4.3 and 0.52, 0.53.
STREAM_COLUMNS = 2048


def share(items: int, units: int) -> float:
    """Of the time that this many equal items take on all units, how much each unit is busy."""
    return items / (ceil(items / units) * units)


@deferred
def row_chunks(items: int, row_tiles: int, units: int, most: int = 0) -> int:
    """Into how many parts the rows are split so that `items` x parts keep all units busy to the end.

    most: tiles that a part may have, where it is not 0.
    """
    fewest = ceil(row_tiles / most) if most else 1
    best, busiest = fewest, 0.0
    for chunks in range(fewest, min(row_tiles, max(fewest, ITEMS_PER_UNIT * units)) + 1):
        total = items * chunks
        if share(total, units) > busiest + 0.02:
            best, busiest = chunks, share(total, units)
        if total >= units * ITEMS_PER_UNIT:
            break
    return best


def busy(items: int, row_tiles: int, units: int) -> float:
    """The `share` of panels with their rows split."""
    return share(items * row_chunks(items, row_tiles, units), units)


@deferred
def tiles_each(column_tiles: int, row_tiles: int, parts: int, units: int) -> int:
    """Tiles that a work item of `dot` makes, beside each other: of a single row of tiles, whose rows of B then are one
    stream. (1 x 256) x (256 x 768)^T out of the last cache, Granite Rapids, us: a tile each 36, six 23, twelve 21; MKL
    27."""
    return max(1, column_tiles * parts // (ITEMS_PER_UNIT * units)) if row_tiles == 1 else 1


def walks(spec: MatmulSpec, caps: Any, evaluate: bool) -> int:
    """Parts of the rows of A with which work items of `panel` walk all columns; 0 where they have a panel each.

    evaluate: whether an item evaluates its rows of A
    """
    if any(varies(size) for size in (spec.batch, spec.m, spec.n, spec.k)) or spec.groups or spec.inner > 1:
        return 0
    if spec.piece or spec.b.flops or not (spec.a.batched or spec.batch == 1):
        return 0
    if evaluate:
        small = WALK_ROWS * spec.k * spec.itemsize * A_PART_OF_CACHE <= caps.cache_bytes >= bytes_of_b(spec)
    else:
        tall = spec.a.contiguous == 1 and spec.m >= WALK_TALL * spec.n
        small = tall and bytes_of_b(spec) * B_PART_OF_CACHE <= caps.cache_bytes
    fewest = ceil(spec.m / WALK_ROWS)
    fair = (n for n in range(fewest, 2 * fewest + 1) if share(spec.batch * n, caps.compute_units) > WALK_SHARE)
    return next(fair, 0) if small else 0


def bytes_of_b(spec: MatmulSpec) -> int:
    """Of one matrix."""
    return spec.k * spec.n * spec.b.bytes


def panel(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work item makes a column panel for a range of rows, or all of them (`walks`), a register tile at a time.

    B is packed `tile.pack` rows at a time; where it has more, the sums of all rows wait in between.
    """
    m, n = spec.m, spec.n
    rows, width = tile.rows, tile.lanes or lanes(caps, spec.itemsize, n)
    span = tile.vectors * width
    # Where columns vary and there are more than a panel has, the last panel overlaps the one before.
    single = n <= span
    panels, row_tiles = ceil(n / span), ceil(m / rows)
    walk = walks(spec, caps, tile.evaluate) if tile.evaluate or panels > 1 else 0
    evaluates = walk > 0 and tile.evaluate
    stays = walk and spec.b.contiguous == 1 and bytes_of_b(spec) * B_PART_OF_CACHE <= caps.cache_bytes
    block = 0 if stays else tile.pack
    # A depth that varies may be any other next time, so all of them have blocks; those that are usually a small part of
    # one do without, until one is larger.
    deep_enough = varies(spec.depth) and usual(spec.depth) * BLOCK_SHARE > block
    blocks = block > 0 and (deep_enough or spec.depth > block)
    most_tiles = max(1, BLOCK_ROWS // rows) if blocks else 0
    chunks = walk or row_chunks(spec.batch * panels, row_tiles, caps.compute_units, most_tiles)
    tiles_each = ceil(row_tiles / chunks)
    # A single panel may be narrower than its vectors: the last one overlaps the one before.
    offsets = [min(v * width, n - width) if single else v * width for v in range(tile.vectors)]
    overhang = 0 if single or multiple(n, span) else panels * span - n
    # Where a tile overlaps the one before, what that has stored is stored again, or left out.
    again = spec.out.again and not spec.out.runs

    k = Builder(name, spec.index_bits, (1, 1, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.bind(k), spec.out.bind(k)
    deep = block if blocks or varies(spec.depth) else spec.depth
    packed = k.private(spec.acc, deep * span) if block else None
    waiting = (most_tiles if varies(tiles_each) else tiles_each) if blocks else 1
    result = k.private(spec.acc, waiting * rows * span)
    chunk, z = k.global_id(1), k.global_id(2)
    batch, lo, hi = spec.part(k, z)
    zero = k.const(0, spec.acc, width)
    run = spec.a.run if not evaluates and all(n % spec.a.run == 0 for n in (spec.k, spec.piece, deep)) else 1
    first, last = chunk * tiles_each, k.map("minimum", chunk * tiles_each + tiles_each, row_tiles)
    if spec.groups and spec.varied == "rows":
        last = k.map("minimum", last, (spec.groups.end - spec.groups.first + (rows - 1)) // rows)
    if evaluates:
        held = k.map("minimum", first * rows, m - rows), k.map("minimum", last * rows, m)
        load_a = own_rows(k, spec, caps, load_a, batch, held, tiles_each * rows)

    def pack(lo: V, hi: V) -> None:
        """Copies rows [lo, hi) of B. The panel before lay in the same memory, which is in the cache."""
        if packed and spec.b.contiguous == 1:  # whole rows: each may be a page of its own
            with k.for_(lo, hi) as row:
                for at, offset in enumerate(offsets):
                    k.store(packed, (row.iv - lo) * span + at * width, load_b(batch, row.iv, j + offset, width))
        elif packed:
            with k.for_(0, tile.vectors) as v:
                column = j + at_most(k, v.iv * width, n - width, n if single else width, width)
                copy_block(
                    k, load_b, batch, (lo, hi), column, width, spec.b.contiguous,
                    lambda p, x: k.store(packed, (p - lo) * span + v.iv * width, x),
                )  # fmt: skip

    def multiply(i: V, lo: V, hi: V, sums: list[V]) -> list[V]:
        """Adds terms [lo, hi), the packed ones, to a tile of rows from i on."""

        def add(p: Term, sums: list[V], term: Term | None = None) -> list[V]:
            if packed and not isinstance(p, tuple):
                b = [k.load(packed, (p - lo) * span + v * width, width) for v in range(tile.vectors)]
            else:
                b = [load_b(batch, p, j + offset, width) for offset in offsets]
            a = [load_a(batch, i + r, term or p) for r in range(rows)]
            return [k.multiply_add(a[at // len(b)], b[at % len(b)], total) for at, total in enumerate(sums)]

        if spec.inner > 1:
            with k.for_(0, spec.k // spec.inner, init=sums) as loop:
                with k.for_(0, spec.inner, init=loop.args) as group:
                    group.yield_(*add((loop.iv, group.iv), group.args))
                loop.yield_(*group.results)
            return loop.results
        # Two terms a turn: a loop's own arithmetic takes the ports of multiply-adds. benchmarks/kernels.py `sgemm`,
        # 1024^3 on Emerald Rapids: 239 -> 259 GFLOP/s, MKL 256; with four terms 252. Kept apart, since the compiler
        # otherwise reads both terms first where it schedules for Zen 5, and moves sums to the stack for them: tiles of
        # 6 x 4, 2048 x 1024 x 256 on two cores there, 3.4 -> 2.3 ms, with B transposed 2.5 -> 2.3.
        if run > 1:  # joined heads: a term's quotients took longer than its multiply-adds (docs/performance.md)
            with k.for_(lo // run, hi // run, init=sums) as loop:
                with k.for_(0, run, 2, init=loop.args) as pair:
                    p, place = loop.iv * run + pair.iv, (loop.iv, pair.iv + 1)
                    one = add(p, pair.args, (loop.iv, pair.iv))
                    k.separate()
                    pair.yield_(*add(p + 1, one, place))
                loop.yield_(*pair.results)
            return loop.results
        pairs = lo + (hi - lo) // 2 * 2
        with k.for_(lo, pairs, 2, init=sums) as loop:
            one = add(loop.iv, loop.args)
            k.separate()
            loop.yield_(*add(loop.iv + 1, one))
        if not (multiple(spec.k, 2) and multiple(spec.piece, 2)) or spec.varied == "terms":
            with k.for_(pairs, hi, init=loop.results) as loop:
                loop.yield_(*add(loop.iv, loop.args))
        return loop.results

    def finish(number_of_tile: V, i: V, base: V | int) -> None:
        """Hands a tile of sums, from `base` on in `result`, to the epilogue."""
        if store.calls:
            k.separate(registers=True)
        whole = again or multiple(m, rows)
        with k.for_(0, rows) as row, nullcontext() if whole else k.if_(i + row.iv >= number_of_tile * rows):
            line = (k, store, result, row.iv * span + base, i + row.iv, z, j)
            if spec.out.runs:
                store_runs(*line, (number * span, j + min(span, n)), spec.out.runs)
            elif again or not overhang:
                store_row(*line, (0, min(span, n)), width)
            else:
                with k.if_(j == number * span):
                    store_row(*line, (0, span), width)
                with k.else_():
                    if varies(overhang):
                        with k.for_(number * span - j, span) as c:
                            store.put(z, i + row.iv, j + c.iv, k.load(result, row.iv * span + base + c.iv))
                    else:
                        store_row(*line, (overhang, span), width)

    def ask(i: V) -> None:
        """Ask for the lines of a tile's rows, which come while its terms are multiplied: rows may be a page each, which
        no core guesses, so that each tile waits. Two cores of Zen 3, ms, 2048 x 256 x 1024: with a bias 8.0 -> 7.0,
        times a matrix 9.6 -> 7.7, plus another 11.1 -> 8.9; 16 of 256 x 64 x 256 1.09 -> 0.92, times one 1.5 -> 1.0.
        """
        if store.ask and not spec.out.runs:
            with k.for_(0, rows, rolled=True) as row:
                for column in sorted({*range(0, min(span, n), LINE // spec.itemsize), min(span, n) - 1}):
                    store.ask(z, i + row.iv, j + column)

    places = [r * span + offset for r in range(rows) for offset in offsets]

    def keep(base: V | int, sums: list[V]) -> None:
        for place, total in zip(places, sums, strict=True):
            k.store(result, base + place, total)

    @contextmanager
    def tiles() -> Iterator[tuple[V, V, V]]:
        """The loop over the range's tiles: number, first row, and where the sums wait."""
        with k.for_(first, last) as loop:
            yield loop.iv, at_most(k, loop.iv * rows, m - rows, m, rows), (loop.iv - first) * (rows * span)

    with k.for_(0, panels) if walk else nullcontext() as walked:
        number = walked.iv if walked else k.global_id(0)
        j = at_most(k, number * span, n - span, n if varies(overhang) or overhang else span, span)
        # Without rows there is nothing to pack for.
        with k.if_(first < last) if spec.varied == "rows" else nullcontext():
            if blocks:
                with tiles() as (_, _, base):
                    keep(base, [zero] * len(places))
                with k.for_(lo, hi, block) as terms:
                    stop = k.map("minimum", terms.iv + block, hi)
                    pack(terms.iv, stop)
                    with tiles() as (_, i, base):
                        sums = [k.load(result, base + place, width) for place in places]
                        keep(base, multiply(i, terms.iv, stop, sums))
                with tiles() as (tile_number, i, base):
                    finish(tile_number, i, base)
            else:
                pack(lo, hi)
                with tiles() as (tile_number, i, _):
                    ask(i)
                    keep(0, multiply(i, lo, hi, [zero] * len(places)))
                    finish(tile_number, i, 0)
    parts = spec.batch * spec.pieces
    return Steps([Step(name, k.finish(), spec.names, (1 if walk else panels, chunks, parts), (1, 1, 1))], [])


def own_rows(k: Builder, spec: MatmulSpec, caps: Any, load: Load, batch: V, rows: tuple[V, V], most: int) -> Load:
    """Evaluates rows [lo, hi) of A, at most so many, into private memory: how they are then read."""
    lo, width, stride = rows[0], lanes(caps, spec.itemsize, spec.k), spec.k + EVALUATE_GAP
    dense = k.private(spec.acc, most * stride)
    with k.for_(0, spec.k, width) as columns:
        p = at_most(k, columns.iv, spec.k - width, spec.k, width)
        put = lambda i, x: k.store(dense, (i - lo) * stride + p, x)  # noqa: E731
        copy_block(k, load, batch, rows, p, width, spec.a.contiguous, put)
    return lambda batch, i, p, width=1: k.load(dense, (i - lo) * stride + p, width)


def dot(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work item makes rows x vectors elements, summing vectors along k. Both operands are contiguous there."""
    m, n = spec.m, spec.n
    rows, columns = min(tile.rows, m), min(tile.vectors, n)
    row_tiles, column_tiles = ceil(m / rows), ceil(n / columns)
    width = lanes(caps, spec.itemsize, min(spec.depth, spec.k % spec.depth or spec.k))
    parts = spec.batch * spec.pieces
    each = tiles_each(column_tiles, row_tiles, parts, caps.compute_units)

    k = Builder(name, spec.index_bits, (1, 1, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.bind(k), spec.out.bind(k)
    result = k.private(spec.acc, rows * columns)
    batch, lo, hi = spec.part(k, k.global_id(2))
    i = at_most(k, k.global_id(1) * rows, m - rows, m, rows)

    def terms(j: V, p: V, sums: list[V], width: int) -> list[V]:
        a = [load_a(batch, i + r, p, width) for r in range(rows)]
        b = [load_b(batch, p, j + c, width) for c in range(columns)]
        return [k.multiply_add(a[at // columns], b[at % columns], total) for at, total in enumerate(sums)]

    whole = lo + (hi - lo) // width * width
    first = k.global_id(0) * each
    with k.for_(first, k.map("minimum", first + each, column_tiles)) as number:
        j = at_most(k, number.iv * columns, n - columns, n, columns)
        with k.for_(lo, whole, width, init=[k.const(0, spec.acc, width)] * (rows * columns)) as loop:
            loop.yield_(*terms(j, loop.iv, loop.args, width))
        totals = [k.reduce("add", v) for v in loop.results]
        with k.for_(whole, hi, init=totals) as loop:
            loop.yield_(*terms(j, loop.iv, loop.args, 1))
        for at, total in enumerate(loop.results):
            k.store(result, at, total)
        with k.for_(0, rows) as r, k.for_(0, columns) as c:
            mine = (i + r.iv >= k.global_id(1) * rows) & (j + c.iv >= number.iv * columns)
            with nullcontext() if multiple(m, rows) and multiple(n, columns) else k.if_(mine):
                store.put(k.global_id(2), i + r.iv, j + c.iv, k.load(result, r.iv * columns + c.iv))
    items = ceil(column_tiles / each)
    return Steps([Step(name, k.finish(), spec.names, (items, row_tiles, parts), (1, 1, 1))], [])


def stream(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work item adds whole rows of B, `tile.rows` at a time, to the few rows of a range of columns."""
    m, n, depth = spec.m, spec.n, tile.rows
    width = lanes(caps, spec.itemsize, n)
    panels = ceil(n / STREAM_COLUMNS)
    span = n if panels == 1 else ceil(ceil(n / panels) / width) * width
    vectors = span // width * width
    parts = spec.batch * spec.pieces

    k = Builder(name, spec.index_bits, (1, 1, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.bind(k), spec.out.bind(k)
    result = k.private(spec.acc, m * span)
    batch, lo, hi = spec.part(k, k.global_id(2))
    j = at_most(k, k.global_id(0) * span, n - span, n, span)

    def columns(add: Callable[[V, int], None]) -> None:
        """Call add for all columns of the range, in vectors."""
        with k.for_(0, vectors, width) as loop:
            add(loop.iv, width)
        with k.for_(vectors, span) as loop:
            add(loop.iv, 1)

    def add_rows(p: V, count: int) -> None:
        a = [[load_a(batch, i, p + r) for r in range(count)] for i in range(m)]

        def add(column: V, width: int) -> None:
            b = [load_b(batch, p + r, j + column, width) for r in range(count)]
            for i in range(m):
                total = k.load(result, column + i * span, width)
                for x, y in zip(a[i], b, strict=True):
                    total = k.multiply_add(x, y, total)
                k.store(result, column + i * span, total)

        columns(add)

    for i in range(m):
        columns(lambda column, width, i=i: k.store(result, column + i * span, k.const(0, spec.acc, width)))  # type: ignore[misc]
    whole = lo + (hi - lo) // depth * depth
    with k.for_(lo, whole, depth) as loop:
        add_rows(loop.iv, depth)
    with k.for_(whole, hi) as loop:
        add_rows(loop.iv, 1)
    mine = k.global_id(0) * span, j + span
    with k.for_(0, m) as row:
        runs = spec.out.runs or Runs(n, n, width)
        store_runs(k, store, result, row.iv * span, row.iv, k.global_id(2), j, mine, runs)
    return Steps([Step(name, k.finish(), spec.names, (panels, 1, parts), (1, 1, 1))], [])
