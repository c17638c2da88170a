"""Loop programs: what one kernel computes, as scalar instructions over loop variables.

A `Program` is a loop nest over `vars` (those in `reduced` innermost) with a flat, hash-consed list of scalar
instructions. Views have become index expressions, so an instruction depends on loop variables only through the
expressions of its loads, indices and range tests. `codegen.lowering` makes programs from fusion groups,
`codegen.layout` picks loop order and vector axis, `codegen.kernels` emits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from codegen.index import Dyn, Expr, Index, Var
from ops_core.sizes import Traced


class Instr(NamedTuple):
    """One scalar instruction.

    op       data                          args
    load     (buffer, offset, expr, last?) guard?     offset: number of an `Program.offsets` argument or None;
                                                      last: with a guard, the furthest element that it may hold for
    const    (value, text)                 -
    scalar   (number,)                     -          a run-time scalar argument
    size     (number,)                     -          a number that comes from sizes that vary
    index    (expr,)                       -          the value of an index expression
    inside   (expr, lo, hi)                -          lo <= expr < hi
    map      (fn,)                         operands   the scalar catalogue
    mlir     (operation,)                  operands   one MLIR operation (see `codegen.linalg`)
    acc      (reduction,)                  -          the result of a reduction, after its loop
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    data: tuple[Any, ...] = ()


class Buffer(NamedTuple):
    """A pointer argument. ref: the ("slot", n) or ("temp", value id) behind it; not part of a program's key."""

    ref: tuple[str, int]
    dtype: str


class Store(NamedTuple):
    """Write instruction `value` to element `expr` (+ offset argument) of a buffer.

    in_place: the program also loads the buffer.
    """

    buffer: int
    offset: int | None
    expr: Expr
    value: int
    in_place: bool = False


class Reduction(NamedTuple):
    """fn over the reduced variables of instruction `value`. position: for argmax and argmin, what is returned."""

    fn: str
    value: int
    dtype: str
    position: Expr


@dataclass
class Program:
    """A loop nest. See the module's text."""

    vars: tuple[Var, ...]
    reduced: frozenset[Var] = frozenset()
    instrs: list[Instr] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)  # instructions that are used beside stores and reductions
    buffers: list[Buffer] = field(default_factory=list)
    scalars: list[tuple[int, str]] = field(default_factory=list)
    offsets: list[tuple[tuple[str, int], int]] = field(default_factory=list)  # (ref, elements)
    dependence: list[frozenset[Var]] = field(default_factory=list)  # the variables that each instruction varies with
    _ids: dict[Instr, int] = field(default_factory=dict)

    @property
    def parallel(self) -> tuple[Var, ...]:
        """The variables that are not reduced, outermost first."""
        return tuple(v for v in self.vars if v not in self.reduced)

    def emit(self, op: str, dtype: str, args: tuple[int, ...] = (), data: tuple[Any, ...] = ()) -> int:
        """The number of the instruction, which is made once."""
        instr = Instr(op, dtype, args, data)
        if instr not in self._ids:
            self._ids[instr] = self._append(instr)
        return self._ids[instr]

    def _append(self, instr: Instr) -> int:
        own = [e.vars for e in expressions(instr)]
        if instr.op == "acc":
            own.append(frozenset(self.vars) - self.reduced)
            if self.reductions:
                own = [self.dependence[self.reductions[instr.data[0]].value] - self.reduced]
        self.dependence.append(frozenset().union(*own, *(self.dependence[a] for a in instr.args)))
        self.instrs.append(instr)
        return len(self.instrs) - 1

    def map(self, fn: str, dtype: str, *args: int) -> int:
        """A scalar function of instructions."""
        return self.emit("map", dtype, args, (fn,))

    def const(self, value: int | float | bool, dtype: str) -> int:
        """A constant."""
        if isinstance(value, Traced):
            return self.emit("size", dtype, (), (value,))
        return self.emit("const", dtype, (), (value, str(value)))  # 0.0 and -0.0 are equal, their texts are not

    def buffer(self, ref: tuple[str, int], dtype: str) -> int:
        """The number of the pointer argument for `ref`."""
        return _number(self.buffers, Buffer(ref, dtype))

    def scalar(self, index: int, dtype: str) -> int:
        """The run-time scalar `index` of the window, as dtype."""
        return self.emit("scalar", dtype, (), (_number(self.scalars, (index, dtype)),))

    def offset(self, ref: tuple[str, int], elements: int) -> int | None:
        """The argument that holds the offset of a view of `ref`; none for 0, which is most."""
        return _number(self.offsets, (ref, elements)) if elements else None

    def dynamic(self, instr: int, size: int) -> Expr:
        """The index that an instruction computes, below `size`."""
        return Expr(0, ((Dyn(instr, size, self.dependence[instr]), 1),))

    def key(self) -> tuple[Any, ...]:
        """All that decides the kernel; equal keys are equal kernels."""
        written = frozenset(s.buffer for s in self.stores)
        buffers = tuple((b.dtype, i in written) for i, b in enumerate(self.buffers))
        scalars = tuple(dtype for _, dtype in self.scalars)
        return (
            self.vars, self.reduced, tuple(self.instrs), tuple(self.reductions), tuple(self.stores), tuple(self.roots),
            buffers, scalars, len(self.offsets), self.wide,
        )  # fmt: skip

    @property
    def wide(self) -> bool:
        """Whether an element number may not fit in 32 bits."""
        furthest = max((n for _, n in self.offsets), default=0)
        return any(e.bounds[1] + furthest >= 1 << 31 for e in self.accesses())

    def rewrite(self, vars: tuple[Var, ...], reduced: frozenset[Var], change: Callable[[Expr], Expr]) -> Program:
        """The same program over other loop variables."""
        new = Program(vars, reduced, buffers=self.buffers, scalars=self.scalars, offsets=self.offsets)
        new.reductions = [r._replace(position=change(r.position)) for r in self.reductions]
        for i in self.instrs:
            new._append(i._replace(data=tuple(change(d) if isinstance(d, Expr) else d for d in i.data)))
        new.stores = [s._replace(expr=change(s.expr)) for s in self.stores]
        new.roots = self.roots
        return new

    def accesses(self) -> Iterable[Expr]:
        """Every index expression of the program."""
        for instr in self.instrs:
            yield from expressions(instr)
        for store in self.stores:
            yield store.expr
        for reduction in self.reductions:
            yield reduction.position


def expressions(instr: Instr) -> list[Expr]:
    """The index expressions of an instruction."""
    return [d for d in instr.data if isinstance(d, Expr)]


def _number(items: list[Any], item: Any) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


__all__ = ["Buffer", "Index", "Instr", "Program", "Reduction", "Store", "expressions"]
