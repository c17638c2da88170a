"""Composites that have a kernel of their own, from memory to memory: which of them, and the templates' view of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from codegen.builder import HALVES, Builder
from codegen.kernels.attention import AttentionSpec, Bind, attention, claims, claims_rows
from codegen.kernels.attention_backward import Gradients, attention_backward
from codegen.kernels.attention_backward_local import attention_backward_local
from codegen.kernels.attention_local import attention_local
from codegen.kernels.attention_rows import attention_rows
from codegen.kernels.attention_tiles import claims_gradients, claims_local
from codegen.kernels.blocks import access
from codegen.kernels.factor import FORMS, factor
from codegen.kernels.fourier import claims as claims_transform
from codegen.kernels.fourier import transform
from codegen.kernels.grouped import grouped
from codegen.kernels.operand import Sink, Source
from codegen.kernels.recurrence import recurrence, recurrence_backward
from codegen.kernels.recurrence_groups import fits
from codegen.kernels.recurrence_walk import Recurrence
from codegen.kernels.step import Steps
from ops_core.composites import PREFIX
from ops_core.ir import Graph, Node, Value
from ops_core.lowering.recurrence import CELLS
from ops_core.sizes import tied

FORWARD, BACKWARD = PREFIX + "attention", PREFIX + "attention_backward"
RECURRENCE, RECURRENCE_BACKWARD = PREFIX + "recurrence", PREFIX + "recurrence_backward"


def kept(graph: Graph, caps: Any) -> set[Node]:
    """The composites of a graph that are not expanded to core ops on a device with capabilities `caps`."""
    used = {value for node in graph.nodes for value in node.inputs}
    return {node for node in graph.nodes if node.op in _TEMPLATES and _TEMPLATES[node.op].claimed(node, caps, used)}


def kernels(name: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any) -> Steps:
    """The launches of a composite. sinks: by number of the output; `Step.args` name "in0", "in1", .., "out0", .."""
    return _TEMPLATES[node.op].kernels(name, node, sources, sinks, caps)


def together(node: Node) -> bool:
    """Whether the first sink takes all results of a composite, which have one shape: real and imaginary parts that
    lie side by side are vectors then."""
    return node.op == FOURIER


def _index_bits(sources: Sequence[Source], sinks: Mapping[int, Sink]) -> int:
    programs = [*(s.program for s in sources), *(s.program for s in sinks.values())]
    return 64 if any(p.wide for p in programs) else 32


# Attention


def _attention_claimed(node: Node, caps: Any, used: set[Value]) -> bool:
    """Float32 attention, which is recorded as one op where it is long; a bias's gradient needs the scores in memory."""
    values = (*node.inputs, *node.outputs)
    floats = all(v.dtype == "f32" or (v.dtype == "bool" and v is _bias(node)) for v in values)
    if not floats or (node.op == BACKWARD and node.outputs[3] in used):
        return False
    spec = _spec(node, {})
    others = (claims_rows, claims_local) if node.op == FORWARD else (claims_gradients,)
    return any(claim(spec, caps) for claim in (claims, *others))


def _attention(name: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any) -> Steps:
    binds: dict[str, Bind] = {f"in{i}": s.bind for i, s in enumerate(sources)}
    binds |= {f"out{i}": s.bind for i, s in sinks.items()}
    spec = _spec(node, binds, _index_bits(sources, sinks))
    if node.op == FORWARD:
        on_cpu = attention_rows if claims_rows(spec, caps) else attention
        return (on_cpu if caps.is_cpu else attention_local)(name, spec, caps)
    names = ("in0", "in4", "in5", "out0", "out1", "out2")
    grad, out, lse, dq, dk, dv = (binds[n] for n in names)
    backward = attention_backward if caps.is_cpu else attention_backward_local
    return backward(name, spec, Gradients(grad, out, lse, dq, dk, dv, names), caps)


# Where q, k, v and the bias are among the inputs.
_OPERANDS = {FORWARD: (0, 1, 2, 3), BACKWARD: (1, 2, 3, 6)}


def _bias(node: Node) -> Value | None:
    at = _OPERANDS[node.op][3]
    return node.inputs[at] if len(node.inputs) > at else None


def _spec(node: Node, binds: Mapping[str, Bind], index_bits: int = 32) -> AttentionSpec:
    """What the templates take; without `binds` for its shape only."""
    q, k, v = (node.inputs[i] for i in _OPERANDS[node.op][:3])
    names = (*(f"in{i}" for i in _OPERANDS[node.op]), "out0", "out1")
    bias = _bias(node)
    bind = [binds.get(name, _absent) for name in names]
    batch, heads, queries, _ = q.shape
    # Vectors along a head that varies have half of the lanes: (1, 4, 2048, 128) after (1, 8, 2048, 64) 21.2 -> 14.4 ms.
    depth, value_depth = tied(q.shape[3]), tied(v.shape[3])
    return AttentionSpec(
        batch, heads, queries, k.shape[2], depth, value_depth, node.attrs["scale"], node.attrs["causal"],
        q=bind[0], k=bind[1], v=bind[2], out=bind[4], lse=binds.get("out1"), bias=bind[3] if bias else None,
        boolean=bias is not None and bias.dtype == "bool", index_bits=index_bits, names=names,
    )  # fmt: skip


