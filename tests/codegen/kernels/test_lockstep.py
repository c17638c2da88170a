"""Functions of several vectors take turns: where, of how many vectors, and with the bits of one vector at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ops_core.array import Arr, map_
from tests.codegen.case import build, from_device, to_device
from tests.codegen.run_plan import run_plan
from tests.codegen.test_kept_rows import GPU, ONE_VECTOR, norm_block, reference, rows, softmax

FUNCTIONS = ("exp", "log", "tanh", "erf", "sin", "expm1", "lgamma")
SIXTEEN = {"vector_bytes": 32, "max_private_bytes": 16 * 32}  # registers


def run(write: Callable[..., Any], x: np.ndarray, dtype: str, **caps: Any) -> tuple[np.ndarray, str]:
    """What a kernel makes of an array, and its text."""
    case = build(
        lambda c: c.output(write(c.view(c.slot(x, dtype), x.shape).to("f64" if dtype == "f64" else "f32")).to(dtype))
    )
    plan = case.plan(**caps)
    (kernel,) = plan.kernels
    got = run_plan(plan, {n: to_device(m, case.dtypes[n]) for n, m in case.memory.items()}, [])
    return from_device(got[1], dtype).reshape(x.shape), kernel.mlir


def steps(mlir: str) -> list[int]:
    """How many vectors each innermost loop writes in a step."""
    loops = re.finditer(r"^( *)scf.for", mlir, re.MULTILINE)
    bodies = [mlir[at.end() :].partition(f"\n{at[1]}}}")[0] for at in loops]
    return [body.count("vector.store") for body in bodies if "scf.for" not in body]


@pytest.mark.parametrize(("caps", "vectors"), [({}, 4), (SIXTEEN, 2), (ONE_VECTOR, 1)])
def test_vectors_in_a_step_are_as_many_as_there_are_registers_for(caps: dict[str, Any], vectors: int) -> None:
    _, mlir = run(lambda x: 0.5 * x * (1 + map_("tanh", x)), rows(4096), "f32", **caps)
    assert max(steps(mlir)) == vectors
    assert mlir.count("math.tanh") == 2  # of one vector, and of what is left of a chunk


def test_a_gpus_work_items_take_one() -> None:
    _, mlir = run(lambda x: map_("tanh", x), rows(4096), "f32", **GPU)
    assert max(steps(mlir)) == 1


def test_simple_chains_have_no_copies() -> None:
    _, mlir = run(lambda x: x * 2 + 1, rows(4096), "f32")
    assert max(steps(mlir)) == 1


def test_many_functions_take_fewer_vectors() -> None:
    """since that takes long to compile"""

    def chain(x: Arr) -> Arr:
        for fn in ("tanh", "sin", "cos"):
            x = map_(fn, x)
        return x

    assert max(steps(run(chain, rows(4096), "f32")[1])) == 2


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_bits_are_those_of_one_vector_at_a_time(fn: str, dtype: str) -> None:
    for length in (1, 15, 64, 65, 200, 4096 + 83):
        x = abs(rows(length, dtype=dtype)) if fn in ("log", "lgamma") else rows(length, dtype=dtype)
        got, _ = run(lambda x: map_(fn, x) * 2, x, dtype)
        want, _ = run(lambda x: map_(fn, x) * 2, x, dtype, **ONE_VECTOR)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("length", [64, 100, 1023, 5000])
@pytest.mark.parametrize("fn", ["exp", "tanh"])
def test_so_are_they_in_rows_that_share_a_number(fn: str, length: int) -> None:
    def write(x: Arr) -> Arr:
        return map_(fn, x * x.slice(1, 0, 1, 1).expand(*x.shape))

    x = rows(40, length)
    got, mlir = run(write, x, "f32")
    want, _ = run(write, x, "f32", **ONE_VECTOR)
    assert max(steps(mlir)) == 4
    np.testing.assert_array_equal(got, want)


def test_vectors_that_follow_a_walks_steps_add_to_the_same_sums() -> None:
    """130 = 2 x 64 + 2: no lanes are combined between"""
    _, mlir = run(lambda x: softmax(x, 1), rows(5, 160), "f32")
    _, whole = run(lambda x: softmax(x, 1), rows(5, 128), "f32")
    assert mlir.count("vector.shuffle") == whole.count("vector.shuffle")


def log_softmax_gradient(x: Arr, axis: int) -> Arr:
    """Its last walk has a function and sums nothing."""
    return map_("exp", x - x.amax(axis, True)) - map_("exp", x) * x.sum(axis, True)


@pytest.mark.parametrize("length", [16, 63, 64, 130, 1024, 1000])
@pytest.mark.parametrize("fn", [softmax, norm_block, log_softmax_gradient])
def test_walks_agree_with_float64(fn: Callable[[Arr, int], Arr], length: int) -> None:
    x = rows(5, length)
    got, _ = run(lambda x: fn(x, 1), x, "f32")
    want = reference(fn, x, 1)
    np.testing.assert_allclose(got, want, atol=2e-6 * max(1.0, float(abs(want).max())))
