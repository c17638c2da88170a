"""Second look at fusion groups, when all are known: fewer values in memory, fewer kernels over the same data."""

from __future__ import annotations

import heapq
from math import prod

from codegen.fusion import Fusion
from codegen.groups import RECOMPUTE_WEIGHT, Group, Misfit, Uses, usual_bytes, weight
from codegen.index import Index
from ops_core.ir import Value
from ops_core.sizes import alike, as_many, usual

# How far apart in the order of launches two readers of the same data may be to become one kernel: what the later one
# reads may have to be kept longer. benchmarks: GPT training.
MERGE_DISTANCE = 16


def regroup(fusion: Fusion) -> None:
    """Improve the groups of `fusion` in place."""
    _Regroup(fusion).run()


class _Regroup:
    def __init__(self, fusion: Fusion):
        self.fusion = fusion
        self.readers: dict[Value, list[Group]] = {}
        for group in fusion.groups:
            for value in group.reads:
                self.readers.setdefault(value, []).append(group)

    def run(self) -> None:
        values = {v.id: v for v in self.readers}
        pending = [-id for id in values]
        heapq.heapify(pending)
        while pending:  # operands come after what is computed of them
            for value in self._recompute(values[-heapq.heappop(pending)]):
                values[value.id] = value
                heapq.heappush(pending, -value.id)
        self._merge_readers()
        self.fusion.sort()

    # Values that need not be kept

    def _recompute(self, value: Value) -> set[Value]:
        """Compute a value in each kernel that reads it, where that moves no more bytes than keeping it. Anchors go on
        reading it. Returns the values that are read from memory now and were not."""
        node = value.node
        readers = [g for g in self.readers[value] if not g.anchor]
        kept = [g for g in self.readers[value] if g.anchor]
        if node.op != "map" or len(node.outputs) > 1 or not readers:
            return set()
        stores = self.fusion.owner[value].stores
        stored = bool(kept) or any(s.inputs[0] is value and self.fusion.final(s) for s in stores)
        moved = 0 if stored else -usual_bytes(value)
        uses: list[tuple[Group, Uses]] = []
        new: set[Value] = set()
        for group in readers:
            try:
                needs = self._needs(group, value)
            except Misfit:
                return set()
            added = [v for v in needs.reads if v not in group.reads]
            new.update(v for v in added if not self.readers.get(v))
            loaded = {load.outputs[0]: load.attrs["slot"] for load, _ in needs.loads}
            moved += sum(map(usual_bytes, added)) - usual_bytes(value)
            moved += sum(usual_bytes(v) for v, slot in loaded.items() if slot not in group.touched)
            uses.append((group, needs))
        if moved + sum(map(usual_bytes, new)) > 0:
            return set()
        for group, needs in uses:
            del group.reads[value]
            self.fusion.use(group, needs)
            for v in needs.reads:
                if group not in self.readers.setdefault(v, []):
                    self.readers[v].append(group)
        self.readers[value] = kept
        return new

    def _needs(self, group: Group, value: Value) -> Uses:
        """What computing `value` in `group` takes. Raises Misfit where it is too much, or its memory is overwritten."""
        # What many elements of the domain share would be computed for each of them: a table of angles for each row.
        shared = usual(prod(value.shape)) < usual(prod(group.domain))
        uses = Uses(weight=len(group.reads[value]) * (weight(value.node) if shared else 1))
        for index in group.reads[value]:
            for operand in value.node.inputs:
                self.fusion.walk(group, operand, index, uses, True, set())
        # Of several values, each would be looked up for each of them: a table of means, as sums and counts.
        if shared and len(uses.reads) + len(uses.loads) > 1 and any(map(_looked_up, group.reads[value])):
            raise Misfit
        stored = {store.attrs["slot"] for store in group.stores}
        if uses.weight > RECOMPUTE_WEIGHT or any(load.attrs["slot"] in stored for load, _ in uses.loads):
            raise Misfit
        self.fusion.check_uses(group, uses)
        return uses

    # Kernels that read the same data

    def _merge_readers(self) -> None:
        recent: list[Group] = []
        for group in list(self.fusion.groups):
            partner = next((g for g in reversed(recent) if self._alike(g, group)), None)
            if partner:
                self.fusion.merge(partner, group)
            else:
                recent = [*recent[1 - MERGE_DISTANCE :], group]

    def _alike(self, a: Group, b: Group) -> bool:
        """Whether two groups walk the same domain, read common data of its size, and do not depend on each other."""
        if a.anchor or b.anchor or not alike(a.domain, b.domain) or a.reduced != b.reduced:
            return False
        common = any(as_many(v.shape, a.domain) for v in a.reads.keys() & b.reads.keys())
        if not common and not any(e in b.touched.get(s, ()) for s, es in a.touched.items() for e in es):
            return False
        return self.fusion.independent(a, b) and self.fusion.mergeable(a, b)


def _looked_up(index: Index) -> bool:
    """Whether a place that was read from memory is in the index, and varies."""
    return any(e.dynamic(var) for e in index for var in e.vars)
