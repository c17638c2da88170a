"""Composites: node patterns kept whole (`composite.NAME`) because a device may have one good kernel for them.

A composite is declared by its expansion to core ops, so a consumer that has no kernel for one loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ops_core.array import Arr, building, emit_multi
from ops_core.ir import Graph, Node, Value

Expansion = Callable[..., tuple[Arr, ...]]
Specs = list[tuple[tuple[int, ...], str]]
PREFIX = "composite."
EXPANSIONS: dict[str, Expansion] = {}


def composite(expansion: Expansion, specs: Callable[..., Specs] | None = None) -> Callable[..., tuple[Arr, ...]]:
    """Declare `expansion(*inputs, **attrs) -> outputs`. Calling the result appends one `composite.NAME` node; where an
    input has no elements, what it expands to.

    specs: the outputs' shapes and dtypes, where expanding for them would tie a size: to the turns of a loop.
    """
    name = expansion.__name__
    EXPANSIONS[name] = expansion

    def append(*inputs: Arr, **attrs: Any) -> tuple[Arr, ...]:
        if not all(x.numel for x in inputs):
            return expansion(*inputs, **attrs)
        if specs:
            return emit_multi(PREFIX + name, inputs, specs(*inputs, **attrs), **attrs)
        with building(Graph()) as scratch:
            shadows = [Arr(scratch.add("input", (), x.shape, x.dtype)) for x in inputs]
            found = [(y.shape, y.dtype) for y in expansion(*shadows, **attrs)]
        return emit_multi(PREFIX + name, inputs, found, **attrs)

    return append


def expand(graph: Graph, node: Node) -> tuple[Value, ...]:
    """Append the core ops of a composite node to `graph`; returns the values of its outputs."""
    graph.origin = node.origin
    with building(graph):
        outputs = EXPANSIONS[node.op.removeprefix(PREFIX)](*map(Arr, node.inputs), **node.attrs)
    return tuple(y.v for y in outputs)


def copy_node(graph: Graph, node: Node, env: dict[Value, Value]) -> None:
    """Append `node` to `graph` with inputs replaced by `env`, which learns the new outputs."""
    graph.origin = node.origin
    copy = Node(node.op, tuple([env[v] for v in node.inputs]), node.attrs, node.origin)
    outputs = graph.append(copy, [(v.shape, v.dtype) for v in node.outputs])
    env.update(zip(node.outputs, outputs, strict=False))


def expand_all(graph: Graph, keep: Callable[[Node], bool] = lambda node: False) -> Graph:
    """`graph` itself when it has nothing to expand, else a copy without composites but those that `keep` claims."""
    if not any(node.op.startswith(PREFIX) and not keep(node) for node in graph.nodes):
        return graph
    out = Graph()
    env: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op.startswith(PREFIX) and not keep(node):
            shadow = Node(node.op, tuple(env[v] for v in node.inputs), node.attrs, node.origin)
            env.update(zip(node.outputs, expand(out, shadow), strict=False))
        else:
            copy_node(out, node, env)
    return out
