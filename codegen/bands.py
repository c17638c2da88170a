"""Kernels that follow each other over one grid as one: a work item takes a band of rows through all of them.

A chain of stencils, as the turns of a wave equation, passes its grid through the last cache once a kernel. A later
kernel that reads what an earlier one made at rows a constant distance away, and anywhere along a row, needs some rows
of it only: here it follows that many rows behind, and a few rows of each result wait in memory of the work item's own,
which is in its nearest cache (`codegen.kernels.bands` emits it). What lies beyond a band's edges is computed by both
bands; results that nobody reads after the chain never reach memory. The bits are those of a kernel each.

Memory that a chain reads and writes, as a grid that is updated in place, is read a few rows beyond the band, which
another band overwrites: those rows are copied before. A band's own are read before they are written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

from codegen.groups import MAX_WEIGHT, Misfit, identity
from codegen.index import Expr, Var, contiguous, linear, variable
from codegen.kernels import kept
from codegen.loops import Buffer, Instr, Program, Store
from codegen.nesting import element_bytes
from ops_core import sizes
from ops_core.dtypes import BY_NAME

Ref = tuple[str, int]

# Bytes of a result between two kernels of a chain, at least: of smaller ones a launch of its own reads them in a cache,
# and a chain is one kernel more to build. benchmarks: stencil.
LEAST = 1 << 16
# Rows that two bands both compute, as a share of all. Reasoned: a kernel less saves more than a tenth.
MOST_TWICE = 1 / 8
# Kernels of a chain: their programs are one, whose compile time grows faster than their number.
MOST_MEMBERS = 8
# Bands for each compute unit where they are high enough for it, so that all have work to the end.
BANDS_PER_UNIT = 2


@dataclass
class Ring:
    """Rows of a result that wait for who reads them. readers: (member, how many rows further)."""

    dtype: str
    writer: int
    readers: set[tuple[int, int]] = field(default_factory=set)
    rows: int = 1


@dataclass
class Near:
    """Memory that is read and overwritten. low, high: how many rows beyond the band are read."""

    buffer: Buffer
    low: int = 0
    high: int = 0


@dataclass
class Member:
    """One kernel of a chain. What it reads of ring n, or of near memory n, it reads of buffer (("ring", n), further),
    with an offset of that name, which is where the row begins. memory: stores that reach memory.

    low, high: rows beyond its band that it computes; lag: rows that it follows behind the first."""

    program: Program
    memory: list[Store]
    rings: list[Store]
    low: int = 0
    high: int = 0
    lag: int = 0


class Chain:
    """Programs over the same grid as one kernel. kept: temps that are read after it. Raises Misfit.

    outer: the kernel's arguments, those of all members."""

    def __init__(self, programs: Sequence[Program], kept: Collection[Ref], caps: Any):
        self.programs, self.kept, self.vars = programs, kept, programs[0].vars
        self.row = next((v for v in self.vars if v.size > 1), self.vars[0])
        self.inner = self.vars[self.vars.index(self.row) + 1 :]
        if not self.inner or any(p.vars != self.vars or p.reduced or p.roots for p in programs):
            raise Misfit
        self.plane = prod(v.size for v in self.inner)
        self.pad = max(caps.vector_bytes // element_bytes(p, self.inner[-1]) for p in programs)
        self.outer = Program(self.vars)
        self.rings: list[Ring] = []
        self.near: list[Near] = []
        self._shifted = False
        self.members: list[Member] = []
        self._whole = linear(identity(self.vars), contiguous([v.size for v in self.vars]))
        self._made: dict[Ref, int] = {}  # -> the ring of the last version
        self._written: dict[Ref, tuple[int, Store]] = {}  # memory -> who writes it
        self._loaded: list[tuple[int, int, int, Expr]] = []  # of near memory n: n, by whom, rows further, where
        self._stores = [{p.buffers[s.buffer].ref for s in p.stores} for p in programs]
        self._loads = [{p.buffers[i.data[0]].ref for i in p.instrs if i.op == "load"} for p in programs]
        self._updated = {ref for stores in self._stores for ref in stores if ref[0] == "slot" or ref in kept}
        for number, program in enumerate(programs):
            self._add(number, program)
        self._follow()
        self._divide(caps)

    def key(self) -> Any:
        """All that decides the kernel; equal keys are equal kernels."""
        numbers: dict[Ref, int] = {}
        members = []
        for program in self.programs:
            buffers = [numbers.setdefault(b.ref, len(numbers)) for b in program.buffers]
            offsets = [
                self.outer.offsets.index(o) if o in self.outer.offsets else ("is", o[1]) for o in program.offsets
            ]
            scalars = [self.outer.scalars.index(s) for s in program.scalars]
            members.append((program.key(), tuple(buffers), tuple(offsets), tuple(scalars)))
        return "bands", tuple(members), tuple((ref[0], ref in self.kept) for ref in numbers)

    def _add(self, number: int, program: Program) -> None:
        """The member of a program."""
        new = Program(program.vars, scalars=program.scalars)
        for scalar in program.scalars:
            self.outer.scalar(*scalar)
        for instr in program.instrs:
            new._append(self._load(number, program, new, instr) if instr.op == "load" else instr)
        memory, rings = [], []
        for store in program.stores:
            ref, dtype = program.buffers[store.buffer]
            offset = program.offsets[store.offset] if store.offset is not None else None
            read, final = self._after(number, ref)
            self._made[ref] = -1
            if read and store.expr == self._whole and offset is None:
                self._made[ref] = len(self.rings)
                buffer, row = self._place(new, ("ring", len(self.rings)), 0, dtype)
                self.rings.append(Ring(dtype, number))
                expr = store.expr - variable(self.row) * self.plane + self.pad
                rings.append(Store(buffer, row, expr, store.value))
            if ref[0] == "slot" or (ref in self.kept and final):
                if ref in self._written or store.expr.coefficient(self.inner[-1]) != 1:
                    raise Misfit
                self._written[ref] = number, store
                memory.append(self._outside(new, ref, dtype, offset, store))
        new.stores = [*memory, *rings]
        if not new.stores:
            raise Misfit
        self.members.append(Member(new, memory, rings))

    def _after(self, number: int, ref: Ref) -> tuple[bool, bool]:
        """Whether what a member writes is read by another, and whether it is the last to write there."""
        read = False
        for loads, stores in zip(self._loads[number + 1 :], self._stores[number + 1 :], strict=True):
            read |= ref in loads
            if ref in stores:
                return read, False
        return read, True

    def _outside(self, new: Program, ref: Ref, dtype: str, offset: Any, access: Any) -> Any:
        """A load's data or a store to memory of the chain's own arguments."""
        self.outer.buffer(ref, dtype)
        if offset is not None:
            self.outer.offset(*offset)
        at = new.buffer(ref, dtype), None if offset is None else new.offset(*offset)
        if isinstance(access, Store):
            return access._replace(buffer=at[0], offset=at[1])
        return *at, *access[2:]

    def _place(self, new: Program, what: tuple[str, int], further: int, dtype: str) -> tuple[int, int]:
        """The buffer and the offset of a row that is so much further."""
        entry = what, further
        if entry not in new.offsets:
            new.offsets.append(entry)
        return new.buffer(entry, dtype), new.offsets.index(entry)  # type: ignore[arg-type]

    def _load(self, number: int, program: Program, new: Program, instr: Instr) -> Instr:
        buffer, offset, expr = instr.data[:3]
        ref, dtype = program.buffers[buffer]
        at = program.offsets[offset] if offset is not None else None
        if not all(isinstance(atom, Var) for atom, _ in expr.terms):
            raise Misfit
        if expr.coefficient(self.inner[-1]) not in (0, 1, -1):
            raise Misfit
        if ref not in self._made and ref in self._updated:
            return self._load_near(number, program, new, instr, expr + at[1] if at else expr)
        if ref not in self._made:
            return instr._replace(data=self._outside(new, ref, dtype, at, instr.data))
        ring = self._made[ref]
        if ring < 0 or self.rings[ring].writer == number or self.rings[ring].dtype != dtype or at is not None:
            raise Misfit
        further, rest = self._shift(program, instr, expr)
        self.rings[ring].readers.add((number, further))
        self._shifted |= bool(further) or rest != self._whole - variable(self.row) * self.plane
        place = *self._place(new, ("ring", ring), further, dtype), rest + self.pad
        return instr._replace(data=(*place, self.plane + 2 * self.pad - 1) if instr.args else place)

    def _load_near(self, number: int, program: Program, new: Program, instr: Instr, expr: Expr) -> Instr:
        """A load of memory that is overwritten: of the band's own row there, or of a copy."""
        buffer = program.buffers[instr.data[0]]
        if any(n.buffer.ref == buffer.ref and n.buffer.dtype != buffer.dtype for n in self.near):
            raise Misfit
        if not any(n.buffer == buffer for n in self.near):
            self.near.append(Near(buffer))
            self.outer.buffer(*buffer)
        which = next(i for i, n in enumerate(self.near) if n.buffer == buffer)
        further, rest = self._shift(program, instr, expr)
        self._loaded.append((which, number, further, rest))
        place = *self._place(new, ("near", which), further, buffer.dtype), rest
        return instr._replace(data=(*place, self.plane - 1) if instr.args else place)

    def _shift(self, program: Program, instr: Instr, expr: Expr) -> tuple[int, Expr]:
        """How many rows further a load reads, and where in the row."""
        ranges = {v: (0, v.size - 1) for v in self.inner}
        for guard in instr.args:
            _narrow(program, guard, ranges)
        rest = expr - variable(self.row) * self.plane
        if not rest.vars <= ranges.keys() or any(lo > hi for lo, hi in ranges.values()):
            raise Misfit
        low = high = rest.const
        for var, factor in rest.terms:
            ends = [factor * n for n in ranges[var]]  # type: ignore[index]
            low, high = low + min(ends), high + max(ends)
        if low // self.plane != high // self.plane:
            raise Misfit
        return low // self.plane, rest - low // self.plane * self.plane

    def _follow(self) -> None:
        """How far behind each member follows, and how far beyond its band it goes."""
        reads = [(r.writer, reader, n) for r in self.rings for reader, n in r.readers]
        linked = {writer for writer, _, _ in reads}
        if any(n not in linked for n in range(len(self.members) - 1)):
            raise Misfit
        for writer, reader, further in sorted(reads, key=lambda r: -r[1]):
            a, b = self.members[writer], self.members[reader]
            a.low, a.high = min(a.low, b.low + further), max(a.high, b.high + further)
        for writer, reader, further in sorted([*reads, *self._updates()], key=lambda r: r[1]):
            a, b = self.members[writer], self.members[reader]
            b.lag = max(b.lag, a.lag + max(further, 0))
        for ring in self.rings:
            behind = [self.members[m].lag - self.members[ring.writer].lag - further for m, further in ring.readers]
            ring.rows = 1 << max(behind, default=0).bit_length()

    def _updates(self) -> list[tuple[int, int, int]]:
        """What near memory needs: its rows beyond the band, and that who writes a row follows (reader, writer, rows)
        behind who reads it."""
        found = []
        for which, reader, further, rest in self._loaded:
            near, member = self.near[which], self.members[reader]
            near.low, near.high = min(near.low, member.low + further), max(near.high, member.high + further)
            writer, store = self._written[near.buffer.ref]
            if store.expr != self._whole or store.offset is not None:
                raise Misfit
            if writer != reader:
                found.append((reader, writer, -further))
            elif further or rest != self._whole - variable(self.row) * self.plane:
                raise Misfit
        return found

    def _divide(self, caps: Any) -> None:
        """The height of a band."""
        if not self._shifted:  # element by element: fusion has had its reasons
            raise Misfit
        bytes = [BY_NAME[r.dtype].bytes * self.plane for r in self.rings]
        if max(bytes) * self.row.size < LEAST or self.inner[-1].size < 2 * self.pad:
            raise Misfit
        room = sum(n * r.rows * (1 + 2 * self.pad / self.plane) for n, r in zip(bytes, self.rings, strict=True))
        arguments = len(self.outer.buffers) + len(self.outer.offsets) + len(self.outer.scalars)
        weight = sum(len(p.instrs) for p in self.programs)
        if room > kept.room(caps, 1) or arguments > caps.max_kernel_args or weight > MAX_WEIGHT:
            raise Misfit
        beyond = sum(m.high - m.low for m in self.members) / len(self.members)
        for each in (BANDS_PER_UNIT, 1):
            self.height = -(-self.row.size // (caps.compute_units * each))
            if beyond <= MOST_TWICE * self.height:
                self.bands = -(-self.row.size // self.height)
                self.saved = [n for n, near in enumerate(self.near) if near.low or near.high]
                return
        raise Misfit


def _narrow(program: Program, guard: int, ranges: dict[Var, tuple[int, int]]) -> None:
    """What variables are where a guard holds."""
    instr = program.instrs[guard]
    if instr.op == "inside":
        expr, lo, hi = instr.data
        if len(expr.terms) == 1 and expr.terms[0][0] in ranges and expr.terms[0][1] == 1:
            low, high = ranges[expr.terms[0][0]]
            ranges[expr.terms[0][0]] = max(low, lo - expr.const), min(high, hi - expr.const - 1)
    elif instr.data[0] in ("and", "arith.andi"):
        for part in instr.args:
            _narrow(program, part, ranges)


def chains(programs: Sequence[Program | None], later: Sequence[Collection[Ref]], caps: Any) -> list[Chain | int]:
    """What runs in turn: chains, and numbers of programs (None: of another kind) that are kernels of their own.

    later[n]: temps that are read by what follows the first n. As few kernels as can be, of even lengths.
    """
    tracing = sizes.current() is not None
    linked = [] if tracing or not caps.is_cpu else [_linked(a, b) for a, b in pairwise(programs)]
    if not any(linked):
        return list(range(len(programs)))
    best: list[tuple[tuple[int, int], list[Chain | int]]] = [((0, 0), [])]
    for end in range(1, len(programs) + 1):
        (count, uneven), before = best[end - 1]
        found = (count + 2, uneven + 1), [*before, end - 1]
        for start in range(end - 2, max(-1, end - 1 - MOST_MEMBERS), -1):
            if not linked[start]:
                break
            (count, uneven), before = best[start]
            cost = count + 2, uneven + (end - start) ** 2  # a copy before it counts as half a kernel
            if cost < found[0]:
                try:
                    chain = Chain(programs[start:end], later[end], caps)  # type: ignore[arg-type]
                except Misfit:
                    continue
                cost = cost[0] + bool(chain.saved), cost[1]
                if cost < found[0]:
                    found = cost, [*before, chain]
        best.append(found)
    return best[-1][1]


def _linked(a: Program | None, b: Program | None) -> bool:
    """Whether the second reads what the first writes, over the same grid."""
    if not a or not b or a.vars != b.vars or a.reduced or b.reduced or len(a.vars) < 2:
        return False
    written = {a.buffers[s.buffer].ref for s in a.stores}
    return any(i.op == "load" and b.buffers[i.data[0]].ref in written for i in b.instrs)
