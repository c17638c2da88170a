"""The memory of a plan's intermediates: pieces that are taken at their first use and let go after their last."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.plan import Life, Temp

# Bytes from which an intermediate is a piece of its own: the launches that fill and read it take far longer than the
# allocator (0.2 us). Smaller ones share the last piece.
OWN_PIECE = 1 << 16


def pieces(lives: Sequence[Life], alignment: int) -> tuple[list[Temp], list[int]]:
    """A place for each life, no two alive at once overlapping, and the bytes of each piece."""
    sizes = [life.nbytes for life in lives if life.nbytes >= OWN_PIECE]
    offsets, shared = arena([life for life in lives if life.nbytes < OWN_PIECE], alignment)
    own, small = iter(range(len(sizes))), iter(offsets)
    temps = [
        Temp(next(own), 0, life.nbytes) if life.nbytes >= OWN_PIECE else Temp(len(sizes), next(small), life.nbytes)
        for life in lives
    ]
    return temps, sizes + [shared] * bool(offsets)


def apart(lives: Sequence[Life]) -> tuple[list[Temp], list[int]]:
    """As `pieces`, a piece for each: right whatever the sizes are."""
    sizes = [life.nbytes for life in lives]
    return [Temp(number, 0, nbytes) for number, nbytes in enumerate(sizes)], sizes


def arena(lives: Sequence[Life], alignment: int) -> tuple[list[int], int]:
    """An offset for each life in memory that they share, no two alive at once overlapping, and the bytes of it.

    Launches run in order, so a place is free again for the launch after its last use. Largest first, lowest place
    that fits: within a few per cent of the bound in practice.
    """
    places: dict[int, int] = {}
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].nbytes, lives[i].first)):
        life = lives[i]
        taken = sorted(
            (places[j], places[j] + lives[j].nbytes)
            for j in places
            if lives[j].first <= life.last and life.first <= lives[j].last
        )
        at = 0
        for lo, hi in taken:
            if at + life.nbytes <= lo:
                break
            at = max(at, -(-hi // alignment) * alignment)
        places[i] = at
    total = max((at + lives[i].nbytes for i, at in places.items()), default=0)
    return [places[i] for i in range(len(lives))], total
