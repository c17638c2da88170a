"""Graph -> fusion groups: which nodes share a kernel.

Nodes are taken in program order; each joins the group of one of its producers (or of a sibling that reads the
same memory) when indices line up, no cycle arises, memory hazards allow it and limits hold; else it opens a group.
Views, constants and gathers belong to no group: they are index expressions inside their consumers. What a group
reads of another is written to memory once, unless it is cheaper to compute it again.

A group has a domain (its loop variables) and gives each member the index of its value in terms of them. In a
reduction group `reduced` holds the variables that are summed over; members that depend on the others only are per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod

from codegen.costly import costly_operands
from codegen.groups import (
    CONTRACTIONS,
    DENSE,
    IN_PLACE,
    INLINE,
    LEAVES,
    MAX_BUFFERS,
    MAX_ROW,
    MAX_WEIGHT,
    RANDOM_WEIGHT,
    RECOMPUTE_WEIGHT,
    REDUCTIONS,
    SCALAR_RECOMPUTE_WEIGHT,
    UPDATES,
    Group,
    Misfit,
    Uses,
    apart,
    bits,
    identity,
    in_turns,
    index_vars,
    itemsize,
    memory_index,
    neighbours,
    operand_space,
    parts,
    same_view,
    space,
    usual_bytes,
    weight,
)  # fmt: skip
from codegen.index import Dyn, Expr, Index, Var, contiguous
from codegen.views import VIEWS, indexed_operands, moved_operands, operand_index, result_index
from ops_core.composites import PREFIX
from ops_core.ir import Graph, Node, Value
from ops_core.sizes import alike, as_many, usual


class Fusion:
    """The groups of a graph. After construction, `groups` holds them in an order that respects data and memory."""

    def __init__(
        self, graph: Graph, max_buffers: int = MAX_BUFFERS, extern: Callable[[Node], bool] = lambda node: False
    ):
        self.max_buffers = max_buffers
        self.extern = extern  # whether a library computes the node: on values in memory, with nothing fused to it
        self.groups: list[Group] = []
        self.owner: dict[Value, Group] = {}
        self.inlined: dict[Value, tuple[int, int]] = {}  # maps that may be computed again -> (weight, bytes read)
        self.copies: dict[Value, Value] = {}
        self._ancestors: dict[int, int] = {}
        self._needed = 0  # the groups that may be ancestors of another
        self._next = 0
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._events: dict[int, list[Node]] = {}
        self._placed: dict[Node, Group] = {}
        self._readers: dict[tuple[object, ...], list[Group]] = {}
        self._loading: dict[int, list[Group]] = {}  # slot -> the groups that load of it, and some that are merged since
        for node in graph.nodes:
            if node.op in ("load", "store"):
                self._events.setdefault(node.attrs["slot"], []).append(node)
        for node in graph.nodes:
            if node.op not in INLINE:
                self._place(node)
        self.sort()

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
        if node.op in CONTRACTIONS or node.op == "sort" or node.op.startswith(PREFIX):
            self._keep_costly(node)
        for attempt in ("read", "copy") if self.extern(node) else ("recompute", "read", "copy"):
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
        readers = (g for leaf in leaves for g in reversed(self._readers.get(leaf, ())))
        siblings = [(g, None) for g in readers if alike(g.domain, shape)]
        for group, index in producers + siblings[:4]:
            if group.id not in self._ancestors:  # merged with another since
                continue
            if index is None or len(index) != len(shape):
                index = identity(space(shape)) if alike(group.domain, shape) else self._known(group, shape)
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
            inner: list[tuple[Group, Index | None]] = []
            for operand in node.inputs:
                self._sources(operand, inner, leaves)
            producers += [(group, None) for group, _ in inner]

    def _known(self, group: Group, shape: tuple[int, ...]) -> Index | None:
        """The index of some full-size member of this shape."""
        size = prod(group.domain)
        for value, index in group.index.items():
            if alike(value.shape, shape) and prod(shape) == size:
                return index
        return None

    def _redomain(self, group: Group, node: Node, shape: tuple[int, ...]) -> Index | None:
        """Let a plain group walk the node's shape instead of its own, where that is a change of variables."""
        if group.reduced or group.anchor or node.op not in REDUCTIONS or not as_many(shape, group.domain):
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
                self.change(group, shape, index)
                return identity(space(shape))
        return None

    def change(self, group: Group, domain: tuple[int, ...], index: Index) -> None:
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
                self.walk(group, operand, identity(operand_space(i, operand)), uses, recompute, set())
        else:
            seen: set[tuple[Value, Index]] = set()
            for operand in node.inputs:
                self.walk(group, operand, index, uses, recompute, seen)
        if group.weight + uses.weight > MAX_WEIGHT and group.nodes:
            raise Misfit
        anchor = group.anchor
        if anchor and anchor is not node and (anchor.op in IN_PLACE or self.extern(anchor)):
            self._check_direct(group, node, index)
        reduced, result = self._result(group, node, index, uses)
        before = self._before(group, uses) + (self._before_store(group, node) if node.op == "store" else [])
        after = self.check_uses(group, uses, before)
        self._check_in_place(group, node, index, uses)
        if node.op == "store" and group.nodes and group.buffers() >= self.max_buffers:
            raise Misfit
        group.reduced = reduced
        group.nodes.append(node)
        group.weight += uses.weight
        for value in node.outputs:
            self.owner[value] = group
            group.index[value] = result if group.anchor is not node else identity(space(value.shape))
        if node.op in REDUCTIONS:
            group.at[node] = index
        for random in uses.random:
            self._readers.setdefault((random,), []).append(group)
        if node.op == "store":
            group.stores[node] = index
            self._placed[node] = group
        self.use(group, uses, before, after)

    def check_uses(self, group: Group, uses: Uses, before: Iterable[Group] = ()) -> list[Group]:
        """The groups that overwrite what is used, and so must run after `group`. before: what else must run first.

        Raises Misfit where that has no order, or there are too many buffers.
        """
        ancestors = self._ancestors[group.id]
        for other in (*before, *self._before(group, uses)):
            if other is group or self._ancestors[other.id] >> group.id & 1:
                raise Misfit
            ancestors |= self._ancestors[other.id] | 1 << other.id
        after = self._after(group, uses)
        if any(ancestors >> other.id & 1 for other in after):
            raise Misfit
        reads = sum(v not in group.reads for v in uses.reads)
        slots = len({load.attrs["slot"] for load, _ in uses.loads} - group.touched.keys())
        if group.nodes and group.buffers() + reads + slots > self.max_buffers:
            raise Misfit
        return after

    def use(self, group: Group, uses: Uses, before: Iterable[Group] = (), after: Iterable[Group] | None = None) -> None:
        """Record what the group uses, and the order that follows from it."""
        for value, indices in uses.reads.items():
            group.reads.setdefault(value, set()).update(indices)
            self._readers.setdefault((value,), []).append(group)
        for load, byte in uses.loads:
            if load.attrs["slot"] not in group.touched:
                self._loading.setdefault(load.attrs["slot"], []).append(group)
            group.touched.setdefault(load.attrs["slot"], set()).add(byte)
            group.loads.add(load)
            self._readers.setdefault((load.attrs["slot"], load.attrs["offset"]), []).append(group)
        for other in (*before, *self._before(group, uses)):
            self.precede(other, group)
        for other in self._after(group, uses) if after is None else after:
            self.precede(group, other)

    def walk(
        self, group: Group, value: Value, index: Index, uses: Uses, recompute: bool, seen: set[tuple[Value, Index]]
    ) -> None:
        """Collect what `value` at `index` needs. Raises Misfit where a member of the group is needed elsewhere."""
        value = self.copies.get(value, value)
        if (value, index) in seen:
            return
        seen.add((value, index))
        node = value.node
        if node.op in VIEWS:
            self.walk(group, node.inputs[0], operand_index(node, index), uses, recompute, seen)
        elif node.op == "load":
            uses.loads.append((node, memory_index(node, index)))
        elif node.op == "map" or node.op not in INLINE:
            self._walk_member(group, value, index, uses, recompute, seen)
        elif node.op in ("pad", "cat"):
            for operand, at, _ in moved_operands(node, index):
                self.walk(group, operand, at, uses, recompute, seen)
        elif node.op in ("gather", "index"):
            numbers, at = indexed_operands(node, index, lambda v, i, size: self._dynamic(group, v, i, size))
            for operand, i in numbers:
                self.walk(group, operand, i, uses, recompute, seen)
            self.walk(group, node.inputs[0], at, uses, recompute, seen)
        elif node.op == "rand_bits":
            uses.weight += RANDOM_WEIGHT
            uses.random.append(node)
            for operand in node.inputs:
                self.walk(group, operand, (), uses, recompute, seen)

    def _walk_member(
        self, group: Group, value: Value, index: Index, uses: Uses, recompute: bool, seen: set[tuple[Value, Index]]
    ) -> None:
        """A computed value: of this group at its own index, computed again, or read from memory."""
        mine = self.owner[value] is group
        if value in group.reads:
            uses.reads.setdefault(value, set()).add(index)
            return
        if mine and group.index[value] == index:
            uses.rows |= value.node.op in REDUCTIONS or (bool(group.reduced) and index_vars(index) <= group.parallel)
            return
        if value in self.inlined and (recompute or mine):
            uses.weight += weight(value.node)
            for operand in value.node.inputs:
                self.walk(group, operand, index, uses, recompute, seen)
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
            shape = (node.outputs or node.inputs)[0].shape
            full = as_many(shape, group.domain)
            row = group.reduced and depends <= group.parallel and as_many(shape, [v.size for v in group.parallel])
            # An anchor may have results of several sizes: a store of one fits, as the anchor itself does.
            own = group.anchor in (node, node.inputs[0].node if node.op == "store" else node)
            if not own and not full and not row:
                raise Misfit
            if group.reduced and full and not depends <= group.parallel:
                self._check_rows(group, uses.rows)
            return group.reduced, index
        if group.anchor:
            raise Misfit
        dims = node.attrs["dims"]
        rows = frozenset().union(*(index[d].vars for d in dims))
        kept = tuple(e for d, e in enumerate(index) if d not in dims)
        if (group.reduced and rows != group.reduced) or index_vars(kept) & rows or not rows:
            if not rows and not group.reduced and not group.nodes:
                return frozenset(), kept  # every reduced dim has one element
            raise Misfit
        if prod(node.inputs[0].shape) != prod(group.domain):
            raise Misfit
        if group.reduced:
            self._check_rows(group, uses.rows, rows)
        return rows, kept

    def _check_direct(self, group: Group, node: Node, index: Index) -> None:
        """An anchor whose results are memory may fill, with each, the slot of one store that nothing overwrites."""
        assert group.anchor
        direct = node.op == "store" and node.inputs[0].node is group.anchor and index == group.index[node.inputs[0]]
        dense = direct and tuple(node.attrs["strides"]) == contiguous(node.attrs["sizes"])
        again = any(store.inputs[0] is node.inputs[0] for store in group.stores)
        if again or not direct or not self.final(node) or (group.anchor.op in DENSE and not dense):
            raise Misfit

    def final(self, store: Node) -> bool:
        """Whether what the store writes stays, element by element, to the end of the graph."""
        repeats = any(n > 1 and s == 0 for n, s in zip(store.attrs["sizes"], store.attrs["strides"], strict=True))
        return not repeats and all(parts(store, other) for other in self._stores(store, earlier=False))

    def _check_rows(self, group: Group, again: bool, reduced: frozenset[Var] | None = None) -> None:
        """A second pass over the rows is only worth while they stay in the cache."""
        if again and usual(prod(v.size for v in reduced or group.reduced)) > MAX_ROW:
            raise Misfit

    # Order and memory hazards

    def _before(self, group: Group, uses: Uses) -> list[Group]:
        """Groups that must have run: producers of what is read, earlier stores to slots that are read."""
        before = [self.owner[v] for v in uses.reads]
        for load, _ in uses.loads:
            before += [self._placed[s] for s in self._stores(load, earlier=True)]
        return list(dict.fromkeys(before))

    def _before_store(self, group: Group, store: Node) -> list[Group]:
        """Groups that must have run before a store: earlier readers and writers of its slot."""
        before = [self._placed[s] for s in self._stores(store, earlier=True) if not neighbours(s, store)]
        before += [g for g in self._loading.get(store.attrs["slot"], ()) if g.id in self._ancestors]
        return [g for g in dict.fromkeys(before) if g is not group]

    def _after(self, group: Group, uses: Uses) -> list[Group]:
        """Groups that must run later: they overwrite what is read here."""
        stores = [s for load, _ in uses.loads for s in self._stores(load, earlier=False)]
        after = dict.fromkeys(self._placed[s] for s in stores if s in self._placed)
        return [g for g in after if g is not group]

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
                if other is store or other.attrs["slot"] != slot or apart(at[other], at[store]):
                    continue
                if not in_turns(at[other], at[store], max(itemsize(other), itemsize(store))):
                    raise Misfit
        if node.op == "store":
            mine = [s for s in self._stores(node, earlier=True) if self._placed[s] is group]
            between = [e for e in self._events[node.attrs["slot"]] if e.op == "load" and any(
                self._position[s] < self._position[e] < self._position[node] for s in mine)]  # fmt: skip
            if between:
                raise Misfit

    def _updated(self, group: Group, stores: Iterable[Node]) -> set[Expr]:
        """The load that an in-place anchor updates when its slot is also where the result goes."""
        if not group.anchor or group.anchor.op not in UPDATES:
            return set()
        x = group.anchor.inputs[0]
        if not any(same_view(x.node, store) for store in stores):
            return set()
        return {memory_index(x.node, identity(operand_space(0, x)))}

    def precede(self, first: Group, then: Group) -> None:
        """Have a group run before another."""
        bits = self._ancestors[first.id] | 1 << first.id
        if self._ancestors[then.id] | bits == self._ancestors[then.id]:
            return
        self._needed |= bits
        for group in self.groups if self._needed >> then.id & 1 else (then,):
            if group is then or self._ancestors[group.id] >> then.id & 1:
                self._ancestors[group.id] |= bits

    def sort(self) -> None:
        """Put groups in program order, each after what must precede it."""
        by_id = {g.id: g for g in self.groups}
        done: dict[int, Group] = {}
        left = sum(1 << id for id in by_id)
        for group in self.groups:
            needed = bits(self._ancestors[group.id] & left)
            for i in (*sorted(needed, key=lambda i: self._ancestors[i].bit_count()), group.id):
                done[i] = by_id[i]
                left &= ~(1 << i)
        self.groups = list(done.values())

    # Merging, recomputation, copies

    def _absorb(self, group: Group) -> None:
        """Merge the producers of what the group reads into it where they walk the same domain."""
        for other in dict.fromkeys(self.owner[v] for v in group.reads):
            if self._can_absorb(group, other):
                self.merge(group, other)

    def _can_absorb(self, group: Group, other: Group) -> bool:
        if other.anchor or not alike(other.domain, group.domain) or (group.anchor and other.reduced):
            return False
        if group.anchor and (group.anchor.op in IN_PLACE or self.extern(group.anchor)):
            return False  # it computes its own results only
        if group.reduced and other.reduced and group.reduced != other.reduced:
            return False
        crossing = [v for v in group.reads if self.owner[v] is other]
        if any(group.reads[v] != {other.index[v]} for v in crossing):
            return False
        rows = usual(prod(v.size for v in other.reduced))
        if rows > MAX_ROW and any(index_vars(other.index[v]) <= other.parallel for v in crossing):
            return False
        between = self._ancestors[group.id] & ~(1 << other.id)
        return self.mergeable(group, other) and not any(self._ancestors[i] >> other.id & 1 for i in bits(between))

    def independent(self, a: Group, b: Group) -> bool:
        """Whether neither must run before the other."""
        return not (self._ancestors[a.id] >> b.id & 1 or self._ancestors[b.id] >> a.id & 1)

    def mergeable(self, a: Group, b: Group) -> bool:
        """Whether two groups together keep to the limits and do not touch each other's memory."""
        fits = a.weight + b.weight <= MAX_WEIGHT and a.buffers() + b.buffers() <= self.max_buffers
        return fits and self._compatible_memory(a, b)

    def _compatible_memory(self, group: Group, other: Group) -> bool:
        """Whether no slot that one stores is stored, loaded later, or loaded at other bytes by the other."""
        for a, b in ((group, other), (other, group)):
            if any(s in a.stores for load in b.loads for s in self._stores(load, earlier=True)):
                return False
            for store, index in a.stores.items():
                slot, at = store.attrs["slot"], memory_index(store, index)
                stored = {memory_index(s, i) for s, i in b.stores.items() if s.attrs["slot"] == slot}
                if stored or any(byte != at and not apart(byte, at) for byte in b.touched.get(slot, ())):
                    return False
        return True

    def merge(self, group: Group, other: Group) -> None:
        """Make `other` a part of `group`."""
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
        group.loads |= other.loads
        for slot, bytes in other.touched.items():
            self._loading[slot].append(group)
            group.touched.setdefault(slot, set()).update(bytes)
        self._placed.update((s, group) for s in other.stores)
        self.groups.remove(other)
        self._needed |= (self._needed >> other.id & 1) << group.id
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
                read += usual_bytes(value)
            else:
                total += weight(value.node) if value.node.op == "rand_bits" else 0
                pending += value.node.inputs
        out = node.outputs[0]
        single = prod(out.shape) == 1
        cheap = total <= (SCALAR_RECOMPUTE_WEIGHT if single else RECOMPUTE_WEIGHT)
        if cheap and (single or read <= usual_bytes(out)) and len(node.outputs) == 1:
            self.inlined[out] = total, read

    def _copy_overwritten(self, node: Node) -> None:
        """Copy the loads that `node` needs and that itself, or a store already placed, overwrites."""
        pending = list(node.inputs)
        while pending:
            value = pending.pop()
            if value.node.op == "load" and value not in self.copies:
                if any(s is node or s in self._placed for s in self._stores(value.node, earlier=False)):
                    self._copy(value, node.origin)
            elif value.node.op in INLINE:
                pending += value.node.inputs

    def _copy(self, value: Value, origin: int) -> None:
        """Put a value that has no group into memory."""
        copy = Node("map", (value,), {"fn": "convert", "to": value.dtype}, origin)
        copy.outputs = (Value(-value.id - 1, value.shape, value.dtype, copy, 0),)
        self._position[copy] = self._position[value.node]
        self._open(copy)
        self.copies[value] = copy.outputs[0]

    def _keep_costly(self, anchor: Node) -> None:
        """Put operands into memory that would be computed anew for each of many terms."""
        for value in costly_operands(anchor, self.copies, self.inlined):
            if value in self.inlined:
                del self.inlined[value]
            elif value.node.op in INLINE:
                self._copy(value, anchor.origin)
