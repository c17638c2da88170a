"""Statistics of the rows that a product reads are part of its kernel, where there are few and nothing else asks."""

from __future__ import annotations

import numpy as np
import pytest

from ops_core.array import Arr, map_, matmul
from tests.codegen.case import Case, build
from tests.codegen.test_kept_rows import GPU
from tests.codegen.test_launch_counts import floats, normalised


def norm(c: Case, x: Arr) -> Arr:
    """A layer norm with a scale and an offset for each column."""
    k = x.shape[-1]
    return normalised(x, -1)[0] * c.input(floats(k)) + c.input(floats(k))


def weights(c: Case, k: int, n: int = 96) -> Arr:
    """As `nn.Linear` has them."""
    return c.input(floats(n, k)).transpose(0, 1)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 256, 7), (1, 4096, 96), (1, 768, 300), (2, 100, 300), (3, 17, 7), (8, 512, 96), (5, 64, 1)]
)
def test_a_layer_norm_of_few_rows(m: int, k: int, n: int) -> None:
    build(lambda c: c.output(matmul(norm(c, c.input(floats(m, k))), weights(c, k, n)))).check(launches=1)


def test_of_a_token_behind_views_with_what_follows_the_product() -> None:
    def write(c: Case) -> None:
        x = c.input(floats(2, 1, 64))
        y = matmul(norm(c, x).reshape(2, 64), weights(c, 64)).reshape(2, 1, 96)
        c.output(map_("tanh", y + c.input(floats(96))))

    build(write).check(launches=1)


def test_beside_a_matrix_as_it_lies() -> None:
    build(lambda c: c.output(matmul(norm(c, c.input(floats(2, 64))), c.input(floats(64, 96))))).check(launches=1)


def test_of_halves() -> None:
    def write(c: Case) -> None:
        x = c.input(np.round(floats(2, 64) * 8) / 8, "bf16").to("f32")
        c.output(matmul(norm(c, x), weights(c, 64)))

    build(write).check(launches=1)


def test_a_scale_by_the_largest() -> None:
    def write(c: Case) -> None:
        x = c.input(floats(2, 64))
        c.output(matmul(x / map_("abs", x).amax(1, True), weights(c, 64)))

    build(write).check(launches=1)


@pytest.mark.parametrize(("m", "k"), [(9, 64), (2, 4096)])
def test_not_of_many_rows_or_elements(m: int, k: int) -> None:
    build(lambda c: c.output(matmul(norm(c, c.input(floats(m, k))), weights(c, k)))).check(launches=2)


def test_not_what_is_read_elsewhere_too() -> None:
    def write(c: Case) -> None:
        x = norm(c, c.input(floats(2, 64)))
        c.output(x)
        c.output(matmul(x, weights(c, 64)))

    build(write).check(launches=2)


def test_not_for_two_products() -> None:
    def write(c: Case) -> None:
        x = norm(c, c.input(floats(2, 64)))
        c.output(matmul(x, weights(c, 64, 32)))
        c.output(matmul(x, weights(c, 64, 48)))

    build(write).check(launches=3)


def test_not_on_both_sides_of_one() -> None:
    def write(c: Case) -> None:
        x = norm(c, c.input(floats(4, 64)))
        c.output(matmul(x, x.transpose(0, 1)))

    build(write).check(launches=2)


def test_not_statistics_of_columns() -> None:
    build(lambda c: c.output(matmul(normalised(c.input(floats(4, 64)), 0)[0], weights(c, 64)))).check(launches=2)


def test_not_a_softmax_whose_exponentials_would_be_computed_for_each_tile() -> None:
    def write(c: Case) -> None:
        x = c.input(floats(2, 64))
        e = map_("exp", x - x.amax(1, True))
        c.output(matmul(e / e.sum(1, True), weights(c, 64)))

    build(write).check(launches=2)


def test_rows_that_the_product_overwrites_are_read_before() -> None:
    def write(c: Case) -> None:
        slot = c.slot(floats(2, 64))
        x = c.view(slot, (2, 64))
        c.store(x + matmul(norm(c, x), weights(c, 64, 64)), slot)

    build(write).check(launches=2)


def test_rows_that_another_kernel_overwrites_are_read_before() -> None:
    def write(c: Case) -> None:
        slot = c.slot(floats(2, 64))
        x = c.view(slot, (2, 64))
        y = matmul(norm(c, x), weights(c, 64, 64))
        c.store(matmul(c.input(floats(2, 32)), c.input(floats(32, 64))), slot)
        c.output(y * 2)

    build(write).check(launches=2)


def test_a_gpu_shares_no_rows() -> None:
    plan = build(lambda c: c.output(matmul(norm(c, c.input(floats(2, 64))), weights(c, 64)))).plan(**GPU)
    assert len(plan.launches) == 2
