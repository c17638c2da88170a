"""Products of groups: the matrix product's own kernels, one batch a group, whose rows or terms lie where `ends` says.

A row is stored where it lies, so groups of any sizes make one result; a group's tiles beyond its rows do nothing.
"""

from __future__ import annotations

from typing import Any

from codegen.builder import Builder, V
from codegen.emit import registers
from codegen.kernels.blocks import access
from codegen.kernels.contraction import Load, Operand, Output, Store
from codegen.kernels.matmul import MatmulSpec, Tile, candidates, matmul, panel_tiles
from codegen.kernels.matmul_local import shapes
from codegen.kernels.operand import Sink, Source
from codegen.kernels.step import Steps
from ops_core.ir import Node


def grouped(
    name: str, rows: bool, node: Node, sources: list[Source], sink: Sink, caps: Any, index_bits: int
) -> Steps:  # fmt: skip
    """Launches of `grouped_rows` (rows) or `grouped_terms`. `Step.args` name "in0", "in1", "out0" and "in2"."""
    a, b, ends = sources
    count, columns = ends.shape[0], b.shape[-1]
    height, depth = a.shape
    groups = Spans(ends, height if rows else depth, rows)
    spec = MatmulSpec(
        count, height, columns, depth,
        _rows_of(a, groups, caps) if rows else _matrix(a, 1, caps), _batch(b, caps) if rows else _matrix(b, 0, caps),
        _rows_to(sink, groups, caps) if rows else _result(sink, caps),
        registers(node.outputs[0].dtype), index_bits, ("in0", "in1", "out0", "in2"), groups=groups,
    )  # fmt: skip
    return matmul(name, spec, caps, _tile(spec, caps))


def _tile(spec: MatmulSpec, caps: Any) -> Tile:
    """What suits groups of equal sizes; none is split, since what a group has is known to the kernel only."""
    assert spec.groups
    share = spec._replace(m=spec.m // spec.batch) if spec.groups.rows else spec._replace(k=spec.k // spec.batch)
    equal = share._replace(m=max(1, share.m), k=max(1, share.k))
    if not caps.is_cpu:
        shape = next(s for s in shapes(equal.usual(), caps) if s.slices == 1)
        return Tile("local", shape.rows, shape.columns)
    found = [t for t in candidates(equal, caps) if t.schedule == "panel"] or panel_tiles(equal, caps, any_rows=True)
    return found[0]._replace(evaluate=False, splits=1)


class Spans:
    """Groups of `size` rows or terms in all, each from where the one before ends to where `ends` says.

    Rows beyond all groups count as the last one's: from `last` on it stores zeros.
    """

    first: V
    last: V
    end: V

    def __init__(self, ends: Source, size: int, rows: bool):
        self.ends, self.size, self.rows = ends, size, rows

    def begin(self, k: Builder, batch: V) -> None:
        """Read the bounds of a group, within [0, size]."""
        read, zero = self.ends.bind(k), k.const(0, "index")

        def end(at: V) -> V:
            return k.map("minimum", k.map("maximum", k.cast(read([at]), "index"), 0), self.size)

        self.first = k.select(batch > 0, end(k.map("maximum", batch - 1, 0)), zero)
        self.last = self.end = k.map("maximum", self.first, end(batch))
        if self.rows:
            self.end = k.select(batch == self.ends.shape[0] - 1, k.const(self.size, "index"), self.last)


def _matrix(source: Source, terms: int, caps: Any) -> Operand:
    """A matrix that all groups have, each some of its terms, dim `terms`. Vectors run along the other one: a group may
    begin anywhere."""
    other = 1 - terms
    contiguous = source.contiguous((other,), access(caps))

    def bind(k: Builder) -> Load:
        read = source.bind(k)
        return lambda z, i, j, width=1: read([i, j], other if width > 1 else None, width)

    return Operand(bind, registers(source.dtype), contiguous, False, 0, source.itemsize)


def _batch(source: Source, caps: Any) -> Operand:
    """A matrix for each group."""
    contiguous = source.contiguous((2, 1), access(caps))

    def bind(k: Builder) -> Load:
        read = source.bind(k)
        return lambda z, i, j, width=1: read([z, i, j], contiguous if width > 1 else None, width)

    dim = None if contiguous is None else contiguous - 1
    return Operand(bind, registers(source.dtype), dim, True, 0, source.itemsize)


def _rows_of(source: Source, groups: Spans, caps: Any) -> Operand:
    """The rows of a group. A tile's rows beyond it are others, or the last one: nothing is stored of them."""
    contiguous = source.contiguous((1,), access(caps))
    last = source.shape[0] - 1

    def bind(k: Builder) -> Load:
        read = source.bind(k)

        def load(z: V, i: V, j: V, width: int = 1) -> V:
            return read([k.map("minimum", groups.first + i, last), j], 1 if width > 1 else None, width)

        return load

    return Operand(bind, registers(source.dtype), contiguous, True, 0, source.itemsize)


def _rows_to(sink: Sink, groups: Spans, caps: Any) -> Output:
    """Where the rows of a group are stored."""
    vectors = sink.contiguous((1, 0), access(caps)) == 1

    def bind(k: Builder) -> Store:
        write = sink.bind(k)

        def store(z: V, i: V, j: V, acc: V, width: int = 1) -> None:
            row = groups.first + i
            with k.if_(row < groups.end):
                kept = k.select(row < groups.last, acc, k.broadcast(k.const(0, acc.dtype), width))
                if vectors or width == 1:
                    write([row, j], [kept], 1 if width > 1 else None)
                else:
                    for n in range(width):
                        write([row, j + n], [k.lane(kept, n)])

        return Store(store)

    return Output(bind, 1, again=True)


def _result(sink: Sink, caps: Any) -> Output:
    """A matrix of each group."""
    along = sink.contiguous((2, 1), access(caps))

    def bind(k: Builder) -> Store:
        write = sink.bind(k)
        return Store(lambda z, i, j, acc, width=1: write([z, i, j], [acc], along if width > 1 else None))

    return Output(bind, along - 1, again=True)
