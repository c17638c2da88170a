"""Products of groups, as experts have them: where each group ends is a tensor, so no size depends on data.

Composites: their expansions multiply all rows with all matrices, and leave out what is of other groups.
"""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.composites import composite
from ops_core.lowering.contraction import product
from ops_core.lowering.registry import rule


def _members(ends: Arr, size: int) -> Arr:
    """[groups, size]: whether a place is in a group, which begins where the one before ends."""
    starts = A.cat([A.full((1,), 0, ends.dtype), ends.slice(0, 0, ends.shape[0] - 1)], 0)
    at = A.iota(size, ends.dtype)
    return (at >= starts.unsqueeze(-1)) & (at < ends.unsqueeze(-1))


def grouped_rows(a: Arr, b: Arr, ends: Arr) -> tuple[Arr]:
    """Each row of a [m, k] times its group's matrix, of b [groups, k, n]; 0 beyond all groups. ends: [groups] i32."""
    every = product(a.unsqueeze(0).expand(b.shape[0], *a.shape), b)
    return (where(_members(ends, a.shape[0]).unsqueeze(-1), every, 0).sum(0),)


def grouped_terms(a: Arr, b: Arr, ends: Arr) -> tuple[Arr]:
    """Each group's columns of a [m, k] times its rows of b [k, n]: [groups, m, n]. ends: [groups] i32."""
    mine = _members(ends, a.shape[1])
    return (product(where(mine.unsqueeze(1), a, 0), where(mine.unsqueeze(2), b, 0)),)


rows = composite(grouped_rows, specs=lambda a, b, ends: [((a.shape[0], b.shape[2]), a.dtype)])
terms = composite(grouped_terms, specs=lambda a, b, ends: [((ends.shape[0], a.shape[0], b.shape[1]), a.dtype)])


@rule("_grouped_mm")
def _grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    """What eager refuses never comes here (`csrc/refusals.cpp`)."""
    if self.ndim == mat2.ndim == 3:
        return product(self, mat2)
    if self.ndim == mat2.ndim == 2:
        return terms(self, mat2, offs)[0]
    if self.ndim == 2:
        return rows(self, mat2, offs)[0]
    return rows(mat2.transpose(0, 1), self.transpose(1, 2), offs)[0].transpose(0, 1)
