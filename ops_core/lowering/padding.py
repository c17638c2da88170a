"""Padding with copies of what lies at the edges: reflection and replication. (Constants: movement.py.)"""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from collections.abc import Sequence

from ops_core import array as A
from ops_core.array import Arr
from ops_core.lowering.pointwise import abs_
from ops_core.lowering.promote import opmath
from ops_core.lowering.registry import rule


def _before_and_after(x: Arr, d: int, low: int, high: int, mirrored: bool) -> Arr:
    """`low` elements more before dim `d` and `high` after it: its own, mirrored about the first and the last of them,
    or those two again. Negative amounts crop what is there then.

    Along the last dim by parts, of which each is read as vectors; along others, where a row has one place, by places:
    parts of parts are 9 cases for each vector ((8, 32, 64, 64) by 1: 0.7 ms, so 0.23; places along both dims 0.43).
    """
    n = x.shape[d]
    before, after = max(0, low), max(0, high)
    if d < x.ndim - 1:
        at = A.iota(n + low + high) - low
        if mirrored:
            at = n - 1 - abs_(n - 1 - abs_(at))
        return x.take(A.map_("minimum", A.map_("maximum", at, 0), n - 1), d)
    if mirrored:
        first, last = x.slice(d, 1, 1 + before).flip(d), x.slice(d, n - 1 - after, n - 1).flip(d)
    else:
        ends = [[*x.shape[:d], size, *x.shape[d + 1 :]] for size in (before, after)]
        first, last = x.slice(d, 0, 1).expand(*ends[0]), x.slice(d, n - 1, n).expand(*ends[1])
    out = A.cat([part for part, size in ((first, before), (x, 1), (last, after)) if size], d)
    return out.slice(d, max(0, -low), out.shape[d] - max(0, -high))


def _sum_of_both(g: Arr, d: int, n: int, low: int, high: int, mirrored: bool) -> Arr:
    """The gradient of `_before_and_after` for a dim of `n`: each element's own and those of its copies."""

    def framed(before: int, after: int, x: Arr) -> Arr:
        low, high = ([size if i == d else 0 for i in range(x.ndim)] for size in (before, after))
        return x.pad(low, high)

    g = framed(max(0, -low), max(0, -high), g)
    before, after = max(0, low), max(0, high)
    first, own, last = g.split(d, [before, n, after])
    for part, size, start in ((first, before, 1), (last, after, n - 1 - after)):
        if not size:
            continue
        if mirrored:
            own = own + framed(start, n - size - start, part.flip(d))
        else:
            at = 0 if part is first else n - 1
            own = own + framed(at, n - 1 - at, part.sum(d, keepdim=True))
    return own


def _copied_edges(name: str, rank: int, mirrored: bool) -> None:
    def sides(x: Arr, padding: Sequence[int]) -> list[tuple[int, int, int]]:
        return [(x.ndim - 1 - i, padding[2 * i], padding[2 * i + 1]) for i in range(rank)]

    @rule(f"{name}_pad{rank}d")
    def forward(self, padding):
        for d, low, high in sides(self, padding):
            self = _before_and_after(self, d, low, high, mirrored)
        return self

    @rule(f"{name}_pad{rank}d_backward")
    def backward(grad_output, self, padding):
        out = grad_output.to(opmath(grad_output.dtype))
        for d, low, high in sides(self, padding):
            out = _sum_of_both(out, d, self.shape[d], low, high, mirrored)
        return out.to(grad_output.dtype)


for _rank in (1, 2, 3):
    _copied_edges("reflection", _rank, mirrored=True)
    _copied_edges("replication", _rank, mirrored=False)
