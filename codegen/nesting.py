"""Loop order: splits, orders and collapses the variables of a program, and picks the one that vectors run along."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from codegen.index import Div, Expr, Mod, Var, variable
from codegen.loops import Program
from ops_core.dtypes import BY_NAME
from ops_core.sizes import multiple, varies

# A strided access of a vector costs about as much as this many contiguous ones gain.
STRIDED_COST = 2
# Rows of so few elements, of programs that reduce nothing, are joined with those beside them, so that vectors hold
# several. What has an element for each row or column is spread over lanes by shuffles. benchmarks: particles.
SHORT_ROWS = (2, 4)


@dataclass
class Nest:
    """A program with its loops in order, outermost first.

    vector   the variable that vectors run along, innermost
    columns  where a vector holds several short rows, the elements of each; otherwise 0
    """

    program: Program
    parallel: tuple[Var, ...]
    reduced: tuple[Var, ...]
    vector: Var | None
    columns: int = 0


def arrange(program: Program, width: int = 1) -> Nest:
    """The loop nest of a program. width: lanes of a vector that may hold several rows."""
    program = _collapse(_order(_split(program)))
    vector, columns = _vector(program), 0
    if vector and _short_rows(program, vector, width):
        columns, program = vector.size, _joined(program, *program.vars[-2:])
        vector = program.vars[-1]
    vars = [v for v in program.vars if v != vector] + ([vector] if vector else [])
    return Nest(
        program,
        tuple(v for v in vars if v not in program.reduced),
        tuple(v for v in vars if v in program.reduced),
        vector,
        columns,
    )


def element_bytes(program: Program) -> int:
    """Bytes of the widest number that the program computes with, at least 4: what decides how many lanes fit."""
    kept = [b.dtype for b in program.buffers] + [r.dtype for r in program.reductions]
    return max([4, *(BY_NAME[d].bytes for d in (*kept, *(i.dtype for i in program.instrs)))])


def lanes(vector: Var | None, wanted: int) -> int:
    """The greatest power of two up to `wanted` that fits the variable."""
    size = vector.size if vector else 1
    if varies(size):
        return wanted
    return 1 << (min(wanted, size).bit_length() - 1) if size else 1


def _split(program: Program) -> Program:
    """Split variables that are divided, so that accesses become affine. Variables of size 1 go."""
    gone = {v: Expr() for v in program.vars if v.size == 1}
    if gone:
        kept = tuple(v for v in program.vars if v.size != 1)
        program = program.rewrite(kept, program.reduced - gone.keys(), lambda e: e.subs(gone))
    while found := _divided(program):
        var, by = found
        fresh = max(v.id for v in program.vars) + 1
        high, low = Var(fresh, var.size // by), Var(fresh + 1, by)
        env = {var: variable(high) * by + variable(low)}
        vars = tuple(n for v in program.vars for n in ((high, low) if v == var else (v,)))
        reduced = program.reduced - {var} | ({high, low} if var in program.reduced else frozenset())
        program = program.rewrite(vars, reduced, lambda e, env=env: e.subs(env))  # type: ignore[misc]
    return program


def _divided(program: Program) -> tuple[Var, int] | None:
    """A variable that is divided by a divisor of its size."""
    pending = list(program.accesses())
    while pending:
        for atom, _ in pending.pop().terms:
            if isinstance(atom, (Div, Mod)):
                inner = atom.expr
                var = inner.terms[0][0]
                alone = len(inner.terms) == 1 and inner.terms[0][1] == 1 and not inner.const
                if alone and isinstance(var, Var) and 1 < atom.by < var.size and var.size % atom.by == 0:
                    return var, atom.by
                pending.append(inner)
    return None


def _order(program: Program) -> Program:
    """Outer to inner by falling stride in the access that has most variables; stores decide over loads."""
    accesses = [s.expr for s in program.stores] + [i.data[2] for i in program.instrs if i.op == "load"]
    if not accesses:
        return program
    leader = max(accesses, key=lambda e: len(e.vars))
    rank = {v: abs(leader.coefficient(v) or 0) for v in program.vars}
    ranked = iter(sorted((v for v in program.vars if rank[v]), key=lambda v: -rank[v]))
    vars = tuple(next(ranked) if rank[v] else v for v in program.vars)
    return program.rewrite(vars, program.reduced, lambda e: e)


def _collapse(program: Program) -> Program:
    """Join neighbours that every access walks as one."""
    while pair := _joinable(program):
        program = _joined(program, *pair)
    return program


def _joined(program: Program, a: Var, b: Var) -> Program:
    """One variable for two neighbours."""
    joined = Var(max(v.id for v in program.vars) + 1, a.size * b.size)
    env = {a: variable(joined) // b.size, b: variable(joined) % b.size}
    vars = tuple(joined if v == b else v for v in program.vars if v != a)
    reduced = program.reduced - {a, b} | ({joined} if b in program.reduced else frozenset())
    return program.rewrite(vars, reduced, lambda e: e.subs(env))


def _short_rows(program: Program, vector: Var, width: int) -> bool:
    """Whether the vector's rows are few elements that lie beside those of the next row wherever they are written."""
    if program.reduced or len(program.vars) < 2 or vector != program.vars[-1] or varies(vector.size):
        return False
    row = program.vars[-2]
    if vector.size not in SHORT_ROWS or vector.size >= width or not multiple(row.size * vector.size, width):
        return False
    loads = [i for i in program.instrs if i.op == "load"]
    if any(i.args or i.data[2].dynamic(vector) or i.data[2].coefficient(vector) not in (0, 1) for i in loads):
        return False
    return all(_walks_as_one(s.expr, row, vector) for s in program.stores)


def _joinable(program: Program) -> tuple[Var, Var] | None:
    for reduced in (False, True):
        same = [v for v in program.vars if (v in program.reduced) == reduced]
        for a, b in pairwise(same):
            if all(_walks_as_one(expr, a, b) for expr in program.accesses()):
                return a, b
    return None


def _walks_as_one(expr: Expr, a: Var, b: Var) -> bool:
    outer, inner = expr.coefficient(a), expr.coefficient(b)
    return outer is not None and inner is not None and outer == inner * b.size


def _vector(program: Program) -> Var | None:
    """The variable along which most accesses are contiguous; the innermost of equals.

    What is read or written once for a row decides only where the walks over it do not. benchmarks: unet_train.
    """
    accesses = [(s.expr, 2) for s in program.stores] + [(i.data[2], 1) for i in program.instrs if i.op == "load"]
    best, best_score = None, (0, 0)
    for var in program.vars:
        walks = rows = 0
        for expr, gain in accesses:
            if not expr.dynamic(var) and (step := expr.coefficient(var)) != 0:
                score = gain if step in (1, -1) else -STRIDED_COST
                if program.reduced and not expr.vars & program.reduced:
                    rows += score
                else:
                    walks += score
        if best is None or (walks, rows) >= best_score:
            best, best_score = var, (walks, rows)
    return best
