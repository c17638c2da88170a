"""Graph -> graph, before fusion: dead nodes go, composites and wide reductions become core ops that run in parallel."""

from __future__ import annotations

from typing import Any

from ops_core.composites import expand_all
from ops_core.ir import Graph, Node, Value


def rewrite(graph: Graph, caps: Any) -> Graph:
    """The graph that fusion sees. Values and nodes of `graph` are not changed."""
    return _live(expand_all(graph))


def _live(graph: Graph) -> Graph:
    """Without the nodes that no store needs."""
    wanted: set[Value] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op == "store" or any(v in wanted for v in node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return Graph(kept[::-1], graph.origin, graph._next)
