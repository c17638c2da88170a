"""Walks over a row: what each computes, how many vectors it takes at a time, and what it asks memory for ahead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from codegen.index import Expr, Var
from codegen.kernels import lockstep
from codegen.kernels.kept import Kept
from codegen.loops import Program, Store
from ops_core.sizes import multiple, varies

# A buffer, an offset argument of the program (or none) and an element from there.
Place = tuple[int, int | None, Expr]

# Accumulators of a walk, at most: registers hold them. Reasoned, not measured.
MAX_ACCUMULATORS = 8
# Vectors of a row that one step of a walk takes, each with accumulators of its own: a sum waits for the one before it
# (4 cycles, a maximum 8), so that a walk of few operations waits more than it computes; one step has so many operations
# at most, or as `codegen.kernels.lockstep` says of functions. Only where the row is walked again: one walk alone waits
# for memory (row sums and maxima 0.49 ms with 1, 0.51 with 4). benchmarks: layer norm of (4096, 1024) 1.11 ms with 1,
# 1.04 with 2, 1.03 with 4; softmax 1.19, 1.12, 1.13.
VECTORS, STEP_OPS = 4, 32
# Bytes of a row, walked more than once, from which on its last walk asks for the next row: a core's own guesses end
# with the page. benchmarks: layer norm of (4096, 1024) 1.01 -> 0.86 ms, (16384, 256) 0.96 -> 0.90, (64, 65536) 1.12 ->
# 1.03, softmax of (4096, 1024) 1.36 -> 1.21, RMS norm 1.01 -> 0.98; softmax's backward, rows of 512 bytes: as before.
AHEAD = 1024
# Lanes of the vectors that take what is left of a row before single elements do, which take about as long each: softmax
# of 70 spent more than half of its time on the last 6. benchmarks: lengths.
TAIL_LANES = (8, 4)


@dataclass
class Phase:
    """One walk over the reduced variables."""

    reductions: list[int] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    writes: list[Kept] = field(default_factory=list)
    reads: list[Kept] = field(default_factory=list)
    vectors: int = 1
    # What it reads of the next row, which it asks for.
    ahead: list[Place] = field(default_factory=list)


def accumulators(reduction: Any) -> int:
    """A value, and for argmax and argmin its position."""
    return 2 if reduction.fn.startswith("arg") else 1


def vectors(program: Program, phase: Phase, ops: list[int], row: int, caps: Any) -> int:
    """How many vectors one step takes. ops: of the instructions for one vector; row: vectors in a row."""
    each = sum(accumulators(program.reductions[r]) for r in phase.reductions)
    count = VECTORS if each else 1
    while count > 1 and sum(ops) * count > STEP_OPS:
        count //= 2
    count = max(count, lockstep.count(ops, caps))
    while count > 1 and (each * count > MAX_ACCUMULATORS or count > row):
        count //= 2
    return count


def streams(program: Program, ids: Iterable[int], row: Var, vector: Var, stores: Iterable[Store] = ()) -> list[Place]:
    """Where whole vectors that change with the row are loaded by the instructions `ids`, or stored."""
    loads = (instr for id in ids if (instr := program.instrs[id]).op == "load" and not instr.args)
    places: list[Place] = [*(load.data[:3] for load in loads), *(store[:3] for store in stores)]
    return [
        place for place in dict.fromkeys(places)
        if row in (expr := place[2]).vars
        and expr.coefficient(vector) == 1 and not any(map(expr.dynamic, program.vars))
    ]  # fmt: skip


def tail(size: int, width: int, block: int = 0) -> list[tuple[int, int, int]]:
    """(first, end, lanes) of the parts of a row that follow its whole vectors, or blocks of vectors."""
    found, block = [], block or width
    for fewer in (*(n for n in (width, *TAIL_LANES) if n < block and n <= width), 1):
        lo, hi = size // block * block, size // fewer * fewer
        if not multiple(size, block) and (varies(size) or lo < hi):
            found.append((lo, hi, fewer))
        block = fewer
    return found
