"""Dense factorisations and what follows from them: one launch, in which a work item takes a matrix through all steps.

It copies the matrix to scratch memory, its rows padded to whole vectors, works on it there with vectors along rows, and
writes the result. A step does what the expansion in `ops_core.lowering.linalg` does, in its order: the results are the
same to the bit, but for the sums of reflections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from codegen.builder import Builder, V
from codegen.kernels.operand import Sink, Source
from codegen.kernels.rows import geometry, group_size, locate
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node

# Work items per compute unit: each goes on with other matrices, in scratch memory that its cache holds by then.
ITEMS_PER_UNIT = {True: 4, False: 256}
# Vectors of columns that do not depend on each other in one work item: some hide the latency of others.
VECTORS = 4


class Rows:
    """The scratch memory of a work item, for a matrix of `rows` x `columns`, or for a block of its columns.

    A row has `stride` elements there, which are whole vectors of `width`.
    """

    def __init__(self, k: Builder, dtype: str, shape: tuple[int, int], stride: int, width: int):
        self.k, self.stride, self.width = k, stride, width
        self.rows, self.columns = shape
        self.buffer = k.buffer(dtype)
        self.base = k.global_id(0) * (self.rows * stride)
        self.at(k.const(0, "index"))

    def at(self, block: V) -> None:
        """Hold a block of columns: `count` from `first` on."""
        self.first = block * self.stride
        self.count = self.k.map("minimum", self.columns - self.first, self.stride)

    def load(self, row: V, column: V | int, width: int = 1) -> V:
        """An element, or a vector of a row."""
        return self.k.load(self.buffer, self.base + row * self.stride + column, width)

    def store(self, row: V, column: V | int, value: V) -> None:
        """Write an element, or a vector of a row."""
        self.k.store(self.buffer, self.base + row * self.stride + column, value)

    def line(self, row: V) -> list[V]:
        """The vectors of a row."""
        return [self.load(row, at, self.width) for at in range(0, self.stride, self.width)]

    def store_line(self, row: V, values: Sequence[V]) -> None:
        """Write the vectors of a row."""
        for n, value in enumerate(values):
            self.store(row, n * self.width, value)

    @contextmanager
    def vectors(self, column: V | int = 0) -> Iterator[V]:
        """A loop over the vectors of a row, from the one that has `column` on."""
        start = column // self.width * self.width
        with self.k.for_(start, self.stride, self.width) as loop:
            yield loop.iv

    def numbers(self, at: V, width: int) -> V:
        """The numbers of the columns from `at` on."""
        return at + self.k.iota(width) if width > 1 else at

    def fill(self, read: Callable[[V, V, int], V]) -> None:
        """Take read(row, column, width) of the whole matrix. What fills a last vector up is 0."""
        k, whole = self.k, self.count // self.width * self.width
        with k.for_(0, self.rows) as row:
            with k.for_(0, whole, self.width) as loop:
                self.store(row.iv, loop.iv, read(row.iv, self.first + loop.iv, self.width))
            with k.for_(whole, self.stride) as loop:
                value = read(row.iv, self.first + k.map("minimum", loop.iv, self.count - 1), 1)
                self.store(row.iv, loop.iv, k.select(loop.iv < self.count, value, 0))

    def drain(self, write: Callable[[V, V, V], None]) -> None:
        """Hand the whole matrix to write(row, column, element or vector)."""
        k, whole = self.k, self.count // self.width * self.width
        with k.for_(0, self.rows) as row:
            with k.for_(0, whole, self.width) as loop:
                write(row.iv, self.first + loop.iv, self.load(row.iv, loop.iv, self.width))
            with k.for_(whole, self.count) as loop:
                write(row.iv, self.first + loop.iv, self.load(row.iv, loop.iv))


class Task:
    """A matrix of the batch, held in `x`. at: its place in the batch, and that of its parts of operands and results."""

    def __init__(self, k: Builder, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink]):
        self.k, self.attrs, self.sizes = k, node.attrs, [s.shape for s in sources]
        self.reads = [s.bind(k) for s in sources]
        self.writes = {n: s.bind(k) for n, s in sinks.items()}
        self.at: list[V] = []
        self.x: Rows

    def read(self, n: int, *index: V, along: int | None = None, width: int = 1) -> V:
        """An element of operand n, or a vector along a dim of the matrix."""
        return self.reads[n]([*self.at, *index], None if along is None else len(self.at) + along, width)

    def write(self, n: int, *index: V, value: V, along: int | None = None) -> None:
        """An element of result n, or a vector along a dim of the matrix; nothing if nobody reads that result."""
        if n in self.writes:
            self.writes[n]([*self.at, *index], [value], None if along is None else len(self.at) + along)

    def take(self, n: int) -> None:
        """Begin with operand n."""
        self.x.fill(lambda row, column, width: self.read(n, row, column, along=1, width=width))

    def give(self) -> None:
        """The first result is what the scratch memory holds."""
        self.x.drain(lambda row, column, value: self.write(0, row, column, value=value, along=1))


def _order(step: V, count: int, backwards: bool) -> V:
    """Where a loop over `count` places is at a step."""
    return count - 1 - step if backwards else step


def _noted(k: Builder, info: V, step: V, fails: V) -> V:
    """info, or the number from 1 of the first step that fails."""
    return k.select(fails & (info == 0), k.cast(step + 1, "i32"), info)


def _cholesky(t: Task) -> None:
    """Rows of the scratch memory are the columns of L, from the diagonal on: what precedes it there means nothing."""
    k, x = t.k, t.x
    x.fill(lambda row, column, width: t.read(0, column, row, along=0, width=width))
    with k.for_(0, x.rows, init=[k.const(0, "i32")]) as step:
        j = step.iv
        pivot = x.load(j, j)
        root = k.map("sqrt", pivot)
        with x.vectors(j) as at:
            x.store(j, at, x.load(j, at, x.width) / root)
        x.store(j, j, root)
        with k.for_(j + 1, x.rows) as row:
            factor = x.load(j, row.iv)
            with x.vectors(row.iv) as at:
                x.store(row.iv, at, x.load(row.iv, at, x.width) - factor * x.load(j, at, x.width))
        step.yield_(_noted(k, step.args[0], j, ~(pivot > 0.0)))
    t.write(1, value=step.results[0])

    def write(row: V, column: V, value: V) -> None:
        lower = x.numbers(column, value.width) >= row
        t.write(0, column, row, value=k.select(lower, value, 0.0), along=0)

    x.drain(write)


def _lu(t: Task) -> None:
    """Rows are exchanged, then those below take off the pivot's row."""
    k, x = t.k, t.x
    t.take(0)
    with k.for_(0, min(x.rows, x.columns), init=[k.const(0, "i32")]) as step:
        j = step.iv
        first = k.map("abs", x.load(j, j))
        with k.for_(j + 1, x.rows, init=[first, j]) as row:
            best, place = row.args
            size = k.map("abs", x.load(row.iv, j))
            better = (size > best) | ((size != size) & (best == best))  # the first NaN counts as largest
            row.yield_(k.select(better, size, best), k.select(better, row.iv, place))
        place = row.results[1]
        t.write(1, j, value=k.cast(place + 1, "i32"))
        with x.vectors() as at:
            upper, lower = x.load(j, at, x.width), x.load(place, at, x.width)
            x.store(j, at, lower)
            x.store(place, at, upper)
        pivot = x.load(j, j)
        zero = pivot == 0.0
        with k.for_(j + 1, x.rows) as row:
            head = x.load(row.iv, j)
            factor = k.select(zero, head, head / pivot)
            with x.vectors(j + 1) as at:
                old, behind = x.load(row.iv, at, x.width), x.numbers(at, x.width) > j
                x.store(row.iv, at, k.select(behind, old - factor * x.load(j, at, x.width), old))
            x.store(row.iv, j, factor)
        step.yield_(_noted(k, step.args[0], j, zero))
    t.write(2, value=step.results[0])
    t.give()


