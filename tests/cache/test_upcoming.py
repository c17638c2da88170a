"""Windows that wait for their turn are planned while another's kernels are built."""

import pytest

from lazy_backend import _C, builders, compiler
from lazy_backend.upcoming import MOST, Upcoming


class Plan:
    """A plan of so many kernels, of which one is built each time that somebody looks."""

    device = 0

    def __init__(self, kernels=0, error=None):
        self.left, self.error, self.abandoned = kernels, error, False

    def wait(self):
        self.left -= 1
        return self.left >= 0

    def finish(self):
        if self.error:
            raise self.error
        return {"plan": self}

    def abandon(self):
        self.abandoned = True


@pytest.fixture
def waiting(monkeypatch):
    """The windows in the queue, by name."""
    names = []
    expected = []
    monkeypatch.setattr(_C, "waiting_windows", lambda device, most: list(map(source, names[:most])), raising=True)
    monkeypatch.setattr(builders, "expect", lambda structure, ops, device: expected.append(structure))
    return names


def source(name, scalar=1.0):
    return {"structure": name, "sizes": "1", "nodes": [], "device": 0, "slots": [], "scalars": [scalar]}


def begin_all(upcoming, before, made):
    def begin(window):
        made.append(window["structure"])
        return Plan()

    upcoming.begin(before, begin)


def test_they_are_planned_in_order_as_long_as_kernels_are_built(waiting):
    waiting += ["a", "b", "c"]
    upcoming, made = Upcoming(), []
    begin_all(upcoming, Plan(3), made)
    assert made == ["a", "b"]  # one look before the first
    assert upcoming.finished(source("a", 2.0)) is None
    assert upcoming.finished(source("a")) and upcoming.finished(source("c")) is None
    assert upcoming.finished(source("a")) is None


def test_none_is_planned_where_nothing_is_built(waiting):
    waiting += ["a"]
    upcoming, made = Upcoming(), []
    begin_all(upcoming, Plan(0), made)
    assert not made


def test_they_are_planned_once_and_so_many_at_most(waiting):
    waiting += map(str, range(2 * MOST))
    upcoming, made = Upcoming(), []
    begin_all(upcoming, Plan(100), made)
    begin_all(upcoming, Plan(100), made)
    assert made == list(map(str, range(MOST)))


def test_one_that_came_to_a_plan_without_is_abandoned(waiting):
    waiting += ["a", "b"]
    upcoming, plans = Upcoming(), {}
    upcoming.begin(Plan(9), lambda window: plans.setdefault(window["structure"], Plan()))
    waiting.remove("a")
    upcoming.begin(Plan(9), lambda window: None)
    assert plans["a"].abandoned and not plans["b"].abandoned
    upcoming.forget()
    assert plans["b"].abandoned


def test_what_fails_before_its_turn_is_planned_again_in_its_turn(waiting):
    waiting += ["a", "b"]

    def begin(window):
        if window["structure"] == "a":
            raise ValueError("no")
        return Plan(error=RuntimeError("the driver refuses it"))

    upcoming = Upcoming()
    upcoming.begin(Plan(9), begin)
    assert upcoming.finished(source("a")) is None
    assert upcoming.finished(source("b")) is None


def test_a_window_that_shares_a_kernel_with_one_passed_over_is_planned_again():
    plans = [Plan(error=KeyError("a kernel")), Plan()]
    assert compiler.beside_others(lambda: plans.pop(0)) and not plans
