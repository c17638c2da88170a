"""Rows that the work items of a group share on a GPU: how many items, and in how many turns of their loop."""

from __future__ import annotations

from ops_core.sizes import varies

# Work items that share a row, at most: rows shorter than their vectors take fewer.
ROW_LANES = 128
# Those of a row that takes them no more than so many vectors each: as many loads under way as twice the items have with
# half of the vectors, and a tree in local memory has a step less. An H200, us for (4096, 1024) floats with 32, 64, 128
# and 256 items, loops counted and vectors known to be aligned (below): softmax 10.8, 9.1, 10.2, 13.5, layer norm 10.2,
# 9.7, 11.8, 11.8, norm_block 20.0, 19.1, 20.1, 24.0; a copy of the bytes 9.7. As they were: 13.9, 14.6, 15.6, 19.9,
# then 13.1, 13.3, 14.9, 18.2, then 38.0, 39.2, 41.4, 48.8. No other length was measured; more vectors each (32 items)
# were slower for two of the three.
FEW_LANES, FEW_VECTORS = 64, 4
# Turns of a loop that the compiler is told to write out, at most. With their number known, one question for all vectors
# whether they are aligned and pointers that are `restrict`, a row stays in registers from one walk to the next; each of
# the three alone gives little (an H200: softmax 15.6 us -> 10.1 with all, 12.9 asking each vector, 12.3 without
# restrict, 15.4 with turns unknown; norm_block 41.4 -> 20.0, 38.9, 37.1, 39.7). With 8 turns ptxas has 63 to 96
# registers a work item and spills none.
UNROLLED = 8


def most(size: int, width: int) -> int:
    """Work items for a row of `size` elements that vectors of `width` walk."""
    few = not varies(size) and size <= FEW_LANES * FEW_VECTORS * width
    return FEW_LANES if few else ROW_LANES


def turns(lo: int, hi: int, step: int) -> int:
    """Turns of a loop in which all items together take `step` elements; 0 where not all have as many, or sizes vary."""
    return 0 if varies(lo) or varies(hi) or (hi - lo) % step else (hi - lo) // step
