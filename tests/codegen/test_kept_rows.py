"""Values of a row that a later walk needs: computed once, whatever the length, dtype, layout and device are like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from codegen.kernels.nest import tail
from ops_core import numerics
from ops_core.array import Arr, map_
from tests.codegen.case import Case, build, from_device, to_device
from tests.codegen.run_plan import run_plan

# Absolute errors against float64, where results are about 1: roundings of the dtype, and what its steps add up.
ERROR = {"f64": 1e-13, "f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}
ONE_VECTOR = {"max_private_bytes": 8 * 64}  # no registers for functions of several that take turns
GPU = {"is_cpu": False, "vector_bytes": 4, "max_work_group_size": 64, "local_memory_bytes": 32 << 10}
DEVICES = {"cpu": {}, "gpu": GPU, "gpu without local memory": GPU | {"local_memory_bytes": 0}}


def softmax(x: Arr, axis: int) -> Arr:
    e = map_("exp", x - x.amax(axis, True))
    return e / e.sum(axis, True)


def gelu(x: Arr) -> Arr:
    return 0.5 * x * (1 + map_("erf", x * 0.70710678118654752))


def norm_block(x: Arr, axis: int) -> Arr:
    y = x + softmax(gelu(x), axis)
    centred = y - y.mean(axis, True)
    return centred * map_("rsqrt", (centred * centred).mean(axis, True) + 1e-5)


def sines(x: Arr, axis: int) -> Arr:
    """Two values of the first walk that the last one needs."""
    return map_("sin", x) * map_("sin", x).sum(axis, True) + map_("exp", x) / map_("exp", x).sum(axis, True)


def reference(fn: Callable[[Arr, int], Arr], x: np.ndarray, axis: int) -> np.ndarray:
    """The function in float64, by the interpreter."""
    from ops_core import interpret

    case = build(lambda c: c.output(fn(c.input(x.astype(np.float64)), axis)))
    memory = {n: m.copy() for n, m in case.memory.items()}
    interpret.run(case.graph, memory, [])
    return memory[1].reshape(x.shape)


def run(
    fn: Callable[[Arr, int], Arr], x: np.ndarray, axis: int, dtype: str, caps: dict[str, Any], in_place: bool = False
) -> tuple[np.ndarray, str]:
    """The result on the device, computed in float32 where dtype is a half type, and the kernel's MLIR."""
    wide = "f32" if dtype in ("f16", "bf16") else dtype

    def write(c: Case) -> None:
        slot = c.slot(x, dtype)
        y = fn(c.view(slot, x.shape).to(wide), axis).to(dtype)
        if in_place:
            c.store(y, slot)
        else:
            c.output(y)

    case = build(write)
    plan = case.plan(**caps)
    (kernel,) = plan.kernels
    got = run_plan(plan, {n: to_device(m, case.dtypes[n]) for n, m in case.memory.items()}, [])
    return from_device(got[0 if in_place else 1], dtype).reshape(x.shape).astype(np.float64), kernel.mlir


def rows(*shape: int, dtype: str = "f32") -> np.ndarray:
    """Random rows that the dtype holds exactly."""
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype(numerics.numpy_dtype(dtype))
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if dtype == "bf16" else x


def calls(mlir: str, fn: str) -> int:
    """Where a kernel's text calls a function: twice for each walk whose row has a tail."""
    return mlir.count(f"math.{fn} ")


def check(fn: Callable[[Arr, int], Arr], x: np.ndarray, axis: int, dtype: str, device: str, in_place: bool) -> None:
    got, _ = run(fn, x, axis, dtype, DEVICES[device], in_place)
    want = reference(fn, x, axis)
    np.testing.assert_allclose(got, want, atol=ERROR[dtype] * max(1.0, float(abs(want).max())))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 17, 128, 1023, 4097])
def test_rows_of_any_length_agree_with_float64(length: int, device: str) -> None:
    for fn, in_place in ((softmax, False), (norm_block, True), (sines, False)):
        check(fn, rows(6, length), 1, "f32", device, in_place)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("length", [100, 1024])
def test_rows_of_any_dtype_agree_with_float64(length: int, dtype: str, device: str) -> None:
    for fn in (norm_block, sines):
        check(fn, rows(6, length, dtype=dtype), 1, dtype, device, in_place=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "axis"), [((3, 40, 33), 1), ((70, 32), 0), ((2, 3, 4, 5), 2)])
