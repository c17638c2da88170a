"""Operands and results of kernel templates: loop programs that are evaluated where the template asks.

A `Source` is a value with everything fused in front of it, a `Sink` everything that is done with results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

from codegen.builder import Buf, Builder, V
from codegen.emit import Arguments, Emitter, lane_step, needs, registers
from codegen.groups import identity
from codegen.index import Div, Expr, Mod, Var, contiguous, linear, variable
from codegen.kernels import reduction
from codegen.kernels.kept import ops
from codegen.kernels.walk import Place, streams
from codegen.loops import Program, Store
from ops_core.dtypes import BY_NAME
from ops_core.sizes import varies

# A loop over a run should be worth its start: four pairs of terms.
SHORTEST_RUN = 8

Read = Callable[..., V]


@dataclass(frozen=True, eq=False)
class Source:
    """The root of a program over `vars`, one variable a dim of the value."""

    program: Program
    shape: tuple[int, ...]

    @property
    def root(self) -> int:
        """The instruction that is the value."""
        return self.program.roots[0]

    @property
    def vars(self) -> tuple[Var, ...]:
        """One variable a dim."""
        return self.program.vars

    @property
    def dtype(self) -> str:
        """The dtype of the value."""
        return self.program.instrs[self.root].dtype

    def bind(self, k: Builder, arguments: Arguments | None = None, lanes: int = 1) -> Read:
        """Declare the arguments, unless they are, and compute the statistics of rows, if there are any, in vectors of
        `lanes`. Returns read(index, along=None, width=1): the element at `index`, or
        a vector that runs along dim `along` from there."""
        emitter = Emitter(k, self.program, None, arguments)
        statistics = self._statistics(k, emitter, lanes) if self.program.reductions else []

        def read(index: Sequence[V | int], along: int | None = None, width: int = 1) -> V:
            with at(emitter, self.vars, index, along, width):
                emitter.accumulators = {n: k.load(kept, index[0]) for n, kept in enumerate(statistics)}
                return k.broadcast(emitter.value(self.root), width)

        return read

    def _statistics(self, k: Builder, emitter: Emitter, lanes: int) -> list[Buf]:
        """The reductions over the last dim, of each of the rows (`codegen.prologues`)."""
        (row, along), size = self.vars, self.shape[-1]
        kept = [k.private(registers(r.dtype), row.size) for r in self.program.reductions]
        with k.for_(0, row.size) as each:
            emitter.accumulators = {}
            for n, r in enumerate(self.program.reductions):
                whole = size // lanes * lanes
                total: list[V] = []
                for lo, hi, width in ((0, whole, lanes), (whole, size, 1)):
                    if lo == hi:
                        continue
                    start = reduction.start(k, r.fn, r.dtype, width)
                    with k.for_(lo, hi, width, init=start) as loop:
                        with at(emitter, (row, along), (each.iv, loop.iv), 1, width):
                            value = k.broadcast(emitter.value(r.value), width)
                        loop.yield_(*reduction.step(k, r.fn, loop.args, value, None))
                    part = reduction.across(k, r.fn, loop.results)
                    total = reduction.merge(k, r.fn, total, part) if total else part
                emitter.accumulators[n] = k.round_to(total[0], r.dtype)
                k.store(kept[n], each.iv, emitter.accumulators[n])
        return kept

    @property
    def loads(self) -> bool:
        """Whether anything is read from memory for it."""
        return any(self.program.instrs[i].op == "load" for i in needs(self.program, [self.root]))

    def contiguous(self, dims: Sequence[int], width: int, apart: int = 1) -> int | None:
        """The first of `dims` along which loads are vectors of neighbours (or the same element) in memory, or of
        elements at most `apart` from each other."""
        loads = [self.program.instrs[i] for i in needs(self.program, [self.root])]
        for dim in dims:
            var = self.vars[dim]
            steps = {None if e.dynamic(var) else lane_step(e, var, width)
                     for e in (i.data[2] for i in loads if i.op == "load")}  # fmt: skip
            if steps - {0} and steps <= {*range(apart + 1)}:
                return dim
        return None

    def view(self) -> tuple[tuple[str, int], int, tuple[int, ...]] | None:
        """Where it lies, if it is a view of memory: (ref, offset, strides), in elements. Strides are not negative."""
        load = self.program.instrs[self.root]
        if load.op != "load" or load.args:
            return None
        buffer, offset, at, *_ = load.data
        steps = dict(at.terms)
        if any(not isinstance(atom, Var) or step < 0 for atom, step in at.terms):
            return None
        start = 0 if offset is None else self.program.offsets[offset][1]
        return self.program.buffers[buffer].ref, start + at.const, tuple(steps.get(v, 0) for v in self.vars)

    def stored(self, ref: tuple[str, int]) -> Program:
        """The program that computes it into `ref`, dense. The source is used up."""
        program, at = self.program, linear(identity(self.vars), contiguous(self.shape))
        buffer, offset = program.buffer(ref, self.dtype), program.offset(ref, 0)
        program.stores.append(Store(buffer, offset, at, program.roots.pop()))
        return program

    def varies(self, dims: Sequence[int]) -> bool:
        """Whether the value depends on any of `dims`."""
        mine = {self.vars[d] for d in dims}
        return any(mine & self.program.dependence[i] for i in needs(self.program, [self.root]))

    @property
    def itemsize(self) -> int:
        """Bytes in memory of what is loaded for one element."""
        loads = (self.program.instrs[i] for i in needs(self.program, [self.root]))
        return sum(BY_NAME[i.dtype].bytes for i in loads if i.op == "load") or 1

    @property
    def flops(self) -> int:
        """Elementwise operations for each element."""
        return sum(self.program.instrs[i].op in ("map", "mlir") for i in needs(self.program, [self.root]))

    def in_runs(self, dim: int) -> Source | None:
        """The same value with `dim` as two, runs and places within one, where that takes the quotients of it out of a
        run; None where there are none (no heads are joined), where some stay, or where runs are short or odd."""
        var, n = self.vars[dim], self.shape[dim]
        divisors = [*_divisors(self.program.accesses(), var)]
        run = 0 if any(map(varies, (n, *divisors))) else gcd(*divisors)
        if run < SHORTEST_RUN or run % 2 or n % run:
            return None
        outer, inner = (Var(max(v.id for v in self.vars) + 1 + i, size) for i, size in enumerate((n // run, run)))
        place = {var: variable(outer) * run + variable(inner)}

        def change(at: Expr) -> Expr:  # what stays within a run is added up first, so that a loop over it need not
            new = at.subs(place)
            return Expr(new.const, tuple(sorted(new.terms, key=lambda t: (inner in t[0].vars, outer in t[0].vars))))

        vars = (*self.vars[:dim], outer, inner, *self.vars[dim + 1 :])
        program = self.program.rewrite(vars, frozenset(), change)
        if any(at.coefficient(inner) is None for at in program.accesses()):
            return None
        return Source(program, (*self.shape[:dim], n // run, run, *self.shape[dim + 1 :]))

    def quotients(self, dim: int) -> int:
        """Loads for each element whose addresses take quotients of `dim`, as where heads are joined."""
        loads = (self.program.instrs[i] for i in needs(self.program, [self.root]))
        return sum(i.op == "load" and i.data[2].coefficient(self.vars[dim]) is None for i in loads)


def _divisors(exprs: Iterable[Expr], var: Var) -> Iterator[int]:
    """What quotients and remainders of `var` in these are of."""
    for expr in exprs:
        for atom, _ in expr.terms:
            if isinstance(atom, (Div, Mod)) and var in atom.vars:
                alone = isinstance(atom.expr.terms[0][0], Var)
                yield from [atom.by] if alone else _divisors([atom.expr], var)


@dataclass(frozen=True, eq=False)
class Sink:
    """The stores of a program over the result's dims; the template's results are its accumulators."""

    program: Program

    def contiguous(self, dims: Sequence[int], width: int) -> int:
        """The dim of `dims` along which most stores are vectors of neighbours."""

        def score(dim: int) -> int:
            return sum(lane_step(s.expr, self.program.vars[dim], width) == 1 for s in self.program.stores)

        return max(dims, key=score)

    def bind(self, k: Builder) -> Writer:
        """Declare the arguments."""
        return Writer(self.program, Emitter(k, self.program, None))

    def rows(self, along: int, across: int) -> list[Place]:
        """What is read and written in rows along a dim, of which each index of the dim `across` has its own."""
        vars, stores = self.program.vars, self.program.stores
        return streams(self.program, self._needed, vars[across], vars[along], stores)

    def ops(self, along: int, width: int) -> list[int]:
        """What the instructions for a vector along a dim cost (`codegen.kernels.kept.ops`)."""
        return [ops(self.program.instrs[i], self.program.vars[along], width) for i in self._needed]

    @property
    def _needed(self) -> list[int]:
        return needs(self.program, [s.value for s in self.program.stores])


@dataclass(frozen=True, eq=False)
class Writer:
    """The stores of a sink in a kernel."""

    program: Program
    emitter: Emitter

    def __call__(self, index: Sequence[V | int], values: Sequence[V], along: int | None = None) -> None:
        """Do all stores for the results at `index`, vectors along a dim or single ones."""
        with at(self.emitter, self.program.vars, index, along, values[0].width):
            self.emitter.accumulators = dict(enumerate(values))
            self.emitter.store_all(self.program.stores)

    def ask(self, index: Sequence[V | int], places: Sequence[Place]) -> None:
        """Ask for the cache lines that `places` have at `index`."""
        with at(self.emitter, self.program.vars, index, None, 1):
            for place in places:
                self.emitter.prefetch(*place)


@contextmanager
def at(
    emitter: Emitter, vars: Sequence[Var], index: Sequence[V | int], along: int | None, width: int
) -> Iterator[None]:
    """Sets an emitter to one point, or to a vector of points, of its program's variables."""
    emitter.env = dict(zip(vars, index, strict=True))
    emitter.vector = None if along is None else vars[along]
    emitter.width = width
    with emitter.scope():
        yield
