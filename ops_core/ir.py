"""The core graph: what a window becomes before kernels are chosen.

A graph is a list of nodes in program order over SSA values. Shapes are tuples of
ints, dtypes are the names of `ops_core.dtypes`. Memory is touched only by `load`
and `store`, which name a *slot* (a buffer of the window) and a strided view of it
in elements of the value's dtype; everything between is pure.

A `check` has no result: where an element of its operand is not in [low, size), reading the device raises its error.

A 0-dim value may be a run-time scalar (`param`): a Python float, a learning rate, a
seed. It is a kernel argument and never part of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class Value:
    """One tensor in a graph. shape: ints; dtype: a name of `ops_core.dtypes`."""

    __slots__ = ("dtype", "id", "index", "node", "shape")

    def __init__(self, id: int, shape: tuple[int, ...], dtype: str, node: Node, index: int):
        self.id, self.shape, self.dtype, self.node, self.index = id, shape, dtype, node, index

    def __repr__(self) -> str:
        return f"%{self.id}:{self.dtype}{list(self.shape)}"


class Node:
    """One core op. `attrs` holds static attributes; `origin` the index of the window node it comes from."""

    __slots__ = ("attrs", "inputs", "op", "origin", "outputs")

    def __init__(self, op: str, inputs: tuple[Value, ...], attrs: dict[str, Any], origin: int):
        self.op, self.inputs, self.attrs, self.origin = op, inputs, attrs, origin
        self.outputs: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        outs = ", ".join(map(repr, self.outputs))
        ins = ", ".join(f"%{v.id}" for v in self.inputs)
        attrs = "".join(f" {k}={v!r}" for k, v in self.attrs.items())
        return f"{outs} = {self.op}({ins}){attrs}"


@dataclass
class Graph:
    """Nodes in program order. `origin` tags the nodes that are being added."""

    nodes: list[Node] = field(default_factory=list)
    origin: int = -1
    _next: int = 0

    def add_multi(
        self, op: str, inputs: tuple[Value, ...], specs: list[tuple[tuple[int, ...], str]], /, **attrs: Any
    ) -> tuple[Value, ...]:
        """Append a node with several outputs, one (shape, dtype) each."""
        return self.append(Node(op, inputs, attrs, self.origin), specs)

    def append(self, node: Node, specs: Sequence[tuple[Sequence[int], str]]) -> tuple[Value, ...]:
        """Append a node that has no outputs yet, and give it these."""
        first = self._next
        node.outputs = tuple([Value(first + i, tuple(s), d, node, i) for i, (s, d) in enumerate(specs)])
        self._next = first + len(specs)
        self.nodes.append(node)
        return node.outputs

    def add(self, op: str, inputs: tuple[Value, ...], shape: tuple[int, ...], dtype: str, /, **attrs: Any) -> Value:
        """Append a node with one output."""
        return self.add_multi(op, inputs, [(shape, dtype)], **attrs)[0]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.nodes))
