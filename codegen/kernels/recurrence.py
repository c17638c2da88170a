"""Recurrent layers: one launch for all steps. A row of the batch does not depend on another, so each work item takes
some rows through the whole sequence, and no two have to wait for each other.

    pack      the weight as panels: the columns that a register tile needs, term after term
    walk      for each step, panel and tile of rows: a product with the state before, then the cell's own arithmetic

The state is kept twice, before and after the step: vectors of columns and tiles of rows may then overlap at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from codegen.builder import Buf, Builder, V
from codegen.kernels.blocks import at_most, copy_block, lanes
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.lowering.recurrence import CELLS

# Vectors of sums that a register tile holds. benchmarks: lstm_train.
TILE_SUMS = 24
# Vectors of columns in a tile where a step has one block of gates: as many as an LSTM has blocks.
TILE_VECTORS = 4

Bind = Callable[[Builder], Callable[..., Any]]
Read = Callable[..., V]


class Recurrence(NamedTuple):
    """One layer: T `steps`, B rows (`batch`), states of `size` elements of `dtype`."""

    kind: str
    steps: int
    batch: int
    size: int
    dtype: str
    reverse: bool
    binds: Mapping[str, Bind]
    contiguous: int | None  # the dim of the weight along which it lies in memory
    index_bits: int = 32

    @property
    def sums(self) -> str:
        """The dtype of sums and states."""
        return "f64" if self.dtype == "f64" else "f32"


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
    count = ceil(each / (TILE_SUMS // (blocks * vectors)))
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
        return read(index, along if width > 1 else None, width)

    bounds = k.const(0, "index"), k.const(t.depth, "index")
    for block in range(t.blocks):
        for v in range(t.vectors):
            base = panel * (t.depth * t.line) + (block * t.vectors + v) * t.width
            copy_block(
                k, load, panel, bounds, t.column(k, panel, v) + block * t.size, t.width, contiguous,
                lambda p, x, base=base: k.store(out, base + p * t.line, x),  # type: ignore[misc]
            )  # fmt: skip
    return Step(name, k.finish(), ("weight", 0), (t.panels, 1, 1), (1, 1, 1))


class States:
    """What a work item hands from step to step, `width` elements a row, before and after the step."""

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


def sums(k: Builder, t: Tiles, weights: Buf, states: States, panel: V, at: V, init: Sequence[V]) -> list[V]:
    """init[row, block, vector] + the states of the rows from `at` on times a panel."""
    with k.for_(0, t.depth, init=init) as loop:
        base = (panel * t.depth + loop.iv) * t.line
        vectors = [k.load(weights, base + v * t.width, t.width) for v in range(t.blocks * t.vectors)]
        states_of_term = [states.before(at + r, loop.iv) for r in range(t.rows)]
        totals = iter(loop.args)
        loop.yield_(*[k.multiply_add(a, b, next(totals)) for a in states_of_term for b in vectors])
    return loop.results


def each_vector(k: Builder, t: Tiles, put: Callable[[V, V, V], None]) -> None:
    """put(row of the work item, row of the batch, column) for all vectors of all rows of a work item."""
    with k.for_(0, t.block // t.rows) as tile, k.for_(0, t.rows) as r, k.for_(0, ceil(t.size / t.width)) as v:
        column = at_most(k, v.iv * t.width, t.size - t.width, t.size, t.width)
        put(tile.iv * t.rows + r.iv, t.row(k, tile.iv) + r.iv, column)


def walk(
    k: Builder, spec: Recurrence, t: Tiles, weights: Buf, states: Sequence[States], init: Callable[[V, int], V],
    cell: Callable[[V, V, V, V, list[V]], None], backwards: bool,
) -> None:  # fmt: skip
    """All steps: cell(time, row of the work item, row of the batch, column, sums by block). init: by column, block."""
    tile_of_sums = k.private(spec.sums, t.rows * t.line)
    with k.for_(0, spec.steps) as step:
        time = step.iv if not backwards else spec.steps - 1 - step.iv
        for s in states:
            s.turn(step.iv)
        with k.for_(0, t.panels) as panel, k.for_(0, t.block // t.rows) as tile:
            at, first = tile.iv * t.rows, t.row(k, tile.iv)
            columns = [t.column(k, panel.iv, v) for v in range(t.vectors)]
            start = [init(c, block) for block in range(t.blocks) for c in columns] * t.rows
            for n, total in enumerate(sums(k, t, weights, states[0], panel.iv, at, start)):
                k.store(tile_of_sums, n * t.width, total)
            with k.for_(0, t.rows) as r:
                for v, column in enumerate(columns):
                    places = [(block * t.vectors + v) * t.width for block in range(t.blocks)]
                    blocks = [k.load(tile_of_sums, r.iv * t.line + p, t.width) for p in places]
                    cell(time, at + r.iv, first + r.iv, column, blocks)


def along(dim: int, width: int) -> tuple[int | None, int]:
    """How a bind reads a vector along a dim."""
    return (dim if width > 1 else None), width


def recurrence(name: str, spec: Recurrence, caps: Any) -> Steps:
    """Reads gates, hidden, weight, memory (lstm), bias (optional); writes out, saved, last (those that are bound)."""
    kind = CELLS[spec.kind]
    t = tiles(spec, kind.gates, spec.size, caps)
    lstm = spec.kind == "lstm"
    k = Builder(f"{name}_walk", spec.index_bits, (1, 1, 1))
    args = [n for n in ("gates", "hidden", "memory", "bias", "out", "saved", "last") if n in spec.binds]
    bound = {n: spec.binds[n](k) for n in args}
    weights = k.buffer(spec.sums, readonly=True)
    state = States(k, k.buffer(spec.sums), t.size, t)
    memory = States(k, k.buffer(spec.sums), t.size, t) if lstm else None
    zero = k.const(0.0, spec.sums, t.width)

    def begin(own: V, row: V, column: V) -> None:
        state.begin(own, column, bound["hidden"]([row, column], *along(1, t.width)))
        if memory:
            memory.begin(own, column, bound["memory"]([row, column], *along(1, t.width)))

    def init(column: V, block: int) -> V:
        return bound["bias"]([column + block * t.size], *along(0, t.width)) if "bias" in bound else zero

    def write(to: str, index: Sequence[V], value: V) -> None:
        if to in bound:
            bound[to](index, [value], along(len(index) - 1, t.width)[0])

    def cell(time: V, own: V, row: V, column: V, h: list[V]) -> None:
        x = [bound["gates"]([time, row, column + b * t.size], *along(2, t.width)) for b in range(t.blocks)]
        before = memory.before(own, column, t.width) if memory else None
        new, after, saved = kind.forward(k.map, x, h, state.before(own, column, t.width), before)
        state.after(own, column, k.round_to(new, spec.dtype))
        if memory:
            memory.after(own, column, k.round_to(after, spec.dtype))
        write("out", [time, row, column], new)
        for b, value in enumerate(saved):
            write("saved", [time, row, column + b * t.size], value)

    each_vector(k, t, begin)
    states = [state, memory] if memory else [state]
    walk(k, spec, t, weights, states, init, cell, spec.reverse)
    if memory and "last" in bound:
        memory.turn(k.const(spec.steps, "index"))
        each_vector(k, t, lambda own, row, c: write("last", [row, c], memory.before(own, c, t.width)))
    temps = [t.panels * t.depth * t.line, *[2 * t.items * s.half for s in states]]
    return _steps(name, spec, t, k, args, temps, True)


def recurrence_backward(name: str, spec: Recurrence, caps: Any) -> Steps:
    """Reads grad, saved, weight, grad_memory (optional); writes what is bound of dx, dh (gru), carry (lstm, gru)."""
    kind = CELLS[spec.kind]
    t = tiles(spec, 1, kind.gates * spec.size, caps)
    k = Builder(f"{name}_walk", spec.index_bits, (1, 1, 1))
    args = [n for n in ("grad", "saved", "grad_memory", "dx", "dh", "carry") if n in spec.binds]
    bound = {n: spec.binds[n](k) for n in args}
    weights = k.buffer(spec.sums, readonly=True)
    back = States(k, k.buffer(spec.sums), kind.gates * t.size, t)
    carry = States(k, k.buffer(spec.sums), t.size, t) if kind.carries else None
    zero = k.const(0.0, spec.sums, t.width)

    def begin(own: V, row: V, column: V) -> None:
        for block in range(kind.gates):
            back.begin(own, column + block * t.size, zero)
        if carry:
            given = "grad_memory" in bound
            carry.begin(own, column, bound["grad_memory"]([row, column], *along(1, t.width)) if given else zero)

    def write(to: str, index: Sequence[V], value: V) -> None:
        if to in bound:
            bound[to](index, [value], along(len(index) - 1, t.width)[0])

    def cell(time: V, own: V, row: V, column: V, h: list[V]) -> None:
        grad = h[0] + bound["grad"]([time, row, column], *along(2, t.width))
        saved = [bound["saved"]([time, row, column + b * t.size], *along(2, t.width)) for b in range(kind.saved)]
        before = carry.before(own, column, t.width) if carry else None
        dx, dh, after = kind.backward(k.map, grad, before, saved)
        for b, (x, y) in enumerate(zip(dx, dh, strict=True)):
            back.after(own, column + b * t.size, k.round_to(y, spec.dtype))
            write("dx", [time, row, column + b * t.size], x)
            write("dh", [time, row, column + b * t.size], y)
        if carry:
            carry.after(own, column, k.round_to(after, spec.dtype))

    each_vector(k, t, begin)
    states = [back, carry] if carry else [back]
    walk(k, spec, t, weights, states, lambda column, block: zero, cell, not spec.reverse)
    if carry and "carry" in bound:
        carry.turn(k.const(spec.steps, "index"))
        each_vector(k, t, lambda own, row, c: write("carry", [row, c], carry.before(own, c, t.width)))
    temps = [t.panels * t.depth * t.line, *[2 * t.items * s.half for s in states]]
    return _steps(name, spec, t, k, args, temps, False)


def _steps(
    name: str, spec: Recurrence, t: Tiles, k: Builder, args: Sequence[str], temps: Sequence[int], forward: bool
) -> Steps:
    first = pack(name, spec, t, forward)
    walk = Step(k.name, k.finish(), (*args, *range(len(temps))), (t.items, 1, 1), (1, 1, 1))
    return Steps([first, walk], [n * BY_NAME[spec.sums].bytes for n in temps])
