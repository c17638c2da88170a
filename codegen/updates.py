"""Graph -> graph: many updates of few elements are made in parts, whose results are combined.

Each part takes its share of the updates and has a result of its own: none looks at what is not for it, and the same
sums come out in every run. A `partial_updates` node has the results of all parts; what combines them are ordinary maps,
which fuse with what follows. Updates at the same indices, as counts and sums of the same cells, are one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

from codegen.kernels.scatter import COMBINE, LINE_BYTES, NAMES, OWNERS_PER_UNIT, any_order, lanes, vector
from ops_core.array import Arr, building, emit, map_, positions
from ops_core.composites import copy_node
from ops_core.dtypes import BY_NAME
from ops_core.ir import Graph, Node, Value
from ops_core.sizes import tied, usual

# Updates for each element of the result from which on parts have results of their own: to make and to combine these is
# then little, and no update is looked at twice. benchmarks: particles, 200,000 additions into 4,096 cells by two work
# items, which guess wrong of every other update whose it is: 2.2 -> 0.2 ms.
OWN_RESULTS = 8
# Updates that are one node, at most: each brings buffers. Together they write a line of a cache: counts and sums of the
# same cells as 4 floats 0.73 ns an update, beside each other 0.55 and 0.59 (Zen 4).
MEMBERS = 4
# Results that are combined by maps, at most; more are reduced. Reasoned: as many loads of one vector pass unnoticed.
FEW_PARTS = 8
# What is the same where attributes and operands are.
_PURE = frozenset(("map", "full", "param", "iota", "expand", "reshape", "permute", "slice"))


def in_parts(graph: Graph, caps: Any) -> Graph:
    """`graph` itself where no updates are better made in parts."""
    chosen = {node: _Updates(node) for node in graph.nodes if node.op in ("index_put", "scatter")}
    chosen = {node: updates for node, updates in chosen.items() if updates.worth_parts(caps)}
    if not chosen:
        return graph
    sets = _Sets(graph, chosen)
    out, env, made = Graph(origin=graph.origin), dict[Value, Value](), dict[Node, Arr]()
    for node in graph.nodes:
        if node in sets.members:
            for early in sets.early[node]:
                if early.outputs[0] not in env:
                    copy_node(out, early, env)
            out.origin = node.origin
            with building(out):
                made |= _partial(sets.members[node], env, caps)
        if node in made:
            out.origin = node.origin
            with building(out):
                x = _combined(Arr(env[node.inputs[0]]), node.attrs["reduce"], made[node])
            env[node.outputs[0]] = x.v
        elif not node.outputs or node.outputs[0] not in env:
            copy_node(out, node, env)
    return out


@dataclass
class _Updates:
    """x[i0, ..] op= values, whichever op says so. numbers: of the indices, alike where they are; None: not known."""

    node: Node
    numbers: Sequence[int] = ()

    @property
    def values(self) -> Value:
        """What is combined with the elements."""
        return self.node.inputs[1 if self.node.op == "index_put" else 2]

    @property
    def indices(self) -> Sequence[Value]:
        """Where the elements are, along the leading dims or along the dim of a scatter."""
        return self.node.inputs[2:] if self.node.op == "index_put" else self.node.inputs[1:2]

    @property
    def rest(self) -> tuple[int, ...]:
        """What an update at one place of the result has elements for."""
        return self.values.shape[len(self.indices[0].shape) :]

    @property
    def like(self) -> Any:
        """What updates that are one node have in common, but for their indices."""
        node, out = self.node, self.node.outputs[0]
        dim = node.attrs["dim"] if node.op == "scatter" and len(out.shape) > 1 else None
        return out.dtype, node.attrs["reduce"], dim, repr(out.shape[: len(out.shape) - len(self.rest)])

    def worth_parts(self, caps: Any) -> bool:
        """Whether parts are better than owners of the result's elements."""
        out, found, dim = self.node.outputs[0], self.indices[0], self.node.attrs.get("dim", 0)
        rows = self.node.op == "index_put"
        columns = self.rest if rows else tuple(n for d, n in enumerate(found.shape) if d != dim)
        nbytes, points = BY_NAME[out.dtype].bytes, usual(prod(columns))
        combined = self.node.attrs["reduce"] in COMBINE and BY_NAME[out.dtype].kind != "b"
        if not combined or (not caps.is_cpu and any_order(self.node, out.dtype, caps)):
            return False
        if usual(prod(self.values.shape)) < max(OWN_RESULTS, _parts(caps)) * usual(prod(out.shape)):
            return False
        vectors = points // lanes(columns, out.dtype, caps) if rows else points
        return points * nbytes < LINE_BYTES or (vectors < _parts(caps) and usual(out.shape[dim]) > 1)


