"""Reductions over parts that are told apart one by one, as of `torch.stack`, without a loop.

A loop over them would compare its place with each part's in each turn, a vector wide: the norms of 53, 148 and 400
parameters that `clip_grad_norm_` adds up took 0.11, 0.27 and 0.93 s at first, and take 0.06, 0.12 and 0.4.
"""

from __future__ import annotations

from codegen.emit import registers
from codegen.index import Expr, Var
from codegen.kernels.reduction import STEP
from codegen.loops import Instr, Program
from ops_core.sizes import varies

# Beyond that a kernel has fewer arguments than parts anyway. Reasoned, not measured.
MOST = 1024


def unrolled(program: Program) -> Program:
    """The program without its loop, if that is over parts and only their reductions are written; or as it is."""
    if len(program.reduced) != 1 or program.roots:
        return program
    (var,) = program.reduced
    if varies(var.size) or not 2 <= var.size <= MOST or not _are_apart(program, var):
        return program
    walked = [s for s in program.stores if var in s.expr.vars | program.dependence[s.value]]
    if walked or any(r.fn not in STEP for r in program.reductions):
        return program
    return _Unrolled(program, var).program


def _are_apart(program: Program, var: Var) -> bool:
    """Whether each value of a variable but one is asked for."""
    tests = [_test(instr, var) for instr in program.instrs if instr.op == "inside"]
    return len({test for test in tests if test and test[3] - test[2] == 1}) >= var.size - 1


def _test(instr: Instr, var: Var) -> tuple[int, int, int, int] | None:
    """(start, step, lo, hi) where a test is lo <= start + step * var < hi."""
    expr, lo, hi = instr.data
    return (expr.const, expr.terms[0][1], lo, hi) if [atom for atom, _ in expr.terms] == [var] else None


class _Unrolled:
    def __init__(self, source: Program, var: Var):
        self._source, self._var = source, var
        parallel = tuple(v for v in source.vars if v != var)
        self.program = Program(parallel, buffers=source.buffers, scalars=source.scalars, offsets=source.offsets)
        self._known: dict[tuple[int, int], int] = {}
        instrs = list(enumerate(source.instrs))
        self._choices = {id: instr.args for id, instr in instrs if instr.op == "map" and instr.data[0] == "where"}
        self._tests = {id: found for id, instr in instrs if instr.op == "inside" and (found := _test(instr, var))}
        self.program.stores = [s._replace(value=self._value(s.value, 0)) for s in source.stores]

    def _value(self, id: int, at: int) -> int:
        """The instruction for what an instruction of the source is at a value of the variable."""
        id = self._chosen(id, at)
        key = id, at if self._var in self._source.dependence[id] else 0
        if key not in self._known:
            instr = self._source.instrs[id]
            self._known[key] = self._reduced(instr.data[0]) if instr.op == "acc" else self._copied(instr, at)
        return self._known[key]

    def _chosen(self, id: int, at: int) -> int:
        """What is left of choices that the variable decides. A loop: there may be hundreds in each other."""
        while (choice := self._choices.get(id)) and (holds := self._decided(choice[0], at)) is not None:
            id = choice[1 if holds else 2]
        return id

    def _decided(self, id: int, at: int) -> bool | None:
        """What a condition is, if the variable alone decides it."""
        if id not in self._tests:
            return None
        start, step, lo, hi = self._tests[id]
        return bool(lo <= start + step * at < hi)

    def _copied(self, instr: Instr, at: int) -> int:
        env = {self._var: Expr(at)}
        data = tuple(
            d.subs(env).redirect(lambda n: self._value(n, at)) if isinstance(d, Expr) else d for d in instr.data
        )
        args = tuple(self._value(a, at) for a in instr.args if instr.op != "load" or not self._decided(a, at))
        return self.program.emit(instr.op, instr.dtype, args, data)

    def _reduced(self, number: int) -> int:
        """In pairs, which rounds least and has no long chain; a sum from 0 on, which has a sign."""
        reduction, program = self._source.reductions[number], self.program
        wide = registers(reduction.dtype)
        values = [self._value(reduction.value, at) for at in range(self._var.size)]
        if wide != reduction.dtype:
            values = [program.map("convert", wide, value) for value in values]
        if reduction.fn == "sum":
            values[0] = program.map("add", wide, values[0], program.const(0, wide))
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [program.map(STEP[reduction.fn], wide, a, b) for a, b in pairs] + values[len(values) & ~1 :]
        return values[0] if wide == reduction.dtype else program.map("convert", reduction.dtype, values[0])
