"""Matrix products: [batch, m, k] x [batch, k, n] with prologues on both operands and an epilogue on the result.

Three schedules. On a CPU, `panel` holds a tile of the result in vector registers and walks a column panel of B that
has been copied, in the order it is read, into a scratch that stays in the cache; `dot` is for few rows or columns and
reads both operands along k. On a GPU, `local` shares tiles of both operands through work-group memory.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import ceil
from typing import Any, NamedTuple

from codegen.builder import Builder, V
from codegen.kernels.blocks import at_most, copy_block, lanes, store_row, store_runs
from codegen.kernels.contraction import Load, Operand, Output, Store, Term, fma
from codegen.kernels.matmul_local import local, shapes
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME

# Vector registers of a CPU core by vector width in bytes: AVX-512 and SVE-512 have 32, AVX2 has 16.
REGISTERS = {64: 32}
FEWEST_REGISTERS = 16

# (rows, vectors) of a register tile, best first where they cost the same. 4 x 4 vectors read one operand register for
# two multiply-adds and hold B's row across 4 of them. benchmarks/kernels.py `sgemm`: 1024^3 4x4 228 GFLOP/s, 8x3 228,
# 8x2 226, 12x2 208, 14x2 178 (A's rows alias in the first-level cache); MKL 203.
REGISTER_TILES = (
    (4, 4), (8, 3), (6, 4), (8, 2), (4, 3), (4, 2), (6, 2), (3, 4), (2, 4), (2, 8), (1, 8), (8, 1), (4, 1),
)  # fmt: skip

# A multiply-add has this latency in cycles: a tile of fewer vectors waits for itself.
FMA_LATENCY = 4

# Fewer rows than this read B where it lies: copying a panel costs as much as reading it about this often.
# benchmarks/kernels.py `skinny`: 32 x 1024 x 1024 60 GFLOP/s a core as it lies, 44 packed; MKL 47.
PACK_ROWS = 64

# Up to this many rows (or columns) both operands are read along k when they are contiguous there.
# benchmarks/kernels.py `skinny`, W^T: 32 x 1024 x 1024 64 GFLOP/s a core, as a panel 49; MKL 55.
DOT_ROWS = 32
# (rows, columns) of such a tile. Few rows wait for memory, and more columns keep more of it in flight:
# 4 x 4096 x 4096 4x4 27, 4x8 37; MKL 18. With more rows the accumulators of 4x8 no longer fit.
DOT_TILES = ((4, 8), (4, 4))
DOT_WIDE_ROWS = 8

# A is evaluated beforehand where it is read for at least this many columns and has a prologue, or lies across and is
# larger than this: its elements are read one by one, and a column of a large matrix touches a page for each.
# benchmarks/kernels.py `sgemm_tn`: 1024^3 81 -> 100 GFLOP/s a core.
EVALUATE_COLUMNS = 128
EVALUATE_BYTES = 256 << 10
# Rows that one work item evaluates.
EVALUATE_ROWS = 64

# Work items for each compute unit that let an uneven split even out. More repeat the packing.
ITEMS_PER_UNIT = 4

# A panel deeper than this no longer fits in half of a private cache of 1 MiB; the sum is then split along k.
# benchmarks/kernels.py `long_k`.
MAX_DEPTH = 4096
# ... and so is one that gives less work items than compute units, into pieces not shorter than this.
MIN_DEPTH = 256
# Vectors that a work item adds up of the partial sums: enough to pay for its start.
SUM_VECTORS = 32

# Partial sums of a split product may take this much memory.
MAX_PARTIAL_BYTES = 64 << 20


class MatmulSpec(NamedTuple):
    """What is computed: out[b, i, j] = epilogue(sum over p of a[b, i, p] * b[b, p, j]).

    acc: the dtype of the sum; index_bits: 64 where an offset passes 2^31; names: what a, b and out are called in
    `Step.args`; piece: terms of a partial sum, 0 for whole sums. The output then has batch x pieces matrices.
    inner: where it is not 1, terms come in groups of `inner` that read neighbouring elements of B (the taps of a
    convolution), so a panel is not copied; the operands are then asked for term (group, number in it). A division for
    each term costs 10 %; terms written out cost 20 %, for registers spill, and twenty times the code.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    out: Output
    acc: str = "f32"
    index_bits: int = 32
    names: tuple[str | int, ...] = ("a", "b", "out")
    piece: int = 0
    inner: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the sum."""
        return BY_NAME[self.acc].bytes

    @property
    def pieces(self) -> int:
        """How many partial sums there are for each element."""
        return ceil(self.k / self.piece) if self.piece else 1

    @property
    def depth(self) -> int:
        """Terms of the longest sum that one work item makes."""
        return self.piece or self.k

    def part(self, k: Builder, z: V) -> tuple[V, V, V]:
        """The batch of part z of batch x pieces, and its range of terms."""
        if not self.piece:
            return z, k.const(0, "index"), k.const(self.k, "index")
        lo = z % self.pieces * self.piece
        return z // self.pieces, lo, k.map("minimum", lo + self.piece, self.k)


class Tile(NamedTuple):
    """A schedule and its constants.

    schedule  "panel", "dot" or "local"
    rows      rows of the result in a register tile
    vectors   vectors (panel) or columns (dot, local) in a register tile
    pack      panel: B is copied into a scratch panel first
    evaluate  panel: A is evaluated in a kernel before, into rows that are contiguous along k
    splits    pieces of the sum that are computed apart and added in a second kernel
    """

    schedule: str
    rows: int
    vectors: int
    pack: bool = False
    evaluate: bool = False
    splits: int = 1


def matmul(name: str, spec: MatmulSpec, caps: Any, tile: Tile | None = None) -> Steps:
    """Kernels for a product. caps: `Capabilities`; tile: one of `candidates`, the first by default."""
    if spec.out.contiguous == 0:
        return matmul(name, transposed(spec), caps, tile)
    tile = tile or candidates(spec, caps)[0]
    if tile.splits > 1:
        return split(name, spec, caps, tile)
    if tile.evaluate:
        return evaluated(name, spec, caps, tile)
    return SCHEDULES[tile.schedule](name, spec, caps, tile)


def transposed(spec: MatmulSpec) -> MatmulSpec:
    """The same product with rows and columns exchanged: C^T = B^T A^T."""
    return spec._replace(
        m=spec.n,
        n=spec.m,
        a=spec.b.transposed,
        b=spec.a.transposed,
        out=spec.out.transposed,
        names=(spec.names[1], spec.names[0], spec.names[2]),
    )


def candidates(spec: MatmulSpec, caps: Any) -> list[Tile]:
    """Schedules worth timing for a spec, the heuristic's choice first."""
    if not caps.is_cpu:
        found = [Tile("local", *shape) for shape in shapes(spec, caps)]
        return [t._replace(splits=pieces(spec, caps, t)) for t in found]
    found = panel_tiles(spec, caps)
    if spec.a.contiguous == 1 and spec.b.contiguous == 0 and spec.k >= 2:
        dots = [Tile("dot", min(spec.m, rows), min(spec.n, columns)) for rows, columns in DOT_TILES]
        dots = dots if spec.m <= DOT_WIDE_ROWS else dots[::-1]
        found = dots + found if min(spec.m, spec.n) <= DOT_ROWS else found + dots
    return [t._replace(splits=pieces(spec, caps, t)) for t in found]


