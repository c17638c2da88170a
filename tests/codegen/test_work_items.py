"""Barriers: what crosses them, and where they may stand. In C a kernel is loops that are split there."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.builder import Builder
from tests.codegen.run_kernel import PLACES, run

GROUP = 16


@pytest.mark.parametrize("place", PLACES)
def test_barriers_in_a_loop_with_carried_values(place: str) -> None:
    """Each item gets the sum of its group by doubling steps; the step and the sum are carried across barriers."""
    k = Builder("sums", index_bits=64, local_size=(GROUP, 1, 1))
    x, y = k.buffer("i32", readonly=True), k.buffer("i32")
    item, at, scratch = k.local_id(0), k.global_id(0), k.local("i32", GROUP)
    own = k.load(x, at)
    k.store(scratch, item, own)
    k.barrier()
    with k.for_(0, 4, init=[own, k.const(GROUP // 2, "index")]) as loop:
        total, distance = loop.args
        other = k.load(scratch, (item + distance) % GROUP)
        k.barrier()
        total = total + other
        k.store(scratch, item, total)
        k.barrier()
        loop.yield_(total, distance // 2)
    k.store(y, at, loop.results[0] * 100 + own)
    given = np.arange(3 * GROUP, dtype=np.int32)
    got = np.zeros_like(given)
    run(place, k.finish(), (3 * GROUP,), (GROUP,), given, got)
    sums = given.reshape(3, GROUP).sum(1, keepdims=True)
    assert np.array_equal(got.reshape(3, GROUP), sums * 100 + given.reshape(3, GROUP))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("taken", (True, False))
def test_barrier_in_a_uniform_branch(place: str, taken: bool) -> None:
    """Items reverse their group, or do not; private memory and what an inner branch gives survive."""
    k = Builder("reverse", local_size=(GROUP, 1, 1))
    x, y, flag = k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("i32")
    item, at, scratch, own = k.local_id(0), k.global_id(0), k.local("f32", GROUP), k.private("f32", 2)
    with k.for_(0, 2) as loop:
        k.store(own, loop.iv, k.load(x, at) + k.cast(loop.iv, "f32"))
    odd = k.rarely(item % 2 == 1, [k.const(0.0, "f32")], lambda: [k.const(0.5, "f32")])[0]
    k.store(scratch, item, k.load(own, 0))
    with k.if_(flag == 1):
        k.barrier()
        k.store(own, 0, k.load(scratch, GROUP - 1 - item))
        k.barrier()
    k.store(y, at, k.load(own, 0) * 100.0 + k.load(own, 1) + odd)
    given = np.arange(2 * GROUP, dtype=np.float32)
    got = np.zeros_like(given)
    run(place, k.finish(), (2 * GROUP,), (GROUP,), given, got, np.int32(taken))
    rows = given.reshape(2, GROUP)
    first = rows[:, ::-1] if taken else rows
    assert np.array_equal(got.reshape(2, GROUP), first * 100 + rows + 1 + np.arange(GROUP) % 2 * 0.5)


@pytest.mark.parametrize("place", PLACES)
def test_ids_in_three_dimensions(place: str) -> None:
    k = Builder("ids")
    y = k.buffer("i32")
    x, yy, z = (k.global_id(d) for d in range(3))
    local = (k.local_id(2) * 3 + k.local_id(1)) * 2 + k.local_id(0)
    group = (k.group_id(2) * 2 + k.group_id(1)) * 2 + k.group_id(0)
    k.store(y, (z * 6 + yy) * 4 + x, k.cast(group * 100 + local, "i32"))
    got = np.zeros((2, 6, 4), np.int32)
    run(place, k.finish(), (4, 6, 2), (2, 3, 1), got)
    z, y_, x_ = np.indices(got.shape)
    assert np.array_equal(got, ((z * 2 + y_ // 3) * 2 + x_ // 2) * 100 + y_ % 3 * 2 + x_ % 2)
