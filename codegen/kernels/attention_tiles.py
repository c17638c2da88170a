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
# (rows, others, held) of a tile of the gradients, best first. Rows that are held come to local memory once. H200, 64 x
# 32 in pieces and 32 x 32 held, both kernels, us: (1, 8, 2048, 64) 1149 and 1189, causal 840 and 966, (4, 8, 512, 64)
# 406 and 464; 64 x 32 held fits heads of 32 (236).
GRADIENT_TILES = (
    (64, 32, True), (64, 32, False), (32, 32, True), (32, 32, False), (16, 32, True), (16, 32, False),
)  # fmt: skip
# A longer row of the output, 4 queries of it, would leave the registers.
MOST_COLUMNS = 128
# What a group takes for a tile of keys, and what launches with the scores in memory take for one on a unit:
# us, and us for 128 elements of a row of keys and values. H200, of 8 heads of 2048 queries and keys, 282 us (64 x 64,
# none skipped) and 288 for the products, 141 between them; how the first is shared out is reasoned.
GROUP_US, EXPANDED_US = (0.6, 2.0), (1.15, 2.35)
# The same of the gradients' kernels, whose tiles have three and four products in place of two, for TIMED_ROWS of a
# tile; fewer take less. H200, us, both kernels and with the scores in memory: (1, 8, 2048, 64) 1149 and 1006, causal
# 840 and 1029; (2, 16, 1024, 128) 2270 and 1860, causal 1440 and 1320; (4, 8, 512, 64) 406 and 376; (1, 4, 1024, 32)
# 236 and 148. How they are shared out is reasoned.
QUERIES_US, KEYS_US, TIMED_ROWS = (1.5, 3.2), (1.5, 4.3), 64
# That part longer may it take for the memory of a matrix of all scores. Reasoned.
MEMORY_IS_WORTH = 0.25


class Expanded(NamedTuple):
    """What is there without the kernels: products, more launches than with them, and matrices in memory."""

    products: int
    launches: int
    matrices: int


FORWARD, BACKWARD = Expanded(2, 3, 1), Expanded(5, 5, 2)


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


class GradientCut(NamedTuple):
    """A work-group's tile of the gradients, elements: its rows, and those of the other side, which it walks over.

    held: all dims of the rows lie in local memory for the whole walk; else they come in pieces of WIDE for each tile.
    """

    rows: int
    others: int
    depth: int
    value_depth: int
    held: bool

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.rows // ROWS * ACROSS

    @property
    def blocks(self) -> tuple[int, int]:
        """Vectors of a row of queries or keys, and of values, for an item."""
        return ceil(self.depth / WIDE), ceil(self.value_depth / WIDE)

    @property
    def quads(self) -> tuple[int, int]:
        """Vectors of a row of queries or keys, and of values, in local memory."""
        if self.held:
            return ceil(self.depth / ROWS), ceil(self.value_depth / ROWS)
        return self.blocks[0] * ACROSS, self.blocks[1] * ACROSS

    @property
    def row_elements(self) -> tuple[int, ...]:
        """Of the memories for rows."""
        return tuple(self.rows * quads * ROWS for quads in self.quads) if self.held else (self.rows * WIDE,)

    @property
    def other_elements(self) -> tuple[int, ...]:
        """Of the memories for the others."""
        return tuple(self.others * blocks * WIDE for blocks in self.blocks)

    @property
    def local_elements(self) -> int:
        """Rows, others and weights."""
        return sum(self.row_elements) + sum(self.other_elements) + self.rows * self.others


def cut(spec: AttentionSpec, caps: Any) -> Cut | None:
    """The best tile for a device, None where there is none."""
    cuts = [Cut(*tile, spec.depth, spec.value_depth, shared) for tile in TILES for shared in (False, True)]
    fits = (c for c in cuts if c.items <= caps.max_work_group_size and 4 * c.local_elements <= caps.local_memory_bytes)
    return next(fits, None) if spec.value_depth <= MOST_COLUMNS else None


def gradient_cut(spec: AttentionSpec, caps: Any) -> GradientCut | None:
    """The best tile of the gradients for a device, None where there is none."""
    cuts = [GradientCut(rows, others, spec.depth, spec.value_depth, held) for rows, others, held in GRADIENT_TILES]
    fits = (c for c in cuts if c.items <= caps.max_work_group_size and 4 * c.local_elements <= caps.local_memory_bytes)
    return next(fits, None) if max(spec.depth, spec.value_depth) <= MOST_COLUMNS else None


def claims_local(spec: AttentionSpec, caps: Any) -> bool:
    """Whether the kernel is better than two products and a softmax: one group walks over all keys of its queries, so
    few queries of many keys leave most of a device idle."""
    c = None if caps.is_cpu else cut(spec, caps)
    if c is None:
        return False
    ours = _at(GROUP_US, spec) * _turns(spec, caps, (spec.queries, c.queries), (spec.keys, c.keys))
    return ours <= _expanded_us(spec, caps, c.queries, c.keys, FORWARD)


def claims_gradients(spec: AttentionSpec, caps: Any) -> bool:
    """Whether the kernels of the gradients are better than five products."""
    c = None if caps.is_cpu else gradient_cut(spec, caps)
    if c is None:
        return False
    queries = _at(QUERIES_US, spec) * _turns(spec, caps, (spec.queries, c.rows), (spec.keys, c.others))
    keys = _at(KEYS_US, spec) * _turns(spec, caps, (spec.keys, c.rows), (spec.queries, c.others))
    return (queries + keys) * c.rows / TIMED_ROWS <= _expanded_us(spec, caps, c.rows, c.others, BACKWARD)


def _at(us: tuple[float, float], spec: AttentionSpec) -> float:
    """A time that depends on a row of keys and values."""
    return us[0] + us[1] * (spec.depth + spec.value_depth) / 128


def _busy(spec: AttentionSpec, caps: Any, count: int, rows: int) -> float:
    """Groups for each unit, with so many of the `count` rows of a head each."""
    return float(usual(spec.batch) * usual(spec.heads) * ceil(usual(count) / rows) / caps.compute_units)


def _turns(spec: AttentionSpec, caps: Any, rows: tuple[int, int], others: tuple[int, int]) -> float:
    """Tiles of others that a unit walks over; rows, others: how many of a head there are, and of a tile."""
    busy = _busy(spec, caps, *rows)
    return ceil(usual(others[0]) / others[1]) * max(1.0, busy / 2 if spec.causal else busy)


def _expanded_us(spec: AttentionSpec, caps: Any, queries: int, keys: int, instead: Expanded) -> float:
    """What the kernels may take: as long as what is there instead, and longer for the memory of the scores."""
    steps = ceil(usual(spec.keys) / keys) * _busy(spec, caps, spec.queries, queries)
    us = instead.launches * caps.launch_us + instead.products / 2 * _at(EXPANDED_US, spec) * steps
    return (1 + instead.matrices * MEMORY_IS_WORTH) * us
