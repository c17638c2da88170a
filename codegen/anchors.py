"""Groups around one op that has a kernel of its own: which template, and its view of operands and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from codegen import linalg
from codegen.builder import Builder, V
from codegen.emit import declare, registers
from codegen.kernels import lockstep
from codegen.kernels.blocks import access, lanes
from codegen.kernels.contraction import Operand, Output, Store, Term
from codegen.kernels.conv import ConvSpec, Tensor, convolution
from codegen.kernels.kept import FUNCTION_OPS
from codegen.kernels.matmul import MatmulSpec, Tile, rivals, transposed
from codegen.kernels.matmul import matmul as matmul_kernels
from codegen.kernels.operand import Sink, Source
from codegen.kernels.order import searchsorted, sort
from codegen.kernels.partial_updates import partial_updates
from codegen.kernels.rows import locate
from codegen.kernels.scan import scan
from codegen.kernels.scatter import Target, index_put, nonzero, scatter
from codegen.kernels.step import Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node
from ops_core.sizes import usual


class Factor(NamedTuple):
    """A factor of a `Product`: the dtype of its values, and as `Operand` has it; prologue: it is computed. One matrix
    is not `batched`."""

    dtype: str
    contiguous: int | None
    batched: bool
    prologue: bool


class Product(NamedTuple):
    """What a schedule is measured for: [batch, m, k] x [batch, k, n], results contiguous along n. dtype: of the
    results; epilogue: something is computed from them before they are stored."""

    batch: int
    m: int
    n: int
    k: int
    a: Factor
    b: Factor
    dtype: str
    epilogue: bool

    def rivals(self, caps: Any) -> list[Tile]:
        """The schedules that are timed, the heuristic's choice first."""

        def operand(of: Factor) -> Operand:
            nbytes = BY_NAME[of.dtype].bytes
            return Operand(_unbound, registers(of.dtype), of.contiguous, of.batched, int(of.prologue), nbytes)

        sides = operand(self.a), operand(self.b), Output(_unbound)
        return rivals(MatmulSpec(self.batch, self.m, self.n, self.k, *sides, registers(self.dtype)), caps)


def _unbound(k: Builder) -> Any:
    raise AssertionError("schedules are compared without kernels")


@dataclass(frozen=True)
class Anchored:
    """An anchor with its operands and what is done with its results.

    sink: for templates that hand over results; target: for those that update memory in place.
    """

    node: Node
    sources: list[Source]
    sink: Sink
    target: Target | None

    def key(self) -> tuple[Any, ...]:
        """All that decides the kernels."""
        target = self.target and (self.target.shape, self.target.strides, self.target.dtype, self.target.wide)
        sources = tuple(s.program.key() for s in self.sources)
        shapes = tuple((v.shape, v.dtype) for v in self.node.outputs)
        return self.node.op, repr(self.node.attrs), shapes, sources, self.sink.program.key(), target

    def simplified(self) -> tuple[Anchored, str]:
        """With programs that went through `codegen.linalg`, and the modules that they were read from."""
        made = [linalg.simplify(s.program) for s in self.sources]
        sink, module = linalg.simplify(self.sink.program)
        sources = [Source(program, s.shape) for (program, _), s in zip(made, self.sources, strict=True)]
        modules = "".join(text for _, text in made) + module
        return Anchored(self.node, sources, Sink(sink), self.target), modules


def product(anchored: Anchored, caps: Any) -> Product:
    """What a group around a product is as far as its schedule goes."""
    spec = _product(anchored.node, anchored.sources, anchored.sink, caps)
    dtypes = [v.dtype for v in anchored.node.inputs]
    dtypes = dtypes if spec.names[0] == "in0" else dtypes[::-1]
    a, b = (
        Factor(dtype, of.contiguous, of.batched and spec.batch > 1, of.flops > 0)
        for dtype, of in zip(dtypes, (spec.a, spec.b), strict=True)
    )
    epilogue = any(i.op in ("map", "mlir") for i in anchored.sink.program.instrs)
    return Product(spec.batch, spec.m, spec.n, spec.k, a, b, anchored.node.outputs[0].dtype, epilogue)


def kernels(name: str, anchored: Anchored, caps: Any, tile: Tile | None = None) -> Steps:
    """The launches of an anchored group. `Step.args` name "in0", "in1", .. , "out" and "target".

    tile: for a product, one of its `rivals`; anything else counts as none.
    """
    node = anchored.node
    if tile:
        return _matmul(name, node, anchored.sources, anchored.sink, caps, tile)
    if node.op in IN_PLACE:
        assert anchored.target
        return IN_PLACE[node.op](name, node, anchored.sources, anchored.target, caps)
    return TEMPLATES[node.op](name, node, anchored.sources, anchored.sink, caps)


def _matmul(
    name: str, node: Node, sources: list[Source], sink: Sink, caps: Any, tile: Tile | None = None
) -> Steps:  # fmt: skip
    spec = _product(node, sources, sink, caps)
    # What was kept under another version of the rules, or of a file, is not taken at its word.
    known = tile and next((t for t in rivals(spec, caps) if t == tile), None)
    return matmul_kernels(name, spec, caps, known)


