"""Reductions over parts of one element, as of `torch.stack`: no loop, no choice, each part read once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from codegen.plan import Plan
from ops_core.array import Arr, map_, stack
from tests.codegen.case import Case, build

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def loops_and_choices(plan: Plan) -> int:
    return sum(kernel.mlir.count(word) for kernel in plan.kernels for word in ("scf.for", "arith.select", "arith.cmpi"))


def stacked(c: Case, count: int, *shape: int, dtype: str = "f32", dim: int = 0) -> Arr:
    return stack([c.input(floats(*shape)).to(dtype) for _ in range(count)], dim)


@pytest.mark.parametrize("count", [2, 3, 16, 53])
def test_a_norm_of_norms(count: int) -> None:
    def norm(c: Case) -> None:
        x = stacked(c, count)
        c.output(map_("sqrt", (x * x).sum()))

    assert loops_and_choices(build(norm).check(launches=1)) == 0


@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin"])
def test_of_rows(op: str) -> None:
    def reduce(c: Case) -> None:
        c.output(stacked(c, 5, 8, 16).reduce(op, 0))
        c.output(stacked(c, 5, 8, 16, dim=2).reduce(op, 2) * 2)

    assert loops_and_choices(build(reduce).check()) == 0


def test_truth_values() -> None:
    def reduce(c: Case) -> None:
        positive = stacked(c, 9) > 0
        c.output(positive.any())
        c.output(positive.all())

    assert loops_and_choices(build(reduce).check(launches=1)) == 0


def test_half_types_add_up_in_f32() -> None:
    def total(c: Case) -> None:
        c.output(stacked(c, 300, 4, dtype="f16").sum(0))

    build(total).check()


def test_a_sum_of_negative_zeros_is_positive() -> None:
    def total(c: Case) -> None:
        c.output(1 / stack([c.input(np.full((), -0.0, np.float32)) for _ in range(5)], 0).sum())

    build(total).check()


def test_a_reduction_of_what_another_gave() -> None:
    def variance(c: Case) -> None:
        x = stacked(c, 7, 16)
        apart = x - x.mean(0, keepdim=True)
        c.output((apart * apart).sum(0))

    assert loops_and_choices(build(variance).check(launches=1)) == 0


def softmax(x: Arr) -> Arr:
    e = map_("exp", x - x.amax(0, keepdim=True))
    return e / e.sum(0, keepdim=True)


@pytest.mark.parametrize(
    "loop",
    [softmax, lambda x: x.arg("argmax", 0), lambda x: stack([x, x], 0).sum((0, 1))],
    ids=["whose elements are written", "whose position is wanted", "over two dims"],
)
def test_others_have_their_loop(loop: Callable[[Arr], Arr]) -> None:
    def reduce(c: Case) -> None:
        c.output(loop(stacked(c, 20, 16)))

    assert loops_and_choices(build(reduce).check()) > 0


def test_parts_under_another_edge() -> None:
    """A part that is padded along a dim of its own is still asked where it is."""

    def total(c: Case) -> None:
        c.output(stack([c.input(floats(6)).pad([n], [4 - n]) for n in range(5)], 0).sum(0))

    build(total).check(launches=1)