def panel_tiles(spec: MatmulSpec, caps: Any) -> list[Tile]:
    """Register tiles that fit, by the multiply-add cycles that they take with all their overhang."""
    width = lanes(caps, spec.itemsize, spec.n)
    registers = REGISTERS.get(caps.vector_bytes, FEWEST_REGISTERS)
    most = ceil(spec.n / width)

    def cycles(tile: Tile) -> int:
        tiles = ceil(spec.m / tile.rows) * ceil(most / tile.vectors)
        return tiles * max(tile.rows * tile.vectors, tile.rows + tile.vectors, FMA_LATENCY)

    shapes = {(min(rows, spec.m), min(vectors, most)) for rows, vectors in REGISTER_TILES}
    fitting = [s for s in shapes if s[0] * s[1] + s[1] < registers]
    order = {s: i for i, s in enumerate(REGISTER_TILES)}
    pack = spec.k > 0 and spec.inner == 1 and (spec.b.contiguous != 1 or spec.m >= PACK_ROWS)
    evaluate = spec.n * spec.batch // distinct(spec) >= EVALUATE_COLUMNS and (
        spec.a.flops > 0 or (spec.a.contiguous != 1 and spec.m * spec.k * spec.itemsize > EVALUATE_BYTES)
    )
    tiles = [Tile("panel", rows, vectors, pack, evaluate) for rows, vectors in fitting]
    return sorted(tiles, key=lambda t: (cycles(t), order.get((t.rows, t.vectors), len(order)), -t.vectors))


