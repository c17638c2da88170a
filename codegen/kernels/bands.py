"""A chain of kernels over one grid as one: each work item takes a band of rows through all members (`codegen.bands`).

In each turn of its loop every member computes a row, as far behind the one before it as it reads ahead. Rows that wait
lie in rings, with room on both sides for vectors that go through an edge. What other bands overwrite is copied before,
by a kernel of its own.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from codegen.bands import Chain, Member
from codegen.builder import Buf, Builder, V
from codegen.emit import Arguments, Emitter, needs
from codegen.index import Var
from codegen.kernels.step import Step, Steps
from codegen.kernels.walk import tail
from codegen.nesting import element_bytes, lanes
from ops_core.dtypes import BY_NAME


def build(name: str, chain: Chain, outer: Any, caps: Any) -> Steps:
    """The kernels of a chain. outer: their arguments."""
    both = ("loops", *range(len(chain.saved)))
    kernels = [_Bands(name, chain, outer, caps).kernel(both)]
    if chain.saved:
        kernels = [_Bands(f"{name}_save", chain, outer, caps).save(both), *kernels]
    return Steps(kernels, [_saved_rows(chain, n) * chain.plane * _bytes(chain, n) for n in chain.saved])


def _saved_rows(chain: Chain, which: int) -> int:
    return chain.bands * (chain.near[which].high - chain.near[which].low)


def _bytes(chain: Chain, which: int) -> int:
    return BY_NAME[chain.near[which].buffer.dtype].bytes


class _Bands:
    def __init__(self, name: str, chain: Chain, outer: Any, caps: Any):
        self.chain, self.caps = chain, caps
        self.k = k = Builder(name, 64 if any(p.wide for p in chain.programs) else 32)
        written = {m.program.buffers[s.buffer].ref for m in chain.members for s in m.memory}
        self.buffers = {b: k.buffer(b.dtype, readonly=b.ref not in written) for b in outer.buffers}
        self.offsets = {o: k.arg("index") for o in outer.offsets}
        self.scalars = {s: k.arg(s[1]) for s in outer.scalars}
        self.copies = {
            n: k.buffer(chain.near[n].buffer.dtype, readonly=not name.endswith("_save")) for n in chain.saved
        }
        self.band = k.global_id(0)
        self.start = self.band * chain.height
        self.end = k.map("minimum", self.start + chain.height, chain.row.size)

    def _step(self, args: tuple[str | int, ...]) -> Step:
        return Step(self.k.name, self.k.finish(), args, (self.chain.bands, 1, 1), (1, 1, 1))

    def save(self, args: tuple[str | int, ...]) -> Step:
        """The rows beyond each band, copied."""
        k, chain = self.k, self.chain
        for which in chain.saved:
            near, copy = chain.near[which], self.copies[which]
            source, count = self.buffers[near.buffer], near.high - near.low
            width = lanes(chain.inner[-1], self.caps.vector_bytes // max(4, _bytes(chain, which)))
            with k.for_(0, count) as loop:
                row = loop.iv + k.select(loop.iv < -near.low, self.start, self.end) + near.low
                with k.if_((row >= 0) & (row < chain.row.size)):
                    to, at = (self.band * count + loop.iv) * chain.plane, row * chain.plane
                    for lo, hi, fewer in ((0, chain.plane // width * width, width), *tail(chain.plane, width)):
                        with k.for_(lo, hi, fewer) as along:
                            k.store(copy, to + along.iv, k.load(source, at + along.iv, fewer))
        return self._step(args)

    def kernel(self, args: tuple[str | int, ...]) -> Step:
        """All members, row by row."""
        k, chain = self.k, self.chain
        pitch = chain.plane + 2 * chain.pad
        self.rings = [k.private(r.dtype, r.rows * pitch) for r in chain.rings]
        first = min(m.low + m.lag for m in chain.members)
        last = max(m.high + m.lag for m in chain.members)
        with k.for_(self.start + first, self.end + last) as loop:
            for member in chain.members:
                row = loop.iv - member.lag
                low = k.map("maximum", self.start + member.low, 0) if member.low else self.start
                high = k.map("minimum", self.end + member.high, chain.row.size) if member.high else self.end
                with k.if_((row >= low) & (row < high)):
                    own = (row >= self.start) & (row < self.end) if member.low or member.high else None
                    buffers: dict[Any, Buf] = dict(self.buffers)
                    offsets: dict[Any, V] = dict(self.offsets)
                    for place in member.program.offsets:
                        if place not in offsets:
                            buffers[place], offsets[place] = self._begin(*place, row, pitch)  # type: ignore[arg-type]
                    bound = Arguments(
                        [buffers.get(b, buffers.get(b.ref)) for b in member.program.buffers],  # type: ignore[misc]
                        [offsets[o] for o in member.program.offsets],
                        [self.scalars[s] for s in member.program.scalars],
                    )
                    wanted = self.caps.vector_bytes // element_bytes(member.program, chain.inner[-1])
                    width = lanes(chain.inner[-1], wanted)
                    _Row(k, chain, member, bound, width, own).emit(row)
        return self._step(args)

    def _begin(self, what: tuple[str, int], further: int, row: V, pitch: int) -> tuple[Buf, V]:
        """Where the row that is so much further begins."""
        k, chain, (kind, which) = self.k, self.chain, what
        if kind == "ring":
            rows = chain.rings[which].rows
            up = -(min(further, 0) // rows) * rows
            return self.rings[which], (row + (further + up)) % rows * pitch
        near, at = chain.near[which], row + further
        buffer, place = self.buffers[near.buffer], at * chain.plane
        if which not in self.copies:
            return buffer, place
        before = at < self.start
        copied = self.band * (near.high - near.low) + at - k.select(before, self.start, self.end) - near.low
        outside = before | (at >= self.end)
        return (
            k.select_buffer(outside, self.copies[which], buffer),
            k.select(outside, copied * chain.plane, place),
        )


class _Row:
    """A row of a member."""

    def __init__(self, k: Builder, chain: Chain, member: Member, bound: Arguments, width: int, own: V | None):
        self.k, self.chain, self.member, self.width, self.own = k, chain, member, width, own
        self.vector = chain.inner[-1]
        self.emitter = Emitter(k, member.program, self.vector, bound)
        self.emitter.env.update(dict.fromkeys(chain.vars, 0))
        self.needed = needs(member.program, [s.value for s in member.program.stores])

    def emit(self, row: V) -> None:
        """Rows inside all edges have no tests of them; the others all."""
        k = self.k
        self.emitter.env[self.chain.row] = row
        rows, low, high = self._sure(self.chain.row)
        if not rows:
            self._row(frozenset())
            return
        with k.if_(reduce(V.__and__, [row >= low] * (low > 0) + [row < high] * (high < self.chain.row.size))):
            self._row(rows)
        with k.else_():
            self._row(frozenset(), split=False)

    def _sure(self, var: Var) -> tuple[frozenset[int], int, int]:
        """The tests of one variable that all hold together where low <= var < high, most of its values."""
        found, low, high = [], 0, var.size
        for id in self.needed:
            instr = self.member.program.instrs[id]
            if instr.op == "inside" and instr.data[0].vars == {var} and instr.data[0].coefficient(var) == 1:
                expr, lo, hi = instr.data
                found.append(id)
                low, high = max(low, lo - expr.const), min(high, hi - expr.const)
        if 2 * (high - low) < var.size or not found or (low, high) == (0, var.size):
            return frozenset(), 0, var.size
        return frozenset(found), low, high

    def _row(self, sure: frozenset[int], split: bool = True) -> None:
        """The vectors of a row. split: those inside all edges by themselves."""
        program, emitter = self.member.program, self.emitter
        inner = frozenset(self.chain.inner)
        with emitter.scope():
            emitter.sure = sure
            for id in self.needed:
                if not inner & program.dependence[id] and program.instrs[id].op != "const" and not emitter._holds(id):
                    emitter.value(id)
            self._loops(list(self.chain.inner[:-1]), sure, split)
            emitter.sure = frozenset()

    def _loops(self, vars: list[Var], sure: frozenset[int], split: bool) -> None:
        if vars:
            with self.k.for_(0, vars[0].size) as loop:
                self.emitter.env[vars[0]] = loop.iv
                self._loops(vars[1:], sure, split)
            return
        size, width = self.vector.size, self.width
        whole = size // width * width
        columns, low, high = self._sure(self.vector)
        first, last = -(-low // width) * width, min(high // width * width, whole)
        if not split or not columns or first >= last:
            self._vectors(0, whole, width, sure)
        else:
            if first == width and last == whole - width:  # one vector at each end
                self._vectors(0, whole, width, sure, last)
            else:
                self._vectors(0, first, width, sure)
                self._vectors(last, whole, width, sure)
            self._vectors(first, last, width, sure | columns)
        for lo, hi, fewer in tail(size, width):
            self._vectors(lo, hi, fewer, sure)

    def _vectors(self, lo: int, hi: int, width: int, sure: frozenset[int], step: int = 0) -> None:
        k, emitter = self.k, self.emitter
        if lo >= hi:
            return
        with k.for_(lo, hi, step or width) as loop, emitter.scope():
            emitter.env[self.vector], emitter.width, emitter.sure = loop.iv, width, sure
            if self.own is None or not self.member.memory:
                emitter.store_all(self.member.program.stores)
                return
            for store in self.member.program.stores:
                emitter.value(store.value)
            emitter.store_all(self.member.rings)
            with k.if_(self.own):
                emitter.store_all(self.member.memory)
