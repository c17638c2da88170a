"""Loads and stores of the same memory keep program order, however kernels are cut."""

from __future__ import annotations

import numpy as np

from ops_core.array import map_
from tests.codegen.case import Case, build


def ramp(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def test_a_shifted_copy_within_a_buffer_reads_old_elements() -> None:
    def write(c: Case) -> None:
        slot = c.slot(ramp(1000))
        c.store(c.view(slot, (999,)) + 1, slot, offset=1)

    build(write).check(launches=2, exact=True)


def test_a_plain_shifted_copy_goes_through_a_temp() -> None:
    def write(c: Case) -> None:
        slot = c.slot(ramp(8))
        c.store(c.view(slot, (6,)), slot, offset=2)

    build(write).check(exact=True)


def test_a_value_loaded_before_a_store_stays_old() -> None:
    def write(c: Case) -> None:
        slot = c.slot(ramp(100))
        old = c.view(slot, (100,))
        c.store(old + 1, slot)
        c.output(c.view(slot, (100,)) * 2 + old)

    build(write).check(exact=True)


def test_a_reversed_store_does_not_feed_itself() -> None:
    def write(c: Case) -> None:
        slot = c.slot(ramp(100))
        old = c.view(slot, (100,))
        c.store(old.flip(0) + 1, slot)
        c.output(old.sum())
        c.output(c.view(slot, (100,)).sum())

    build(write).check(exact=True)


def test_disjoint_parts_of_a_buffer_share_a_kernel() -> None:
    def write(c: Case) -> None:
        slot = c.slot(ramp(100))
        c.store(c.view(slot, (50,)) * 2, slot, offset=50)

    build(write).check(launches=1, exact=True)


def test_a_row_that_is_replaced_by_its_softmax_is_read_first() -> None:
    def write(c: Case) -> None:
        slot = c.slot(np.sin(ramp(40 * 100)))
        x = c.view(slot, (40, 100))
        e = map_("exp", x - x.amax(1, True))
        c.store(e / e.sum(1, True), slot)

    build(write).check(launches=1)


def test_a_stencil_in_place_uses_the_old_neighbours() -> None:
    def write(c: Case) -> None:
        slot = c.slot(np.sin(ramp(20 * 30)))
        up, down = c.view(slot, (18, 28), (30, 1), 1), c.view(slot, (18, 28), (30, 1), 61)
        left, right = c.view(slot, (18, 28), (30, 1), 30), c.view(slot, (18, 28), (30, 1), 32)
        c.store((up + down + left + right) * 0.25, slot, (30, 1), 31)

    build(write).check(launches=2, exact=True)