def distinct(spec: MatmulSpec) -> int:
    """How many matrices A is."""
    return spec.batch if spec.a.batched else 1


def pieces(spec: MatmulSpec, caps: Any, tile: Tile) -> int:
    """Into how many pieces the sum is split: for the cache, and to give every compute unit some."""
    if spec.inner > 1:
        return 1
    columns = tile.vectors * (lanes(caps, spec.itemsize, spec.n) if tile.schedule == "panel" else 1)
    tiles = spec.batch * ceil(spec.m / tile.rows) * ceil(spec.n / columns)
    again = tile.schedule == "panel" and spec.m > tile.rows
    wanted = ceil(spec.k / MAX_DEPTH) if again and spec.k > 2 * MAX_DEPTH else 1
    if tiles < caps.compute_units:
        wanted = max(wanted, min(caps.compute_units * ITEMS_PER_UNIT // tiles, spec.k // MIN_DEPTH))
    affordable = MAX_PARTIAL_BYTES // (spec.batch * spec.m * spec.n * spec.itemsize)
    return max(1, min(wanted, affordable))


def row_chunks(items: int, row_tiles: int, units: int) -> int:
    """Into how many parts the rows are split so that `items` x parts keep all units busy to the end."""
    best, share = 1, 0.0
    for chunks in range(1, min(row_tiles, ITEMS_PER_UNIT * units) + 1):
        total = items * chunks
        busy = total / (ceil(total / units) * units)
        if busy > share + 0.02:
            best, share = chunks, busy
        if total >= units * ITEMS_PER_UNIT:
            break
    return best


def panel(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work item makes a column panel for a range of rows, a register tile at a time."""
    m, n = spec.m, spec.n
    rows, width = tile.rows, lanes(caps, spec.itemsize, n)
    span = tile.vectors * width
    panels, row_tiles = ceil(n / span), ceil(m / rows)
    chunks = row_chunks(spec.batch * panels, row_tiles, caps.compute_units)
    tiles_each = ceil(row_tiles / chunks)
    # A single panel may be narrower than its vectors: the last one overlaps the one before.
    offsets = [min(v * width, n - width) if panels == 1 else v * width for v in range(tile.vectors)]
    overhang = panels * span - n if panels > 1 else 0

    k = Builder(name, spec.index_bits, (1, 1, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.bind(k), spec.out.bind(k)
    scratch = k.buffer(spec.acc) if tile.pack else None
    result = k.private(spec.acc, rows * span)
    number, chunk, z = k.global_id(0), k.global_id(1), k.global_id(2)
    batch, lo, hi = spec.part(k, z)
    j = at_most(k, number * span, n - span, n if overhang else span, span)
    base = ((z * chunks + chunk) * panels + number) * (spec.depth * span) - lo * span
    if scratch:
        with k.for_(0, tile.vectors) as v:
            column = j + at_most(k, v.iv * width, n - width, n if panels == 1 else width, width)
            copy_block(
                k, load_b, batch, (lo, hi), column, width, spec.b.contiguous,
                lambda p, x: k.store(scratch, base + (p * span + v.iv * width), x),
            )  # fmt: skip

    def row_of_b(p: Term) -> list[V]:
        if scratch and not isinstance(p, tuple):
            return [k.load(scratch, base + (p * span + v * width), width) for v in range(tile.vectors)]
        return [load_b(batch, p, j + offset, width) for offset in offsets]

    last = k.map("minimum", chunk * tiles_each + tiles_each, row_tiles)
    with k.for_(chunk * tiles_each, last) as tiles:
        i = at_most(k, tiles.iv * rows, m - rows, m, rows)
        zero = k.const(0, spec.acc, width)
        def add(p: Term, sums: list[V]) -> list[V]:
            b = row_of_b(p)
            a = [load_a(batch, i + r, p) for r in range(rows)]
            return [fma(k, a[at // len(b)], b[at % len(b)], total) for at, total in enumerate(sums)]

        low, high = (lo, hi) if spec.inner == 1 else (0, spec.k // spec.inner)
        with k.for_(low, high, init=[zero] * (rows * tile.vectors)) as loop:
            if spec.inner == 1:
                loop.yield_(*add(loop.iv, loop.args))
            else:
                with k.for_(0, spec.inner, init=loop.args) as group:
                    group.yield_(*add((loop.iv, group.iv), group.args))
                loop.yield_(*group.results)
        for at, total in enumerate(loop.results):
            k.store(result, at // tile.vectors * span + offsets[at % tile.vectors], total)
        with k.for_(0, rows) as row, k.if_(i + row.iv >= tiles.iv * rows) if m % rows else nullcontext():
            line = (k, store, result, row.iv * span, i + row.iv, z, j)
            if spec.out.runs:
                store_runs(*line, (number * span, j + min(span, n)), spec.out.runs)
            elif not overhang:
                store_row(*line, (0, min(span, n)), width)
            else:
                with k.if_(number == panels - 1):
                    store_row(*line, (overhang, span), width)
                with k.else_():
                    store_row(*line, (0, span), width)
    parts = spec.batch * spec.pieces
    temps = [parts * chunks * panels * spec.depth * span * spec.itemsize] if tile.pack else []
    args = (*spec.names, *range(len(temps)))
    return Steps([Step(name, k.finish(), args, (panels, chunks, parts), (1, 1, 1))], temps)


def evaluated(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """A first kernel evaluates A into a temp, dense and contiguous along k; then the product."""
    dense = Operand(lambda k: matrix_load(k, spec), spec.acc, 1, spec.a.batched)
    inner = spec._replace(a=dense, names=("dense", *spec.names[1:]))
    product = matmul(name, inner, caps, tile._replace(evaluate=False))
    at = len(product.temps)
    steps = [s._replace(args=tuple(at if a == "dense" else a for a in s.args)) for s in product.steps]
    nbytes = distinct(spec) * spec.m * spec.k * spec.itemsize
    return Steps([evaluate(f"{name}_a", spec, caps, at), *steps], [*product.temps, nbytes])


def matrix_load(k: Builder, spec: MatmulSpec) -> Load:
    """Load from a dense A for each batch."""
    buffer = k.buffer(spec.acc, readonly=True)

    def load(batch: V, i: V, p: Term, width: int = 1) -> V:
        p = p[0] * spec.inner + p[1] if isinstance(p, tuple) else p
        row = batch * spec.m + i if spec.a.batched else i
        return k.load(buffer, row * spec.k + p, width)

    return load


def evaluate(name: str, spec: MatmulSpec, caps: Any, temp: int) -> Step:
    """The kernel that writes A as a dense matrix for each batch."""
    width = lanes(caps, spec.itemsize, spec.k)
    k = Builder(name, spec.index_bits, (1, 1, 1))
    load, dense = spec.a.bind(k), k.buffer(spec.acc)
    lo, batch = k.global_id(0) * EVALUATE_ROWS, k.global_id(1)
    hi = k.map("minimum", lo + EVALUATE_ROWS, spec.m)
    with k.for_(0, spec.k, width) as columns:
        p = at_most(k, columns.iv, spec.k - width, spec.k, width)
        copy_block(
            k, load, batch, (lo, hi), p, width, spec.a.contiguous,
            lambda i, x: k.store(dense, (batch * spec.m + i) * spec.k + p, x),
        )  # fmt: skip
    return Step(name, k.finish(), (spec.names[0], temp), (ceil(spec.m / EVALUATE_ROWS), distinct(spec), 1), (1, 1, 1))


def dot(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """Each work item makes rows x vectors elements, summing vectors along k. Both operands are contiguous there."""
    m, n = spec.m, spec.n
    rows, columns = min(tile.rows, m), min(tile.vectors, n)
    row_tiles, column_tiles = ceil(m / rows), ceil(n / columns)
    width = lanes(caps, spec.itemsize, min(spec.depth, spec.k % spec.depth or spec.k))
    parts = spec.batch * spec.pieces

    k = Builder(name, spec.index_bits, (1, 1, 1))
    load_a, load_b, store = spec.a.bind(k), spec.b.bind(k), spec.out.bind(k)
    result = k.private(spec.acc, rows * columns)
    batch, lo, hi = spec.part(k, k.global_id(2))
    i = at_most(k, k.global_id(1) * rows, m - rows, m, rows)
    j = at_most(k, k.global_id(0) * columns, n - columns, n, columns)

    def terms(p: V, sums: list[V], width: int) -> list[V]:
        a = [load_a(batch, i + r, p, width) for r in range(rows)]
        b = [load_b(batch, p, j + c, width) for c in range(columns)]
        return [fma(k, a[at // columns], b[at % columns], total) for at, total in enumerate(sums)]

    whole = lo + (hi - lo) // width * width
    with k.for_(lo, whole, width, init=[k.const(0, spec.acc, width)] * (rows * columns)) as loop:
        loop.yield_(*terms(loop.iv, loop.args, width))
    totals = [k.reduce("add", v) for v in loop.results]
    with k.for_(whole, hi, init=totals) as loop:
        loop.yield_(*terms(loop.iv, loop.args, 1))
    for at, total in enumerate(loop.results):
        k.store(result, at, total)
    with k.for_(0, rows) as r, k.for_(0, columns) as c:
        mine = (i + r.iv >= k.global_id(1) * rows) & (j + c.iv >= k.global_id(0) * columns)
        with k.if_(mine) if m % rows or n % columns else nullcontext():
            store(k.global_id(2), i + r.iv, j + c.iv, k.load(result, r.iv * columns + c.iv))
    return Steps([Step(name, k.finish(), spec.names, (column_tiles, row_tiles, parts), (1, 1, 1))], [])


def split(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """The sum in pieces, kept in a temp, and a second kernel that adds them up and applies the epilogue."""
    width = lanes(caps, spec.itemsize, spec.k)
    piece = ceil(ceil(spec.k / tile.splits) / width) * width
    partial = spec._replace(piece=piece, out=Output(lambda k: matrix_store(k, spec)))
    first = SCHEDULES[tile.schedule](name, partial._replace(names=(*spec.names[:2], "partial")), caps, tile)
    at = len(first.temps)
    steps = [s._replace(args=tuple(at if a == "partial" else a for a in s.args)) for s in first.steps]
    nbytes = spec.batch * partial.pieces * spec.m * spec.n * spec.itemsize
    return Steps([*steps, add_up(f"{name}_sum", partial, spec, caps, at)], [*first.temps, nbytes])


def matrix_store(k: Builder, spec: MatmulSpec) -> Store:
    """Store into a dense matrix for each batch."""
    buffer = k.buffer(spec.acc)

    def store(batch: V, i: V, j: V, acc: V, width: int = 1) -> None:
        k.store(buffer, (batch * spec.m + i) * spec.n + j, acc)

    return store


def add_up(name: str, partial: MatmulSpec, spec: MatmulSpec, caps: Any, temp: int) -> Step:
    """The kernel that adds the pieces of each element, in order, and hands the sum to the epilogue."""
    width = lanes(caps, spec.itemsize, spec.n) if caps.is_cpu and not spec.out.runs else 1
    block = width * SUM_VECTORS if caps.is_cpu else 1
    k = Builder(name, spec.index_bits, (1, 1, 1) if caps.is_cpu else None)
    store, buffer = spec.out.bind(k), k.buffer(spec.acc, readonly=True)
    start, i, batch = k.global_id(0) * block, k.global_id(1), k.global_id(2)
    stop = k.map("minimum", start + block, spec.n)

    def add(j: V, width: int) -> None:
        with k.for_(0, partial.pieces, init=[k.const(0, spec.acc, width)]) as loop:
            at = ((batch * partial.pieces + loop.iv) * spec.m + i) * spec.n + j
            loop.yield_(loop.args[0] + k.load(buffer, at, width))
        store(batch, i, j, loop.results[0], width)

    whole = start + (stop - start) // width * width
    with k.for_(start, whole, width) as loop:
        add(loop.iv, width)
    with k.for_(whole, stop) as loop:
        add(loop.iv, 1)
    return Step(name, k.finish(), ("out", temp), (ceil(spec.n / block), spec.m, spec.batch), (1, 1, 1))


SCHEDULES = {"panel": panel, "dot": dot, "local": local}
