"""Elementwise kernels over contiguous memory, for one set of buffers or for many of different sizes at once.

Such a program has one loop over all elements, so its length is an argument and one kernel serves all sizes. With
several sets (the tensors of an optimizer) each work-group finds the set that its chunk belongs to, then loops over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from codegen.builder import Buf, Builder, V
from codegen.emit import Arguments, Emitter, declare, needs
from codegen.index import Var, variable
from codegen.kernels import kept, lockstep
from codegen.loops import Program
from codegen.nesting import arrange, element_bytes
from ops_core.sizes import deferred

# The loop variable of all flat programs: its size is an argument, so this only says that it is long.
ANY = Var(0, 1 << 30)
# Elements of a chunk, the work of a work-group. Large enough to find its set for free, small enough to balance.
CHUNK = {True: 1 << 14, False: 1 << 12}
# A chunk is not cut below this many elements: a work-group costs about as much to start as that many take.
SMALLEST_CHUNK = 1 << 10
# Chunks per compute unit from which chunks are no longer cut.
CHUNKS_PER_UNIT = 4
# Sets per kernel: a work item picks its set by as many comparisons and a jump. benchmarks: optimizer step.
MAX_SETS = 64
# Work items of a work-group on a GPU.
GPU_ITEMS = 128
GPU_VECTOR_BYTES = 16


def flatten(program: Program) -> tuple[Program, int] | None:
    """The program over `ANY` and its length, or None if it is not one loop over contiguous memory."""
    if program.reduced or program.wide or any(i.op in ("inside", "acc") for i in program.instrs):
        return None
    nest = arrange(program)
    if not nest.parallel:
        return nest.program.rewrite((ANY,), frozenset(), lambda e: e), 1
    (var, *others), accesses = nest.parallel, nest.program.accesses()
    if others or any(e.coefficient(var) not in (0, 1) or e.dynamic(var) for e in accesses):
        return None
    return nest.program.rewrite((ANY,), frozenset(), lambda e: e.subs({var: variable(ANY)})), var.size


@dataclass(frozen=True)
class Flat:
    """A flat program for `sets` sets of buffers. shared: which run-time scalars are the same for all sets."""

    program: Program
    sets: int
    shared: tuple[bool, ...]

    def build(self, name: str, caps: Any) -> str:
        """The kernel. Arguments: the chunk length, each set's buffers, offsets, own scalars, first work-group and
        length; the scalars that are shared come last."""
        program, cpu = self.program, bool(caps.is_cpu)
        items = local_size(caps)
        k = Builder(name, 32, (items, 1, 1) if items > 1 else None)
        chunk = k.arg("index")
        types = [dtype for _, dtype in program.scalars]
        own = [dtype for dtype, shared in zip(types, self.shared, strict=True) if not shared]
        sets: list[list[V | Buf]] = []
        firsts = []
        for _ in range(self.sets):
            arguments = declare(k, program, [])
            own_scalars = [k.arg(dtype) for dtype in own]
            firsts.append(k.arg("index"))
            sets.append([*arguments.buffers, *arguments.offsets, *own_scalars, firsts[-1], k.arg("index")])
        group = k.group_id(0)
        number = k.const(0, "index")
        for at, first in enumerate(firsts[1:], 1):
            number = k.select(group >= first, at, number)
        *picked, first, length = k.switch(number, sets)
        rest = iter(picked)
        buffers = [next(rest) for _ in program.buffers]
        offsets = [next(rest) for _ in program.offsets]
        scalars = [k.arg(dtype) if shared else next(rest) for dtype, shared in zip(types, self.shared, strict=True)]
        emitter = Emitter(k, program, ANY, Arguments(buffers, offsets, scalars))
        width = (caps.vector_bytes if cpu else GPU_VECTOR_BYTES) // element_bytes(program, ANY)
        lo = (group - first) * chunk
        hi = k.map("minimum", lo + chunk, length)
        ops = [kept.ops(program.instrs[id], ANY, width) for id in needs(program, [s.value for s in program.stores])]
        for lanes, count in dict.fromkeys([(width, lockstep.count(ops, caps)), (width, 1), (1, 1)]):
            block = lanes * count
            end = lo + (hi - lo) // block * block if block > 1 else hi
            self._loop(k, emitter, lo, end, lanes, count, items)
            lo = end
        return k.finish()

    def _loop(self, k: Builder, emitter: Emitter, lo: V, hi: V, width: int, count: int, items: int) -> None:
        start = lo + k.local_id(0) * width if items > 1 else lo
        emitter.width = width
        with k.for_(start, hi, width * count * items) as loop, emitter.scope():
            emitter.env[ANY] = loop.iv
            lockstep.vectors(emitter, ANY, width, [partial(emitter.store_all, self.program.stores)] * count)


def set_count(members: int, program: Program, shared: tuple[bool, ...], caps: Any) -> int:
    """How many sets the kernel for `members` tensors has: few different counts, so that kernels are shared."""
    own = len(program.buffers) + len(program.offsets) + shared.count(False) + 2
    arguments = min(caps.max_kernel_args, caps.max_arg_bytes // 8) - 1 - shared.count(True)
    most = max(1, min(MAX_SETS, arguments // own))
    # One kernel for all launches: those of 53 tensors, of which 52 fit, have 32 sets each.
    each = -(-members // -(-members // most))
    return min(most, 1 << (each - 1).bit_length())


def local_size(caps: Any) -> int:
    """Work items of a work-group."""
    return 1 if caps.is_cpu else min(GPU_ITEMS, caps.max_work_group_size)


def chunk_length(lengths: list[int], caps: Any) -> int:
    """Elements per work-group: less than `CHUNK` where that leaves compute units without work."""
    return _chunk(lengths, caps.compute_units * CHUNKS_PER_UNIT, CHUNK[bool(caps.is_cpu)])


@deferred
def _chunk(lengths: list[int], chunks: int, most: int) -> int:
    chunk = max(SMALLEST_CHUNK, min(most, sum(lengths) // chunks))
    return -(-chunk // SMALLEST_CHUNK) * SMALLEST_CHUNK