def _permutation(t: Task) -> None:
    """The exchanges of an LU factorisation, done to the numbers of rows. Its pivots may be anybody's numbers."""
    k, x = t.k, t.x
    zero = k.const(0, "index")
    with k.for_(0, x.rows) as row:
        x.store(row.iv, 0, k.cast(row.iv, "i64"))
    with k.for_(0, t.sizes[0][-2]) as step:
        place = k.map("minimum", k.map("maximum", k.cast(t.read(0, step.iv, zero), "index") - 1, 0), x.rows - 1)
        here, there = x.load(step.iv, 0), x.load(place, 0)
        x.store(step.iv, 0, there)
        x.store(place, 0, here)
    t.give()


def _solve_triangular(t: Task) -> None:
    """A row of the result after the other, from a running difference in registers."""
    k, x, upper = t.k, t.x, t.attrs["upper"]
    t.take(1)
    with k.for_(0, x.rows) as step:
        i = _order(step.iv, x.rows, upper)
        with k.for_(0, step.iv, init=x.line(i)) as known:
            j = _order(known.iv, x.rows, upper)
            factor = t.read(0, i, j)
            known.yield_(*[b - factor * v for b, v in zip(known.args, x.line(j), strict=True)])
        line = known.results
        if not t.attrs["unit"]:
            pivot = t.read(0, i, i)
            line = [b / pivot for b in line]
        x.store_line(i, line)
    t.give()


