"""Which core ops of a graph go to a library, where a driver offers one for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import ge

from ops_core.array import Arr, building, matmul
from ops_core.composites import copy_node
from ops_core.ir import Graph, Node, Value

# Multiplications below which generated kernels win: a call costs at least 100 us (it waits for the kernels before it,
# and those after it wait for it), which is this many. benchmarks: CNN demo, whose stem and 1x1 shortcuts stay below.
MIN_MULTIPLICATIONS = 1 << 22

# A product of bf16 with fewer rows or columns waits for memory, and a generated kernel waits for no call: on Emerald
# Rapids (AMX) 8 x 1024 x 1024 0.25 ms generated, 0.36 by the library; 64 x 256 x 256 0.12 and 0.12; 512 x 768 x 3072
# 11.7 and 1.8 (torch itself 1.75).
FEW_ROWS = 16


def claims(offered: frozenset[str], node: Node) -> bool:
    """Whether a library is asked for the node: it offers the op, and the work is worth a call."""
    return node.op in offered and CLAIMS[node.op](node) >= MIN_MULTIPLICATIONS


def suits_host(node: Node, fast_halves: bool) -> bool:
    """Whether the host's own library computes a node that it is asked for. fast_halves: it multiplies tiles of bf16."""
    dtypes = {v.dtype for v in (*node.inputs, *node.outputs)}
    if node.op == "matmul":
        return fast_halves and dtypes == {"bf16"} and min(node.outputs[0].shape[-2:]) >= FEW_ROWS
    # The library has a transposed one as an input's gradient, whose output such a padding would make larger.
    if node.attrs["transposed"] and any(map(ge, node.attrs["output_padding"], node.attrs["stride"])):
        return False
    return dtypes == {"f32"}


def narrowed(graph: Graph, extern: Callable[[Node], bool]) -> Graph:
    """Products of halves that an op widens for one rounding at its end, as products of the halves themselves where a
    library has these: they round to halves in between. What a script widens itself stays wide.
    `graph` itself where there is none."""
    if not any(node.op == "matmul" and len(_widened(node)) == 2 for node in graph.nodes):
        return graph
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    out = Graph()
    env: dict[Value, Value] = {}
    for node in graph.nodes:
        out.origin = node.origin
        if (half := _as_halves(node, users)) and extern(half):
            with building(out):
                env[node.outputs[0]] = matmul(*(Arr(env[v]) for v in half.inputs)).to(node.outputs[0].dtype).v
        else:
            copy_node(out, node, env)
    return out


def _widened(matmul: Node) -> list[Value]:
    """The halves that its operands are conversions of."""
    sources = [v.node for v in matmul.inputs if v.node.op == "map" and v.node.attrs["fn"] == "convert"]
    return [source.inputs[0] for source in sources if source.inputs[0].dtype in ("bf16", "f16")]


def _as_halves(node: Node, users: Mapping[Value, Sequence[Node]]) -> Node | None:
    """The product of the values that the operands are conversions of, if its op makes that dtype of the result."""
    if node.op != "matmul" or len(halves := _widened(node)) < 2:
        return None
    a, b = halves
    if a.dtype != b.dtype or not _becomes(node.outputs[0], a.dtype, node.origin, users):
        return None
    return Graph().add("matmul", (a, b), node.outputs[0].shape, a.dtype).node


def _becomes(value: Value, dtype: str, origin: int, users: Mapping[Value, Sequence[Node]]) -> bool:
    """Whether all that is computed of a value, element by element in one op, ends as `dtype`."""
    return all(
        node.op == "map"
        and node.origin == origin
        and (node.outputs[0].dtype == dtype or _becomes(node.outputs[0], dtype, origin, users))
        for node in users.get(value, ())
    )


def _convolution(node: Node) -> int:
    w = node.inputs[1]
    return prod(node.outputs[0].shape) * prod(w.shape[2:]) * w.shape[0 if node.attrs["transposed"] else 1]


def _matmul(node: Node) -> int:
    return prod(node.outputs[0].shape) * node.inputs[0].shape[-1]


# The core ops that a library may have -> the multiplications of a node.
CLAIMS: dict[str, Callable[[Node], int]] = {"convolution": _convolution, "matmul": _matmul}
