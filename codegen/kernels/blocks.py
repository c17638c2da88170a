"""Pieces that contraction kernels share: register transposes, packing into panels, stores with ragged edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from codegen.builder import Buf, Builder, V
from codegen.kernels.contraction import Load, Runs, Store
from codegen.mathlib.table import FUNCTIONS
from ops_core.sizes import multiple, varies

T = TypeVar("T")

# Lanes along an extent that varies: extents from here up share a kernel. benchmarks: lengths.
VARYING_LANES = 8


# Elements of an access on devices with narrower registers: what the tiles of `matmul_local` are read by.
LEAST_ACCESS = 4


def access(caps: object) -> int:
    """Elements of the widest access of a template along a dim, which must then lie side by side in memory."""
    return max(LEAST_ACCESS, caps.vector_bytes // 4)  # type: ignore[attr-defined]


def lanes(caps: object, itemsize: int, extent: int) -> int:
    """Vector width in elements: a register's worth, or the largest power of two that `extent` holds."""
    full = max(1, caps.vector_bytes // itemsize)  # type: ignore[attr-defined]
    full = min(full, VARYING_LANES) if varies(extent) else full
    return next(width for width in (full >> n for n in range(full.bit_length())) if extent >= width)


# Of a device that says less its compiler makes do: no tile is smaller than what these hold.
FEWEST_REGISTERS = 16


def vector_registers(caps: object) -> int:
    """Vectors that a work item keeps without memory."""
    return max(FEWEST_REGISTERS, int(caps.max_private_bytes // caps.vector_bytes))  # type: ignore[attr-defined]


def by_registers(table: Mapping[int, T], caps: object) -> T:
    """Of a table by how many registers there are, from `FEWEST_REGISTERS` up, the entry for those of a device."""
    return table[max(n for n in table if n <= vector_registers(caps))]


def powers_of_two(count: int) -> list[int]:
    """Descending powers of two that add up to count: the widths in which a ragged edge is written."""
    return [1 << b for b in range(count.bit_length() - 1, -1, -1) if count >> b & 1]


def at_most(k: Builder, index: V, limit: int, extent: int, step: int) -> V:
    """The start of a tile, moved back so that it lies within [0, limit + step) where the extent is ragged."""
    return index if multiple(extent, step) else k.map("minimum", index, limit)


# Vectors of a block from which on the rounds of its transpose are a loop and not written out: 64 shuffles of 16 lanes
# are a tenth of what a compiler takes for attention's backward. benchmarks.kernels: the same rates.
LOOPED_ROUNDS = 16


def transpose(k: Builder, rows: Sequence[V]) -> list[V]:
    """The transpose of a square block of W vectors with W lanes: log2(W) rounds of shuffles."""
    block, width = list(rows), len(rows)
    if width >= LOOPED_ROUNDS:
        with k.for_(0, width.bit_length() - 1, init=block, rolled=True) as loop:
            loop.yield_(*_interleaved(k, loop.args))
        return loop.results
    distance = width // 2
    while distance:
        low = [lane if not lane & distance else lane - distance + width for lane in range(width)]
        high = [lane + distance if not lane & distance else lane + width for lane in range(width)]
        for i in range(width):
            if not i & distance:
                a, b = block[i], block[i + distance]
                block[i], block[i + distance] = k.shuffle(a, b, low), k.shuffle(a, b, high)
        distance //= 2
    return block


def _interleaved(k: Builder, block: Sequence[V]) -> list[V]:
    """The perfect shuffle of all W x W elements, first half with second: log2(W) times it exchanges vector and lane.

    Some processors need two instructions for it where the rounds above need one: those with vectors of 8.
    """
    half, width = len(block) // 2, len(block)
    low = [lane // 2 + lane % 2 * width for lane in range(width)]
    high = [half + lane for lane in low]
    pairs = zip(block[:half], block[half:], strict=True)
    return [k.shuffle(a, b, lanes) for a, b in pairs for lanes in (low, high)]


def copy_block(
    k: Builder, load: Load, batch: V, rows: tuple[V, V], column: V, width: int, contiguous: int | None,
    put: Callable[[V, V], None],
) -> None:  # fmt: skip
    """Hand rows [lo, hi) x columns [column, column + width) to put(row, vector along columns).

    Reads vectors along whichever dim is contiguous. hi - lo >= 1.
    """
    lo, hi = rows
    if width == 1 or contiguous == 1:
        with k.for_(lo, hi) as loop:
            put(loop.iv, load(batch, loop.iv, column, width))
    elif contiguous is None:
        with k.for_(lo, hi) as loop:
            put(loop.iv, k.pack([load(batch, loop.iv, column + v) for v in range(width)]))
    else:
        whole = lo + (hi - lo) // width * width
        with k.for_(lo, whole, width) as loop:
            block = [load(batch, loop.iv, column + v, width) for v in range(width)]
            for r, vector in enumerate(transpose(k, block)):
                put(loop.iv + r, vector)
        with k.for_(whole, hi) as loop:
            put(loop.iv, k.pack([load(batch, loop.iv, column + v) for v in range(width)]))


def store_row(
    k: Builder, store: Store, tile: Buf, base: V, i: V, batch: V, j: V, columns: tuple[int, int], width: int
) -> None:
    """Store columns [lo, hi) of a row of a tile that lies in private memory from `base` on; its first column is j."""
    column, stop = columns

    def put(at: V | int, width: int) -> None:
        store.put(batch, i, j + at, k.load(tile, base + at, width), width)

    def by_turns(at: V | int) -> None:
        k.in_lockstep([partial(put, at + n * width, width) for n in range(turns)], FUNCTIONS if turns > 1 else {})

    whole = (stop - column) // width
    turns = min(store.turns, max(whole, 1))
    block = turns * width
    if (blocks := whole // turns) > 1:
        with k.for_(column, column + blocks * block, block, rolled=True) as loop:
            by_turns(loop.iv)
    elif blocks:
        by_turns(column)
    column += blocks * block
    for chunk in [width] * ((stop - column) // width) + powers_of_two((stop - column) % width):
        put(column, chunk)
        column += chunk


def store_runs(
    k: Builder, store: Store, tile: Buf, base: V, i: V, batch: V, j: V, columns: tuple[V, V], runs: Runs
) -> None:
    """Store columns [lo, hi) of a row of a tile whose first column is j, run by run."""
    lo, hi = columns
    period, valid, width = runs

    def put(start: V, stop: V, width: int) -> None:
        with k.for_(start, stop, width) as loop:
            store.put(batch, i, loop.iv, k.load(tile, base + (loop.iv - j), width), width)

    with k.for_(lo // period, (hi - 1) // period + 1) as run:
        first = run.iv * period
        start = k.map("maximum", lo, first)
        stop = k.map("minimum", hi, first + valid)
        if width > 1:
            if multiple(valid, width):
                aligned = k.map("minimum", first + (start - first + (width - 1)) // width * width, stop)
                put(start, aligned, 1)
                start = aligned
            whole = start + (stop - start) // width * width
            put(start, whole, width)
            start = whole
        put(start, stop, 1)
