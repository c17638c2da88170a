"""Dense factorisations, one launch each, against the NumPy interpreter of their expansions, which unroll all steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ops_core.array import Arr
from ops_core.lowering.linalg import cholesky, householder, lu, permutation, reflect, solve_triangular
from tests.codegen.case import Case, build
from tests.codegen.test_core_kernels import GPU

RANDOM = np.random.default_rng(0)
# (batch, rows, columns): less than a vector, whole vectors, a ragged end, more matrices than work items
SHAPES = [((), 1, 1), ((2,), 3, 3), ((), 16, 16), ((2, 2), 33, 33), ((40,), 5, 5), ((), 64, 64)]
DTYPES = ["f32", pytest.param("f64", marks=pytest.mark.slow)]
OBLONG = [*SHAPES, ((3,), 5, 3), ((3,), 3, 5), ((), 40, 17)]


def numbers(*shape: int, dtype: str = "f32") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype({"f32": np.float32, "f64": np.float64}[dtype])


def outputs(c: Case, made: tuple[Arr, ...]) -> None:
    for value in made:
        c.output(value)


def positive(batch: tuple[int, ...], n: int, dtype: str = "f32") -> np.ndarray:
    x = numbers(*batch, n, n, dtype=dtype)
    return x @ x.swapaxes(-1, -2) + n * np.eye(n, dtype=x.dtype)


def pivots(c: Case, batch: tuple[int, ...], count: int, rows: int) -> Arr:
    """As a factorisation has them: each exchanges a row with itself or with one below."""
    return c.input(
        (np.arange(count) + 1 + RANDOM.integers(0, rows - np.arange(count), (*batch, count))).astype(np.int32)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "n", "_"), SHAPES)
def test_cholesky(batch: tuple[int, ...], n: int, _: int, dtype: str) -> None:
    case = build(lambda c: outputs(c, cholesky(c.input(positive(batch, n, dtype)))))
    case.check(launches=1, exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "m", "n"), OBLONG)
def test_lu(batch: tuple[int, ...], m: int, n: int, dtype: str) -> None:
    build(lambda c: outputs(c, lu(c.input(numbers(*batch, m, n, dtype=dtype))))).check(launches=1, exact=True)


@pytest.mark.parametrize(("batch", "m", "n"), OBLONG)
def test_permutation(batch: tuple[int, ...], m: int, n: int) -> None:
    def write(c: Case) -> None:
        outputs(c, permutation(pivots(c, batch, min(m, n), m).unsqueeze(-1), rows=m))

    build(write).check(launches=1, exact=True)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(("batch", "n", "columns"), [*SHAPES, ((3,), 5, 1), ((2,), 6, 100), ((), 17, 130)])
def test_solve_triangular(batch: tuple[int, ...], n: int, columns: int, upper: bool, unit: bool) -> None:
    """More columns than a work item takes are shared out among several."""

    def write(c: Case) -> None:
        a, b = (
            c.input(numbers(*batch, n, n) / n + 2 * np.eye(n, dtype=np.float32)),
            c.input(numbers(*batch, n, columns)),
        )
        outputs(c, solve_triangular(a, b, upper=upper, unit=unit))

    build(write).check(launches=1, exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "m", "n"), OBLONG)
def test_householder(batch: tuple[int, ...], m: int, n: int, dtype: str) -> None:
    build(lambda c: outputs(c, householder(c.input(numbers(*batch, m, n, dtype=dtype))))).check(launches=1)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("batch", "m", "n"), [*OBLONG, ((2,), 6, 100)])
def test_reflect(batch: tuple[int, ...], m: int, n: int, transpose: bool) -> None:
    def write(c: Case) -> None:
        count = min(m, n, 4)
        vectors, tau = c.input(numbers(*batch, m, count) / m), c.input(RANDOM.random((*batch, count), np.float32))
        outputs(c, reflect(vectors, tau, c.input(numbers(*batch, m, n)), transpose=transpose))

    build(write).check(launches=1)


def everything(c: Case) -> None:
    """One of each, of a batch with a singular, an indefinite, an infinite and a NaN matrix."""
    x = positive((6,), 7)
    x[1, 3], x[2, 2, 2], x[3, 4, 1], x[4, 0, 0] = x[1, 2], -1, np.inf, np.nan
    a = c.input(x)
    outputs(c, cholesky(a))
    outputs(c, lu(a))
    outputs(c, permutation(pivots(c, (6,), 7, 7).unsqueeze(-1), rows=7))
    outputs(c, solve_triangular(a, c.input(numbers(6, 7, 3)), upper=True, unit=False))


@pytest.mark.parametrize("caps", [{}, {"vector_bytes": 16}, GPU], ids=["cpu", "narrow", "gpu"])
def test_what_goes_wrong_goes_wrong_alike(caps: dict[str, int]) -> None:
    build(everything).check(launches=4, exact=True, **caps)


def test_doubles_on_registers_of_one_float() -> None:
    case = build(lambda c: outputs(c, cholesky(c.input(positive((2,), 9, "f64")))))
    case.check(launches=1, exact=True, **GPU | {"vector_bytes": 4})


def test_half_types_are_written_out() -> None:
    plan = build(lambda c: outputs(c, cholesky(c.input(positive((), 4).astype(np.float16))))).check()
    assert len(plan.launches) > 1


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_that_is_replaced_by_its_factor(transposed: bool) -> None:
    """The factor may go where the matrix is; what else is read from there has been read."""

    def write(c: Case) -> None:
        slot = c.slot(positive((3,), 20))
        strides = (400, 1, 20) if transposed else (400, 20, 1)
        factor, info = cholesky(c.view(slot, (3, 20, 20)))
        c.store(factor, slot, strides)
        c.output(info)
        c.output(c.view(slot, (3, 20, 20)).sum())

    build(write).check()


def test_columns_that_are_replaced_by_others_of_the_same_memory() -> None:
    """A work item must not write what another has yet to read."""

    def write(c: Case) -> None:
        slot, wide = c.slot(numbers(8 * 300)), (300, 1)
        a = c.input(numbers(8, 8) + 8 * np.eye(8, dtype=np.float32))
        (x,) = solve_triangular(a, c.view(slot, (8, 200), wide), upper=False, unit=False)
        c.store(x, slot, wide, offset=70)

    build(write).check(exact=True)


@pytest.mark.parametrize("make", [cholesky, lu, householder])
def test_factors_that_nobody_reads_are_not_written(make: Callable[[Arr], tuple[Arr, ...]]) -> None:
    """What is left is the scratch memory of eight work items."""
    plan = build(lambda c: [c.output(make(c.input(positive((40,), 16)))[-1])]).check(launches=1)
    assert [t.nbytes for t in plan.temps] == [8 * 16 * 16 * 4]
