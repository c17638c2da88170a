"""What a work item of a loop nest takes: a vector, on a CPU several along a row, several short rows, or a tile; and how
many items share a group.

Rows are along the vector's variable, which is the last of the parallel ones of nests that reduce nothing.
"""

from __future__ import annotations

from math import prod
from typing import Any

from codegen.index import Expr, Var
from codegen.nesting import Nest
from ops_core.sizes import deferred, multiple, usual

# Work items per work-group where nothing else decides: enough to amortise the cost of a group, small enough to balance.
GROUP_ITEMS = 64
# Rows of a tile: where a load is contiguous along another variable than the vector, a work item walks that many
# neighbours along it, so that a cache line is read once. benchmarks: transpose.
TILE = 16
# Vectors along a row that a work item takes where nothing is reduced, at most: it costs 3 ns to start, as much as some
# eight. Measured on two cores (Zen 5), ms for x[rows] of 512 rows of 2,048 floats, reflection padding and a stencil's
# step: 4: .114 .507 .63, 8: .105 .457 .60, 16: .096 .422 .57, 32: .073 .408 .59, 64: .062 .436 .58, 128: .095 .887 .58.
RUN = 32
# Work-groups per compute unit below which groups get smaller, so that all units have work.
GROUPS_PER_UNIT = 4


def vectors_each(nest: Nest, width: int, caps: Any) -> int:
    """How many vectors along a row a CPU's work item takes: fewer where that leaves compute units idle."""
    row = max(1, -(-usual(nest.parallel[-1].size) // width))  # what is left is no item of its own
    vectors = prod(usual(v.size) for v in nest.parallel) // width
    run = max(1, min(RUN, row))
    while run > 1 and vectors // run < caps.compute_units * GROUPS_PER_UNIT:
        run //= 2
    return -(-row // -(-row // run))  # the same for each of a row's work items


def rows_each(nest: Nest, width: int, run: int, caps: Any) -> tuple[Var | None, int]:
    """The variable of which a CPU's work item takes several values, and how many: rows that are shorter than a run."""
    *others, vector = nest.parallel
    whole = run > 1 or multiple(vector.size, width)
    if not others or run < -(-usual(vector.size) // width) or not whole:
        return None, 1
    rows, count = min(RUN // run, usual(others[-1].size)), prod(usual(v.size) for v in others)
    while rows > 1 and count // rows < caps.compute_units * GROUPS_PER_UNIT:
        rows //= 2
    return (others[-1], rows) if rows > 1 else (None, 1)


def tiled(nest: Nest) -> Var | None:
    """The variable along which loads are contiguous that the vector takes apart, for loops without reductions."""
    if nest.reduced or nest.vector is None:
        return None
    for expr in (i.data[2] for i in nest.program.instrs if i.op == "load"):
        if apart(expr, nest.vector):
            for var in nest.parallel:
                if var != nest.vector and expr.coefficient(var) in (1, -1):
                    return var
    return None


def apart(expr: Expr, vector: Var) -> bool:
    """Whether the lanes of an access lie apart in memory."""
    return expr.coefficient(vector) not in (0, 1, -1) and not expr.dynamic(vector)


def local_size(items: int, caps: Any) -> int:
    """Work items per group: a power of two, fewer where that leaves compute units idle."""
    most = min(GROUP_ITEMS if caps.is_cpu else 4 * GROUP_ITEMS, caps.max_work_group_size)
    fewest = 1 if caps.is_cpu else max(1, min(most, caps.subgroup_size or 32))
    return _halved(items, most, fewest, caps.compute_units * GROUPS_PER_UNIT)


@deferred
def _halved(items: int, size: int, fewest: int, groups: int) -> int:
    """`size`, halved as long as there would be less than so many groups."""
    while size > fewest and items < size * groups:
        size //= 2
    return max(size, 1)
