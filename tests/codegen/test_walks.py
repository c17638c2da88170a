"""Walks over a row: several vectors a step where the row is walked again, whose next row the last walk asks for."""

from __future__ import annotations

import re

import pytest

from ops_core.array import Arr, map_
from tests.codegen.test_kept_rows import DEVICES, rows, run


def norm(x: Arr, axis: int) -> Arr:
    centred = x - x.mean(axis, True)
    return centred * map_("rsqrt", (centred * centred).mean(axis, True) + 1e-5)


def text(fn, length: int, device: str = "cpu") -> str:
    return run(fn, rows(6, length), 1, "f32", DEVICES[device])[1]


def side_by_side(mlir: str) -> list[int]:
    """The vectors that each loop carries sums of."""
    return [found.count("vector<") for found in re.findall(r"iter_args\(.*?\) -> \((.*?)\)", mlir)]


def test_each_sum_of_a_row_that_is_walked_again_has_four_accumulators() -> None:
    assert side_by_side(text(norm, 1024)) == [4, 4]


def test_a_row_of_fewer_vectors_has_fewer() -> None:
    assert max(side_by_side(text(norm, 40))) == 2


def test_a_walk_of_many_operations_has_one() -> None:
    """unless those are of functions, which take turns: `tests/codegen/kernels/test_lockstep.py`"""

    def long(x: Arr, axis: int) -> Arr:
        y = x
        for n in range(12):
            y = y * (x + n)
        return y - y.mean(axis, True)

    assert side_by_side(text(long, 1024)) == [1]


def test_the_last_walk_asks_for_the_next_row() -> None:
    mlir = text(norm, 1024)
    assert mlir.count("memref.prefetch") == 1
    assert mlir.index("memref.prefetch") > mlir.rindex("scf.for")


@pytest.mark.parametrize(("length", "device"), [(128, "cpu"), (1024, "gpu")])
def test_short_rows_and_gpus_ask_for_nothing(length: int, device: str) -> None:
    assert "memref.prefetch" not in text(norm, length, device)
