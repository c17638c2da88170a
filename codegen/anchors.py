"""Groups around one op that has a kernel of its own: which template, and its view of operands and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from codegen import linalg
from codegen.builder import Builder, V
from codegen.emit import registers
from codegen.kernels.contraction import Operand, Output
from codegen.kernels.conv import ConvSpec, Tensor, convolution
from codegen.kernels.matmul import MatmulSpec
from codegen.kernels.matmul import matmul as matmul_kernels
from codegen.kernels.operand import Sink, Source
from codegen.kernels.order import searchsorted, sort
from codegen.kernels.rows import locate
from codegen.kernels.scan import scan
from codegen.kernels.scatter import Target, index_put, nonzero, scatter
from codegen.kernels.step import Steps
from ops_core.ir import Node


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


def kernels(name: str, anchored: Anchored, caps: Any) -> Steps:
    """The launches of an anchored group. `Step.args` name "in0", "in1", .. , "out" and "target"."""
    node = anchored.node
    if node.op in IN_PLACE:
        assert anchored.target
        return IN_PLACE[node.op](name, node, anchored.sources, anchored.target, caps)
    return TEMPLATES[node.op](name, node, anchored.sources, anchored.sink, caps)


def _matmul(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    *batch, m, n = node.outputs[0].shape
    depth = node.inputs[0].shape[-1]
    wide = any(p.wide for p in (*(s.program for s in sources), sink.program))
    a, b = (_operand(s, batch, caps) for s in sources)
    acc = registers(node.outputs[0].dtype)
    spec = MatmulSpec(prod(batch), m, n, depth, a, b, _output(sink, batch, caps), acc, 64 if wide else 32,
                      ("in0", "in1", "out"))  # fmt: skip
    return matmul_kernels(name, spec, caps)


def _convolution(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    out = node.outputs[0]
    last = len(out.shape) - 1
    wide = any(p.wide for p in (*(s.program for s in sources), sink.program))
    x, w = (
        Tensor(s.bind, s.shape, registers(s.dtype), s.contiguous((last,), caps.vector_bytes // 4) is not None, s.flops)
        for s in sources
    )
    result = Tensor(sink.bind, out.shape, registers(out.dtype))
    attrs = {k: tuple(node.attrs[k]) for k in ("stride", "padding", "dilation")}
    spec = ConvSpec(x, w, result, **attrs, transposed=node.attrs["transposed"], groups=node.attrs["groups"],
                    acc=registers(out.dtype), index_bits=64 if wide else 32, names=("in0", "in1", "out"))  # fmt: skip
    return convolution(name, spec, caps)


def _operand(source: Source, batch: Sequence[int], caps: Any) -> Operand:
    """A matrix of each batch, as contraction templates read it."""
    rank = len(batch)
    contiguous = source.contiguous((rank + 1, rank), caps.vector_bytes // 4)

    def bind(k: Builder) -> Callable[..., V]:
        read = source.bind(k)

        def load(z: V, i: V | int, j: V | int, width: int = 1) -> V:
            return read([*_located(k, z, batch), i, j], contiguous if width > 1 else None, width)

        return load

    return Operand(bind, registers(source.dtype), None if contiguous is None else contiguous - rank,
                   source.varies(range(rank)), source.flops, source.itemsize)  # fmt: skip


def _output(sink: Sink, batch: Sequence[int], caps: Any) -> Output:
    """A matrix of each batch, as contraction templates write it."""
    rank = len(batch)
    along = sink.contiguous((rank + 1, rank), caps.vector_bytes // 4)

    def bind(k: Builder) -> Callable[..., None]:
        write = sink.bind(k)

        def store(z: V, i: V | int, j: V | int, acc: V, width: int = 1) -> None:
            write([*_located(k, z, batch), i, j], [acc], along if width > 1 else None)

        return store

    return Output(bind, along - rank, again=not any(s.in_place for s in sink.program.stores))


def _located(k: Builder, z: V | int, batch: Sequence[int]) -> list[V]:
    return locate(z if isinstance(z, V) else k.const(z, "index"), batch) if batch else []


TEMPLATES: dict[str, Callable[..., Steps]] = {
    "matmul": _matmul, "convolution": _convolution, "sort": sort, "searchsorted": searchsorted,
    "cumsum": scan, "cumprod": scan, "cummax": scan, "logcumsumexp": scan,
}  # fmt: skip
IN_PLACE: dict[str, Callable[..., Steps]] = {"index_put": index_put, "scatter": scatter, "nonzero": nonzero}
