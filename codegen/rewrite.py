"""Graph -> graph, before fusion: dead nodes and composites go; wide reductions become two that run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from codegen.composites import FOURIER, kept
from codegen.externs import narrowed
from codegen.groups import REDUCTIONS
from codegen.kernels.reduction import identity
from codegen.updates import in_parts
from ops_core.array import Arr, building, emit, emit_multi, map_, matmul, where
from ops_core.composites import copy_node, expand_all
from ops_core.dtypes import BY_NAME
from ops_core.ir import Graph, Node, Value
from ops_core.sizes import usual, varies

# A reduction with fewer elements runs faster in one piece than in two launches. benchmarks: loss of an MLP.
SPLIT_ELEMENTS = 1 << 15
# Elements of one part of a split reduction: enough work for a work item to be worth starting.
PART_ELEMENTS = 1 << 12
# Up to this size, this many rows for each compute unit are enough: a second launch costs more than idle units.
LARGE_ELEMENTS, ENOUGH_PER_UNIT = 1 << 20, 2
# Parts per compute unit, so that units that start late or run slowly do not hold up the rest.
PARTS_PER_UNIT_CPU, PARTS_PER_UNIT_GPU = 8, 256

Rule = Callable[[Node, tuple[Arr, ...], Any], tuple[Arr, ...] | None]


def rewrite(graph: Graph, caps: Any, extern: Callable[[Node], bool]) -> Graph:
    """The graph that fusion sees; extern: whether a library has a node. Values and nodes of `graph` are not changed."""
    source = _live(expand_all(graph, kept(graph, caps).__contains__))
    out = Graph()
    env: dict[Value, Value] = {}
    for node in source.nodes:
        out.origin = node.origin
        made = None
        if rule := RULES.get(node.op):
            with building(out):
                made = rule(node, tuple(Arr(env[v]) for v in node.inputs), caps)
        if made is None:
            copy_node(out, node, env)
        else:
            env.update(zip(node.outputs, (y.v for y in made), strict=True))
    return _live(narrowed(in_parts(out, caps), extern))


def _live(graph: Graph) -> Graph:
    """Without the nodes that no store needs."""
    wanted: set[Value] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op == "store" or not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return Graph(kept[::-1], graph.origin, graph._next)


def _split_reduction(node: Node, inputs: tuple[Arr, ...], caps: Any) -> tuple[Arr, ...] | None:
    """Two stages where too few rows of a wide reduction would leave compute units idle."""
    (x,) = inputs
    dims = node.attrs["dims"]
    if not dims or dims != tuple(range(dims[0], dims[-1] + 1)):
        return None
    size = prod(x.shape[d] for d in dims)
    parts = _parts(usual(prod(n for d, n in enumerate(x.shape) if d not in dims)), usual(size), dims, x.ndim, caps)
    if parts < 2:
        return None
    at, before, after = dims[0], x.shape[: dims[0]], x.shape[dims[-1] + 1 :]
    # Where the size varies the last part is always short.
    part = size // parts + 1 if varies(size) else -(-size // parts)
    x = x.reshape(*before, size, *after)
    if missing := parts * part - size:
        high = [missing if d == at else 0 for d in range(x.ndim)]
        x = x.pad([0] * x.ndim, high, identity(node.op.removeprefix("arg"), x.dtype))
    x = x.reshape(*before, parts, part, *after)
    if not node.op.startswith("arg"):
        return (x.reduce(node.op, at + 1).reduce(node.op, at),)
    best = x.reduce(node.op.replace("arg", "a"), at + 1)
    winner = best.arg(node.op, at, keepdim=True)
    within = x.arg(node.op, at + 1).gather(at, winner)
    return ((winner * part + within).reshape(*before, *after),)


def _parts(rows: int, size: int, dims: tuple[int, ...], rank: int, caps: Any) -> int:
    """Into how many parts a reduction of `size` elements to each of `rows` is split; 1: it is not."""
    columns = dims[-1] != rank - 1
    items = max(1, rows // (caps.vector_bytes // 4)) if columns and caps.is_cpu else rows
    wanted = caps.compute_units * (PARTS_PER_UNIT_CPU if caps.is_cpu else PARTS_PER_UNIT_GPU)
    if items >= ENOUGH_PER_UNIT * caps.compute_units and rows * size < LARGE_ELEMENTS:
        return 1
    parts = min(-(-wanted // max(items, 1)), size // PART_ELEMENTS if not columns else size // 64)
    if parts < 2 or rows * size < SPLIT_ELEMENTS:
        return 1
    return next((p for p in range(parts, 4 * parts) if size % p == 0), parts)


def _shared_factor(node: Node, inputs: tuple[Arr, ...], caps: Any) -> tuple[Arr, ...] | None:
    """A batch times one matrix is one product of all rows."""
    a, b = inputs
    *batch, m, k = a.shape
    source = b.v.node
    if source.op != "expand" or prod(batch) == 1 or prod(source.inputs[0].shape) != prod(b.shape[-2:]):
        return None
    factor = Arr(source.inputs[0]).reshape(*b.shape[-2:])
    return (matmul(a.reshape(prod(batch) * m, k), factor).reshape(*batch, m, b.shape[-1]),)


def _cropped_convolution(node: Node, inputs: tuple[Arr, ...], caps: Any) -> tuple[Arr, ...] | None:
    """Only the places of a convolution that are used: the weight gradient of a strided layer has more."""
    source, a = inputs[0].v.node, node.attrs
    whole = node.outputs[0].shape[:2] == inputs[0].shape[:2] and not any(a["start"]) and set(a["step"]) == {1}
    if source.op != "convolution" or source.attrs["transposed"] or not whole or not prod(node.outputs[0].shape):
        return None
    operands = [Arr(v) for v in source.inputs]
    return (emit("convolution", operands, node.outputs[0].shape, inputs[0].dtype, **source.attrs),)


def _store_unpermuted(node: Node, inputs: tuple[Arr, ...], caps: Any) -> tuple[Arr, ...] | None:
    """A convolution or transform stored in another order of its dims, as gradients of weights are, writes that order
    itself."""
    source, a = inputs[0].v.node, node.attrs
    if source.op != "permute" or source.inputs[0].node.op not in ("convolution", FOURIER):
        return None
    order = source.attrs["dims"]
    strides = tuple(a["strides"][order.index(d)] for d in range(len(order)))
    value = Arr(source.inputs[0])
    return emit_multi("store", [value], [], slot=a["slot"], sizes=value.shape, strides=strides, offset=a["offset"])


# Below the smallest normal float32, exponents are read after scaling by this power of two.
FREXP_SCALE = 64


def _frexp(node: Node, inputs: tuple[Arr, ...], caps: Any) -> tuple[Arr, ...] | None:
    """Mantissa and exponent from the bits."""
    if node.attrs["fn"] != "frexp":
        return None
    (x,) = inputs
    bits, fraction, bias, ones = ("i64", 52, 1022, 0x7FF) if x.dtype == "f64" else ("i32", 23, 126, 0xFF)
    wide = x.to("f32") if BY_NAME[x.dtype].bytes == 2 else x
    special = x.eq(0) | (wide - wide).ne(0)
    small = map_("abs", wide) < 2.0 ** (2 - bias)
    raw = where(small, wide * 2.0**FREXP_SCALE, wide).bitcast(bits)
    exponent = ((raw >> fraction) & ones) - bias
    mantissa = (raw & ~(ones << fraction) | (bias << fraction)).bitcast(wide.dtype)
    exponent = where(small, exponent - FREXP_SCALE, exponent).to("i32")
    return where(special, wide, mantissa).to(x.dtype), where(special, 0, exponent)


RULES: dict[str, Rule] = {
    "matmul": _shared_factor, "map": _frexp, "slice": _cropped_convolution, "store": _store_unpermuted,
    **dict.fromkeys(sorted(REDUCTIONS), _split_reduction),
}  # fmt: skip
