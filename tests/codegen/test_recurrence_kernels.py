"""Recurrent layers against the NumPy interpreter, which writes each step out: as one walk, and as kernels a step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ops_core.lowering.recurrence import CELLS, recurrence, recurrence_backward
from tests.codegen.case import Case, build
from tests.codegen.test_core_kernels import GPU

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def forward(kind: str, steps: int, batch: int, size: int, reverse: bool) -> Callable[[Case], None]:
    def write(c: Case) -> None:
        wide = CELLS[kind].gates * size
        memory = [c.input(floats(batch, size))] if kind == "lstm" else []
        inputs = c.input(floats(steps, batch, wide)), c.input(floats(batch, size)), c.input(floats(wide, size))
        for value in recurrence(*inputs, *memory, c.input(floats(wide)), kind=kind, biased=True, reverse=reverse):
            c.output(value)

    return write


def backward(kind: str, steps: int, batch: int, size: int, reverse: bool) -> Callable[[Case], None]:
    def write(c: Case) -> None:
        cell = CELLS[kind]
        memory = [c.input(floats(batch, size))] if kind == "lstm" else []
        saved = c.input(RANDOM.random((steps, batch, cell.saved * size), np.float32))
        grad, weight = c.input(floats(steps, batch, size)), c.input(floats(cell.gates * size, size))
        for value in recurrence_backward(grad, saved, weight, *memory, kind=kind, reverse=reverse):
            c.output(value)

    return write


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("way", [forward, backward])
@pytest.mark.parametrize("kind", CELLS)
def test_one_walk(kind: str, way: Callable[..., Callable[[Case], None]], reverse: bool) -> None:
    """The weight is packed, then one launch does all steps."""
    build(way(kind, 4, 5, 18, reverse)).check(launches=2)


# (work items of a group, batch, size): terms that parts of a group do not share evenly, columns that lanes do not,
# several columns for each item, several rows for each group and rows that groups do not share evenly.
GROUPS = [(256, 4, 16), (256, 5, 18), (256, 3, 100), (64, 2, 150), (256, 6, 32), (128, 1, 7)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("way", [forward, backward])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("group", "batch", "size"), GROUPS)
@pytest.mark.sampled
def test_work_groups_that_walk(
    group: int, batch: int, size: int, kind: str, way: Callable[..., Callable[[Case], None]], reverse: bool
) -> None:
    """On a GPU a work-group takes rows through all steps, forward after the weight is packed."""
    gpu = GPU | {"max_work_group_size": group, "local_memory_bytes": 1 << 15, "compute_units": 2}
    build(way(kind, 3, batch, size, reverse)).check(launches=1 if way is backward else 2, **gpu)


@pytest.mark.parametrize("way", [forward, backward])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_steps_written_out(kind: str, way: Callable[..., Callable[[Case], None]]) -> None:
    """What a device runs that is no CPU and whose local memory does not hold the state of a row."""
    plan = build(way(kind, 3, 4, 160, False)).check(**GPU, local_memory_bytes=3 << 10, global_memory_bytes=1 << 30)
    assert len(plan.launches) > 2


@pytest.mark.parametrize("kind", CELLS)
def test_results_that_nobody_reads_are_not_written(kind: str) -> None:
    """In inference nothing is kept for the backward pass: the memory of such results is never taken."""

    def write(c: Case) -> None:
        wide = CELLS[kind].gates * 16
        memory = [c.input(floats(4, 16))] if kind == "lstm" else []
        inputs = c.input(floats(3, 4, wide)), c.input(floats(4, 16)), c.input(floats(wide, 16))
        c.output(recurrence(*inputs, *memory, kind=kind, biased=False, reverse=False)[0])

    plan = build(write).check(launches=2)
    states = 2 if kind == "lstm" else 1
    assert len(plan.temps) == 1 + states  # the packed weight, the states between steps
