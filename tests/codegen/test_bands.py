"""Chains of kernels over one grid as one: stencils turn by turn, in place and not, with the bits of a kernel each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from codegen import bands
from ops_core.array import Arr, cat, full, map_, where
from tests.codegen.case import Case, build


@pytest.fixture(autouse=True)
def grids_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "LEAST", 0)


def moved(x: Arr, by: Sequence[int], fill: float = 0.0) -> Arr:
    """Element i + by, and `fill` beyond the edges."""
    low, high = [max(-n, 0) for n in by], [max(n, 0) for n in by]
    inner = x
    for d, (a, b) in enumerate(zip(low, high, strict=True)):
        inner = inner.slice(d, b, x.shape[d] - a)
    return inner.pad(low, high, fill)


def rolled(x: Arr, by: int, d: int) -> Arr:
    return cat([x.slice(d, by), x.slice(d, 0, by)], d)


def inside(x: Arr, new: Arr, edge: int = 1) -> Arr:
    """`new`, but x's own at the edges."""
    mask = full([n - 2 * edge for n in x.shape], True, "bool").pad([edge] * x.ndim, [edge] * x.ndim, False)
    return where(mask, new, x)


def five(x: Arr) -> Arr:
    at = [tuple(s if d == e else 0 for e in range(x.ndim)) for d in range(x.ndim) for s in (-1, 1)]
    return sum((moved(x, by) for by in at[1:]), moved(x, at[0])) - 4.0 * x


def nine(x: Arr) -> Arr:
    return sum((moved(x, (a, b)) * (0.1 * a + 0.2 * b + 0.3) for a in (-1, 0, 1) for b in (-1, 0, 1)), x)


def lopsided(x: Arr) -> Arr:
    return moved(x, (2, -3)) * 0.5 + moved(x, (1, 7)) - x * 0.25


def upwind(x: Arr) -> Arr:
    return x - (x - moved(x, (-1, 0))) * 0.3


def around(x: Arr) -> Arr:
    return rolled(x, 1, 1) + rolled(x, 20, 1) * 0.5 - x


STENCILS: dict[str, Callable[[Arr], Arr]] = {f.__name__: f for f in (five, nine, lopsided, upwind, around)}


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def turns(stencil: Callable[[Arr], Arr], shape: Sequence[int], count: int, edges: bool, place: bool) -> Case:
    def write(c: Case) -> None:
        slot = c.slot(data(*shape))
        x = c.view(slot, shape)
        for _ in range(count):
            new = x + stencil(x) * 0.2
            x = inside(x, new) if edges else new
        if place:
            c.store(x, slot)
        else:
            c.output(x)

    return build(write)


@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("shape", [pytest.param((64, 48), marks=pytest.mark.slow), (97, 133), (200, 32)])
@pytest.mark.parametrize("name", STENCILS)
@pytest.mark.sampled
def test_four_turns_are_a_kernel(name: str, shape: tuple[int, int], edges: bool, place: bool) -> None:
    case = turns(STENCILS[name], shape, 4, edges, place)
    assert len(case.check(exact=True).launches) <= 2
    case.check(exact=True, is_cpu=False)


@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("shape", [(1, 64), (2, 64), (3, 40), (500, 3), (400, 33), (24, 5, 40), (40, 6, 7)])
def test_odd_grids(shape: tuple[int, ...], place: bool) -> None:
    turns(five, shape, 4, False, place).check(exact=True)


def wave(c: Case, shape: Sequence[int], count: int) -> tuple[Arr, Arr, int, int]:
    a, b = c.slot(data(*shape)), c.slot(data(*shape, seed=1))
    u, v = c.view(a, shape), c.view(b, shape)
    for _ in range(count):
        v = inside(v, v + five(u) * 0.2) * 0.999
        u = inside(u, u + v * 0.2)
    return u, v, a, b


@pytest.mark.parametrize("count", range(2, 14))
@pytest.mark.parametrize("shape", [(160, 96), (161, 70)])
@pytest.mark.sampled
def test_a_wave_in_place(shape: tuple[int, int], count: int) -> None:
    def write(c: Case) -> None:
        u, v, a, b = wave(c, shape, count)
        c.store(u, a)
        c.store(v, b)

    plan = build(write).check(exact=True)
    assert len(plan.launches) < count or count == 2
    assert len(build(write).check(exact=True, is_cpu=False).launches) == count


