"""Dense factorisations: eager's numbers, infos, pivots and errors, in a few launches whatever the size."""

import pytest
import torch
from torch import linalg

import lazy_backend

CLOSE = {torch.float32: {"rtol": 2e-4, "atol": 2e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-11}}
DTYPES = list(CLOSE)


def matrices(*shape, dtype=torch.float32):
    """Well-conditioned, not symmetric; the largest elements of their columns are not on the diagonal."""
    return torch.randn(*shape, dtype=dtype) / shape[-1] ** 0.5 + 3 * torch.eye(shape[-1], dtype=dtype).flip(0)


def positive(*shape, dtype=torch.float32):
    x = torch.randn(*shape, dtype=dtype)
    return x @ x.mT / shape[-1] + torch.eye(shape[-1], dtype=dtype)


def everything(a, p, b):
    """What is made of a regular matrix, a positive definite one, and right-hand sides."""
    return [
        linalg.cholesky(p), linalg.cholesky(p, upper=True), torch.cholesky_solve(b, linalg.cholesky(p)),
        torch.cholesky_inverse(linalg.cholesky(p)), *linalg.lu_factor_ex(a), *linalg.lu(a),
        linalg.inv(a), linalg.det(a), *linalg.slogdet(a), linalg.solve(a, b), linalg.solve(a, b.mT, left=False),
        linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=True), linalg.solve_triangular(p, b, upper=True),
        linalg.solve_triangular(p, b.mT, upper=False, left=False, unitriangular=True),
        *linalg.qr(a), *linalg.qr(b, mode="complete"), *torch.geqrf(a),
        torch.ormqr(*torch.geqrf(a), b, transpose=True),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "n", "columns"),
    [((), 1, 1), ((3,), 2, 5), ((2, 2), 7, 3), ((), 33, 17), pytest.param((2,), 64, 30, marks=pytest.mark.slow)],
)
def test_results(agrees, batch, n, columns, dtype):
    def program(device):
        operands = matrices(*batch, n, n, dtype=dtype), positive(*batch, n, n, dtype=dtype)
        return everything(*(x.to(device) for x in (*operands, torch.randn(*batch, n, columns, dtype=dtype))))

    agrees(program, **CLOSE[dtype])


@pytest.mark.parametrize("change", [lambda x: x.mT, lambda x: x[::2], lambda x: x.flip(0), lambda x: x[:, 1:6, 1:6]])
def test_operands_of_any_strides(agrees, change):
    def program(device):
        p = positive(4, 7, 7) + 0.1 * torch.randn(4, 7, 7)  # only a triangle is read
        b = torch.randn(4, 3, 7).mT
        changed = [change(x.to(device)) for x in (matrices(4, 7, 7) + 3 * torch.eye(7), p)]
        return everything(*changed, b.to(device)[: len(changed[0]), : changed[0].shape[-1]])

    agrees(program, **CLOSE[torch.float32])


def test_batches_broadcast_and_vectors_are_solved(agrees):
    def program(device):
        a, t = matrices(3, 1, 5, 5).to(device), positive(5, 5).to(device)
        b, v = torch.randn(2, 5, 4).to(device), torch.randn(5).to(device)
        solved = [linalg.solve(a, b), linalg.solve(t, v), linalg.solve_triangular(t, b, upper=False)]
        return [*solved, torch.cholesky_solve(b, t), torch.triangular_solve(b, t, transpose=True)]

    agrees(program, **CLOSE[torch.float32])


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (0, 0)])
def test_nothing_to_factor(agrees, shape):
    def program(device):
        a = torch.zeros(shape, device=device)
        return everything(a, a, torch.zeros(*shape[:-1], 2, device=device))

    agrees(program)


def test_infos_and_pivots_of_what_has_no_factors(agrees):
    """Singular, indefinite and NaN matrices beside a regular one."""

    def program(device):
        x = positive(5, 6, 6)
        x[1], x[2, 3, 3], x[3, 2, 2] = 0, -4, torch.nan
        x[4, 1] = x[4, 0]
        x = x.to(device)
        factor, info = linalg.cholesky_ex(x)
        lu, pivots, infos = linalg.lu_factor_ex(x)
        return factor[:1], info, lu[:3], pivots, infos, linalg.inv_ex(x)[1], linalg.det(x)[:3]

    agrees(program, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", [linalg.cholesky, linalg.inv, lambda x: linalg.solve(x, x), linalg.lu_factor])
@pytest.mark.parametrize("size", [(3, 3), (2, 3, 3)])
def test_errors_are_eagers(device, op, size):
    x = torch.zeros(size)
    with pytest.raises(RuntimeError) as expected:
        op(x)
    with pytest.raises(RuntimeError) as got:
        op(x.to(device))
        torch.zeros(1, device=device).item()
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 20])
def test_gradients(agrees, n, dtype):
    def program(device):
        a, p = matrices(2, n, n, dtype=dtype).to(device), positive(2, n, n, dtype=dtype).to(device)
        leaves = [x.requires_grad_() for x in (a, p, torch.randn(2, n, 3, dtype=dtype).to(device))]
        a, p, b = leaves
        made = [linalg.cholesky(p), linalg.inv(a), linalg.slogdet(a)[1], linalg.solve(a, b), *linalg.qr(a)]
        made += [linalg.solve_triangular(p, b, upper=True), torch.cholesky_solve(b, linalg.cholesky(p))]
        torch.manual_seed(1)
        loss = sum((x * torch.randn(x.shape, dtype=dtype).to(device)).sum() for x in made)
        return torch.autograd.grad(loss, leaves)

    tolerance = CLOSE[dtype]
    agrees(program, rtol=10 * tolerance["rtol"], atol=100 * tolerance["atol"])


def test_sizes_that_change(agrees):
    def program(device):
        return [everything(*(x.to(device) for x in (matrices(2, n, n), positive(2, n, n), torch.randn(2, n, n - 1))))
                for n in (4, 5, 6, 9, 12, 5)]  # fmt: skip

    agrees(program, **CLOSE[torch.float32])


def test_results_that_replace_operands(agrees):
    def program(device):
        a, b = positive(3, 8, 8).to(device), torch.randn(3, 8, 40).to(device)
        linalg.solve_triangular(a, b[..., :30], upper=False, out=b[..., :30])
        b[..., 5:35] = linalg.solve(a, b[..., :30])
        a.copy_(linalg.cholesky_ex(a)[0])
        return a, b

    agrees(program, **CLOSE[torch.float32])


# Launches of float32 on a CPU, where each has a kernel of its own.
LAUNCHES = [
    (linalg.cholesky_ex, 1),
    (linalg.lu_factor_ex, 1),
    (lambda x: linalg.solve_triangular(x, x, upper=True), 1),
    (torch.geqrf, 1),
    (linalg.qr, 4),  # the reflections, R, an identity, and Q of it
    (linalg.inv_ex, 5),  # the factors, the order of rows, an identity's rows in it, two substitutions
]


def launches(device, op, n):
    windows = lazy_backend.explain(op, positive(2, n, n).to(device)).windows
    return sum(len(window.kernels) for window in windows)


@pytest.mark.parametrize(("op", "count"), LAUNCHES)
def test_launches_do_not_grow_with_the_matrix(device, op, count):
    if device == "cpu":
        pytest.skip("the CPU launches no kernels")
    with torch.lazy.window(512):
        assert [launches(device, op, n) for n in (8, 24)] == [count, count]