def _parts(caps: Any) -> int:
    return int(caps.compute_units * OWNERS_PER_UNIT[bool(caps.is_cpu)])


class _Sets:
    """Which updates are one node. members: by the first of each; early: nodes that must run before it and are later in
    the graph."""

    def __init__(self, graph: Graph, chosen: dict[Node, _Updates]):
        self.members: dict[Node, list[_Updates]] = {}
        self.early: dict[Node, list[Node]] = {}
        self.graph, self.chosen = graph, chosen
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        if len(chosen) > 1:
            numbers = _numbers(graph)
            for updates in chosen.values():
                updates.numbers = [numbers[v] for v in updates.indices]
        for node, updates in chosen.items():
            if not any(self._joins(first, updates) for first in self.members):
                self.members[node], self.early[node] = [updates], []

    def _joins(self, first: Node, updates: _Updates) -> bool:
        """Adds the updates to the set that begins with `first`, where they fit."""
        others = self.members[first]
        same = updates.numbers == others[0].numbers and updates.like == others[0].like
        nbytes = sum(usual(prod(u.rest)) for u in (*others, updates)) * BY_NAME[first.outputs[0].dtype].bytes
        early = self._early(first, updates) if same and nbytes <= LINE_BYTES and len(others) < MEMBERS else None
        if early is None:
            return False
        others.append(updates)
        self.early[first] = sorted({*self.early[first], *early}, key=self.position.__getitem__)
        return True

    def _early(self, first: Node, updates: _Updates) -> list[Node] | None:
        """What the values need of the nodes after `first`; None where these cannot run before it."""
        found: dict[Node, None] = {}
        pending, start = [updates.values.node], self.position[first]
        while pending:
            node = pending.pop()
            if self.position[node] < start or node in found:
                continue
            if node in self.chosen or (node.op == "load" and self._stored(node, start)):
                return None
            found[node] = None
            pending += [v.node for v in node.inputs]
        return list(found)

    def _stored(self, load: Node, start: int) -> bool:
        """Whether the slot of a load is written between place `start` of the graph and the load."""
        between = self.graph.nodes[start : self.position[load]]
        return any(n.op == "store" and n.attrs["slot"] == load.attrs["slot"] for n in between)


def _numbers(graph: Graph) -> dict[Value, int]:
    """A number for each value, the same for those that are computed alike of the same."""
    known: dict[Any, int] = {}
    numbers: dict[Value, int] = {}
    for node in graph.nodes:
        key: Any = node
        if node.op in _PURE:
            made = repr((node.op, sorted(node.attrs.items()), node.outputs[0].shape, node.outputs[0].dtype))
            key = made, *(numbers[v] for v in node.inputs)
        for value in node.outputs:
            numbers[value] = known.setdefault((key, value.index), len(known))
    return numbers


def _partial(members: Sequence[_Updates], env: dict[Value, Value], caps: Any) -> dict[Node, Arr]:
    """The results of the parts for each member, [parts, *shape of its result]."""
    first, out = members[0], members[0].node.outputs[0]
    # Vectors before numbers: a count behind a pair takes a shuffle less than one before it.
    members = sorted(members, key=lambda updates: -usual(prod(updates.rest)))
    indices = [Arr(env[v]) for v in first.indices]
    if first.node.op == "scatter":
        index, dim = indices[0], first.node.attrs["dim"]
        indices = [index if d == dim else positions(index.shape, d).expand(*index.shape) for d in range(index.ndim)]
    rank, count, places, row = indices[0].ndim, indices[0].numel, out.shape[: len(indices)], _row(members, caps)
    values = [Arr(env[u.values]) for u in members]
    inputs = [x.reshape(count, *x.shape[rank:]) for x in (*values, *indices)]
    what = {"reduce": first.node.attrs["reduce"], "sizes": places}
    all = emit("partial_updates", inputs, (_parts(caps), prod(places), row), out.dtype, **what)
    each = all.split(2, [prod(x.shape[rank:]) for x in values])
    return {u.node: part.reshape(all.shape[0], *u.node.outputs[0].shape) for u, part in zip(members, each, strict=True)}


def _row(members: Sequence[_Updates], caps: Any) -> int:
    """Elements of a row of all members: one vector of a CPU's, where it is no more."""
    size, most = sum(prod(u.rest) for u in members), vector(members[0].node.outputs[0].dtype, caps)
    return size if usual(size) > most else 1 << (tied(size) - 1).bit_length()


def _combined(x: Arr, how: str, parts: Arr) -> Arr:
    """In the order of the updates."""
    if parts.shape[0] > FEW_PARTS:
        return map_(COMBINE[how], x, parts.reduce(NAMES[how], 0))
    results = [parts.select(0, n) for n in range(parts.shape[0])]
    return map_(COMBINE[how], x, reduce(lambda a, b: map_(COMBINE[how], a, b), results))
