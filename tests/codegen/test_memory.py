"""The arena: what lives at the same time lies apart, and little is wasted."""

from __future__ import annotations

import random

from codegen.memory import Life, arena


def test_lives_that_overlap_lie_apart() -> None:
    rng = random.Random(0)
    lives = [Life(rng.randint(1, 5000), at := rng.randint(0, 50), at + rng.randint(0, 9)) for _ in range(200)]
    places, total = arena(lives, 64)
    for i, (a, x) in enumerate(zip(places, lives, strict=True)):
        assert a.offset % 64 == 0 and a.offset + a.nbytes <= total
        for b, y in list(zip(places, lives, strict=True))[:i]:
            together = x.first <= y.last and y.first <= x.last
            assert not together or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_a_chain_takes_two_buffers() -> None:
    lives = [Life(1024, i, i + 1) for i in range(20)]
    assert arena(lives, 64)[1] == 2048


def test_no_temps_take_no_memory() -> None:
    assert arena([], 64) == ([], 0)
