"""The measuring harness: it computes what it times, and says what failed."""

import math

from benchmarks.harness import FLOOR, Measured, measure
from benchmarks.tables import count_table, geometric_mean, ratio, speed_table


def test_every_step_is_computed():
    """A step whose result nobody reads must be run all the same: a window and a kernel for each."""
    results = [r for r in measure("softmax", ["eager", "lazy"], rounds=2) if r is not None]
    by_engine = {r.engine: r for r in results}
    assert not any(r.error for r in results)
    assert by_engine["lazy"].counts["windows"] >= 1 and by_engine["lazy"].counts["kernels_launched"] >= 1
    assert by_engine["eager"].counts == {} and all(r.step_s > 0 for r in results)
    assert "softmax" in speed_table(results, "lazy") and "kernels_launched" in count_table(results)


def test_progress_is_counted():
    """One unit per engine for the warm-up and for each round, then the results."""
    units = list(measure("tiny_ops", ["eager"], rounds=3))
    assert [u is None for u in units] == [True] * 4 + [False]


def test_floors_take_turns_with_the_engines():
    """A machine that is slow for a minute is so for both."""
    floor, eager = (r for r in measure("tiny_ops", [FLOOR, "eager"], rounds=2) if r is not None)
    assert not floor.error and not eager.error
    assert floor.ops == 200 and len(floor.parts(1.0)) == len(eager.rounds_s) == 2
    assert all(memory > 0 and python >= 200e-6 for _, memory, python in floor.parts(1.0))


def test_engines_are_compared_round_by_round():
    """A machine that is slow for some rounds is so for both."""
    eager = Measured("w", "eager", step_s=4.0, rounds_s=[2.0, 4.0, 4.0])
    lazy = Measured("w", "lazy", step_s=1.0, rounds_s=[1.0, 2.0, 1.0])
    assert ratio(eager, lazy) == 2.0


def test_failed_engine_is_shown_and_left_out_of_the_mean():
    """A workload that failed on one engine has no ratio."""
    good, bad = Measured("w", "lazy", step_s=1.0), Measured("w", "eager", error="boom")
    table = speed_table([bad, good], "lazy")
    assert "failed" in table and math.isnan(geometric_mean([]))
