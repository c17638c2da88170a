"""Products of groups, in one launch, against the NumPy interpreter of their expansions, and what goes before them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ops_core.array import map_
from ops_core.lowering.grouped import rows, terms
from tests.codegen.case import Case, build
from tests.codegen.test_core_kernels import GPU

RANDOM = np.random.default_rng(0)
DEVICES = {"cpu": {}, "narrow": {"vector_bytes": 16}, "gpu": GPU | {"local_memory_bytes": 32 << 10}}
# Where groups of ten rows end: empty ones in front, behind and between, rows beyond all, ends out of range.
ENDS = [(3, 3, 10), (0, 0, 0), (10, 10, 10), (1, 9, 10), (2, 5, 8), (-2, 5, 99)]
SHAPES = [(8, 16), (5, 7), (40, 70)]


def whole(*shape: int) -> np.ndarray:
    """Small integers, whose sums are exact in any order."""
    return RANDOM.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_groups(device: str, ends: tuple[int, ...]) -> None:
    for (k, n), transposed in product(SHAPES, (False, True)):

        def write(c: Case, k: int = k, n: int = n, transposed: bool = transposed) -> None:
            a, b = (c.input(whole(10, k)), c.input(whole(3, n, k) if transposed else whole(3, k, n)))
            c.output(rows(a, b.transpose(1, 2) if transposed else b, c.input(np.array(ends, np.int32)))[0])

        build(write).check(launches=1, exact=True, **DEVICES[device])


@pytest.mark.parametrize("ends", [*ENDS, (7, 4, 9)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_terms_of_groups(device: str, ends: tuple[int, ...]) -> None:
    for (m, n), transposed in product(SHAPES, (False, True)):

        def write(c: Case, m: int = m, n: int = n, transposed: bool = transposed) -> None:
            a = c.input(whole(10, m)).transpose(0, 1) if transposed else c.input(whole(m, 10))
            c.output(terms(a, c.input(whole(10, n)), c.input(np.array(ends, np.int32)))[0])

        build(write).check(launches=1, exact=True, **DEVICES[device])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ends", [(0, 1, 1, 300), (100, 140, 260, 300), (300, 300, 300, 300)], ids=str)
def test_groups_of_many_tiles(device: str, ends: tuple[int, ...]) -> None:
    """and of more terms than are packed at a time"""

    def write(c: Case) -> None:
        at = c.input(np.array(ends, np.int32))
        c.output(rows(c.input(whole(300, 2100)), c.input(whole(4, 70, 2100)).transpose(1, 2), at)[0])
        c.output(terms(c.input(whole(300, 33)).transpose(0, 1), c.input(whole(300, 130)), at)[0])

    build(write).check(launches=2, exact=True, **DEVICES[device])


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_halves_are_added_up_as_floats(device: str) -> None:
    def write(c: Case) -> None:
        at = c.input(np.array([3, 4, 9], np.int32))
        c.output(rows(c.input(whole(10, 24).astype(np.float16)), c.input(whole(3, 24, 16).astype(np.float16)), at)[0])
        c.output(terms(c.input(whole(16, 10).astype(np.float16)), c.input(whole(10, 24).astype(np.float16)), at)[0])

    build(write).check(launches=2, exact=True, **DEVICES[device])


def test_a_column_major_result() -> None:
    def write(c: Case) -> None:
        made = rows(c.input(whole(10, 24)), c.input(whole(3, 24, 40)), c.input(np.array([3, 4, 9], np.int32)))[0]
        c.output(made.transpose(0, 1))

    build(write).check(exact=True)


@pytest.mark.parametrize("look_up", [False, True])
def test_what_is_computed_for_a_product_is_computed_once(look_up: bool) -> None:
    """An element of A meets each column: a look-up, or a function, would be one for each of these."""

    def write(c: Case) -> None:
        x, at = c.input(whole(20 if look_up else 10, 24)), c.input(np.array([3, 4, 10], np.int32))
        a = x.take(c.input(np.arange(9, -1, -1))) if look_up else map_("abs", x)
        c.output(rows(a, c.input(whole(3, 24, 40)), at)[0])

    build(write).check(launches=2, exact=True)
