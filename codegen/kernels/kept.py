"""What a walk over a row keeps for later walks: values that cost more to compute again than to write and read.

A value is kept where the walk that makes it is over and a later one needs it for something new: the first GELU of a
row, the exponentials of a softmax. It lies in an output of the kernel that is written later (or is that output), or in
memory of the work items that share the row. The bits are those of the registers, so results do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.emit import operands, registers
from codegen.index import Expr, Var
from codegen.loops import Instr, Program, Store
from ops_core.dtypes import BY_NAME

# A row that is walked again is in a cache, which moves bytes this many times as fast as memory does; against that
# stands what the operations cost. benchmarks: softmax, norm_block.
CACHE_SPEEDUP = 4
# A division or root takes about as long as this many additions, a function of the library as many as it has
# operations. benchmarks: softmax, norm_block.
ROOT_OPS = 8
FUNCTION_OPS = 24
_SIMPLE = frozenset(f"math.{fn}" for fn in ("absf", "absi", "floor", "ceil", "trunc", "roundeven", "fma"))
_ROOTS = frozenset(("arith.divf", "arith.divsi", "arith.divui", "math.sqrt"))


@dataclass
class Kept:
    """A value that walk `first` writes and walks up to `last` read. place: a store of the program, or an array."""

    id: int
    first: int
    last: int
    place: Store | int = -1


def worth(caps: Any) -> float:
    """Operations on a 32-bit number that take as long as writing it to a cache and reading it."""
    return 8 * caps.peak_gflops_f32 / 2 / (caps.bandwidth_gbs * CACHE_SPEEDUP)


def room(caps: Any, lanes: int) -> int:
    """Bytes for arrays of a row that `lanes` work items share.

    Half of the group's memory, where the reductions have theirs. A work item alone on its row has a cache for itself
    where work items are few and long, as on cores with vector units; the other half is for what the kernel reads.
    """
    return (caps.local_memory_bytes if lanes > 1 else caps.cache_bytes if caps.is_cpu else 0) // 2


def ops(instr: Instr, vector: Var | None, width: int) -> int:
    """What an instruction costs, in additions of whole vectors."""
    if instr.op == "load":
        return 1 if vector is None or _along(instr.data[2], vector) in (-1, 0, 1) else width
    name = instr.data[0] if instr.op == "mlir" else ""
    if name in _ROOTS:
        return ROOT_OPS
    library = name.startswith(("func.call", "math.")) or name.startswith("arith.rem")
    return FUNCTION_OPS if library and name not in _SIMPLE else 1


def _along(expr: Expr, vector: Var) -> int | None:
    return None if expr.dynamic(vector) else expr.coefficient(vector)


def choose(
    program: Program, walks: Sequence[bool], roots: Sequence[Sequence[int]], cost: Callable[[Instr], int], least: float
) -> list[Kept]:
    """The values to keep. walks: whether an instruction varies along a row; roots: what each walk computes.

    What a walk makes anew out of values of earlier walks is where those are read; the cheap ones are computed again.
    """
    first: dict[int, int] = {}
    kept: dict[int, Kept] = {}

    def evaluated(wanted: Sequence[int], walk: int) -> list[int]:
        """The instructions of a walk, operands first; below a value that is kept none."""
        seen: set[int] = set()
        pending = [id for id in wanted if walks[id]]
        while pending:
            id = pending.pop()
            if id not in seen:
                seen.add(id)
                if id not in kept or kept[id].first == walk:
                    pending += [a for a in operands(program.instrs[id]) if walks[a]]
        return sorted(seen)

    for walk, wanted in enumerate(roots):
        now = evaluated(wanted, walk)
        read = {a for id in now if id not in first for a in operands(program.instrs[id])} | set(wanted)
        for id in sorted(read & first.keys()):
            again = sum(cost(program.instrs[i]) for i in evaluated([id], walk) if i not in kept)
            if id not in kept and again >= least and BY_NAME[program.instrs[id].dtype].kind == "f":
                kept[id] = Kept(id, first[id], first[id])
        for id in now:
            first.setdefault(id, walk)
    for walk, wanted in enumerate(roots):
        for id in evaluated(wanted, walk):
            if id in kept:
                kept[id].last = walk
    return sorted((k for k in kept.values() if k.last > k.first), key=lambda k: (k.first, k.id))


def place(
    program: Program, vector: Var, kept: list[Kept], stores: Sequence[Sequence[Store]], elements: int, room: int
) -> tuple[list[Kept], list[str]]:
    """Find memory for the values; those for which there is none are left out. Returns the arrays' dtypes too.

    stores: of each walk; an output that takes whole vectors may hold what is last read when it is written. Arrays have
    `elements` elements, all of them together at most `room` bytes.
    """
    whole = {s: walk for walk, at in enumerate(stores) for s in at if _along(s.expr, vector) == 1}
    outputs = {s: walk for s, walk in whole.items() if _owned(program, s)}
    busy: dict[Store | int, int] = {}  # the last walk that reads what is there
    arrays: list[str] = []
    found = []
    for value in kept:
        dtype = registers(program.instrs[value.id].dtype)
        fitting = {s: walk for s, walk in outputs.items() if program.buffers[s.buffer].dtype == dtype}
        own = [s for s, walk in fitting.items() if s.value == value.id and walk == value.first]
        later = [s for s, walk in fitting.items() if walk >= value.last]
        old = [i for i, d in enumerate(arrays) if d == dtype]
        places: list[Store | int] = [*own, *later, *old]
        free = [p for p in places if busy.get(p, -1) <= value.first]
        if not free and sum(BY_NAME[d].bytes for d in (*arrays, dtype)) * elements <= room:
            free = [len(arrays)]
            arrays.append(dtype)
        if free:
            value.place = free[0]
            busy[free[0]] = value.last
            found.append(value)
    return found, arrays


def _owned(program: Program, store: Store) -> bool:
    """Whether each point of the loops has an element of its own, which nothing else of the kernel reads."""
    strides = sorted((abs(store.expr.coefficient(v) or 0), v.size) for v in program.vars)
    reach = 0
    for stride, size in strides:
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return not store.in_place and store.expr.vars == frozenset(program.vars)