def _product(node: Node, sources: list[Source], sink: Sink, caps: Any) -> MatmulSpec:
    """The product with results contiguous along n, whichever way round that is."""
    *batch, m, n = node.outputs[0].shape
    depth = node.inputs[0].shape[-1]
    wide = any(p.wide for p in (*(s.program for s in sources), sink.program))
    a, b = (_operand(s, batch, caps, len(batch) + 1 - at) for at, s in enumerate(sources))
    acc = registers(node.outputs[0].dtype)
    spec = MatmulSpec(prod(batch), m, n, depth, a, b, _output(sink, (*batch, m, n), caps), acc, 64 if wide else 32,
                      ("in0", "in1", "out"))  # fmt: skip
    return transposed(spec) if spec.out.contiguous == 0 else spec


def _convolution(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    out = node.outputs[0]
    last = len(out.shape) - 1
    wide = any(p.wide for p in (*(s.program for s in sources), sink.program))
    x, w = (
        Tensor(s.bind, s.shape, registers(s.dtype), s.contiguous((last,), access(caps)) is not None, s.flops)
        for s in sources
    )
    result = Tensor(sink.bind, out.shape, registers(out.dtype))
    attrs = {k: tuple(node.attrs[k]) for k in ("stride", "padding", "dilation")}
    spec = ConvSpec(x, w, result, **attrs, transposed=node.attrs["transposed"], groups=node.attrs["groups"],
                    acc=registers(out.dtype), index_bits=64 if wide else 32, names=("in0", "in1", "out"))  # fmt: skip
    return convolution(name, spec, caps)


def _operand(source: Source, batch: Sequence[int], caps: Any, along: int) -> Operand:
    """A matrix of each batch, as contraction templates read it. along: the dim that is summed over."""
    rank = len(batch)
    contiguous = source.contiguous((rank + 1, rank), access(caps))

    in_runs = source.in_runs(along) if caps.is_cpu else None
    flops = source.flops + (0 if in_runs else source.quotients(along))

    def bind(k: Builder) -> Callable[..., V]:
        arguments = declare(k, source.program)
        width = lanes(caps, BY_NAME[source.dtype].bytes, source.shape[-1]) if source.program.reductions else 1
        read = source.bind(k, arguments, width)
        read_in_runs = in_runs.bind(k, arguments) if in_runs else None

        def load(z: V, i: Term | int, j: Term | int, width: int = 1) -> V:
            at: list[V | int] = [*_located(k, z, batch)]
            for place in (i, j):
                at += place if isinstance(place, tuple) else (place,)
            if read_in_runs and len(at) > rank + 2:
                return read_in_runs(at)
            return read(at, contiguous if width > 1 else None, width)

        return load

    return Operand(bind, registers(source.dtype), None if contiguous is None else contiguous - rank,
                   source.varies(range(rank)), flops, source.itemsize,
                   in_runs.shape[along + 1] if in_runs else 1)  # fmt: skip


def _output(sink: Sink, shape: Sequence[int], caps: Any) -> Output:
    """A matrix of each batch, as contraction templates write it."""
    batch, rank = shape[:-2], len(shape) - 2
    along = sink.contiguous((rank + 1, rank), access(caps))
    rows = sink.rows(along, 2 * rank + 1 - along)
    nbytes = usual(prod(shape)) * sum(BY_NAME[sink.program.buffers[place[0]].dtype].bytes for place in rows)
    asks = nbytes > caps.cache_bytes  # else they are in a core's cache: 256^3 and less as fast without
    ops = sink.ops(along, access(caps))

    def bind(k: Builder) -> Store:
        write = sink.bind(k)

        def put(z: V, i: V | int, j: V | int, acc: V, width: int = 1) -> None:
            write([*_located(k, z, batch), i, j], [acc], along if width > 1 else None)

        def ask(z: V, i: V, j: V) -> None:
            write.ask([*_located(k, z, batch), i, j], rows)

        return Store(put, ask if asks else None, lockstep.count(ops, caps), FUNCTION_OPS in ops)

    return Output(bind, along - rank, again=not any(s.in_place for s in sink.program.stores))


def _located(k: Builder, z: V | int, batch: Sequence[int]) -> list[V]:
    return locate(z if isinstance(z, V) else k.const(z, "index"), batch) if batch else []


TEMPLATES: dict[str, Callable[..., Steps]] = {
    "matmul": _matmul, "convolution": _convolution, "sort": sort, "searchsorted": searchsorted,
    "cumsum": scan, "cumprod": scan, "cummax": scan, "logcumsumexp": scan,
}  # fmt: skip
IN_PLACE: dict[str, Callable[..., Steps]] = {
    "index_put": index_put, "scatter": scatter, "nonzero": nonzero, "partial_updates": partial_updates,
}  # fmt: skip
