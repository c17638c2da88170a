"""Loop nests as kernels: elementwise chains, and rows with any number of reductions over the same variables.

A work item owns one point of the parallel variables, or `width` of them along the vector. Reductions
run in phases: a phase is one walk over the reduced variables that feeds all reductions whose operands are known by
then; values that do not vary along the walk are computed between the phases. On GPU-like devices the lanes of a
work-group share a row. What a walk computes at some cost and a later one needs is kept (`codegen.kernels.kept`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

from codegen.builder import Buf, Builder, V
from codegen.emit import Emitter, needs, operands
from codegen.index import Var
from codegen.kernels import kept, lanes_of_rows, lockstep, reduction, walk
from codegen.kernels.kept import Kept
from codegen.kernels.rows import locate
from codegen.kernels.walk import Phase, accumulators, tail
from codegen.kernels.work_items import GROUPS_PER_UNIT, TILE, apart, local_size, rows_each, tiled, vectors_each
from codegen.loops import Program, Store
from codegen.nesting import Nest, arrange, element_bytes, lanes
from ops_core.sizes import multiple, usual, varies

# A GPU reads 16 bytes per work item and access at full speed.
GPU_VECTOR_BYTES = 16
# Vectors of neighbouring columns that one walk down the rows combines: 64 bytes of a row at a time are slow to fetch,
# since rows are pages apart. benchmarks: the sum over the rows of (8192, 768) floats, a bias's gradient, took 4.1 ms
# with 1, 2.0 with 2, 1.2 with 4, 1.7 with 8 in single runs on a busy machine: 4 beat 1 in all, 8 in some.
COLUMNS = 4
# Operations of such a walk, at most: they take long to compile and hide how slowly rows come. Reasoned, not measured.
MAX_WALK_OPS = 128


@dataclass
class Kernel:
    """A kernel that waits for its arguments: the program's buffers, offsets and scalars, in this order."""

    mlir: str
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]


def build(name: str, program: Program, caps: Any) -> Kernel:
    """The kernel of a loop program."""
    nest = arrange(program, caps.vector_bytes if caps.is_cpu else 0)
    wanted = (caps.vector_bytes if caps.is_cpu else GPU_VECTOR_BYTES) // element_bytes(nest.program, nest.vector)
    width = nest.rows.width if nest.rows else lanes(nest.vector, wanted)
    return _Nest(name, nest, width, caps).kernel()