def _householder(t: Task) -> None:
    """Reflections that clear one column after the other below the diagonal, and keep their vectors there."""
    k, x = t.k, t.x
    t.take(0)
    with k.for_(0, min(x.rows, x.columns)) as step:
        j = step.iv
        alpha = x.load(j, j)
        with k.for_(j + 1, x.rows, init=[k.const(0.0, alpha.dtype)]) as row:
            below = x.load(row.iv, j)
            row.yield_(row.args[0] + below * below)
        (rest,) = row.results
        none = rest == 0.0
        norm = k.map("sqrt", alpha * alpha + rest)
        beta = k.select(none, alpha, k.select(alpha >= 0.0, -norm, norm))
        tau = k.select(none, 0.0, (beta - alpha) / beta)
        scale = k.select(none, 1.0, alpha - beta)
        t.write(1, j, value=tau)
        with k.for_(j + 1, x.rows) as row:
            x.store(row.iv, j, x.load(row.iv, j) / scale)
        with x.vectors(j + 1) as at:
            head, behind = x.load(j, at, x.width), x.numbers(at, x.width) > j
            with k.for_(j + 1, x.rows, init=[head]) as row:
                row.yield_(row.args[0] + x.load(row.iv, j) * x.load(row.iv, at, x.width))
            (sums,) = row.results
            x.store(j, at, k.select(behind, head - tau * sums, head))
            with k.for_(j + 1, x.rows) as row:
                old = x.load(row.iv, at, x.width)
                x.store(row.iv, at, k.select(behind, old - tau * x.load(row.iv, j) * sums, old))
        x.store(j, j, beta)
    t.give()


def _reflect(t: Task) -> None:
    """One reflection after the other; each changes the rows from its own on."""
    k, x = t.k, t.x
    t.take(2)
    count = t.sizes[1][-1]
    with k.for_(0, count) as step:
        j = _order(step.iv, count, not t.attrs["transpose"])
        tau, head = t.read(1, j), x.line(j)
        with k.for_(j + 1, x.rows, init=head) as row:
            v = t.read(0, row.iv, j)
            row.yield_(*[s + v * old for s, old in zip(row.args, x.line(row.iv), strict=True)])
        sums = row.results
        x.store_line(j, [old - tau * s for old, s in zip(head, sums, strict=True)])
        with k.for_(j + 1, x.rows) as row:
            v = tau * t.read(0, row.iv, j)
            x.store_line(row.iv, [old - v * s for old, s in zip(x.line(row.iv), sums, strict=True)])
    t.give()


# What is done with a matrix as large as the first result.
FORMS: dict[str, Callable[[Task], None]] = {
    "cholesky": _cholesky, "lu": _lu, "permutation": _permutation, "solve_triangular": _solve_triangular,
    "householder": _householder, "reflect": _reflect,
}  # fmt: skip
# Those in which columns do not depend on each other, so that work items share them.
APART = ("solve_triangular", "reflect")


def factor(
    name: str, form: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any, index_bits: int
) -> Steps:
    """The launch of one of `FORMS`."""
    out = node.outputs[0]
    *batch, rows, columns = out.shape
    nbytes = BY_NAME[out.dtype].bytes
    width = max(1, min(caps.vector_bytes // nbytes, 1 << (columns - 1).bit_length()))
    vectors = -(-columns // width)
    stride = (min(vectors, VECTORS) if form in APART else vectors) * width
    blocks = -(-columns // stride)
    tasks = prod(batch) * blocks
    size = geometry(min(tasks, caps.compute_units * ITEMS_PER_UNIT[bool(caps.is_cpu)]), group_size(caps))
    items = size[0][0]
    k = Builder(name, index_bits)
    t = Task(k, node, sources, sinks)
    t.x = Rows(k, out.dtype, (rows, columns), stride, width)
    with k.for_(k.global_id(0), tasks, items) as loop:
        t.at = locate(loop.iv // blocks, batch) if batch else []
        t.x.at(loop.iv % blocks)
        FORMS[form](t)
    names = *(f"in{i}" for i in range(len(sources))), *(f"out{i}" for i in sinks)
    return Steps([Step(name, k.finish(), (*names, 0), *size)], [items * rows * stride * nbytes])
