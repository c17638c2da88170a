"""Schedules of products in turns on the device: each is right or dropped, and noise chooses none."""

import numpy as np
import pytest

from codegen import anchors, schedule
from codegen.anchors import Factor, Product
from codegen.kernels.matmul import Tile
from lazy_backend.driver import discovery
from lazy_backend.porting import execute, schedules
from lazy_backend.porting.bench import Bench


@pytest.fixture(scope="module")
def bench(device):
    if device == "cpu":
        pytest.skip("the cpu has no schedules")
    return Bench(discovery.selected())


@pytest.fixture
def steady(monkeypatch):
    """Times as of a machine that does nothing else: each schedule takes the same."""
    monkeypatch.setattr(execute, "seconds_once", lambda b, run, repeat: run() or 1e-3)


@pytest.fixture
def two_rivals(bench, monkeypatch):
    """A product with no more than two schedules."""
    product = plain("nn", 1, 61, 83, 2048)
    two = product.rivals(bench.caps)[:2]
    monkeypatch.setattr(Product, "rivals", lambda self, caps: two)
    return product


def plain(layout, batch, m, n, k, dtype="f32", **changes):
    a, b = (Factor(dtype, {"n": 1, "t": 0, "s": None}[letter], batch > 1, False) for letter in layout)
    return Product(batch, m, n, k, a, b, dtype, False)._replace(**changes)


PRODUCTS = {
    **{layout: plain(layout, 1, 70, 90, 300) for layout in ("nn", "nt", "tn", "sn")},
    "batch": plain("nt", 3, 40, 50, 70),
    "one row": plain("nn", 1, 1, 700, 900),
    "few rows": plain("nt", 1, 5, 700, 300),
    "shared a": plain("nn", 3, 40, 50, 70, a=Factor("f32", 1, False, False)),
    "prologue and epilogue": plain("nn", 1, 70, 300, 90, a=Factor("f32", 1, False, True), epilogue=True),
    **{dtype: plain("nn", 1, 40, 60, 600, dtype) for dtype in ("bf16", "i32")},
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_schedule_gives_the_heuristics_numbers(bench, steady, caplog, name):
    """the product by itself is the one that was asked for, and no rival is refused or wrong"""
    product = PRODUCTS[name]
    times, own = schedules.measured(bench, product)
    assert list(times) == product.rivals(bench.caps) and next(iter(times)) == own and not caplog.text
    assert {len(taken) for taken in times.values()} == {schedules.TURNS} and schedules.choice(times, own) == own


def test_a_product_that_another_becomes_by_itself_is_not_timed(bench):
    """one row lies along its columns, whatever is said"""
    product = plain("tn", 1, 1, 50, 7000)
    with pytest.raises(schedules.Unfit, match=r"m=1, .*contiguous=1"):
        schedules.measured(bench, product)


def test_a_schedule_with_wrong_numbers_is_never_chosen(bench, monkeypatch, caplog):
    """however fast: it leaves half of the terms out"""
    product = plain("nn", 1, 61, 83, 2048)
    wrong = product.rivals(bench.caps)[1]
    real = anchors.matmul_kernels

    def half(name, spec, caps, tile):
        return real(name, spec._replace(k=spec.k // 2) if tile == wrong else spec, caps, tile)

    monkeypatch.setattr(schedule, "_known", schedule.Known())
    monkeypatch.setattr(anchors, "matmul_kernels", half)
    asked = []
    monkeypatch.setattr(execute, "seconds_once", lambda b, run, repeat: asked.append(run) or 1e-3)
    times, _ = schedules.measured(bench, product)
    assert wrong not in times and len(times) == len(product.rivals(bench.caps)) - 1 == len(set(asked))
    assert "its numbers are wrong" in caplog.text and str(wrong) in caplog.text


def test_times_of_a_busy_machine_decide_nothing(bench, monkeypatch, two_rivals):
    asked = []

    def slower_and_slower(b, run, repeat):
        asked.append(run)
        return 1e-3 * 1.1 ** (len(asked) / 2)

    monkeypatch.setattr(execute, "seconds_once", slower_and_slower)
    with pytest.raises(schedules.Busy):
        schedules.measured(bench, two_rivals)
    assert len(asked) == 2 * (2 + schedules.TURNS * schedules.ATTEMPTS), "each twice to warm up, then in turns"


def test_turns_are_taken_until_enough_were_clean(bench, monkeypatch, two_rivals):
    asked = []

    def calm_in_the_end(b, run, repeat):
        asked.append(run)
        disturbed = 2 * 2 < len(asked) <= 2 * (2 + schedules.TURNS)  # not the two runs of each before the turns
        return 1e-3 * (2 + len(asked) if disturbed else 1)

    monkeypatch.setattr(execute, "seconds_once", calm_in_the_end)
    times, own = schedules.measured(bench, two_rivals)
    assert {len(taken) for taken in times.values()} == {2 * schedules.TURNS}
    assert schedules.slowest(times[own]) == 1e-3


def test_numbers_that_are_missing_are_wrong():
    expected, product = np.ones(4), plain("nn", 1, 2, 2, 64)
    assert schedules.agrees(expected + 1e-7, expected, product)
    assert not schedules.agrees(expected + 1e-3, expected, product)
    assert not schedules.agrees(expected * np.nan, expected, product)
    assert not schedules.agrees(expected + 1, expected, plain("nn", 1, 2, 2, 64, "i32"))


def test_only_what_is_surely_faster_is_chosen():
    own, other, third = Tile("panel", 4, 4), Tile("dot", 4, 4), Tile("panel", 8, 2)
    base = [1.0, 1.7, 1.0, 1.02, 1.8, 1.01]
    assert schedules.choice({own: base, other: [x * 0.96 for x in base]}, own) == own
    assert schedules.choice({own: base, other: [0.5, 0.5, 0.5, 2.0, 2.0, 2.0]}, own) == own, "three turns may be a slip"
    times = {own: base, other: [x * 0.9 for x in base], third: [x * 0.8 for x in base]}
    assert schedules.choice(times, own) == third
    assert schedules.choice({}, own) == own
