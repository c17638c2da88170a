"""Graph -> core op calls, for a chip that compiles nothing (a level 1 port).

Every node becomes one call on strided tensors, in program order; views become strides and cost nothing. Intermediates
lie in memory as those of a plan of kernels do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from codegen.index import contiguous
from codegen.memory import Life, pieces
from codegen.plan import CoreCall, Temp, TensorRef
from ops_core import dtypes
from ops_core.composites import expand_all
from ops_core.ir import Graph, Node, Value


@dataclass
class CorePlan:
    """Calls in order. params: (index of the run-time scalar, dtype, temp that must hold it before the first call)."""

    calls: list[CoreCall] = field(default_factory=list)
    params: list[tuple[int, str, int]] = field(default_factory=list)
    temps: list[Temp] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)  # bytes of each


def plan(graph: Graph, caps: Any) -> CorePlan:
    """The calls of a graph on a device with capabilities `caps`."""
    return _Planner(expand_all(graph), caps.mem_alignment).plan()


class _Planner:
    def __init__(self, graph: Graph, alignment: int):
        self.nodes, self.alignment = graph.nodes, alignment
        self.result = CorePlan()
        self.refs: dict[Value, TensorRef] = {}
        self.sizes: list[int] = []  # bytes of each temp
        self.uses: dict[int, list[int]] = defaultdict(list)  # temp -> the calls that name it
        self.last_use = self._last_uses()
        self.stores: dict[int, list[int]] = defaultdict(list)
        for i, node in enumerate(self.nodes):
            if node.op == "store":
                self.stores[node.attrs["slot"]].append(i)

    def plan(self) -> CorePlan:
        for i, node in enumerate(self.nodes):
            self._node(i, node)
        for _, _, temp in self.result.params:
            self.uses[temp].insert(0, 0)  # written before the first call
        lives = [Life(n, min(self.uses[t], default=0), max(self.uses[t], default=0)) for t, n in enumerate(self.sizes)]
        self.result.temps, self.result.pieces = pieces(lives, self.alignment)
        return self.result

    def _last_uses(self) -> dict[Value, int]:
        """The last node that reads each value, itself or through a view of it."""
        last: dict[Value, int] = {}
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            through = max((last.get(v, i) for v in node.outputs), default=i) if node.op in _VIEWS else i
            for v in node.inputs:
                last[v] = max(last.get(v, i), through)
        return last

    def _node(self, i: int, node: Node) -> None:
        if node.op == "load":
            self.refs[node.outputs[0]] = self._load(i, node)
        elif node.op == "store":
            a, value = node.attrs, self.refs[node.inputs[0]]
            target = TensorRef("slot", a["slot"], a["offset"], value.dtype, tuple(a["sizes"]), tuple(a["strides"]))
            self._call("map", (target,), (value,), {"fn": "convert", "to": value.dtype}, node.origin)
        elif node.op == "param":
            ref = self._temp(node.outputs[0])
            self.result.params.append((node.attrs["index"], ref.dtype, ref.number))
        elif node.op in _VIEWS and (view := _VIEWS[node.op](self.refs[node.inputs[0]], node)):
            self.refs[node.outputs[0]] = view
        else:
            outputs = tuple(self._temp(v) for v in node.outputs)
            self._call(node.op, outputs, tuple(self.refs[v] for v in node.inputs), node.attrs, node.origin)

    def _load(self, i: int, node: Node) -> TensorRef:
        """The slot's view itself; a copy where the slot is stored to before the value's last use."""
        a, value = node.attrs, node.outputs[0]
        ref = TensorRef("slot", a["slot"], a["offset"], value.dtype, tuple(a["sizes"]), tuple(a["strides"]))
        if not any(i < store <= self.last_use.get(value, i) for store in self.stores[a["slot"]]):
            return ref
        copy = self._temp(value)
        self._call("map", (copy,), (ref,), {"fn": "convert", "to": value.dtype}, node.origin)
        return copy

    def _temp(self, value: Value) -> TensorRef:
        ref = TensorRef("temp", len(self.sizes), 0, value.dtype, value.shape, contiguous(value.shape))
        self.sizes.append(prod(value.shape) * dtypes.BY_NAME[value.dtype].bytes)
        self.refs[value] = ref
        return ref

    def _call(
        self, op: str, outputs: tuple[TensorRef, ...], inputs: tuple[TensorRef, ...], attrs: dict[str, Any], origin: int
    ) -> None:
        if not any(prod(t.sizes) for t in outputs):
            return
        for ref in (*outputs, *inputs):
            if ref.kind == "temp":
                self.uses[ref.number].append(len(self.result.calls))
        text = json.dumps(attrs, sort_keys=True)
        self.result.calls.append(CoreCall(op, len(outputs), (*outputs, *inputs), text, origin))


def _expand(x: TensorRef, node: Node) -> TensorRef:
    sizes = node.outputs[0].shape
    lead = len(sizes) - len(x.sizes)
    kept = tuple(0 if n != m else s for n, m, s in zip(x.sizes, sizes[lead:], x.strides, strict=True))
    return replace(x, sizes=sizes, strides=(0,) * lead + kept)


def _permute(x: TensorRef, node: Node) -> TensorRef:
    dims = node.attrs["dims"]
    return replace(x, sizes=tuple(x.sizes[d] for d in dims), strides=tuple(x.strides[d] for d in dims))


def _slice(x: TensorRef, node: Node) -> TensorRef | None:
    start, step = node.attrs["start"], node.attrs["step"]
    if any(n < 0 for n in step):
        return None  # the contract's strides are not negative
    offset = x.offset + sum(a * s for a, s in zip(start, x.strides, strict=True))
    strides = tuple(n * s for n, s in zip(step, x.strides, strict=True))
    return replace(x, offset=offset, sizes=node.outputs[0].shape, strides=strides)


def _reshape(x: TensorRef, node: Node) -> TensorRef | None:
    """Without a copy where dimensions are only split, or joined where memory is contiguous."""
    sizes = node.outputs[0].shape
    if x.strides == contiguous(x.sizes) or prod(sizes) == 0:
        return replace(x, sizes=sizes, strides=contiguous(sizes))
    kept = [(n, s) for n, s in zip(x.sizes, x.strides, strict=True) if n != 1]
    if [n for n, _ in kept] != [n for n in sizes if n != 1]:
        return None
    strides = iter([s for _, s in kept])
    return replace(x, sizes=sizes, strides=tuple(next(strides) if n != 1 else 0 for n in sizes))


_VIEWS = {"expand": _expand, "permute": _permute, "slice": _slice, "reshape": _reshape}
