"""Loop order: splits, orders and collapses the variables of a program, and picks the one that vectors run along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from codegen.index import Div, Dyn, Expr, Mod, Var, variable
from codegen.loops import Program
from ops_core.dtypes import BY_NAME
from ops_core.sizes import multiple, varies

# A strided access of a vector costs about as much as this many contiguous ones gain.
STRIDED_COST = 2
# Rows of so few elements are joined with those beside them, so that vectors hold several, and as many neighbours that
# share values of their place, as random numbers do (four), count as rows. What has an element for each row or column is
# spread over lanes by shuffles. benchmarks: particles; 4 Mi random numbers 8.4 -> 3.0 ms.
SHORT_ROWS = (2, 4)


@dataclass
class Nest:
    """A program with its loops in order, outermost first.

    vector   the variable that vectors run along, innermost
    rows     where a vector holds several short rows, or some lanes of it share values, what they are like
    """

    program: Program
    parallel: tuple[Var, ...]
    reduced: tuple[Var, ...]
    vector: Var | None
    rows: Rows | None = None


class Rows(NamedTuple):
    """Rows of `columns` elements, several of which a vector of `width` lanes holds. once: the instructions whose value
    is one for a whole row, and is computed in vectors that have a lane for each row."""

    columns: int
    width: int
    once: frozenset[int]


def arrange(program: Program, vector_bytes: int = 0) -> Nest:
    """The loop nest of a program. vector_bytes: of vectors that may hold several rows."""
    program = _collapse(_order(_split(program)))
    vector, rows = _vector(program), None
    if vector and _are_short(program, vector):
        joined = _joined(program, *program.vars[-2:])
        rows = _rows(joined, joined.vars[-1], vector.size, vector_bytes)
        program, vector = (joined, joined.vars[-1]) if rows else (program, vector)
    elif vector and (columns := _shared(program, vector)):
        rows = _rows(program, vector, columns, vector_bytes)
    vars = [v for v in program.vars if v != vector] + ([vector] if vector else [])
    return Nest(
        program,
        tuple(v for v in vars if v not in program.reduced),
        tuple(v for v in vars if v in program.reduced),
        vector,
        rows,
    )


def element_bytes(program: Program, vector: Var | None) -> int:
    """Bytes of the widest number that the program has for each element along `vector`, at least 4: what decides how
    many lanes fit. A row's index into a table is one number for the whole row."""
    along = set[int]()
    for id, instr in enumerate(program.instrs):
        exprs = [d for d in instr.data if isinstance(d, Expr)]
        args = instr.args if instr.op != "load" else ()  # where a part of a row begins, its guard changes
        if along.intersection(args) or any(vector in e.vars for e in exprs):
            along.add(id)
    dtypes = [program.instrs[id].dtype for id in along] + [r.dtype for r in program.reductions]
    dtypes += [program.buffers[s.buffer].dtype for s in program.stores]
    return max([4, *(BY_NAME[d].bytes for d in dtypes)])


def varies_with(expr: Expr, vector: Var, columns: int, once: Callable[[int], bool]) -> set[type | None]:
    """What an expression over joined rows varies with from lane to lane: Div, the row; Mod, the column; None, something
    else. once: whether an instruction's value is one for a whole row."""
    found: set[type | None] = set()
    for atom, _ in expr.terms:
        if vector not in atom.vars if isinstance(atom, (Div, Mod, Dyn)) else atom != vector:
            continue
        if isinstance(atom, Dyn):
            found.add(Div if once(atom.id) else None)
        elif isinstance(atom, Var):
            found.add(None)
        elif atom.expr == variable(vector):
            whole = atom.by == columns or (isinstance(atom, Div) and multiple(atom.by, columns))
            found.add(type(atom) if whole else None)
        else:
            inner = varies_with(atom.expr, vector, columns, once)
            found.add(Div if inner == {Div} else None)
    return found


def _shared(program: Program, vector: Var) -> int:
    """How many neighbours share what is computed of their place, as random numbers do; 0 if none or too many do."""
    for expr in program.accesses():
        for atom, _ in expr.terms:
            if isinstance(atom, Div) and atom.expr == variable(vector) and atom.by in SHORT_ROWS:
                return atom.by
    return 0


def _rows(program: Program, vector: Var, columns: int, vector_bytes: int) -> Rows | None:
    """The rows of so many elements that the vector's variable walks, if vectors hold two or more of them."""
    once = set[int]()
    for id, instr in enumerate(program.instrs):
        if vector in program.dependence[id] and instr.op != "acc" and not (instr.op == "load" and instr.args):
            exprs = [d for d in instr.data if isinstance(d, Expr)]
            below = [a for a in instr.args if vector in program.dependence[a]]
            kinds = set().union(*(varies_with(e, vector, columns, once.__contains__) for e in exprs))
            if kinds <= {Div} and once.issuperset(below):
                once.add(id)
    apart = [i.dtype for id, i in enumerate(program.instrs) if vector in program.dependence[id] and id not in once]
    stored = [program.buffers[s.buffer].dtype for s in program.stores]
    widest = max([4, *(BY_NAME[d].bytes for d in (*apart, *stored))])
    width = vector_bytes // widest
    while width > columns and not varies(vector.size) and vector.size < width:
        width //= 2
    return Rows(columns, width, frozenset(once)) if width > columns else None


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
    return program.rewrite(vars, reduced, lambda e: _unreduced(e, a, b).subs(env))


def _are_short(program: Program, vector: Var) -> bool:
    """Whether the vector's rows are few elements that lie beside those of the next row wherever they are written."""
    if len(program.vars) < 2 or vector != program.vars[-1]:
        return False
    row = program.vars[-2]
    if (row in program.reduced) != (vector in program.reduced):
        return False
    if varies(vector.size) or vector.size not in SHORT_ROWS:
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


def _walks_as_one(expr: Expr, a: Var, b: Var, modulo: int = 0) -> bool:
    """Whether an access depends on two neighbours as on the one variable that they would be joined to. modulo: of which
    multiples do not matter."""
    for atom, _ in expr.terms:
        if isinstance(atom, Var) or not atom.vars & {a, b}:
            continue
        if isinstance(atom, Dyn) or not _walks_as_one(atom.expr, a, b, atom.by if isinstance(atom, Mod) else 0):
            return False
    terms = dict(expr.terms)
    step, rows = terms.get(a, 0), terms.get(b, 0) * b.size
    return bool(step == rows) or bool(modulo and multiple(step - rows, modulo))


def _unreduced(expr: Expr, a: Var, b: Var) -> Expr:
    """An access that walks two neighbours as one, with the factors that a had before remainders reduced them."""

    def atom(x: Any) -> Any:
        if not isinstance(x, (Div, Mod)) or not x.vars & {a, b}:
            return x
        inner = _unreduced(x.expr, a, b)
        factor = dict(inner.terms).get(b, 0) * b.size
        others = tuple(t for t in inner.terms if t[0] != a)
        return type(x)(Expr(inner.const, ((a, factor), *others) if factor else others), x.by)

    return Expr(expr.const, tuple((atom(x), factor) for x, factor in expr.terms))


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