def test_walks_across_the_vector(shape: tuple[int, ...], axis: int, device: str) -> None:
    for fn, in_place in ((softmax, False), (norm_block, True)):
        check(fn, rows(*shape), axis, "f32", device, in_place)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("length", [1024, 1023])
def test_costly_functions_are_computed_once(length: int, dtype: str, in_place: bool) -> None:
    """in whole vectors, and in each of the shorter ones that are left"""
    once = 1 + len(tail(length, 8 if dtype == "f64" else 16))
    _, mlir = run(norm_block, rows(4, length, dtype=dtype), 1, dtype, ONE_VECTOR, in_place)
    assert calls(mlir, "erf") == calls(mlir, "exp") == once
    _, mlir = run(sines, rows(4, length, dtype=dtype), 1, dtype, ONE_VECTOR, in_place)
    assert calls(mlir, "sin") == calls(mlir, "exp") == once


def test_an_output_holds_the_row_where_it_can() -> None:
    """Float32 results need no other memory; half types, and rows that are updated in place, do."""
    for dtype, in_place, arrays in (("f32", False, 0), ("f64", False, 0), ("f16", False, 1), ("f32", True, 1)):
        _, mlir = run(norm_block, rows(4, 1000, dtype=dtype), 1, dtype, {}, in_place)
        assert mlir.count("memref.alloca") == arrays, (dtype, in_place)


def test_rows_without_room_are_computed_again() -> None:
    """A GPU's work item that has the row for itself has no memory for it, nor has a group beyond its local memory."""
    x = rows(4, 8192)
    for caps, again in ((DEVICES["gpu"], 4), (GPU | {"local_memory_bytes": 1 << 20}, 1)):
        got, mlir = run(norm_block, x, 1, "f32", caps, in_place=True)
        assert calls(mlir, "exp") == again
        np.testing.assert_allclose(got, reference(norm_block, x, 1), atol=2e-5)


def test_a_long_row_fits_the_stack() -> None:
    """The longest rows that one kernel walks several times, with a device's whole cache."""
    x = rows(64, 1 << 16)
    got, mlir = run(softmax, x, 1, "f32", {"cache_bytes": 1 << 20}, in_place=True)
    assert "memref.alloca" in mlir
    np.testing.assert_allclose(got, reference(softmax, x, 1), atol=1e-9)


def test_a_result_is_read_back() -> None:
    """A value that the kernel writes for others anyway is its own copy, and another output is not touched before."""

    def write(c: Case) -> None:
        y = gelu(c.input(rows(9, 1000)))
        c.output(y)
        c.output(y - y.mean(1, True))

    case = build(write)
    plan = case.check(launches=1)
    assert calls(plan.kernels[0].mlir, "erf") == 2  # whole vectors, tail
    assert "memref.alloca" not in plan.kernels[0].mlir


def test_an_output_across_the_vector_holds_no_row() -> None:
    def write(c: Case) -> None:
        x, y, z = (c.input(rows(40, 48)) for _ in range(3))
        c.output(softmax(x + y + z, 1).transpose(0, 1))

    plan = build(write).check(launches=1)
    assert calls(plan.kernels[0].mlir, "exp") == plan.kernels[0].mlir.count("memref.alloca") == 1


def test_cheap_values_are_computed_again() -> None:
    """A difference or a product costs less than a write and a read."""

    def layer_norm(x: Arr, axis: int) -> Arr:
        centred = x * 2 - x.mean(axis, True)
        return centred * map_("rsqrt", (centred * centred).mean(axis, True) + 1e-5)

    _, mlir = run(layer_norm, rows(4, 1024), 1, "f32", {}, in_place=True)
    assert "memref.alloca" not in mlir


def test_what_is_read_once_a_row_does_not_turn_the_walk() -> None:
    """A bias gradient: channels lie side by side in the results, but far apart in the data, which vectors follow."""

    def write(c: Case) -> None:
        total = c.input(rows(3, 32, 5, 48)).sum([0, 2, 3])
        c.output(c.input(rows(32)) + total)
        c.output(total)

    plan = build(write).check(launches=1)
    assert "vector.load" in plan.kernels[0].mlir
    assert "vector.from_elements" not in plan.kernels[0].mlir
