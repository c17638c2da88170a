"""Attention of a GPU, in one launch, against the NumPy interpreter, which writes the scores out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from codegen.kernels.attention import AttentionSpec
from codegen.kernels.attention_local import attention_local
from codegen.kernels.attention_tiles import Cut, claims_local, cut
from ops_core.lowering.network import attention
from ops_core.sizes import Tape, tracing
from tests.codegen.case import Case, build
from tests.codegen.kernels.contract import dense
from tests.codegen.run_plan import capabilities
from tests.codegen.test_core_kernels import GPU

RANDOM = np.random.default_rng(0)
LOCAL = GPU | {"local_memory_bytes": 48 << 10}
Shape = tuple[int, int, int, int, int, int]  # batch, heads, queries, keys, depth, columns


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def masks(kind: str, shape: Shape) -> list[np.ndarray]:
    """A bias of one of several kinds; boolean ones have a row that sees nothing and one that sees the end only."""
    batch, heads, queries, keys = shape[:4]
    if kind == "float":
        return [floats(batch, heads, queries, keys)]
    if kind == "bool":
        mask = RANDOM.random((batch, heads, queries, keys)) < 0.5
        mask[0, 0, queries // 2] = False
        mask[-1, -1, 0] = np.arange(keys) == keys - 1
        return [mask]
    if kind == "infinite":
        mask = floats(batch, heads, queries, keys)
        mask[..., queries // 3, :] = -np.inf
        mask[..., : keys // 2] = -np.inf
        return [mask]
    return []


def written(shape: Shape, causal: bool, bias: str, lse: bool = True) -> Callable[[Case], None]:
    batch, heads, queries, keys, depth, columns = shape

    def write(c: Case) -> None:
        sizes = (queries, depth), (keys, depth), (keys, columns)
        inputs = [floats(batch, heads, *size) for size in sizes]
        out, sums = attention(*map(c.input, [*inputs, *masks(bias, shape)]), scale=0.3, causal=causal)
        c.output(out)
        if lse:
            c.output(sums)

    return write


# Whole tiles, several of them, tiles that are not whole on either side, more queries than keys and fewer, heads that
# are no multiple of 4, 8 or 32, one query, one key.
SHAPES = [
    (1, 2, 64, 64, 64, 64), (2, 3, 128, 96, 32, 32), (1, 2, 200, 200, 64, 64), (1, 2, 70, 33, 40, 24),
    (1, 1, 33, 150, 24, 80), (1, 2, 77, 77, 13, 7), (2, 1, 100, 130, 128, 128), (1, 1, 130, 70, 96, 16),
    (1, 2, 1, 40, 8, 8), (1, 2, 40, 1, 16, 16), (1, 1, 65, 64, 80, 36), (1, 1, 20, 40, 1, 1),
]  # fmt: skip


WAYS = [(False, "none"), (True, "none"), (True, "float"), (False, "bool"), (False, "infinite")]


@pytest.mark.parametrize(("causal", "bias"), WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled
def test_one_launch_does_it_all(shape: Shape, causal: bool, bias: str) -> None:
    build(written(shape, causal, bias)).check(launches=1, **LOCAL)


# (local memory, work items of a group) -> the tile: apart, with values in the keys' memory, of fewer queries.
DEVICES = [
    (48 << 10, 256, (64, 32, False)), (36 << 10, 256, (64, 32, True)), (48 << 10, 64, (32, 32, False)),
    (48 << 10, 63, (16, 32, False)), (20 << 10, 256, (16, 32, True)),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("memory", "items", "tile"), DEVICES)
def test_tiles_that_a_device_has_room_for(memory: int, items: int, tile: tuple, causal: bool) -> None:
    caps = GPU | {"local_memory_bytes": memory, "max_work_group_size": items}
    found = cut(spec(1, 2, 100, 150, 64, 64), capabilities(**caps))
    assert found and (found.queries, found.keys, found.shared) == tile
    build(written((1, 2, 100, 150, 64, 64), causal, "none")).check(launches=1, **caps)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_makes_its_row_nan_and_no_other(value: float) -> None:
    def write(c: Case) -> None:
        bias = np.zeros((1, 1, 40, 70), np.float32)
        bias[0, 0, 5, 37] = value
        given = [floats(1, 1, 40, 16), floats(1, 1, 70, 16), floats(1, 1, 70, 16), bias]
        c.output(attention(*map(c.input, given), scale=1.0, causal=False)[0])

    build(write).check(launches=1, **LOCAL)


def test_values_that_are_not_finite_stay_with_their_column() -> None:
    """also where a tile reads its last key again"""

    def write(c: Case) -> None:
        values = floats(1, 1, 70, 16)
        values[0, 0, 69, 3] = np.inf
        given = [floats(1, 1, 40, 16), floats(1, 1, 70, 16), values]
        c.output(attention(*map(c.input, given), scale=1.0, causal=False)[0])

    build(write).check(launches=1, **LOCAL)


@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_lie_side_by_side_and_keys_that_several_share(causal: bool) -> None:
    """as a projection leaves them, [batch, length, heads, depth]; results too, and a bias for all heads"""

    def write(c: Case) -> None:
        q = c.input(floats(2, 70, 4, 32)).permute(0, 2, 1, 3)
        k, v = (c.input(floats(2, 90, 2, 32)).permute(0, 2, 1, 3) for _ in range(2))
        k, v = (x.reshape(2, 2, 1, 90, 32).expand(2, 2, 2, 90, 32).reshape(2, 4, 90, 32) for x in (k, v))
        bias = c.input(floats(1, 1, 70, 90)).expand(2, 4, 70, 90)
        out = attention(q, k, v, bias, scale=0.2, causal=causal)[0]
        slot = c.slot(np.zeros(2 * 70 * 4 * 32, np.float32))
        c.store(out, slot, (70 * 4 * 32, 32, 4 * 32, 1))

    build(write).check(launches=1, **LOCAL)


def spec(*shape: int, causal: bool = False) -> AttentionSpec:
    binds = [dense(shape[:4])] * 3 + [dense(shape[:4], readonly=False)]
    return AttentionSpec(*shape, 1.0, causal, *binds)


def test_what_is_left_to_products() -> None:
    """few queries of many keys, by which most units idle; heads that local memory or registers do not hold; CPUs"""
    big = capabilities(**LOCAL, compute_units=132)
    assert claims_local(spec(1, 8, 2048, 2048, 64, 64, causal=True), big)
    assert claims_local(spec(4, 12, 128, 128, 64, 64), big) and claims_local(spec(1, 4, 16, 64, 32, 32), big)
    for shape in ((1, 2048, 64, 64), (64, 4096, 64, 64), (512, 512, 1024, 64), (512, 512, 64, 160)):
        assert not claims_local(spec(1, 8, *shape), big), shape
    assert not claims_local(spec(1, 8, 512, 512, 64, 64), capabilities(**GPU))
    assert not claims_local(spec(1, 8, 512, 512, 64, 64), capabilities(local_memory_bytes=48 << 10))


def test_lengths_that_vary_leave_no_guard() -> None:
    """and what a launch needs of them can be computed"""
    tape, caps = Tape(), capabilities(**LOCAL)
    with tracing(tape):
        batch, heads, queries, keys = (tape.symbol(n, n) for n in (2, 3, 100, 150))
        varying = spec(batch, heads, queries, keys, 64, 64, causal=True)
        assert claims_local(varying, caps)
        (step,) = attention_local("attention", varying, caps).steps
        groups = list(step.global_size)
    assert not tape.guards
    assert tape.compiled(groups)(4, 8, 65, 300) == [4 * 8 * 128, 2, 1]


def test_a_tile_takes_what_it_says() -> None:
    """of local memory, in bytes: queries, keys, values, weights, maxima"""
    assert 4 * Cut(64, 32, 64, 64, False).local_elements == (16 + 8 + 8 + 8 + 2) << 10
    assert 4 * Cut(32, 32, 128, 128, True).local_elements == (16 + 16 + 4 + 1) << 10
