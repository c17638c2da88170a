"""Graph -> fusion groups: which nodes share a kernel.

Nodes are taken in program order; each joins the group of one of its producers (or of a sibling that reads the
same memory) when indices line up, no cycle arises, memory hazards allow it and limits hold; else it opens a group.
Views, constants and gathers belong to no group: they are index expressions inside their consumers. What a group
reads of another is written to memory once, unless it is cheaper to compute it again.

A group has a domain (its loop variables) and gives each member the index of its value in terms of them. In a
reduction group `reduced` holds the variables that are summed over; members that depend on the others only are per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

from codegen.index import Dyn, Expr, Index, Var, contiguous, linear, variable
from codegen.views import VIEWS, indexed_operands, moved_operands, operand_index, result_index
from ops_core.dtypes import BY_NAME
from ops_core.ir import Graph, Node, Value

REDUCTIONS = frozenset(("sum", "prod", "amax", "amin", "argmax", "argmin"))
LEAVES = frozenset(("load", "param", "full", "iota", "rand_bits"))
INLINE = LEAVES | VIEWS | {"pad", "cat", "gather", "index"}
# Anchors that update the memory of their result: what follows them is another kernel.
IN_PLACE = frozenset(("index_put", "scatter", "nonzero"))

# Computing a value again costs its operations, keeping it costs a write and a read: below this weight (an addition
# is 1) and when it reads no more bytes than it has, again is cheaper. benchmarks: elementwise chain, GPT training.
RECOMPUTE_WEIGHT = 6
# One number for the whole kernel is computed once per work item, so longer chains pay too. benchmarks: optimizer step.
SCALAR_RECOMPUTE_WEIGHT = 24
# Operations per kernel: compile time of OpenCL compilers grows faster than linearly, and registers run out.
MAX_WEIGHT = 400
# Buffers per kernel; devices give fewer through `max_kernel_args`. Each buffer may bring an offset argument.
MAX_BUFFERS = 48
# A row that is read again by a later phase of the same kernel should still be in the cache (elements).
MAX_ROW = 1 << 16

_HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
    "erf erfc erf_inv lgamma digamma pow fmod remainder".split()
)
HEAVY_WEIGHT = 8
RANDOM_WEIGHT = 100


def weight(node: Node) -> int:
    return HEAVY_WEIGHT if node.attrs.get("fn") in _HEAVY else RANDOM_WEIGHT if node.op == "rand_bits" else 1


def nbytes(value: Value) -> int:
    return prod(value.shape) * BY_NAME[value.dtype].bytes


def space(shape: Iterable[int]) -> tuple[Var, ...]:
    """Fresh loop variables over `shape`; equal shapes have equal variables."""
    return tuple(Var(i, n) for i, n in enumerate(shape))


def identity(vars: Iterable[Var]) -> Index:
    """The index that walks the variables; a dim of size 1 stands still."""
    return tuple(variable(v) if v.size != 1 else Expr() for v in vars)


def memory_index(node: Node, index: Index) -> Expr:
    """The byte that a load or store touches, relative to its slot."""
    size = BY_NAME[(node.outputs or node.inputs)[0].dtype].bytes
    return linear(index, node.attrs["strides"], node.attrs["offset"]) * size


@dataclass(eq=False)
class Group:
    """One kernel to be. `anchor`: the contraction, sort.. that it is built around, or None for plain loops."""

    id: int
    domain: tuple[int, ...]
    anchor: Node | None = None
    reduced: frozenset[Var] = frozenset()
    nodes: list[Node] = field(default_factory=list)
    index: dict[Value, Index] = field(default_factory=dict)
    reads: dict[Value, set[Index]] = field(default_factory=dict)
    touched: dict[int, set[Expr]] = field(default_factory=dict)  # slot -> bytes that are loaded
    stores: dict[Node, Index] = field(default_factory=dict)
    at: dict[Node, Index] = field(default_factory=dict)  # reductions -> the index of their operand
    weight: int = 0

    @property
    def vars(self) -> tuple[Var, ...]:
        return space(self.domain)

    @property
    def parallel(self) -> frozenset[Var]:
        return frozenset(self.vars) - self.reduced

    def buffers(self) -> int:
        return len(self.reads) + len(self.touched) + len(self.stores)


@dataclass
class Uses:
    """What a node needs when it is computed at a given index of a group."""

    reads: dict[Value, set[Index]] = field(default_factory=dict)
    loads: list[tuple[Node, Expr]] = field(default_factory=list)
    random: list[Node] = field(default_factory=list)
    rows: bool = False  # reads the result of a reduction of the group
    weight: int = 0


class Misfit(Exception):
    """The node cannot be computed in this group."""


class Fusion:
    """The groups of a graph. After construction, `groups` holds them in an order that respects data and memory."""

    def __init__(self, graph: Graph, max_buffers: int = MAX_BUFFERS):
        self.max_buffers = max_buffers
        self.groups: list[Group] = []
        self.owner: dict[Value, Group] = {}
        self.inlined: dict[Value, tuple[int, int]] = {}  # maps that may be computed again -> (weight, bytes read)
        self.copies: dict[Value, Value] = {}
        self._ancestors: dict[int, int] = {}
        self._next = 0
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._events: dict[int, list[Node]] = {}
        self._placed: dict[Node, Group] = {}
        self._readers: dict[tuple[object, ...], list[Group]] = {}
        for node in graph.nodes:
            if node.op in ("load", "store"):
                self._events.setdefault(node.attrs["slot"], []).append(node)
        for node in graph.nodes:
            if node.op not in INLINE:
                self._place(node)
        self.groups = self._ordered()

    def ancestors(self, group: Group) -> int:
        """The groups that must run before `group`, as bits of their ids."""
        return self._ancestors[group.id]

    # Where a node goes

    def _place(self, node: Node) -> None:
        if node.op == "map" or node.op in REDUCTIONS or node.op == "store":
            if node.op == "map":
                self._note_recompute(node)
            for group, index in self._candidates(node):
                for recompute in (True, False):
                    try:
                        self._join(group, node, index, recompute)
                    except Misfit:
                        continue
                    self._absorb(group)
                    return
        self._open(node)

    def _open(self, node: Node) -> None:
        """A new group for the node. Loads whose slot is overwritten before it can run are copied first."""
        operand = node.outputs[0] if node.op not in REDUCTIONS and node.outputs else node.inputs[0]
        plain = node.op == "map" or node.op in REDUCTIONS or node.op == "store"
        for attempt in ("recompute", "read", "copy"):
            group = Group(self._next, operand.shape, None if plain else node)
            self._next += 1
            self._ancestors[group.id] = 0
            try:
                if attempt == "copy":
                    self._copy_overwritten(node)
                self.groups.append(group)
                self._join(group, node, identity(group.vars), attempt == "recompute")
            except Misfit:
                self.groups.remove(group)
                continue
            return
        raise AssertionError(f"no place for {node}")

    def _candidates(self, node: Node) -> Iterator[tuple[Group, Index]]:
        """Groups the node may join, with its index there: producers first, then readers of the same memory."""
        shape = node.inputs[0].shape if node.op in REDUCTIONS or node.op == "store" else node.outputs[0].shape
        seen: set[tuple[int, Index]] = set()
        producers: list[tuple[Group, Index | None]] = []
        leaves: list[tuple[object, ...]] = []
        for value in dict.fromkeys(node.inputs):
            self._sources(value, producers, leaves)
        producers.sort(key=lambda p: -p[0].id)
        siblings = [(g, None) for leaf in leaves for g in reversed(self._readers.get(leaf, ())) if g.domain == shape]
        for group, index in producers + siblings[:4]:
            if group not in self.groups:
                continue
            if index is None or len(index) != len(shape):
                index = identity(space(shape)) if group.domain == shape else self._known(group, shape)
            if index is not None and (group.id, index) not in seen:
                seen.add((group.id, index))
                yield group, index
            index = self._redomain(group, node, shape)
            if index is not None:
                yield group, index

    def _sources(self, value: Value, producers: list, leaves: list) -> None:
        """Producers of a value through views, each with the index of `value` in the producer's group if one to one."""
        chain: list[Node] = []
        while value.node.op in VIEWS:
            chain.append(value.node)
            value = value.node.inputs[0]
        node = value.node
        if group := self.owner.get(value):
            index: Index | None = group.index[value]
            for view in reversed(chain):
                index = result_index(view, index) if index is not None else None
            producers.append((group, index))
            leaves.append((value,))
        elif node.op == "load":
            leaves.append((node.attrs["slot"], node.attrs["offset"]))
        elif node.op == "rand_bits":
            leaves.append((node,))
        elif node.op not in LEAVES:
            for operand in node.inputs:
                self._sources(operand, producers, leaves)

    def _known(self, group: Group, shape: tuple[int, ...]) -> Index | None:
        """The index of some full-size member of this shape."""
        size = prod(group.domain)
        for value, index in group.index.items():
            if value.shape == shape and prod(shape) == size:
                return index
        return None

    def _redomain(self, group: Group, node: Node, shape: tuple[int, ...]) -> Index | None:
        """Let a plain group walk the node's shape instead of its own, where that is a change of variables."""
        if group.reduced or group.anchor or prod(shape) != prod(group.domain) or node.op not in REDUCTIONS:
            return None
        own = identity(group.vars)
        for value in dict.fromkeys(node.inputs):
            chain = []
            while value.node.op in VIEWS:
                chain.append(value.node)
                value = value.node.inputs[0]
            if self.owner.get(value) is group and group.index[value] == own:
                index = identity(space(shape))
                for view in chain:
                    if prod(view.inputs[0].shape) != prod(view.outputs[0].shape):
                        return None
                    index = operand_index(view, index)
                self._change(group, shape, index)
                return identity(space(shape))
        return None

    def _change(self, group: Group, domain: tuple[int, ...], index: Index) -> None:
        """Rewrite the group over `domain`; index: the old variables in terms of the new."""
        env = dict(zip(group.vars, index, strict=True))
        group.index = {v: tuple(e.subs(env) for e in i) for v, i in group.index.items()}
        group.reads = {v: {tuple(e.subs(env) for e in i) for i in s} for v, s in group.reads.items()}
        group.touched = {s: {e.subs(env) for e in es} for s, es in group.touched.items()}
        group.stores = {s: tuple(e.subs(env) for e in i) for s, i in group.stores.items()}
        group.at = {n: tuple(e.subs(env) for e in i) for n, i in group.at.items()}
        group.domain = domain

    # Whether it fits

    def _join(self, group: Group, node: Node, index: Index, recompute: bool) -> None:
        """Add the node to the group at `index`. Raises Misfit, with nothing changed, where that is wrong."""
        uses = Uses(weight=weight(node))
        if group.anchor is node:
            for i, operand in enumerate(node.inputs):
                self._walk(group, operand, identity(operand_space(i, operand)), uses, recompute, set())
        else:
            seen: set[tuple[Value, Index]] = set()
            for operand in node.inputs:
                self._walk(group, operand, index, uses, recompute, seen)
        if group.weight + uses.weight > MAX_WEIGHT and group.nodes:
            raise Misfit
        if group.anchor and group.anchor.op in IN_PLACE and node is not group.anchor:
            self._check_direct(group, node, index)
        reduced, result = self._result(group, node, index, uses)
        before = self._before(group, node, uses)
        after = self._after(group, node, uses)
        ancestors = self._ancestors[group.id]
        for other in before:
            if other is group or self._ancestors[other.id] >> group.id & 1:
                raise Misfit
            ancestors |= self._ancestors[other.id] | 1 << other.id
        for other in after:
            if ancestors >> other.id & 1:
                raise Misfit
        self._check_in_place(group, node, index, uses)
        new_reads = sum(v not in group.reads for v in uses.reads)
        new_slots = len({load.attrs["slot"] for load, _ in uses.loads} - set(group.touched))
        if group.nodes and group.buffers() + new_reads + new_slots + (node.op == "store") > self.max_buffers:
            raise Misfit
        group.reduced = reduced
        group.nodes.append(node)
        group.weight += uses.weight
        for value in node.outputs:
            self.owner[value] = group
            group.index[value] = result if group.anchor is not node else identity(space(value.shape))
        if node.op in REDUCTIONS:
            group.at[node] = index
        for value, indices in uses.reads.items():
            group.reads.setdefault(value, set()).update(indices)
            self._readers.setdefault((value,), []).append(group)
        for load, byte in uses.loads:
            group.touched.setdefault(load.attrs["slot"], set()).add(byte)
            self._readers.setdefault((load.attrs["slot"], load.attrs["offset"]), []).append(group)
        for random in uses.random:
            self._readers.setdefault((random,), []).append(group)
        if node.op == "store":
            group.stores[node] = index
            self._placed[node] = group
        for other in before:
            self._precede(other, group)
        for other in after:
            self._precede(group, other)

    def _walk(
        self, group: Group, value: Value, index: Index, uses: Uses, recompute: bool, seen: set[tuple[Value, Index]]
    ) -> None:
        """Collect what `value` at `index` needs. Raises Misfit where a member of the group is needed elsewhere."""
        value = self.copies.get(value, value)
        if (value, index) in seen:
            return
        seen.add((value, index))
        node = value.node
        if node.op in VIEWS:
            self._walk(group, node.inputs[0], operand_index(node, index), uses, recompute, seen)
        elif node.op == "load":
            uses.loads.append((node, memory_index(node, index)))
        elif node.op == "map" or node.op not in INLINE:
            self._walk_member(group, value, index, uses, recompute, seen)
        elif node.op in ("pad", "cat"):
            for operand, at, _ in moved_operands(node, index):
                self._walk(group, operand, at, uses, recompute, seen)
        elif node.op in ("gather", "index"):
            numbers, at = indexed_operands(node, index, lambda v, i, size: self._dynamic(group, v, i, size))
            for operand, i in numbers:
                self._walk(group, operand, i, uses, recompute, seen)
            self._walk(group, node.inputs[0], at, uses, recompute, seen)
        elif node.op == "rand_bits":
            uses.weight += RANDOM_WEIGHT
            uses.random.append(node)
            for operand in node.inputs:
                self._walk(group, operand, (), uses, recompute, seen)

    def _walk_member(
        self, group: Group, value: Value, index: Index, uses: Uses, recompute: bool, seen: set[tuple[Value, Index]]
    ) -> None:
        """A computed value: of this group at its own index, computed again, or read from memory."""
        mine = self.owner[value] is group
        if mine and group.index[value] == index:
            uses.rows |= value.node.op in REDUCTIONS or index_vars(index) <= group.parallel and bool(group.reduced)
            return
        if value in self.inlined and (recompute or mine):
            uses.weight += weight(value.node)
            for operand in value.node.inputs:
                self._walk(group, operand, index, uses, recompute, seen)
        elif mine:
            raise Misfit
        else:
            uses.reads.setdefault(value, set()).add(index)

    def _dynamic(self, group: Group, value: Value, index: Index, size: int) -> Expr:
        return Expr(0, ((Dyn(hash((value.id, index)), size, index_vars(index)), 1),))

    def _result(self, group: Group, node: Node, index: Index, uses: Uses) -> tuple[frozenset[Var], Index]:
        """The reduced variables after joining, and the index of the node's result."""
        depends = index_vars(index)
        if node.op not in REDUCTIONS:
            size = prod((node.outputs or node.inputs)[0].shape)
            full = size == prod(group.domain)
            if group.anchor is not node and not full and not (group.reduced and depends <= group.parallel
                                                              and size == prod(v.size for v in group.parallel)):
                raise Misfit
            if group.reduced and full and not depends <= group.parallel:
                self._check_rows(group, uses.rows)
            return group.reduced, index
        if group.anchor:
            raise Misfit
        dims = node.attrs["dims"]
        rows = frozenset().union(*(index[d].vars for d in dims))
        kept = tuple(e for d, e in enumerate(index) if d not in dims)
        if group.reduced and rows != group.reduced or index_vars(kept) & rows or not rows:
            if not rows and not group.reduced and not group.nodes:
                return frozenset(), kept  # every reduced dim has one element
            raise Misfit
        if prod(node.inputs[0].shape) != prod(group.domain):
            raise Misfit
        if group.reduced:
            self._check_rows(group, uses.rows, rows)
        return rows, kept

    def _check_direct(self, group: Group, node: Node, index: Index) -> None:
        """An anchor that works in memory may do so in a slot: that of one store that nothing overwrites later."""
        direct = node.op == "store" and node.inputs[0].node is group.anchor and index == group.index[node.inputs[0]]
        dense = direct and tuple(node.attrs["strides"]) == contiguous(node.attrs["sizes"])
        if group.stores or not direct or not self.final(node) or (group.anchor.op == "nonzero" and not dense):
            raise Misfit

    def final(self, store: Node) -> bool:
        """Whether what the store writes stays, element by element, to the end of the graph."""
        repeats = any(n > 1 and s == 0 for n, s in zip(store.attrs["sizes"], store.attrs["strides"], strict=True))
        return not repeats and not self._stores(store, earlier=False)

    def _check_rows(self, group: Group, again: bool, reduced: frozenset[Var] | None = None) -> None:
        """A second pass over the rows is only worth while they stay in the cache."""
        if again and prod(v.size for v in reduced or group.reduced) > MAX_ROW:
            raise Misfit

    # Order and memory hazards

    def _before(self, group: Group, node: Node, uses: Uses) -> list[Group]:
        """Groups that must have run: producers of what is read, earlier stores to slots that are read or written."""
        before = [self.owner[v] for v in uses.reads]
        for load, _ in uses.loads:
            before += [self._placed[s] for s in self._stores(load, earlier=True)]
        if node.op == "store":
            slot = node.attrs["slot"]
            before += [self._placed[s] for s in self._stores(node, earlier=True) if self._placed[s] is not group]
            for other in self.groups:
                if other is not group and slot in other.touched:
                    before.append(other)
        return list(dict.fromkeys(before))

    def _after(self, group: Group, node: Node, uses: Uses) -> list[Group]:
        """Groups that must run later: they overwrite what is read here."""
        after = [self._placed[s] for load, _ in uses.loads for s in self._stores(load, earlier=False) if s in self._placed]
        return [g for g in dict.fromkeys(after) if g is not group]

    def _stores(self, node: Node, earlier: bool) -> list[Node]:
        """Stores to the slot of `node` before or after it in the program."""
        at = self._position[node]
        events = self._events[node.attrs["slot"]]
        return [e for e in events if e.op == "store" and e is not node and (self._position[e] < at) == earlier]

    def _check_in_place(self, group: Group, node: Node, index: Index, uses: Uses) -> None:
        """Within one kernel a slot may be loaded and stored only element by element, or at bytes apart."""
        stores = group.stores | ({node: index} if node.op == "store" else {})
        if not stores:
            return
        at = {store: memory_index(store, i) for store, i in stores.items()}
        updated = self._updated(group, stores)
        touched = {slot: bytes - updated for slot, bytes in group.touched.items()}
        for load, byte in uses.loads:
            touched.setdefault(load.attrs["slot"], set()).add(byte)
        for store in stores:
            slot = store.attrs["slot"]
            for byte in touched.get(slot, ()):
                if byte != at[store] and not apart(byte, at[store]):
                    raise Misfit
            for other in stores:
                if other is not store and other.attrs["slot"] == slot and not apart(at[other], at[store]):
                    raise Misfit
        if node.op == "store":
            mine = [s for s in self._stores(node, earlier=True) if self._placed[s] is group]
            between = [e for e in self._events[node.attrs["slot"]] if e.op == "load" and any(
                self._position[s] < self._position[e] < self._position[node] for s in mine)]  # fmt: skip
            if between:
                raise Misfit

    def _updated(self, group: Group, stores: Iterable[Node]) -> set[Expr]:
        """The load that an in-place anchor updates when its slot is also where the result goes."""
        if not group.anchor or group.anchor.op not in IN_PLACE or group.anchor.op == "nonzero":
            return set()
        x = group.anchor.inputs[0]
        if not any(same_view(x.node, store) for store in stores):
            return set()
        return {memory_index(x.node, identity(operand_space(0, x)))}

    def _precede(self, first: Group, then: Group) -> None:
        bits = self._ancestors[first.id] | 1 << first.id
        if self._ancestors[then.id] | bits == self._ancestors[then.id]:
            return
        for group in self.groups:
            if group is then or self._ancestors[group.id] >> then.id & 1:
                self._ancestors[group.id] |= bits

    def _ordered(self) -> list[Group]:
        """Groups in program order of their first node, each after what must precede it."""
        by_id = {g.id: g for g in self.groups}
        done: dict[int, Group] = {}
        for group in self.groups:
            needed = [i for i in bits(self._ancestors[group.id]) if i not in done]
            for i in sorted(needed, key=lambda i: self._ancestors[i].bit_count()):
                done[i] = by_id[i]
            done[group.id] = group
        return list(done.values())

    # Merging, recomputation, copies

    def _absorb(self, group: Group) -> None:
        """Merge the producers of what the group reads into it where they walk the same domain."""
        for other in dict.fromkeys(self.owner[v] for v in group.reads):
            if self._can_absorb(group, other):
                self._merge(group, other)

    def _can_absorb(self, group: Group, other: Group) -> bool:
        if other.anchor or other.domain != group.domain or (group.anchor and other.reduced):
            return False
        if group.reduced and other.reduced and group.reduced != other.reduced:
            return False
        if group.weight + other.weight > MAX_WEIGHT or group.buffers() + other.buffers() > self.max_buffers:
            return False
        crossing = [v for v in group.reads if self.owner[v] is other]
        if any(group.reads[v] != {other.index[v]} for v in crossing):
            return False
        rows = prod(v.size for v in other.reduced)
        if rows > MAX_ROW and any(index_vars(other.index[v]) <= other.parallel for v in crossing):
            return False
        between = (self._ancestors[group.id] & ~(1 << other.id))
        if any(self._ancestors[i] >> other.id & 1 for i in bits(between)):
            return False
        return self._compatible_memory(group, other)

    def _compatible_memory(self, group: Group, other: Group) -> bool:
        """Whether no slot that one stores is loaded or stored by the other at other bytes that overlap."""
        for a, b in ((group, other), (other, group)):
            for store, index in a.stores.items():
                slot, at = store.attrs["slot"], memory_index(store, index)
                stored = {memory_index(s, i) for s, i in b.stores.items() if s.attrs["slot"] == slot}
                if stored or any(byte != at and not apart(byte, at) for byte in b.touched.get(slot, ())):
                    return False
        return True

    def _merge(self, group: Group, other: Group) -> None:
        group.reduced |= other.reduced
        group.nodes = sorted(group.nodes + other.nodes, key=self._position.__getitem__)
        group.weight += other.weight
        group.stores |= other.stores
        group.at |= other.at
        group.index |= other.index
        self.owner.update((v, group) for v in other.index)
        for value, indices in other.reads.items():
            group.reads.setdefault(value, set()).update(indices)
        group.reads = {v: i for v, i in group.reads.items() if self.owner[v] is not group}
        for slot, bytes in other.touched.items():
            group.touched.setdefault(slot, set()).update(bytes)
        self._placed.update((s, group) for s in other.stores)
        self.groups.remove(other)
        ancestors = (self._ancestors.pop(other.id) | self._ancestors[group.id]) & ~(1 << other.id)
        for g in self.groups:
            if g is group or self._ancestors[g.id] >> other.id & 1 or self._ancestors[g.id] >> group.id & 1:
                self._ancestors[g.id] = self._ancestors[g.id] & ~(1 << other.id) | ancestors
                if g is not group:
                    self._ancestors[g.id] |= 1 << group.id

    def _note_recompute(self, node: Node) -> None:
        """Remember a map that is cheaper to compute again than to keep."""
        total, read = weight(node), 0
        pending = list(dict.fromkeys(node.inputs))
        while pending:
            value = pending.pop()
            if value in self.inlined:
                total, read = total + self.inlined[value][0], read + self.inlined[value][1]
            elif value.node.op in ("load", "map") or value.node.op not in INLINE:
                read += nbytes(value)
            else:
                total += weight(value.node) if value.node.op == "rand_bits" else 0
                pending += value.node.inputs
        out = node.outputs[0]
        single = prod(out.shape) == 1
        if total <= (SCALAR_RECOMPUTE_WEIGHT if single else RECOMPUTE_WEIGHT) and (single or read <= nbytes(out)):
            if len(node.outputs) == 1:
                self.inlined[out] = total, read

    def _copy_overwritten(self, node: Node) -> None:
        """Copy the loads that `node` needs and that itself, or a store already placed, overwrites."""
        pending = list(node.inputs)
        while pending:
            value = pending.pop()
            if value.node.op == "load" and value not in self.copies:
                if any(s is node or s in self._placed for s in self._stores(value.node, earlier=False)):
                    copy = Node("map", (value,), {"fn": "convert", "to": value.dtype}, node.origin)
                    copy.outputs = (Value(-value.id - 1, value.shape, value.dtype, copy, 0),)
                    self._position[copy] = self._position[value.node]
                    self._open(copy)
                    self.copies[value] = copy.outputs[0]
            elif value.node.op in INLINE:
                pending += value.node.inputs


def operand_space(number: int, value: Value) -> tuple[Var, ...]:
    """Loop variables over an anchor's operand, apart from those of its result."""
    return tuple(Var(1000 * (number + 1) + d, n) for d, n in enumerate(value.shape))


def same_view(load: Node, store: Node) -> bool:
    return load.op == "load" and all(load.attrs[k] == store.attrs[k] for k in ("slot", "sizes", "strides", "offset"))


def index_vars(index: Index) -> frozenset[Var]:
    return frozenset().union(*(e.vars for e in index))


def apart(a: Expr, b: Expr) -> bool:
    """Whether two byte ranges cannot meet, elements being at most 8 bytes."""
    return a.bounds[1] + 8 <= b.bounds[0] or b.bounds[1] + 8 <= a.bounds[0]


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
