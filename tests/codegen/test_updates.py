"""Many updates of few elements: when they are made in parts, which are one kernel, and what has to stay in order."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from codegen.rewrite import rewrite
from ops_core.array import Arr, full, map_
from tests.codegen.case import Case, build
from tests.codegen.run_plan import capabilities
from tests.codegen.test_core_kernels import GPU

RANDOM = np.random.default_rng(0)
CELLS, UPDATES = 16, 1000


def whole(*shape: int) -> np.ndarray:
    """Small integers, whose sums are exact in any order."""
    return RANDOM.integers(-4, 5, shape).astype(np.float32)


def cells(c: Case, count: int = UPDATES) -> Arr:
    """Where to."""
    return c.input(RANDOM.integers(0, CELLS, count))


def held(x: Arr) -> Arr:
    """Within the result, as PyTorch's ops have it: each has nodes of its own for that."""
    return map_("minimum", map_("maximum", x, 0), CELLS - 1)


def kernels(case: Case) -> int:
    """How many nodes make updates in parts."""
    graph = rewrite(case.graph, capabilities(compute_units=2), lambda node: False)
    return sum(node.op == "partial_updates" for node in graph.nodes)


def counts_and_sums(c: Case, more: int = 1) -> None:
    cell, rows = cells(c), c.input(whole(UPDATES, 2))
    c.output(full((CELLS,), 0, "f32").scatter(0, held(cell), full((UPDATES,), 1, "f32"), "add"))
    for n in range(more):
        c.output((c.input(whole(CELLS, 2)) + n).index_put([held(cell)], rows * (n + 1), "add"))


@pytest.mark.parametrize("more, count", [(1, 1), (3, 1), (4, 2)])
def test_updates_at_the_same_indices_are_one_kernel(more: int, count: int) -> None:
    """of up to four results: a work item for each unit, whose rows are what one update writes"""
    case = build(lambda c: counts_and_sums(c, more))
    assert kernels(case) == count
    plan = case.check(exact=True, compute_units=2)
    rows = [4 if more == 1 else 8] + [2] * (count - 1)
    assert sorted(temp.nbytes for temp in plan.temps) == sorted(2 * CELLS * row * 4 for row in rows)


def test_elements_beside_each_other_are_read_together() -> None:
    """a pair is one vector, with which its row begins, and the count stands behind it"""
    plan = build(counts_and_sums).check(exact=True, compute_units=2)
    text = max((kernel.mlir for kernel in plan.kernels), key=lambda mlir: mlir.count("vector<4xf32>"))
    pairs = re.findall(r"(%\w+) = vector.load .* vector<2xf32>", text)
    rows = [row.split(", ") for row in re.findall(r"vector.from_elements (.*) : vector<4xf32>", text)]
    assert len(pairs) == len(rows) == 16 + 1  # at a time, and of the rest
    for pair, row in zip(pairs, rows, strict=True):
        assert all(f"{lane} = vector.extract {pair}[{n}]" in text for n, lane in enumerate(row[:2]))


def test_what_is_made_of_sums_is_one_kernel_with_their_parts() -> None:
    """The parts of the counts are read again for each mean."""

    def write(c: Case) -> None:
        cell = held(cells(c))
        counts = full((CELLS,), 0, "f32").scatter(0, cell, full((UPDATES,), 1, "f32"), "add")
        sums = full((CELLS, 2), 0, "f32").index_put([cell], c.input(whole(UPDATES, 2)), "add")
        c.output(sums / map_("maximum", counts, 1).reshape(CELLS, 1).expand(CELLS, 2))

    build(write).check(launches=2, compute_units=2)


def other_cells(c: Case) -> None:
    for _ in range(2):
        c.output(full((CELLS,), 0, "f32").scatter(0, cells(c), c.input(whole(UPDATES)), "add"))


def other_types(c: Case) -> None:
    cell = cells(c)
    c.output(full((CELLS,), 0, "f32").scatter(0, cell, c.input(whole(UPDATES)), "add"))
    c.output(full((CELLS,), 0, "i64").scatter(0, cell, full((UPDATES,), 1, "i64"), "add"))