class _Nest:
    def __init__(self, name: str, nest: Nest, width: int, caps: Any):
        self.nest, self.program, self.width = nest, nest.program, width
        along = nest.vector in nest.parallel
        self.across_items = along
        self.tiled = tiled(nest) if caps.is_cpu else None
        self.columns = self.run = 1
        self._levels()
        self.columns = self._columns(caps)
        in_rows = caps.is_cpu and along and not nest.reduced and not self.tiled
        self.run = vectors_each(nest, width, caps) if in_rows else 1
        self.turns = min(self.run, self._turns(caps)) if in_rows else 1
        self.outer, self.rows = rows_each(nest, width, self.run, caps) if in_rows else (None, 1)
        self.items = prod(-(-v.size // self._block(v)) for v in nest.parallel)
        self.lanes = 1
        if nest.reduced and not along and not caps.is_cpu:
            most = lanes_of_rows.most(prod(v.size for v in nest.reduced), width)
            self.lanes = lanes(nest.reduced[-1], min(most, caps.max_work_group_size) * width) // width
        self.local = self.lanes if self.lanes > 1 else local_size(self.items, caps)
        self.k = Builder(name, 64 if self.program.wide else 32, (self.local, 1, 1) if self.lanes > 1 else None)
        if self.lanes > 1:
            rows = nest.reduced[-1].size, prod(v.size for v in nest.reduced)
            turns = [lanes_of_rows.turns(0, size, width * self.lanes) for size in rows]
            self.k.asked_once = turns[0] > 0 and 0 < turns[1] <= lanes_of_rows.UNROLLED
        # A tile's vectors begin anywhere.
        self.emitter = Emitter(self.k, self.program, nest.vector, rows=None if self.tiled else nest.rows)
        self.arrays: list[str] = []
        if nest.reduced and nest.vector:
            self._keep(nest.vector, caps)
            if caps.is_cpu and not along and len(self.phases) > 1:
                self._arrange(nest.vector, caps)

    def _block(self, var: Var) -> int:
        """How many values of a parallel variable one work item takes."""
        if var == self.nest.vector:
            return self.width * self.columns * self.run
        return TILE if var == self.tiled else self.rows if var == self.outer else 1

    def _columns(self, caps: Any) -> int:
        """How many vectors of columns a work item sums in one walk: fewer where that leaves compute units idle."""
        vector = self.nest.vector
        if not (caps.is_cpu and self.across_items and self.nest.reduced and vector and len(self.phases) == 1):
            return 1
        if self.phases[0].stores:
            return 1
        program = self.program
        each = sum(accumulators(r) for r in program.reductions)
        ops = sum(kept.ops(i, vector, self.width) for i, walks in zip(program.instrs, self.walks, strict=True) if walks)
        vectors = prod(usual(v.size) for v in self.nest.parallel) // self.width
        columns = COLUMNS
        while columns > 1 and (
            each * columns > walk.MAX_ACCUMULATORS
            or ops * columns > MAX_WALK_OPS
            or usual(vector.size) < self.width * columns
            or vectors // columns < caps.compute_units * GROUPS_PER_UNIT
        ):
            columns //= 2
        return columns

    def _turns(self, caps: Any) -> int:
        """How many vectors along a row take turns."""
        ops = [kept.ops(i, self.nest.vector, self.width) for i in self.program.instrs]
        return lockstep.count(ops, caps)

    def kernel(self) -> Kernel:
        k = self.k
        if self.lanes > 1:
            self._item(k.group_id(0))
            return Kernel(k.finish(), (self.items * self.local, 1, 1), (self.local, 1, 1))
        groups = -(-self.items // self.local)
        item = k.global_id(0)
        if not multiple(self.items, self.local):
            with k.if_(item < self.items):
                self._item(item)
        else:
            self._item(item)
        return Kernel(k.finish(), (groups * self.local, 1, 1), (self.local, 1, 1))

    def _levels(self) -> None:
        """For each instruction: the phase in which it is known, and whether it varies along the reduced variables."""
        program = self.program
        known: list[int] = []
        self.walks: list[bool] = []
        for id, instr in enumerate(program.instrs):
            if instr.op == "acc":
                known.append(known[program.reductions[instr.data[0]].value] + 1)
                self.walks.append(False)
                continue
            own = bool(program.reduced & program.dependence[id])
            below = operands(instr)
            known.append(max((known[a] for a in below), default=0))
            self.walks.append(own or any(self.walks[a] for a in below))
        count = max([known[r.value] + 1 for r in program.reductions], default=0)
        full = [s for s in program.stores if program.reduced & s.expr.vars or self.walks[s.value]]
        # A store over memory that is loaded waits for the last walk, so that no later walk reads it changed.
        at = [count if s.in_place else known[s.value] for s in full]
        self.phases = [Phase() for _ in range(max([count, *(n + 1 for n in at)], default=0))]
        for i, r in enumerate(program.reductions):
            self.phases[known[r.value]].reductions.append(i)
        for s, n in zip(full, at, strict=True):
            self.phases[min(n, len(self.phases) - 1)].stores.append(s)
        self.row_stores = [s for s in program.stores if s not in full]

    def _keep(self, vector: Var, caps: Any) -> None:
        """Which values the walks keep for later ones, and where."""
        program = self.program
        values = kept.choose(
            program,
            [w and vector in d for w, d in zip(self.walks, program.dependence, strict=True)],
            [self._roots(phase) for phase in self.phases],
            lambda instr: kept.ops(instr, vector, self.width),
            kept.worth(caps),
        )
        # A row whose length varies has no array: its text would hold for one length.
        room, elements = 0, 1
        if not varies(prod(v.size for v in self.nest.reduced)):
            room, elements = kept.room(caps, self.lanes), self._elements(self.width)
        stores = [phase.stores for phase in self.phases]
        values, self.arrays = kept.place(program, vector, values, stores, elements, room)
        for n, phase in enumerate(self.phases):
            phase.writes = [v for v in values if v.first == n and not self._written(v, phase)]
            phase.reads = [v for v in values if v.first < n <= v.last]

    def _arrange(self, vector: Var, caps: Any) -> None:
        """How the walks over a row that is in a cache go: several vectors at a time, and who asks for the next row."""
        program = self.program
        for phase in self.phases:
            read = {value.id for value in phase.reads}
            needed = [i for i in needs(program, self._roots(phase), read) if self.walks[i] and i not in read]
            ops = [kept.ops(program.instrs[id], vector, self.width) for id in needed]
            phase.vectors = walk.vectors(program, phase, ops, usual(vector.size) // self.width, caps)
        row = usual(prod(v.size for v in self.nest.reduced)) * element_bytes(program, vector)
        if self.nest.parallel and walk.AHEAD <= row <= caps.cache_bytes // 2:
            first = needs(program, self._roots(self.phases[0]))
            self.phases[-1].ahead = walk.streams(program, first, self.nest.parallel[-1], vector)

    def _written(self, value: Kept, phase: Phase) -> bool:
        """Whether the place of a kept value is an output that is this value."""
        return isinstance(value.place, Store) and value.place.value == value.id and value.place in phase.stores

    def _roots(self, phase: Phase) -> list[int]:
        """The instructions whose values a walk is for."""
        return [self.program.reductions[r].value for r in phase.reductions] + [s.value for s in phase.stores]

    def _elements(self, width: int) -> int:
        """Elements of a row, or of `width` rows side by side: a power of two, so that lengths may share a kernel."""
        points = prod(v.size for v in self.nest.reduced) * (width if self.across_items else 1)
        return 1 << (points - 1).bit_length()

    def _item(self, item: V) -> None:
        """The points of a work item: a vector, within a tile if there is one."""
        starts = self._locate(item)
        self.emitter.env.update(starts)
        k, tiled, outer = self.k, self.tiled, self.outer
        if outer is not None:
            first = starts[outer]
            with k.for_(first, k.map("minimum", first + self.rows, outer.size)) as loop, self.emitter.scope():
                self.emitter.env[outer] = loop.iv
                self._vector(starts)
            return
        if tiled is None:
            self._vector(starts)
            return
        start = starts[tiled]
        end = start + TILE if multiple(tiled.size, TILE) else k.map("minimum", start + TILE, tiled.size)
        staged = self._stage(starts) if multiple(tiled.size, TILE) and self._whole() else {}

        def each(do: Callable[[], None]) -> None:
            with k.for_(start, end) as loop, self.emitter.scope():
                self.emitter.env.update(starts)
                self.emitter.env[tiled] = loop.iv
                self.emitter.staged = {id: self._column(buf, loop.iv - start) for id, buf in staged.items()}
                do()

        self._vector(starts, each)

    def _whole(self) -> bool:
        """Whether all vectors are whole."""
        return self.width > 1 and multiple(self.nest.parallel[-1].size, self.width)

    def _stage(self, starts: dict[Var, V]) -> dict[int, Buf]:
        """Copy the tile's part of what is contiguous along it to private memory, by vectors."""
        k, emitter, vector, tiled = self.k, self.emitter, self.nest.vector, self.tiled
        assert vector and tiled
        staged = {}
        for id, instr in enumerate(self.program.instrs):
            if instr.op == "load" and apart(instr.data[2], vector) and instr.data[2].coefficient(tiled) in (1, -1):
                staged[id] = buf = k.private(instr.dtype, TILE * self.width)
                with k.for_(0, self.width) as loop, emitter.scope():
                    emitter.env[vector] = starts[vector] + loop.iv
                    emitter.vector, emitter.width = tiled, TILE
                    k.store(buf, loop.iv * TILE, k.broadcast(emitter.value(id), TILE))
        emitter.vector = vector
        return staged

    def _column(self, buf: Buf, at: V) -> Callable[[], V]:
        return lambda: self.k.load(buf, self.k.iota(self.width) * TILE + at)

    def _vector(self, starts: dict[Var, V], each: Callable[[Callable[[], None]], None] = lambda do: do()) -> None:
        """One vector along its variable; where that is not a multiple, the rest goes in shorter ones.

        each: how to repeat that over a tile. Whether a vector is whole is asked once: Intel's compiler made one store
        of both branches' where a loop asked it, and one branch's elements were lost (rows of three, two lanes).
        """
        nest, k = self.nest, self.k
        if not self.across_items:
            with self.emitter.scope():
                self._rows()
            return
        last = nest.parallel[-1]
        start, block = starts[last], self._block(last)
        if self.run > 1:
            self._along(last, start, block)
            return

        def whole() -> None:
            self._point(last, start, self.width)

        def rest() -> None:
            for lo, hi, width in tail(last.size, self.width, block):
                with k.for_(lo, hi, width) as loop:
                    self._point(last, loop.iv, width, 1)

        if multiple(last.size, block):
            each(whole)
            return
        with k.if_(start + block <= last.size):
            each(whole)
        with k.else_():
            each(rest)

    def _along(self, var: Var, start: V, block: int) -> None:
        """Vectors that follow each other in a row, and what is left behind the last whole one of the row."""
        k, size, width = self.k, var.size, self.width
        for id in needs(self.program, [s.value for s in self.program.stores]):
            if var not in self.program.dependence[id] and self.program.instrs[id].op != "const":
                self.emitter.value(id)
        end = start + block
        stop = end if multiple(size, block) else k.map("minimum", end, size // width * width)
        sure, bounds = self._sure(var)
        size_of = self.emitter.size
        if self.turns > 1 and not sure:
            several = start + (stop - start) // (width * self.turns) * (width * self.turns)
            with k.for_(start, several, width * self.turns) as loop:
                self.emitter.env[var], self.emitter.width = loop.iv, width
                lockstep.vectors(self.emitter, var, width, [self._rows] * self.turns)
            start = several
        with k.for_(start, stop, width) as loop:
            if sure:
                tests = [t for lo, hi in bounds for t in (loop.iv >= size_of(lo), loop.iv <= size_of(hi - width))]
                with k.if_(reduce(V.__and__, tests)):
                    self.emitter.sure = sure
                    self._point(var, loop.iv, width)
                    self.emitter.sure = frozenset()
                with k.else_():
                    self._point(var, loop.iv, width)
            else:
                self._point(var, loop.iv, width)
        if multiple(size, width):
            return
        with k.if_(end > size // width * width):
            for lo, hi, fewer in tail(size, width):
                with k.for_(lo, hi, fewer) as loop:
                    self._point(var, loop.iv, fewer)

    def _sure(self, var: Var) -> tuple[frozenset[int], list[tuple[int, int]]]:
        """The tests that all hold together where lo <= var < hi for each (lo, hi), most of the row; none where there
        are no such."""
        found: list[int] = []
        bounds: list[tuple[int, int]] = []
        for id in needs(self.program, [s.value for s in self.program.stores]):
            instr = self.program.instrs[id]
            if instr.op != "inside" or var not in self.program.dependence[id]:
                continue
            expr, low, high = instr.data
            if [atom for atom, _ in expr.terms] != [var] or expr.coefficient(var) != 1:
                return frozenset(), []
            found.append(id)
            known = low - expr.const, high - expr.const
            if any(map(varies, known)) or known not in [b for b in bounds if not any(map(varies, b))]:
                bounds.append(known)
        least, most = max((usual(lo) for lo, _ in bounds), default=0), min((usual(hi) for _, hi in bounds), default=0)
        return (frozenset(found), bounds) if 2 * (most - max(least, 0)) >= usual(var.size) else (frozenset(), [])

    def _locate(self, item: V) -> dict[Var, V]:
        """Where each parallel variable starts for a work item."""
        vars = self.nest.parallel
        counts = [-(-v.size // self._block(v)) for v in vars]
        at = locate(item, counts)
        return {v: i * self._block(v) for v, i in zip(vars, at, strict=True)}

    def _point(self, var: Var, at: V, width: int, columns: int | None = None) -> None:
        self.emitter.env[var] = at
        self.emitter.width = width
        with self.emitter.scope():
            if (columns or self.columns) > 1:
                self._beside()
            else:
                self._rows()

    def _beside(self) -> None:
        """One walk for several vectors of columns, then what is stored once a row of each."""
        emitter, (phase,) = self.emitter, self.phases
        reductions = [self.program.reductions[r] for r in phase.reductions]
        start = self._start(reductions, emitter.width)
        known: list[dict[int, V]] = [{} for _ in range(self.columns)]

        def each(do: Callable[[list[V]], list[V]], acc: list[V]) -> list[V]:
            assert self.nest.vector
            result, first = [], emitter.env[self.nest.vector]
            for n, seen in enumerate(known):
                emitter.env[self.nest.vector] = first + n * emitter.width
                with emitter.scope(seen):
                    result += do(acc[n * len(start) : (n + 1) * len(start)])
            emitter.env[self.nest.vector] = first
            return result

        def prepare(_: list[V]) -> list[V]:
            self._prepare(phase)
            return []

        def visit(acc: list[V]) -> list[V]:
            with emitter.scope():
                return self._visit(phase, acc)

        def finish(acc: list[V]) -> list[V]:
            self._reduced(phase, acc)
            emitter.store_all(self.row_stores)
            return []

        each(prepare, [])
        walk = partial(each, visit)
        each(finish, self._loop(list(self.nest.reduced), walk, start * self.columns, emitter.width))

    def _rows(self) -> None:
        """The phases, then what is stored once a row."""
        memory = self.k.local if self.lanes > 1 else self.k.private
        self.kept = [memory(dtype, self._elements(self.emitter.width)) for dtype in self.arrays]
        for phase in self.phases:
            self.emitter.staged = {v.id: partial(self._read, v) for v in phase.reads}
            self._prepare(phase)
            if not self.nest.reduced:
                self._visit(phase, [])
                continue
            self._walk(phase)
        if self.lanes > 1 and self.row_stores:
            for store in self.row_stores:
                self.emitter.value(store.value)
            with self.k.if_(self.k.local_id(0) == 0):
                self.emitter.store_all(self.row_stores)
        else:
            self.emitter.store_all(self.row_stores)

    def _prepare(self, phase: Phase) -> None:
        """Emit what the walk needs but does not change."""
        roots = self._roots(phase)
        width = self.emitter.width
        if not self.across_items:
            self.emitter.width = 1
        for id in needs(self.program, roots):
            if not self.walks[id] and self.program.instrs[id].op != "const":
                self.emitter.value(id)
        self.emitter.width = width

    def _walk(self, phase: Phase) -> None:
        """Loop over the reduced variables: whole vectors, then what is left of each row, then all combined."""
        emitter, nest, k = self.emitter, self.nest, self.k
        reductions = [self.program.reductions[r] for r in phase.reductions]
        visit = partial(self._visit, phase)
        if self.across_items:
            acc = self._loop(list(nest.reduced), visit, self._start(reductions, emitter.width), emitter.width)
        else:
            size, block = nest.reduced[-1].size, self.width * phase.vectors
            if phase.ahead:
                row = nest.parallel[-1]
                following = k.map("minimum", emitter.env[row] + 1, row.size - 1)
            acc = []
            begun: list[V] = []  # the accumulators of vectors that others of as many lanes follow
            segments = [(0, size // block * block, self.width), *tail(size, self.width, block)]
            for n, (lo, hi, width) in enumerate(segments):
                start, count = begun or self._start(reductions, width), 1 if n else phase.vectors
                each = visit if n or not phase.ahead else partial(self._asking, visit, phase.ahead, following)
                step = partial(self._side_by_side, each, width, count) if count > 1 else each
                part = self._loop(list(nest.reduced), step, start * count, width, (lo, hi), width * count)
                parts = [part[i * len(start) : (i + 1) * len(start)] for i in range(count)]
                while len(parts) > 1:
                    parts = [self._merged(reductions, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
                (begun,) = parts
                if [w for *_, w in segments[n + 1 : n + 2]] != [width]:
                    part = _each(reductions, begun, lambda r, a: reduction.across(k, r.fn, a))
                    acc, begun = self._merged(reductions, acc, part) if acc else part, []
            if self.lanes > 1:
                acc = _each(reductions, acc, lambda r, a: reduction.across_group(k, r.fn, a, self.lanes))
        self._reduced(phase, acc)

    def _asking(
        self, visit: Callable[[list[V]], list[V]], places: list[walk.Place], following: V, acc: list[V]
    ) -> list[V]:
        """A visit, and before it a request for the same part of the next row."""
        env, row = self.emitter.env, self.nest.parallel[-1]
        here, env[row] = env[row], following
        for place in places:
            self.emitter.prefetch(*place)
        env[row] = here
        return visit(acc)

    def _side_by_side(self, visit: Callable[[list[V]], list[V]], width: int, count: int, acc: list[V]) -> list[V]:
        """A visit to each of `count` vectors that follow each other in a row, with accumulators of its own."""
        assert self.nest.vector
        each = len(acc) // count
        visits = [partial(visit, acc[n * each : (n + 1) * each]) for n in range(count)]
        return [v for values in lockstep.vectors(self.emitter, self.nest.vector, width, visits) for v in values]

    def _merged(self, reductions: list[Any], a: list[V], b: list[V]) -> list[V]:
        """The accumulators of different elements as one."""
        both = zip(_split(reductions, a), _split(reductions, b), reductions, strict=True)
        return [v for one, other, r in both for v in reduction.merge(self.k, r.fn, one, other)]

    def _reduced(self, phase: Phase, acc: list[V]) -> None:
        """The accumulators of a walk are the results of its reductions."""
        k, reductions = self.k, [self.program.reductions[r] for r in phase.reductions]
        for number, r, values in zip(phase.reductions, reductions, _split(reductions, acc), strict=True):
            result = k.cast(values[1], "i64") if r.fn.startswith("arg") else k.round_to(values[0], r.dtype)
            self.emitter.accumulators[number] = result

    def _start(self, reductions: list[Any], width: int) -> list[V]:
        return [v for r in reductions for v in reduction.start(self.k, r.fn, r.dtype, width)]

    def _loop(
        self,
        vars: list[Var],
        visit: Callable[[list[V]], list[V]],
        acc: list[V],
        width: int,
        bounds: tuple[int, int] | None = None,
        block: int = 1,
    ) -> list[V]:
        """Nested loops over `vars`; bounds: of the innermost if it is the vector, which then steps by `block`."""
        if not vars:
            with self.emitter.scope():
                return visit(acc)
        var, *rest = vars
        inner = not rest and bounds is not None
        lo, hi, step = (*bounds, block) if inner and bounds else (0, var.size, 1)
        first: V | int = lo
        mine, turns = None, 0
        if inner and self.lanes > 1:
            first, step = self.k.local_id(0) * width + lo, width * self.lanes
            if turns := lanes_of_rows.turns(lo, hi, step):
                mine, first, hi = first, 0, hi - lo
        with self.k.for_(first, hi, step, init=acc, unroll=1 < turns <= lanes_of_rows.UNROLLED) as loop:
            self.emitter.env[var] = loop.iv if mine is None else loop.iv + mine
            before, self.emitter.width = self.emitter.width, width
            loop.yield_(*self._loop(rest, visit, loop.args, width, bounds, block))
            self.emitter.width = before
        return loop.results

    def _visit(self, phase: Phase, acc: list[V]) -> list[V]:
        """One element, or vector of elements, of a walk."""
        emitter, k = self.emitter, self.k
        result: list[V] = []
        reductions = [self.program.reductions[r] for r in phase.reductions]
        for r, values in zip(reductions, _split(reductions, acc), strict=True):
            width = values[0].width
            value = k.broadcast(emitter.value(r.value), width)
            position = None
            if r.fn.startswith("arg"):
                position = k.broadcast(emitter.index(r.position, emitter._varies(r.position)), width)
            result += reduction.step(k, r.fn, values, value, position)
        keeping = [(v, emitter.value(v.id)) for v in phase.writes]
        emitter.store_all(phase.stores)
        for kept_value, value in keeping:
            self._write(kept_value, value)
        return result

    def _read(self, value: Kept) -> V:
        """What a walk before this one kept of the point, or of the vector."""
        buf, at = self._kept_at(value)
        return self.k.load(buf, at, self.emitter.width)

    def _write(self, value: Kept, now: V) -> None:
        buf, at = self._kept_at(value)
        self.k.store(buf, at, self.k.broadcast(now, self.emitter.width))

    def _kept_at(self, value: Kept) -> tuple[Buf, V]:
        """The memory of a kept value, and where in it the point is."""
        emitter, at = self.emitter, self.k.const(0, "index")
        if isinstance(value.place, Store):
            return emitter.memory(value.place)
        for var in self.nest.reduced:
            at = at * emitter.size(var.size) + emitter.env[var]
        return self.kept[value.place], at * emitter.width if self.across_items else at


def _split(reductions: list[Any], values: list[V]) -> list[list[V]]:
    """The accumulators of each reduction."""
    rest = iter(values)
    return [[next(rest) for _ in range(accumulators(r))] for r in reductions]


def _each(reductions: list[Any], values: list[V], change: Callable[[Any, list[V]], list[V]]) -> list[V]:
    return [v for r, a in zip(reductions, _split(reductions, values), strict=True) for v in change(r, a)]
