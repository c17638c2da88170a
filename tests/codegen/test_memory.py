"""Memory of intermediates: what lives at the same time lies apart, little is wasted, and large ones go back early."""

from __future__ import annotations

import random

from codegen.memory import OWN_PIECE, Life, arena, pieces


def test_lives_that_overlap_lie_apart() -> None:
    rng = random.Random(0)
    sizes = (5000, 2 * OWN_PIECE)
    lives = [
        Life(rng.randint(1, rng.choice(sizes)), at := rng.randint(0, 50), at + rng.randint(0, 9)) for _ in range(200)
    ]
    places, total = pieces(lives, 64)
    for i, (a, x) in enumerate(zip(places, lives, strict=True)):
        assert a.nbytes == x.nbytes and a.offset % 64 == 0 and a.offset + a.nbytes <= total[a.piece]
        for b, y in list(zip(places, lives, strict=True))[:i]:
            together = x.first <= y.last and y.first <= x.last and a.piece == b.piece
            assert not together or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_large_lives_have_pieces_of_their_own_and_small_ones_share_the_last() -> None:
    lives = [Life(8, 0, 1), Life(OWN_PIECE, 0, 1), Life(100, 2, 3), Life(OWN_PIECE, 2, 3)]
    places, sizes = pieces(lives, 64)
    assert [place.piece for place in places] == [2, 0, 2, 1]
    assert sizes == [OWN_PIECE, OWN_PIECE, 100]


def test_a_chain_takes_two_buffers() -> None:
    lives = [Life(1024, i, i + 1) for i in range(20)]
    assert arena(lives, 64)[1] == 2048
    assert pieces(lives, 64)[1] == [2048]


def test_no_temps_take_no_memory() -> None:
    assert pieces([], 64) == ([], [])
