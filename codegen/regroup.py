"""Second look at fusion groups, when all are known: fewer values in memory, fewer kernels over the same data."""

from __future__ import annotations

from math import prod

from codegen.fusion import Fusion
from codegen.groups import RECOMPUTE_WEIGHT, Group, Misfit, Uses, usual_bytes, weight
from ops_core.ir import Value
from ops_core.sizes import alike, usual

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
        for value in sorted(self.readers, key=lambda v: -v.id):
            self._recompute(value)
        self._merge_readers()
        self.fusion.sort()

    # Values that need not be kept

    def _recompute(self, value: Value) -> None:
        """Compute a value in each kernel that reads it, where that moves no more bytes than keeping it."""
        node, readers = value.node, self.readers[value]
        if node.op != "map" or len(node.outputs) > 1 or any(g.anchor for g in readers):
            return
        stored = any(s.inputs[0] is value and self.fusion.final(s) for s in self.fusion.owner[value].stores)
        moved = 0 if stored else -usual_bytes(value)
        uses: list[tuple[Group, Uses]] = []
        new: set[Value] = set()
        for group in readers:
            try:
                needs = self._needs(group, value)
            except Misfit:
                return
            added = [v for v in needs.reads if v not in group.reads]
            new.update(v for v in added if not self.readers.get(v))
            loaded = {load.outputs[0]: load.attrs["slot"] for load, _ in needs.loads}
            moved += sum(map(usual_bytes, added)) - usual_bytes(value)
            moved += sum(usual_bytes(v) for v, slot in loaded.items() if slot not in group.touched)
            uses.append((group, needs))
        if moved + sum(map(usual_bytes, new)) > 0:
            return
        for group, needs in uses:
            del group.reads[value]
            self.fusion.use(group, needs)
            for v in needs.reads:
                if group not in self.readers.setdefault(v, []):
                    self.readers[v].append(group)
        self.readers[value] = []

    def _needs(self, group: Group, value: Value) -> Uses:
        """What computing `value` in `group` takes. Raises Misfit where it is too much, or its memory is overwritten."""
        # What many elements of the domain share would be computed for each of them: a table of angles for each row.
        shared = usual(prod(value.shape)) < usual(prod(group.domain))
        uses = Uses(weight=len(group.reads[value]) * (weight(value.node) if shared else 1))
        for index in group.reads[value]:
            for operand in value.node.inputs:
                self.fusion.walk(group, operand, index, uses, True, set())
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
        size = (prod(a.domain),)
        common = any(alike((prod(v.shape),), size) for v in a.reads.keys() & b.reads.keys())
        if not common and not any(e in b.touched.get(s, ()) for s, es in a.touched.items() for e in es):
            return False
        return self.fusion.independent(a, b) and self.fusion.mergeable(a, b)
