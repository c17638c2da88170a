"""Factorisations against LAPACK: empty matrices, and factors that follow the strides of the operand."""

import pytest
import torch

from ops_core import layout_dependent
from ops_core.lowering.schema import op_named

from .checker import check

A = torch.ops.aten
SHAPES = [(0, 0), (3, 0), (0, 3), (2, 0, 3), (2, 0, 0), (0, 3, 3), (1, 2, 0, 0)]
SQUARE = [shape for shape in SHAPES if shape[-1] == shape[-2]]


def pivots(shape):
    return torch.zeros((*shape[:-2], min(shape[-2:])), dtype=torch.int32)


EMPTY = [
    *[(name, (torch.zeros(shape),)) for name in ("geqrf", "linalg_lu_factor_ex", "linalg_lu", "linalg_qr")
      for shape in SHAPES],
    *[(name, (torch.zeros(shape),)) for name in ("linalg_cholesky_ex", "linalg_inv_ex", "cholesky_inverse")
      for shape in SQUARE],
    *[("linalg_qr", (torch.zeros(shape), "complete")) for shape in SHAPES],
    *[("lu_unpack", (torch.zeros(shape), pivots(shape))) for shape in SHAPES],
    *[("linalg_lu_solve", (torch.zeros(shape), pivots(shape), torch.zeros(*shape[:-1], 2))) for shape in SQUARE],
    *[("linalg_solve_triangular", (torch.zeros(shape), torch.zeros(*shape[:-1], 2)), {"upper": True})
      for shape in SQUARE],
    *[("_cholesky_solve_helper", (torch.zeros(*shape[:-1], 2), torch.zeros(shape), False)) for shape in SQUARE],
]  # fmt: skip


@pytest.mark.parametrize("call", EMPTY, ids=lambda call: f"{call[0]}-{'x'.join(map(str, call[1][0].shape))}")
def test_empty_matrices_have_the_cpus_factors(call):
    name, args, *kwargs = call
    assert check(op_named(f"aten.{name}.default"), args, *(kwargs or [{}])) is None


def matrices(*shape):
    """Well-conditioned matrices that need row exchanges."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return made + 2 * torch.eye(shape[-1]).flip(0)


OPERANDS = [matrices(5, 5), matrices(5, 5).mT, matrices(3, 4, 4), matrices(4, 4, 4)[::2], torch.zeros(2, 0, 0)]


def close(got, expected):
    for ours, eager in zip(got, expected, strict=True):
        assert ours.dtype == eager.dtype and ours.shape == eager.shape
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("x", OPERANDS, ids=lambda x: str(tuple(x.stride())))
def test_determinants_keep_the_factors_that_the_cpu_keeps(x):
    close(layout_dependent.det(x), A._linalg_det(x))
    close(layout_dependent.slogdet(x), A._linalg_slogdet(x))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("x", OPERANDS, ids=lambda x: str(tuple(x.stride())))
def test_systems_are_solved_from_either_side_and_for_vectors(x, left):
    n = x.shape[-1]
    sizes = [(*x.shape[:-2], n, 3) if left else (*x.shape[:-2], 3, n), *([x.shape[:-1]] if left else [])]
    for size in sizes:
        assert check(op_named("aten._linalg_solve_ex.default"), (x, torch.randn(size)), {"left": left}) is None


def test_out_faces_resize_what_they_write():
    x, outs = matrices(4, 4), [torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.int32)]
    names = dict(zip(("result", "LU", "pivots"), outs, strict=True))
    returned = layout_dependent.KERNELS["_linalg_det.result"](x, **names)
    close(outs, A._linalg_det(x))
    assert all(a is b for a, b in zip(returned, outs, strict=True))


@pytest.mark.parametrize("bad", [torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, 3, dtype=torch.int64)])
def test_what_is_no_square_float_matrix_is_refused_in_eagers_words(bad):
    for ours, eager in ((layout_dependent.det, A._linalg_det), (layout_dependent.slogdet, A._linalg_slogdet)):
        with pytest.raises(RuntimeError) as expected:
            eager(bad)
        with pytest.raises(RuntimeError) as got:
            ours(bad)
        assert str(got.value) == str(expected.value)


def test_a_singular_matrix_is_told_in_info():
    call = (torch.ones(2, 3, 3), torch.ones(2, 3))
    assert check(op_named("aten._linalg_solve_ex.default"), call, {}) is None
