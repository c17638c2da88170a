"""The tiles of a GPU's attention, and where it is better than products with the scores in memory."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from codegen.kernels.attention import AttentionSpec
from ops_core.sizes import usual

# Queries, keys and columns of an item side by side, which are one access.
ROWS = 4
# Items that share a row of the scores, and what they have of it in one access each.
ACROSS = 8
WIDE = ROWS * ACROSS
# (queries, keys) of a tile, best first: the first whose local memory fits is taken. H200, (1, 8, 2048, 64), causal, us:
# 64 x 32 173, 64 x 64 196, 32 x 64 240, 32 x 32 247; with the values read where they lie 64 x 32 226. Four launches
# with the scores in memory: 429.
TILES = ((64, 32), (32, 32), (16, 32))
# A longer row of the output, 4 queries of it, would leave the registers.
MOST_COLUMNS = 128
# What a group takes for a tile of keys, and what three more launches with the scores in memory take for one on a unit:
# us, and us for 128 elements of a row of keys and values. H200, of 8 heads of 2048 queries and keys, 282 us (64 x 64,
# none skipped) and 288 for the products, 141 between them; how the first is shared out is reasoned.
GROUP_US, EXPANDED_US, LAUNCHES_SAVED = (0.6, 2.0), (1.15, 2.35), 3
# That much longer may it take for the memory of the scores. Reasoned.
MEMORY_IS_WORTH = 1.25


class Cut(NamedTuple):
    """A work-group's tile, elements. shared: values come into the memory of the keys once these have been used."""

    queries: int
    keys: int
    depth: int
    value_depth: int
    shared: bool

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.queries // ROWS * ACROSS

    @property
    def quads(self) -> int:
        """Vectors of a row of queries or keys."""
        return ceil(self.depth / ROWS)

    @property
    def blocks(self) -> int:
        """Vectors of a row of the output for an item."""
        return ceil(self.value_depth / WIDE)

    @property
    def columns(self) -> int:
        """Elements of a row of values in local memory."""
        return self.blocks * WIDE

    @property
    def key_elements(self) -> int:
        """Of the memory for keys."""
        return self.keys * max(self.quads * ROWS, self.columns * self.shared)

    @property
    def local_elements(self) -> int:
        """Queries, keys, values, weights, and what items of a row tell each other."""
        values = self.keys * self.columns * (not self.shared)
        return self.queries * (self.quads * ROWS + self.keys + ACROSS) + self.key_elements + values


def cut(spec: AttentionSpec, caps: Any) -> Cut | None:
    """The best tile for a device, None where there is none."""
    cuts = [Cut(*tile, spec.depth, spec.value_depth, shared) for tile in TILES for shared in (False, True)]
    fits = (c for c in cuts if c.items <= caps.max_work_group_size and 4 * c.local_elements <= caps.local_memory_bytes)
    return next(fits, None) if spec.value_depth <= MOST_COLUMNS else None


def claims_local(spec: AttentionSpec, caps: Any) -> bool:
    """Whether the kernel is better than two products and a softmax: one group walks over all keys of its queries, so
    few queries of many keys leave most of a device idle."""
    c = None if caps.is_cpu else cut(spec, caps)
    if c is None:
        return False
    steps, wide = ceil(usual(spec.keys) / c.keys), (c.depth + c.value_depth) / 128
    groups = usual(spec.batch) * usual(spec.heads) * ceil(usual(spec.queries) / c.queries)
    busy = groups / caps.compute_units
    own, expanded = (us + more * wide for us, more in (GROUP_US, EXPANDED_US))
    ours = own * steps * max(1.0, busy / 2 if spec.causal else busy)
    return bool(ours <= MEMORY_IS_WORTH * (LAUNCHES_SAVED * caps.launch_us + expanded * steps * busy))