def _absent(k: Builder) -> Any:
    raise AssertionError("a composite without its operands has no kernel")


# Recurrent layers


def _recurrence_claimed(node: Node, caps: Any, used: set[Value]) -> bool:
    """On CPUs: a row of the batch is work enough for one of their units, and waits for no other. Elsewhere it is for
    one work-group, where the state fits."""
    return bool(caps.is_cpu) or fits(_layer(node, {}), caps)


def _layer(node: Node, binds: Mapping[str, Bind], contiguous: int | None = None, index_bits: int = 32) -> Recurrence:
    (steps, batch, _), (_, size) = node.outputs[0].shape, node.inputs[2].shape
    kind, dtype, reverse = node.attrs["kind"], node.inputs[0].dtype, node.attrs["reverse"]
    return Recurrence(kind, steps, batch, size, dtype, reverse, binds, contiguous, index_bits)


def _recurrence(name: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any) -> Steps:
    backward = node.op == RECURRENCE_BACKWARD
    cell, lstm = CELLS[node.attrs["kind"]], node.attrs["kind"] == "lstm"
    if backward:
        inputs = ["grad", "saved", "weight", *["grad_memory"] * (len(sources) > 3)]
        outputs = ["dx", *["dh"] * cell.distinct, *["carry"] * cell.carries]
    else:
        inputs = ["gates", "hidden", "weight", *["memory"] * lstm, *["bias"] * node.attrs["biased"]]
        outputs = ["out", "saved", *["last"] * lstm]
    places: dict[Any, str] = {n: f"in{i}" for i, n in enumerate(inputs)} | {outputs[i]: f"out{i}" for i in sinks}
    binds: dict[str, Bind] = dict(zip(inputs, (s.bind for s in sources), strict=True))
    binds |= {outputs[i]: sink.bind for i, sink in sinks.items()}
    contiguous = sources[2].contiguous((1, 0), access(caps))
    spec = _layer(node, binds, contiguous, _index_bits(sources, sinks))
    made = (recurrence_backward if backward else recurrence)(name, spec, caps)
    return Steps([step._replace(args=tuple(places.get(a, a) for a in step.args)) for step in made.steps], made.temps)


# Fourier transforms

FOURIER = PREFIX + "fourier"


def _fourier_claimed(node: Node, caps: Any, used: set[Value]) -> bool:
    """On CPUs: a row is work enough for one of their units."""
    return bool(caps.is_cpu) and claims_transform(node.inputs[0], caps)


def _fourier(name: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any) -> Steps:
    return transform(name, node, sources, sinks[0], caps, _index_bits(sources, sinks))


# Dense factorisations


def _factor_claimed(node: Node, caps: Any, used: set[Value]) -> bool:
    """Wherever there are float matrices: a launch for each column takes longer than a matrix does in one work item."""
    return all(v.dtype not in HALVES for v in node.inputs)


def _factor(name: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any) -> Steps:
    form = node.op.removeprefix(PREFIX)
    return factor(name, form, node, sources, sinks, caps, _index_bits(sources, sinks))


# Products of groups

GROUPED = GROUPED_ROWS, GROUPED_TERMS = PREFIX + "grouped_rows", PREFIX + "grouped_terms"


def _grouped_claimed(node: Node, caps: Any, used: set[Value]) -> bool:
    """Everywhere: core ops multiply all rows with the matrices of all groups."""
    return True


def _grouped(name: str, node: Node, sources: Sequence[Source], sinks: Mapping[int, Sink], caps: Any) -> Steps:
    rows = node.op == GROUPED_ROWS
    return grouped(name, rows, node, list(sources), sinks[0], caps, _index_bits(sources, sinks))


class _Template(NamedTuple):
    """What makes the launches of a composite, and whether a device is better off with them than with core ops."""

    claimed: Callable[[Node, Any, set[Value]], bool]
    kernels: Callable[..., Steps]


_TEMPLATES = {
    **dict.fromkeys((FORWARD, BACKWARD), _Template(_attention_claimed, _attention)),
    **dict.fromkeys((RECURRENCE, RECURRENCE_BACKWARD), _Template(_recurrence_claimed, _recurrence)),
    **dict.fromkeys(GROUPED, _Template(_grouped_claimed, _grouped)),
    FOURIER: _Template(_fourier_claimed, _fourier),
    **dict.fromkeys((PREFIX + form for form in FORMS), _Template(_factor_claimed, _factor)),
}
