"""Matrix products: [batch, m, k] x [batch, k, n] with prologues on both operands and an epilogue on the result.

Four schedules. On a CPU, `panel` holds a tile of the result in vector registers and walks a column panel of B that
has been copied, in the order it is read, into a scratch that stays in the cache; `dot` is for few rows or columns and
reads both operands along k; `stream` is for a few rows and a B that only passes by. On a GPU, `local` shares tiles of
both operands through work-group memory.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Any, NamedTuple

from codegen.builder import Builder, V
from codegen.kernels.blocks import at_most, by_registers, copy_block, lanes, vector_registers
from codegen.kernels.contraction import Groups, Load, Operand, Output, Store, Term
from codegen.kernels.matmul_local import DEPTHS, WIDTH, local, shapes
from codegen.kernels.matmul_registers import (
    EVALUATE_GAP,
    ITEMS_PER_UNIT,
    MAX_PARTIAL_BYTES,
    MIN_DEPTH,
    STREAM_COLUMNS,
    busy,
    bytes_of_b,
    dot,
    panel,
    stream,
    walks,
)
from codegen.kernels.rows import geometry, group_size
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.sizes import multiple, usual, varies

# (rows, vectors) of a register tile, best first where they cost the same. benchmarks/kernels.py `sgemm`, 1024^3,
# GFLOP/s, on Zen 4 (two cores): 4x4 228, 8x3 228, 8x2 226, 12x2 208, 14x2 178 (A's rows alias in the first-level
# cache); MKL 203. On Emerald Rapids (a core, shared): 4x4 102, 8x3 111, 6x4 110, 9x3 111, 8x2 105, 12x2 102; MKL 130.
REGISTER_TILES = (
    (4, 4), (8, 3), (6, 4), (8, 2), (4, 3), (4, 2), (6, 2), (3, 4), (2, 4), (2, 8), (1, 8), (8, 1), (4, 1),
)  # fmt: skip

# A multiply-add has this latency in cycles: a tile of fewer vectors waits for itself.
FMA_LATENCY = 4
# Multiply-adds that reading a row element or a vector of B takes the time of, beyond what they hide.
# benchmarks/kernels.py, Emerald Rapids: sgemm 1024^3 6x4 in place of 4x4 102 -> 110, 32 x (256, 256, 64) 79 -> 87.
READ_COST = 0.5

# Fewer rows than this read B where it lies. 8 x 1024 x 1024 on two cores of Emerald Rapids, ms: 0.26 as it lies, 0.18
# packed, MKL 0.21.
PACK_ROWS = 8
# Rows of B that are packed at a time, into private memory: the next ones overwrite what is in the cache (a scratch for
# each panel went through memory). Where few rows of the result read them, as many as the first-level cache holds.
# Two cores of Emerald Rapids, m x k x n, MKL / in blocks / whole panels in a scratch, ms (docs/performance.md):
# 512 x 3072 x 768 9.4 / 9.0 / 10.9 (blocks of 1024 9.4, of 4096 9.1); 256 x 4096 x 256 2.9 / 2.8 / 3.6;
# 32 x 1024 x 1024 0.41 / 0.37 in blocks of 128, 0.47 in blocks of 256; 64 x 4096 x 4096 16.9 / 15.2 / 30.8.
PACK_DEPTH = 2048
SHALLOW_ROWS = 64
SHALLOW_DEPTH = 128

# Up to this many rows (or columns) both operands are read along k when they are contiguous there.
# benchmarks/kernels.py `skinny`, W^T: 32 x 1024 x 1024 64 GFLOP/s a core, as a panel 49; MKL 55.
DOT_ROWS = 32
# (rows, columns) of such a tile, by how many vector registers there are. Few rows wait for memory, and more columns
# keep more of it in flight: 4 x 4096 x 4096 4x4 27, 4x8 37; MKL 18. With more rows the accumulators of 4x8 no longer
# fit. In 16 registers 4x3 do (Zen 3, GFLOP/s, 4x8, 4x4, 4x3, 4x2, MKL): 4 x 1024 x 1024 37, 46, 95, 93, 18;
# 4 x 4096 x 4096 28, 32, 32, 30, 7; 16 x 1024 x 1024 39, 72, 80, 75, 48; 32 x 1024 x 1024 40, 76, 99, 75, 74;
# 1 x 1024 x 1024 34, 40, 38, 27, 17.
DOT_TILES = {32: ((4, 8), (4, 4)), 16: ((4, 3),)}
DOT_WIDE_ROWS = 8
# Up to so many rows (or columns) -> the least vectors of terms: each sum ends with its lanes added up, which takes
# longer than a short one. batch, m, n, k on two cores of Zen 5, us, as dots / as panels / eager: 64, 32, 128, 64 (as
# scores of attention) 338 / 97 / 228; 16, 32, 1024, 64 667 / 175 / 399; 512, 27, 27, 16 457 / 125 / 174; 256, 256, 5,
# 24 780 / 213; 64, 4, 256, 32 66 / 40; 64, 4, 256, 64 45 / 67; 64, 8, 256, 64 131 / 142; 64, 1, 256, 16 19 / 30;
# 1, 32, 512, 64 27 / 13; 1, 16, 256, 256 16 / 16; 4, 32, 512, 256 141 / 174; 1, 16, 3072, 768 232 / 247.
DOT_VECTORS = {2: 0, DOT_WIDE_ROWS: 3, DOT_ROWS: 16}

# A is evaluated beforehand where it is read for at least this many columns and has a prologue, or lies across and is
# not smaller than this: its elements are read one by one, and a column of a large matrix touches a page for each.
# benchmarks/kernels.py `sgemm_tn`: 1024^3 81 -> 100 GFLOP/s a core. Few rows (`SHALLOW_ROWS`) are whole lines there:
# 64 x 4096 x 4096 on two cores of Emerald Rapids 17.4 ms evaluated, 13.6 as it lies, MKL 12.3.
EVALUATE_COLUMNS = 256
# ... fewer where neither dim is contiguous, so that each element is a cache line of its own.
# benchmarks/kernels.py `conv`, input of 512 x 7^2: 26 -> 66 GFLOP/s a core.
EVALUATE_SCATTERED = 64
EVALUATE_BYTES = 256 << 10
# ... or where its rows come in short runs (joined heads), which a core's guesses do not follow, it is large, and so
# many vectors of columns read it. GPT's gradients of q, k and v, heads of 32, 2048 x 768 x 256 in training, AVX2
# (Zen 3): 13.2 ms as it lies, 6.5 and 0.9 before; the whole step 626 -> 585 (least of ten turns). 2 MB that is in a
# cache, 2048 x 256 x 256: 1.98, 2.11 and 0.34. Heads of 64, 1024 x 768 x 768: 9.0, 10.2 together.
SHORT_RUN, SHORT_RUN_BYTES, SHORT_RUN_VECTORS = 128, 4 << 20, 24
# Rows and columns that one work item evaluates: long enough runs of what lies across for the core's guesses, and few
# enough lines of what is written for its cache. 2048^2 that lies across, Granite Rapids, ms: 64 rows of all columns
# 1.61, 256 x 64 1.29, 64 x 256 1.10, 128 x 128 1.08; 1024^2 0.22, 0.20, 0.19, 0.19.
EVALUATE_ROWS, EVALUATE_DEPTH = 128, 128

# So few rows that all of B passes by for a few multiply-adds: rows of B are streamed whole, this many at a time, into
# sums that stay in the first-level cache. Columns of vectors walk down B instead, a page for each row.
# benchmarks/kernels.py `skinny`, GFLOP/s a core over 4096 x 4096, streamed, as panels, MKL: 1 row 10, 5, 11; 2 rows
# 20, 8, 11; 4 rows 31, 15, 14. Four rows of B at a time instead of eight: 23 for 4 rows. Wall time of both cores of
# Zen 4, ms: 8 x 4096 x 4096 3.5, 6.6, 9.1; 8 x 2048 x 2048 0.58, 0.77, 1.4; 8 x 1024 x 1024 0.11, 0.12, 0.26;
# 8 x 768 x 3072 0.24, 0.31, 0.71; 8 x 512 x 2048 0.15, 0.13, 0.25; 5 x 512 x 2048 0.09, 0.06, 0.24. More rows are as
# fast in panels, or faster (GFLOP/s): 12 x 4096 x 4096 53, 51; 12 x 1024 x 1024 75, 133.
STREAM_ROWS = 8
STREAM_DEPTH = 8
# A smaller B stays in the cache, where panels are as fast and need no second kernel.
STREAM_BYTES = 1 << 20

# Vectors that a work item adds up of the partial sums: enough to pay for its start.
SUM_VECTORS = 32

# Terms a block where a large A lies across and is not evaluated: the cache then holds them for all its rows.
# 1024 x 2048 x 128 with A transposed on Emerald Rapids, ms: blocks of 512 6.2, 256 4.0, 128 3.8; MKL 3.3.
ACROSS_DEPTH = 128

# So many terms for a row and for a column: gradients of weights by tall batches. Where both operands do not stay in a
# cache, nor units have matrices of their own, the sum is in pieces, so that no work item reads all of A. Two cores of
# Emerald Rapids, us, whole / in eight pieces, MKL: 128 x 4096 x 128 with A transposed 549 / 551, 540, and out of the
# other core's cache in a training step 1170 / 860; 32 x 16384 x 128 1000 / 851, 878; 256 x 4096 x 128 1450 / 1300,
# 1310; 512 x 8192 x 64 4290 / 3930, 3330. Smaller: 64 x 2048 x 128 172 / 177, 154.
DEEP = 8

# Where sizes vary, products of so many multiplications have the tiles of LARGE rows and columns, whatever sizes their
# structure came with first; others have columns for any number of them (`VARYING_LANES`), of which packing 8 does not
# pay. After 16 x 1024 x 1024 and 32 x 512 x 256, Emerald Rapids, ms, with tiles of the first sizes / of LARGE:
# 512 x 768 x 3072 100 / 12.5 (MKL 12.9), 1024^3 94 / 9.6 (10.8), with B transposed 16.6 / 11.8 (12.0).
HEAVY = 1 << 24
LARGE = 512

# Shapes of the heuristic's own schedule that are timed: it and its runners-up. benchmarks/tuning.py.
RUNNERS_UP = 3


class MatmulSpec(NamedTuple):
    """What is computed: out[b, i, j] = epilogue(sum over p of a[b, i, p] * b[b, p, j]).

    acc: the dtype of the sum; index_bits: 64 where an offset passes 2^31; names: what a, b and out are called in
    `Step.args`; piece: terms of a partial sum, 0 for whole sums. The output then has batch x pieces matrices.
    inner: where it is not 1, terms come in groups of `inner` that read neighbouring elements of B (the taps of a
    convolution), so a panel is not copied; the operands are then asked for term (group, number in it).
    benchmarks/kernels.py `conv`, 3 x 3 over 64 x 56^2, 128 x 28^2, 256 x 14^2, GFLOP/s a core: 89, 83, 88; with a
    division for each term 74, 74, 63; with a copied panel 61, 69, 65. Terms written out spill and cost 10 %.
    groups: where a batch has but some of the rows, or of the terms. Only schedules of `grouped` are for these.
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
    groups: Groups | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the sum."""
        return BY_NAME[self.acc].bytes

    @property
    def varied(self) -> str:
        """Of what a batch has but some: "rows", "terms" or "" for none."""
        return "" if self.groups is None else "rows" if self.groups.rows else "terms"

    @property
    def pieces(self) -> int:
        """How many partial sums there are for each element."""
        return ceil(self.k / self.piece) if self.piece else 1

    @property
    def depth(self) -> int:
        """Terms of the longest sum that one work item makes."""
        return self.piece or self.k

    def usual(self) -> MatmulSpec:
        """The spec for the sizes that choices are made for. Where a size varies, 0 is none of these."""
        batch, m, n, k = (max(usual(n), 1) if varies(n) else n for n in (self.batch, self.m, self.n, self.k))
        return self._replace(batch=batch, m=m, n=n, k=k)

    def part(self, k: Builder, z: V) -> tuple[V, V, V]:
        """The batch of part z of batch x pieces, and its range of terms."""
        if self.groups:
            self.groups.begin(k, z)
            if self.varied == "terms":
                return z, self.groups.first, self.groups.end
        if not self.piece:
            return z, k.const(0, "index"), k.const(self.k, "index")
        lo = z % self.pieces * self.piece
        return z // self.pieces, lo, k.map("minimum", lo + self.piece, self.k)


class Tile(NamedTuple):
    """A schedule and its constants.

    schedule  "panel", "dot", "stream" or "local"
    rows      rows of the result in a register tile; stream: rows of B that are added at a time
    vectors   vectors (panel) or columns (dot, local) in a register tile
    pack      panel: rows of B that are packed at a time, an even number; 0: B is read where it lies
    evaluate  panel: A is evaluated before, into rows that are contiguous along k: in a kernel or by each work item
    splits    pieces of the sum that are computed apart and added in a second kernel
    lanes     panel: elements of a vector, 0: as many as a register and the columns allow
    slices    local: parts of a work-group that share its tile and take a part of the terms each
    """

    schedule: str
    rows: int
    vectors: int
    pack: int = 0
    evaluate: bool = False
    splits: int = 1
    lanes: int = 0
    slices: int = 1

    def columns(self, spec: MatmulSpec, caps: Any) -> int:
        """Columns of the result in a register tile."""
        return self.vectors * (self.lanes or lanes(caps, spec.itemsize, spec.n) if self.schedule == "panel" else 1)


def matmul(name: str, spec: MatmulSpec, caps: Any, tile: Tile | None = None) -> Steps:
    """Kernels for a product. caps: `Capabilities`; tile: one of `candidates`, the first by default."""
    if spec.out.contiguous == 0:
        return matmul(name, transposed(spec), caps, tile)
    tile = tile or candidates(spec, caps)[0]
    if tile.splits > 1:
        return split(name, spec, caps, tile)
    if tile.evaluate and not walks(spec, caps, True):
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
        names=(spec.names[1], spec.names[0], *spec.names[2:]),
    )


def candidates(spec: MatmulSpec, caps: Any) -> list[Tile]:
    """Schedules worth timing for a spec, the heuristic's choice first. Where sizes vary, those that also fit others."""
    known = spec.usual()
    found = schedules(known, caps, varies(spec.m))
    if caps.is_cpu and (varies(spec.n) or (varies(spec.m) and found[0].schedule != "panel")):
        if spec.batch * spec.m * spec.n * spec.k >= HEAVY:
            m, n, k = (max(usual(x), LARGE) if varies(x) else x for x in (spec.m, spec.n, spec.k))
            found = schedules(known._replace(m=m, n=n, k=k), caps, varies(spec.m))
            found = [t._replace(lanes=lanes(caps, spec.itemsize, n)) for t in found if t.schedule == "panel"]
        elif varies(spec.n):
            narrow = [t for t in found if t.schedule != "panel" or t.vectors == 1] or found
            found = [t._replace(pack=0) for t in narrow] if spec.b.contiguous == 1 else narrow
    if varies(spec.m) or varies(spec.n):  # asking about another would tie the plan to its answer
        return [next((t for t in found if fits(t, spec, caps)), None) or schedules(spec, caps)[0]]
    return found


