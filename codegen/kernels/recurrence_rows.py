"""Recurrent layers on a CPU. A row of the batch does not depend on another, so each work item takes some rows through
the whole sequence, and no two have to wait for each other.

    pack      the weight as panels: the columns that a register tile needs, term after term
    walk      for each step, panel and tile of rows: a product with the state before, then the cell's own arithmetic

The state is kept twice, before and after the step: vectors of columns and tiles of rows may then overlap at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import at_most, copy_block, lanes, vector_registers
from codegen.kernels.recurrence_walk import Cell, Put, Recurrence
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME

# Of the registers a tile's sums take that part: 24 of 32, 12 of 16. benchmarks: lstm_train.
SUMS_SHARE = 3 / 4
# Vectors of columns in a tile where a step has one block of gates: as many as an LSTM has blocks.
TILE_VECTORS = 4


class Tiles(NamedTuple):
    """How a step is cut: `blocks` of gates x `vectors` of `width` columns of each for `rows` rows at a time;
    `depth` terms of the product; `block` rows for a work item."""

    blocks: int
    depth: int
    size: int
    width: int
    vectors: int
    rows: int
    block: int
    batch: int

    @property
    def panels(self) -> int:
        """How often a step goes over the rows."""
        return ceil(self.size / (self.vectors * self.width))

    @property
    def line(self) -> int:
        """Elements of a panel for one term."""
        return self.blocks * self.vectors * self.width

    @property
    def items(self) -> int:
        """Work items."""
        return ceil(self.batch / self.block)

    def column(self, k: Builder, panel: V, v: int) -> V:
        """The first column of a vector, moved back at the end."""
        span = self.vectors * self.width
        return at_most(k, panel * span + v * self.width, self.size - self.width, self.size, span)

    def row(self, k: Builder, tile: V) -> V:
        """The first row of a tile of this work item, moved back at the end."""
        first = k.global_id(0) * self.block + tile * self.rows
        return at_most(k, first, self.batch - self.rows, self.batch, self.block)


def tiles(spec: Recurrence, blocks: int, depth: int, caps: Any) -> Tiles:
    """Rows are shared out among the compute units, and evenly among the tiles of each."""
    width = lanes(caps, BY_NAME[spec.sums].bytes, spec.size)
    vectors = min(TILE_VECTORS if blocks == 1 else 1, ceil(spec.size / width))
    each = ceil(spec.batch / caps.compute_units)
    sums = int(vector_registers(caps) * SUMS_SHARE)
    count = ceil(each / max(1, sums // (blocks * vectors)))
    rows = ceil(each / count)
    return Tiles(blocks, depth, spec.size, width, vectors, rows, rows * count, spec.batch)


def pack(name: str, spec: Recurrence, t: Tiles, forward: bool) -> Step:
    """The weight (gates * H, H) as panels [panel, term, block, vector, column]. Its columns are the sums of the
    backward pass; forward its rows are."""
    k = Builder(name, spec.index_bits, (1, 1, 1))
    read, out = spec.binds["weight"](k), k.buffer(spec.sums)
    panel = k.global_id(0)
    contiguous = spec.contiguous if spec.contiguous is None or not forward else 1 - spec.contiguous

    def load(_: V, p: V, column: V, width: int = 1) -> V:
        """Terms run along dim 0 of what is packed, the vector along `contiguous`."""
        index = [column, p] if forward else [p, column]
        along = contiguous if not forward or contiguous is None else 1 - contiguous
        return read(index, along if width > 1 else None, width)  # type: ignore[no-any-return]

    bounds = k.const(0, "index"), k.const(t.depth, "index")
    for block in range(t.blocks):
        for v in range(t.vectors):
            base = panel * (t.depth * t.line) + (block * t.vectors + v) * t.width
            copy_block(
                k, load, panel, bounds, t.column(k, panel, v) + block * t.size, t.width, contiguous,
                lambda p, x, base=base: k.store(out, base + p * t.line, x),  # type: ignore[misc]
            )  # fmt: skip
    return Step(name, k.finish(), ("weight", 0), (t.panels, 1, 1), (1, 1, 1))


class Twice:
    """A state that a work item has in memory, `width` elements a row, before and after the step."""

    def __init__(self, k: Builder, buffer: Buf, width: int, t: Tiles):
        self.k, self.buffer, self.width, self.half = k, buffer, width, width * t.block
        self.base = k.global_id(0) * (2 * self.half)
        self.now = self.base

    def turn(self, step: V) -> None:
        """What step `step` finds, and leaves on the other side."""
        self.now = self.base + step % 2 * self.half
        self.then = self.base + (step + 1) % 2 * self.half

    def before(self, row: V, column: V | int, width: int = 1) -> V:
        """Elements as the step finds them."""
        return self.k.load(self.buffer, self.now + row * self.width + column, width)

    def after(self, row: V, column: V | int, value: V) -> None:
        """Elements for the next step."""
        self.k.store(self.buffer, self.then + row * self.width + column, value)

    def begin(self, row: V, column: V | int, value: V) -> None:
        """Elements for the first step."""
        self.k.store(self.buffer, self.base + row * self.width + column, value)


class Rows:
    """See `recurrence_walk.Walk`."""

    def __init__(self, name: str, spec: Recurrence, backward: bool, caps: Any):
        self.spec, self.backward, self.t = spec, backward, tiles(spec, *spec.product(backward), caps)
        self.k, self.width = Builder(name, spec.index_bits, (1, 1, 1)), self.t.width
        self.states: list[Twice] = []

    def terms(self) -> Twice:
        """The product's other operand is declared before it."""
        self.weights = self.k.buffer(self.spec.sums, readonly=True)
        return self._state(self.t.depth)

    def state(self) -> Twice:
        """As many elements as columns."""
        return self._state(self.t.size)

    def _state(self, width: int) -> Twice:
        self.states.append(Twice(self.k, self.k.buffer(self.spec.sums), width, self.t))
        return self.states[-1]

    def each(self, put: Put) -> None:
        """All vectors of all rows of a work item."""
        k, t = self.k, self.t
        with k.for_(0, t.block // t.rows) as tile, k.for_(0, t.rows) as r, k.for_(0, ceil(t.size / t.width)) as v:
            column = at_most(k, v.iv * t.width, t.size - t.width, t.size, t.width)
            put(tile.iv * t.rows + r.iv, t.row(k, tile.iv) + r.iv, column)

    def steps(self, bias: Callable[[V, int], V] | None, cell: Cell, backwards: bool) -> None:
        """Tile by tile, in private memory between the product and the cells."""
        k, t = self.k, self.t
        tile_of_sums = k.private(self.spec.sums, t.rows * t.line)
        zero = k.const(0.0, self.spec.sums, t.width)
        with k.for_(0, self.spec.steps) as step:
            time = step.iv if not backwards else self.spec.steps - 1 - step.iv
            for s in self.states:
                s.turn(step.iv)
            with k.for_(0, t.panels) as panel, k.for_(0, t.block // t.rows) as tile:
                at, first = tile.iv * t.rows, t.row(k, tile.iv)
                columns = [t.column(k, panel.iv, v) for v in range(t.vectors)]
                start = [bias(c, block) if bias else zero for block in range(t.blocks) for c in columns] * t.rows
                for n, total in enumerate(self._sums(panel.iv, at, start)):
                    k.store(tile_of_sums, n * t.width, total)
                with k.for_(0, t.rows) as r:
                    for v, column in enumerate(columns):
                        places = [(block * t.vectors + v) * t.width for block in range(t.blocks)]
                        blocks = [k.load(tile_of_sums, r.iv * t.line + p, t.width) for p in places]
                        cell(time, at + r.iv, first + r.iv, column, blocks)

    def _sums(self, panel: V, at: V, init: Sequence[V]) -> list[V]:
        """init[row, block, vector] + the states of the rows from `at` on times a panel."""
        k, t = self.k, self.t
        with k.for_(0, t.depth, init=init) as loop:
            base = (panel * t.depth + loop.iv) * t.line
            vectors = [k.load(self.weights, base + v * t.width, t.width) for v in range(t.blocks * t.vectors)]
            terms = [self.states[0].before(at + r, loop.iv) for r in range(t.rows)]
            totals = iter(loop.args)
            loop.yield_(*[k.multiply_add(a, b, next(totals)) for a in terms for b in vectors])
        return loop.results

    def finish(self, args: Sequence[str]) -> Steps:
        """The weight is packed first."""
        t, name = self.t, self.k.name
        temps = [t.panels * t.depth * t.line, *[2 * t.items * s.half for s in self.states]]
        walk = Step(name, self.k.finish(), (*args, *range(len(temps))), (t.items, 1, 1), (1, 1, 1))
        first = pack(name.removesuffix("_walk"), self.spec, t, not self.backward)
        return Steps([first, walk], [n * BY_NAME[self.spec.sums].bytes for n in temps])