def test_two_launches_for_four_turns_in_place() -> None:
    """the rows that another band overwrites are copied first"""

    def write(c: Case) -> None:
        u, v, a, b = wave(c, (128, 96), 4)
        c.store(u, a)
        c.store(v, b)

    plan = build(write).check(exact=True, launches=2)
    assert "_save" in plan.kernels[0].name


def test_nothing_is_copied_for_results_elsewhere() -> None:
    def write(c: Case) -> None:
        u, v, *_ = wave(c, (128, 96), 4)
        c.output(u)
        c.output(v)

    build(write).check(exact=True, launches=1)


@pytest.mark.parametrize("summed", [False, True])
def test_results_outlive_the_chain(summed: bool) -> None:
    """what is read after it reaches memory, each row of it by one band"""

    def write(c: Case) -> None:
        x = c.input(data(96, 64))
        kept = []
        for _ in range(4):
            x = inside(x, x + five(x) * 0.2)
            kept.append(x)
        c.output(kept[1])
        c.output(x)
        if summed:
            c.output(kept[2].sum(0))

    build(write).check(exact=not summed, launches=3 if summed else 1)


@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "f64", "i32", "bf16", "i64", "u8"])
def test_other_dtypes(dtype: str, place: bool) -> None:
    def write(c: Case) -> None:
        start = (data(96, 133) * 8).astype({"f16": "f2", "f64": "f8", "i32": "i4", "i64": "i8"}.get(dtype, "f4"))
        slot = c.slot(np.abs(start).astype("u1") if dtype == "u8" else np.round(start), dtype)
        x = c.view(slot, (96, 133))
        for _ in range(3):
            x = inside(x, moved(x, (1, 0)) + moved(x, (-1, -2)) - x)
        if place:
            c.store(x, slot)
        else:
            c.output(x)

    build(write).check(exact=dtype != "bf16", launches=2 if place else 1)


def test_a_small_grid_stays_a_kernel_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert len(turns(five, (64, 48), 4, True, False).check(exact=True).launches) == 4
    assert len(turns(five, (160, 128), 4, True, False).check(exact=True).launches) == 1


def test_low_bands_are_none() -> None:
    """rows that two bands compute are few: with many compute units there are fewer turns in one, or none"""
    case = turns(five, (128, 64), 4, True, False)
    counts = [len(case.check(exact=True, compute_units=n).launches) for n in (1, 8, 64)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 4


def write_random(c: Case, seed: int) -> None:
    """Grids that are read here and there, written in part or whole, in place or not, and kept at times."""
    rng = random.Random(seed)
    shape = rng.choice([(40, 50), (65, 33), (90, 128), (30, 4, 37), (128, 32)])
    slots = [c.slot(data(*shape, seed=seed + n)) for n in range(rng.randint(1, 3))]
    grids = [c.view(s, shape) for s in slots]
    reach = [rng.choice([0, 1, 2]), *([3] * (len(shape) - 1))]

    def read() -> Arr:
        x = rng.choice(grids)
        match rng.randint(0, 4):
            case 0:
                return x
            case 1:
                return rolled(x, rng.randint(1, shape[-1] - 1), len(shape) - 1)
            case 2:
                return x.flip(len(shape) - 1)
            case _:
                return moved(x, [rng.randint(-n, n) for n in reach], rng.choice([0.0, 1.5]))

    for _ in range(rng.randint(3, 9)):
        which = rng.randrange(len(grids))
        new = sum((read() * rng.choice([0.5, -0.25]) for _ in range(rng.randint(3, 6))), read())
        if rng.random() < 0.2:
            new = map_("maximum", new, read())
        grids[which] = inside(grids[which], new, rng.choice([1, 2])) if rng.random() < 0.6 else new
        if rng.random() < 0.15:
            c.output(rng.choice(grids))
        if rng.random() < 0.1:
            c.store(grids[which], slots[which])
    for slot, grid in zip(slots, grids, strict=True):
        if rng.random() < 0.7:
            c.store(grid, slot)
        else:
            c.output(grid)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 60))])
@pytest.mark.sampled
def test_random_grids(seed: int) -> None:
    case = build(lambda c: write_random(c, seed))
    case.check(exact=True)
    case.check(exact=True, compute_units=1, vector_bytes=32)
