"""The arena of a plan: intermediates share memory when they do not live at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from codegen.plan import Temp


class Life(NamedTuple):
    """A buffer of nbytes that is touched by launches first..last, inclusive."""

    nbytes: int
    first: int
    last: int


def arena(lives: Sequence[Life], alignment: int) -> tuple[list[Temp], int]:
    """A place for each life, no two alive at once overlapping, and the bytes of the arena.

    Launches run in order, so a place is free again for the launch after its last use. Largest first, lowest place
    that fits: within a few per cent of the bound in practice.
    """
    places: dict[int, Temp] = {}
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].nbytes, lives[i].first)):
        life = lives[i]
        taken = sorted(
            (places[j].offset, places[j].offset + places[j].nbytes)
            for j in places
            if lives[j].first <= life.last and life.first <= lives[j].last
        )
        at = 0
        for lo, hi in taken:
            if at + life.nbytes <= lo:
                break
            at = max(at, -(-hi // alignment) * alignment)
        places[i] = Temp(at, life.nbytes)
    total = max((t.offset + t.nbytes for t in places.values()), default=0)
    return [places[i] for i in range(len(lives))], total
