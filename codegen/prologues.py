"""Statistics of the few rows that a product reads, in the product's own kernel: the layer norm of a token."""

from __future__ import annotations

from math import prod
from typing import Any

from codegen.fusion import Fusion
from codegen.groups import Group, Misfit, Uses, identity, index_vars, operand_space, space, weight
from codegen.index import Index
from codegen.kernels.reduction import STEP
from codegen.views import VIEWS, operand_index
from ops_core.ir import Graph, Node, Value
from ops_core.sizes import varies

# Every work item computes the statistics of all rows anew: this many rows and elements cost each of some eight items
# less than 0.5 us, a launch costs 3 to 5. benchmarks: gpt_decode, 832 launches a step -> 640, 12.7 -> 12.0 ms.
ROWS, ELEMENTS = 8, 4096
# What is left to compute of an element is computed once for each tile of columns that it is read for: as many additions
# as pass unnoticed beside 8 columns of a matrix that comes from the last cache. Reasoned: a layer norm's end has 4.
ELEMENT_WEIGHT = 6


def take_rows(fusion: Fusion, graph: Graph, caps: Any) -> None:
    """Moves groups of row statistics into the products that alone read them, in place."""
    if not caps.is_cpu:  # a GPU has a work item for every few elements
        return
    readers: dict[Value, list[Group]] = {}
    for group in reversed(fusion.groups):
        if group.stores or any(v in readers for v in group.index):  # else nothing depends on it
            for value in group.reads:
                readers.setdefault(value, []).append(group)
    users = _users(graph)
    for group in list(fusion.groups):
        if found := _rows(fusion, group, users):
            rows, value, index = found
            if all(readers.get(v, []) == ([group] if v is value else []) for v in rows.index):
                _take(fusion, group, rows, value, index)


def _users(graph: Graph) -> dict[Value, list[Node]]:
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    return users


def _rows(fusion: Fusion, group: Group, users: dict[Value, list[Node]]) -> tuple[Group, Value, Index] | None:
    """The group that only computes the product's first operand, a value of it, and where the operand has its elements:
    the variables of that group in terms of the operand's."""
    anchor = group.anchor
    if not anchor or anchor.op != "matmul" or fusion.extern(anchor):
        return None
    value = anchor.inputs[0]
    if len(value.shape) != 2 or any(map(varies, value.shape)):
        return None
    m, k = value.shape
    vars = space(value.shape)
    index, user = identity(vars), anchor
    while users[value] == [user]:
        if value.node.op not in VIEWS:
            break
        index, user, value = operand_index(value.node, index), value.node, value.node.inputs[0]
    else:
        return None
    rows = fusion.owner.get(value)
    if not rows or rows.anchor or not rows.reduced or rows.stores or value not in group.reads:
        return None
    own = rows.index[value]
    if len(own) != len(rows.vars) or own != identity(rows.vars) or m > ROWS or not 0 < m * k <= ELEMENTS:
        return None
    along = [e for v, e in zip(rows.vars, index, strict=True) if v in rows.reduced and v.size != 1]
    across = [e for v, e in zip(rows.vars, index, strict=True) if v not in rows.reduced]
    if along != [identity(vars)[1]] or vars[1] in index_vars(tuple(across)) or not _cheap(rows, value):
        return None
    return rows, value, index


def _cheap(rows: Group, value: Value) -> bool:
    """Whether statistics are plain ones, and the operations few that an element takes when they are known."""
    total, pending, seen = 0, [value], {value}
    while pending:
        node = pending.pop().node
        total += weight(node) if node.op == "map" and prod(node.outputs[0].shape) == prod(value.shape) else 0
        inside = [v for v in node.inputs if v not in rows.reads and v not in seen and v.node not in rows.at]
        seen.update(inside)
        pending += inside
    return total <= ELEMENT_WEIGHT and all(node.op in STEP for node in rows.at)


def _take(fusion: Fusion, group: Group, rows: Group, value: Value, index: Index) -> None:
    stored = {store.attrs["slot"] for store in group.stores}
    if any(load.attrs["slot"] in stored for load in rows.loads):
        return
    assert group.anchor
    operand = group.anchor.inputs[0]
    env = dict(zip(rows.vars, index, strict=True))
    place = dict(zip(space(operand.shape), identity(operand_space(0, operand)), strict=True))
    uses = Uses()
    for read, indices in rows.reads.items():
        uses.reads[read] = {tuple(e.subs(env).subs(place) for e in at) for at in indices}
    for load in rows.loads:
        uses.loads += [(load, byte.subs(env).subs(place)) for byte in rows.touched[load.attrs["slot"]]]
    try:
        fusion.check_uses(group, uses)
    except Misfit:
        return
    del group.reads[value]
    fusion.use(group, uses)
    fusion.change(rows, operand.shape, index)
    rows.reduced = frozenset(rows.vars[1:])
    fusion.groups.remove(rows)
    group.rows = rows
    group.nodes += rows.nodes
    fusion.sort()
