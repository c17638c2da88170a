"""Vectors at edges: of pads, joined parts and parts that are written, read whole where that is right."""

import re

import numpy as np
import pytest

from ops_core import array as A
from ops_core.array import cat, where
from tests.codegen.case import Case, build

GPU = {"is_cpu": False, "vector_bytes": 4}


def grid(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("caps", [{}, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("columns", [7, 16, 33, 64, 250])
def test_edges_at_every_place_of_a_vector(columns, caps):
    def write(c: Case) -> None:
        x = c.input(grid(6, columns))
        around = x.pad((1, 3), (2, 1), 0.5)
        shifted = [x.pad((0, n), (0, 0)).slice(1, 0, columns) + x.pad((0, 0), (0, n)).slice(1, n) for n in (1, 5)]
        c.output(around * 2)
        c.output(sum(shifted[1:], shifted[0]) + x)
        c.output(cat([x.slice(1, 2), x.slice(1, 0, 2).flip(1), around.slice(0, 1, 7)], 1))

    build(write).check(exact=True, **caps)


@pytest.mark.parametrize("caps", [{}, GPU], ids=["cpu", "gpu"])
def test_an_index_is_made_of_its_own_elements_only(caps):
    """what lies beside them in memory is no index of anything"""
    numbers = np.full((8, 64), 1 << 40, np.int64)
    numbers[:, 3:60] = np.random.default_rng(0).integers(0, 20, (8, 57))

    def write(c: Case) -> None:
        at = c.view(c.slot(numbers), (8, 57), (64, 1), 3).pad((0, 4), (0, 3))
        c.output(c.input(grid(8, 20)).gather(1, at))

    build(write).check(exact=True, **caps)


def test_vectors_inside_all_edges_have_no_test():
    def write(c: Case) -> None:
        x = c.input(grid(64, 96))
        inside = A.full((62, 94), True, "bool").pad((1, 1), (1, 1), False)
        around = x.slice(1, 0, 94).slice(0, 1, 63).pad((1, 1), (1, 1)) + x.slice(1, 2).slice(0, 1, 63).pad(
            (1, 1), (1, 1)
        )
        c.output(where(inside, x + around, x))

    plan = build(write).check(launches=1, exact=True)
    (kernel,) = plan.kernels
    first, second = re.search(
        r"scf\.if .*?\{(.*?)\} else \{(.*)", kernel.mlir[kernel.mlir.index("scf.for") :], re.S
    ).groups()
    assert "vector.reduction <or>" not in first and "vector.reduction <or>" in second


@pytest.mark.parametrize(("rows", "temps", "as_bands"), [(200, 3, 0), (20, 4, 4)])
def test_a_result_takes_the_place_of_what_it_is_made_of(rows, temps, as_bands):
    """an intermediate of 64 KB or more that nobody reads any more: u of two turns, and v in one place. Where a cache
    has room for some rows of each, such turns are one kernel, and there are none."""

    def around(u):
        return u.slice(0, 1).pad((0, 0), (1, 0)) + u.slice(0, 0, rows - 1).pad((1, 0), (0, 0)) - u * 2

    def write(c: Case) -> None:
        u, v = c.input(grid(rows, 100)), c.input(grid(rows, 100, seed=1))
        for _ in range(2):
            v = v * 0.9 + around(u)
            u = u + A.map_("tanh", v)
        c.output(around(u) * v)

    assert len(build(write).check(cache_bytes=1 << 10).temps) == temps
    assert len(build(write).check().temps) == as_bands


def test_no_result_takes_the_place_of_what_is_read_elsewhere_or_is_smaller():
    def write(c: Case) -> None:
        sums = c.input(grid(200, 100)).scan("cumsum", 0)
        more = A.map_("tanh", sums.pad((0, 0), (0, 28)))
        c.output(more.scan("cumsum", 1))
        again = A.map_("exp", sums * 0.01)
        c.output(again.scan("cumsum", 1) + sums.flip(1))

    build(write).check()