def rivals(spec: MatmulSpec, caps: Any) -> list[Tile]:
    """Few schedules to time for a spec of known sizes, the heuristic's choice first.

    They differ from it where it goes by a threshold: its runners-up in shape, the best of each other schedule, with B
    packed or not, with A evaluated or not, and the sum in other pieces.
    """
    found = candidates(spec, caps)
    first, best = found[0], {t.schedule: t for t in reversed(found)}
    tiles = [t for t in found if t.schedule == first.schedule][:RUNNERS_UP] + list(best.values())
    if panel := best.get("panel"):
        if spec.b.contiguous == 1 and spec.k and spec.inner == 1:
            tiles.append(resplit(panel._replace(pack=0 if panel.pack else PACK_DEPTH), spec, caps))
        if panel.evaluate or spec.a.flops or spec.a.contiguous != 1:
            tiles.append(resplit(panel._replace(evaluate=not panel.evaluate), spec, caps))
    if spec.inner == 1:
        affordable = min(MAX_PARTIAL_BYTES // (spec.batch * spec.m * spec.n * spec.itemsize), spec.k // MIN_DEPTH)
        counts = {1, first.splits * 2, first.splits // 2, caps.compute_units}
        tiles += [first._replace(splits=n) for n in sorted(counts) if n == 1 or 1 < n <= affordable]
    return list(dict.fromkeys(tiles))


def resplit(tile: Tile, spec: MatmulSpec, caps: Any) -> Tile:
    """A tile that was changed, with the pieces that now suit it."""
    return tile._replace(splits=pieces(spec, caps, tile))


def fits(tile: Tile, spec: MatmulSpec, caps: Any) -> bool:
    """Whether a tile that was chosen for usual sizes lies within the product where sizes vary."""
    if tile.schedule not in ("panel", "dot"):
        return tile.schedule == "local" or not (varies(spec.m) or varies(spec.n))
    rows_fit = not varies(spec.m) or tile.rows <= spec.m
    return rows_fit and (not varies(spec.n) or tile.columns(spec, caps) <= spec.n)


def schedules(spec: MatmulSpec, caps: Any, any_rows: bool = False) -> list[Tile]:
    """All schedules for a spec of known sizes, best first. any_rows: for other numbers of rows too."""
    if not caps.is_cpu:
        return [Tile("local", s.rows, s.columns, splits=s.splits, slices=s.slices) for s in shapes(spec, caps)]
    found = panel_tiles(spec, caps, any_rows)
    if spec.a.contiguous == 1 and spec.b.contiguous == 0 and spec.k >= 2:
        sizes = by_registers(DOT_TILES, caps)
        dots = [Tile("dot", min(spec.m, rows), min(spec.n, columns)) for rows, columns in sizes]
        dots = dots if spec.m <= DOT_WIDE_ROWS else dots[::-1]
        few, vectors = min(spec.m, spec.n), spec.k / lanes(caps, spec.itemsize, spec.k)
        least = next((least for rows, least in DOT_VECTORS.items() if few <= rows), inf)
        found = dots + found if vectors >= least else found + dots
    passes_by = bytes_of_b(spec) > STREAM_BYTES and spec.b.contiguous == 1 and spec.inner == 1
    if spec.m <= STREAM_ROWS and passes_by:
        found = [Tile("stream", STREAM_DEPTH, 0), *found]
    return [t._replace(splits=pieces(spec, caps, t)) for t in found]


def panel_tiles(spec: MatmulSpec, caps: Any, any_rows: bool) -> list[Tile]:
    """Register tiles that fit, by the multiply-add cycles that they take with all their overhang, and until the last
    unit is done: 1000^3 on two, 21 panels of three vectors or 16 of four, 5.26 or 4.98 ms (Granite Rapids; MKL 4.9).

    Where the number of rows varies the overhang of one number says nothing of others: for 205 rows it made tiles of two
    rows seem better than those of four, which took 0.7 of their time. benchmarks: lengths.
    """
    width = lanes(caps, spec.itemsize, spec.n)
    most = ceil(spec.n / width)

    def cycles(tile: Tile) -> float:
        rows, reads = spec.m / tile.rows, tile.rows + tile.vectors
        panels = ceil(most / tile.vectors)
        whole = ceil(rows) / busy(spec.batch * panels, ceil(rows), caps.compute_units)
        tiles = (rows if any_rows else whole) * panels
        return tiles * (max(tile.rows * tile.vectors, reads, FMA_LATENCY) + READ_COST * reads)

    shapes = {(min(rows, spec.m), min(vectors, most)) for rows, vectors in REGISTER_TILES}
    fitting = [s for s in shapes if s[0] * s[1] + s[1] < vector_registers(caps)]
    order = {s: i for i, s in enumerate(REGISTER_TILES)}
    enough = EVALUATE_SCATTERED if spec.a.contiguous is None else EVALUATE_COLUMNS
    bytes_of_a = spec.m * spec.k * spec.itemsize
    few = spec.m <= SHALLOW_ROWS and not any_rows
    lines = few and spec.a.contiguous == 0  # a block of its terms is in the first-level cache as it lies
    evaluate = spec.n * spec.batch // distinct(spec) >= enough and (
        spec.a.flops > 0 or (spec.a.contiguous != 1 and bytes_of_a >= EVALUATE_BYTES and not lines)
    )
    short = 1 < spec.a.run <= SHORT_RUN // spec.itemsize and bytes_of_a > SHORT_RUN_BYTES
    evaluate = evaluate or (short and most >= SHORT_RUN_VECTORS and spec.inner == 1)
    depth = SHALLOW_DEPTH if few and spec.b.contiguous == 1 else PACK_DEPTH
    if spec.a.contiguous != 1 and not evaluate and bytes_of_a > EVALUATE_BYTES:
        depth = min(depth, ACROSS_DEPTH)
    again = spec.m >= PACK_ROWS or any_rows
    pack = depth if spec.k > 0 and spec.inner == 1 and (spec.b.contiguous != 1 or again) else 0
    tiles = [Tile("panel", rows, vectors, pack, evaluate) for rows, vectors in fitting]
    return sorted(tiles, key=lambda t: (cycles(t), order.get((t.rows, t.vectors), len(order)), -t.vectors))


def distinct(spec: MatmulSpec) -> int:
    """How many matrices A is."""
    return spec.batch if spec.a.batched else 1


def pieces(spec: MatmulSpec, caps: Any, tile: Tile) -> int:
    """Into how many pieces the sum is split, to give every compute unit some."""
    if spec.inner > 1:
        return 1
    if tile.schedule == "stream":
        items = spec.batch * ceil(spec.n / STREAM_COLUMNS)
        return max(1, min(ceil(caps.compute_units * ITEMS_PER_UNIT / items), spec.k // MIN_DEPTH))
    panels = spec.batch * ceil(spec.n / tile.columns(spec, caps))
    tiles = panels * ceil(spec.m / tile.rows)
    wanted = 1
    # Parts of the rows would each pack a panel: pieces of the sum pack their own.
    packed_again = tile.pack and spec.m <= SHALLOW_ROWS and panels < caps.compute_units
    if tiles < caps.compute_units or packed_again:
        items = panels if packed_again else tiles
        wanted = min(caps.compute_units * ITEMS_PER_UNIT // items, spec.k // MIN_DEPTH)
    across = tile.schedule == "panel" and spec.a.contiguous != 1 and not tile.evaluate
    large = spec.m * spec.k * spec.a.bytes + bytes_of_b(spec) > caps.cache_bytes
    if across and large and spec.batch < caps.compute_units and spec.k >= DEEP * max(spec.m, spec.n):
        wanted = max(wanted, min(caps.compute_units * ITEMS_PER_UNIT, spec.k // MIN_DEPTH))
    affordable = MAX_PARTIAL_BYTES // (spec.batch * spec.m * spec.n * spec.itemsize)
    return max(1, min(wanted, affordable))


def evaluated(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """A first kernel evaluates A into a temp, dense and contiguous along k; then the product."""
    dense = Operand(lambda k: matrix_load(k, spec), spec.acc, 1, spec.a.batched)
    inner = spec._replace(a=dense, names=("dense", *spec.names[1:]))
    product = matmul(name, inner, caps, tile._replace(evaluate=False))
    at = len(product.temps)
    steps = [s._replace(args=tuple(at if a == "dense" else a for a in s.args)) for s in product.steps]
    nbytes = distinct(spec) * spec.m * (spec.k + EVALUATE_GAP) * spec.itemsize
    return Steps([evaluate(f"{name}_a", spec, caps, at), *steps], [*product.temps, nbytes])


def matrix_load(k: Builder, spec: MatmulSpec) -> Load:
    """Load from a dense A for each batch."""
    buffer = k.buffer(spec.acc, readonly=True)

    def load(batch: V, i: V, p: Term, width: int = 1) -> V:
        p = p[0] * spec.inner + p[1] if isinstance(p, tuple) else p
        row = batch * spec.m + i if spec.a.batched else i
        return k.load(buffer, row * (spec.k + EVALUATE_GAP) + p, width)

    return load


def evaluate(name: str, spec: MatmulSpec, caps: Any, temp: int) -> Step:
    """The kernel that writes A as a dense matrix for each batch."""
    width = lanes(caps, spec.itemsize, spec.k)
    k = Builder(name, spec.index_bits, (1, 1, 1))
    load, dense = spec.a.bind(k), k.buffer(spec.acc)
    lo, batch, start = k.global_id(0) * EVALUATE_ROWS, k.global_id(1), k.global_id(2) * EVALUATE_DEPTH
    hi = k.map("minimum", lo + EVALUATE_ROWS, spec.m)
    with k.for_(start, k.map("minimum", start + EVALUATE_DEPTH, spec.k), width) as columns:
        p = at_most(k, columns.iv, spec.k - width, spec.k, width)
        copy_block(
            k, load, batch, (lo, hi), p, width, spec.a.contiguous,
            lambda i, x: k.store(dense, (batch * spec.m + i) * (spec.k + EVALUATE_GAP) + p, x),
        )  # fmt: skip
    items = ceil(spec.m / EVALUATE_ROWS), distinct(spec), ceil(spec.k / EVALUATE_DEPTH)
    return Step(name, k.finish(), (spec.names[0], temp), items, (1, 1, 1))


def split(name: str, spec: MatmulSpec, caps: Any, tile: Tile) -> Steps:
    """The sum in pieces, kept in a temp, and a second kernel that adds them up and applies the epilogue."""
    width = lanes(caps, spec.itemsize, spec.k) if tile.schedule != "local" else DEPTHS[tile.slices]
    piece = ceil(ceil(spec.k / tile.splits) / width) * width
    partial = spec._replace(piece=piece, out=Output(lambda k: matrix_store(k, spec), again=True))
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

    return Store(store)


def add_up(name: str, partial: MatmulSpec, spec: MatmulSpec, caps: Any, temp: int) -> Step:
    """The kernel that adds the pieces of each element, in order, and hands the sum to the epilogue. A work item has
    neighbouring vectors of a row, of a GPU one."""
    widest = lanes(caps, spec.itemsize, spec.n) if caps.is_cpu else WIDTH if multiple(spec.n, WIDTH) else 1
    width = 1 if spec.out.runs else widest
    block = width * SUM_VECTORS if caps.is_cpu else width
    k = Builder(name, spec.index_bits, (1, 1, 1) if caps.is_cpu else None)
    k.asked_once = not caps.is_cpu and width > 1
    store, buffer = spec.out.bind(k), k.buffer(spec.acc, readonly=True)
    start, i, batch = k.global_id(0) * block, k.global_id(1), k.global_id(2)

    def add(j: V, width: int) -> None:
        with k.for_(0, partial.pieces, init=[k.const(0, spec.acc, width)]) as loop:
            at = ((batch * partial.pieces + loop.iv) * spec.m + i) * spec.n + j
            loop.yield_(loop.args[0] + k.load(buffer, at, width))
        store.put(batch, i, j, loop.results[0], width)

    if caps.is_cpu:
        stop = k.map("minimum", start + block, spec.n)
        whole = start + (stop - start) // width * width
        with k.for_(start, whole, width) as loop:
            add(loop.iv, width)
        with k.for_(whole, stop) as loop:
            add(loop.iv, 1)
    else:
        with k.if_(start < spec.n):
            add(start, width)
    (items, _, _), size = geometry(ceil(spec.n / block), group_size(caps))  # those beyond the end have an empty range
    return Step(name, k.finish(), ("out", temp), (items, spec.m, spec.batch), size)


SCHEDULES = {"panel": panel, "dot": dot, "stream": stream, "local": local}