def one_of_the_other(c: Case) -> None:
    """The second adds what the first found."""
    cell = cells(c)
    sums = full((CELLS,), 0, "f32").scatter(0, cell, c.input(whole(UPDATES)), "add")
    c.output(full((CELLS,), 0, "f32").scatter(0, cell, sums.take(cell), "add"))


def written_between(c: Case) -> None:
    """What the second adds is written after the first has been."""
    cell, slot = cells(c), c.slot(whole(UPDATES))
    sums = full((CELLS,), 0, "f32").scatter(0, cell, c.input(whole(UPDATES)), "add")
    c.store(c.view(slot, (UPDATES,)) + sums.take(cell), slot)
    c.output(sums)
    c.output(full((CELLS,), 0, "f32").scatter(0, cell, c.view(slot, (UPDATES,)), "add"))


@pytest.mark.parametrize("write", [other_cells, other_types, one_of_the_other, written_between])
def test_what_cannot_be_one_kernel(write: Callable[[Case], None]) -> None:
    case = build(write)
    assert kernels(case) == 2
    case.check(exact=True, compute_units=2)


def test_values_that_are_computed_later_come_first() -> None:
    """All that the second needs and the first does not runs before both."""

    def write(c: Case) -> None:
        cell, x = cells(c), c.input(whole(UPDATES, 64))
        sums = full((CELLS,), 0, "f32").scatter(0, cell, c.input(whole(UPDATES)), "add")
        c.output(sums * 2)
        c.output(full((CELLS,), 1, "f32").scatter(0, cell, x.sum(1), "add"))

    case = build(write)
    assert kernels(case) == 1
    case.check(exact=True, compute_units=2)


@pytest.mark.parametrize("reduce", ["add", "mul", "amax", "amin"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter_along_a_dim(dim: int, reduce: str) -> None:
    """whose other indices are where an update is; the result has more places than are updated"""
    shape = [3, 3, 3]
    shape[dim] = 400

    def write(c: Case) -> None:
        x = c.input(whole(*(2 if d == dim else 4 for d in range(3))))
        c.output(x.scatter(dim, c.input(RANDOM.integers(0, 2, shape)), c.input(whole(*shape)), reduce))

    build(write).check(launches=2, compute_units=2)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "u8"])
@pytest.mark.parametrize("rest", [(), (1,), (3,), (4,), (2, 2)])
@pytest.mark.parametrize("reduce", ["add", "amax"])
def test_rows_of_any_type_and_size(dtype: str, rest: tuple[int, ...], reduce: str) -> None:
    """one index or two"""

    def write(c: Case) -> None:
        first, second = cells(c, 3000), c.input(RANDOM.integers(0, 3, 3000))
        updates = c.input(RANDOM.integers(0, 3, (3000, *rest))).to(dtype)
        c.output(c.input(RANDOM.integers(0, 3, (CELLS, *rest))).to(dtype).index_put([first], updates, reduce))
        c.output(
            c.input(RANDOM.integers(0, 3, (CELLS, 3, *rest))).to(dtype).index_put([first, second], updates, reduce)
        )

    build(write).check(exact=True, compute_units=2)


def test_in_the_memory_that_is_updated() -> None:
    def write(c: Case) -> None:
        slot = c.slot(whole(CELLS, 2))
        x = c.view(slot, (CELLS, 2)).index_put([cells(c)], c.input(whole(UPDATES, 2)), "add")
        c.store(x, slot)
        c.output(c.view(slot, (CELLS, 2)) + 1)

    build(write).check(exact=True, compute_units=2)


def test_a_gpu_combines_many_parts() -> None:
    """where the user asks for the same sums in every run; the parts are a reduction's"""

    def write(c: Case) -> None:
        made = full((2,), 1, "f32").scatter(0, c.input(RANDOM.integers(0, 2, 5000)), c.input(whole(5000)), "add")
        made.v.node.attrs["ordered"] = True
        c.output(made)

    plan = build(write).check(exact=True, **GPU | {"compute_units": 4})
    assert not any("atomic" in kernel.mlir for kernel in plan.kernels)
    assert 256 in [launch.global_size[0] for launch in plan.launches]
