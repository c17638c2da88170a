"""Dense factorisations of small real matrices: composites, whose expansions are unrolled, one step a column. Larger or
complex matrices stay on the host."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from ops_core import array as A
from ops_core.array import Arr, matmul, where
from ops_core.composites import composite
from ops_core.lowering.bounds import checked, clamp
from ops_core.lowering.promote import up
from ops_core.lowering.registry import NotLowerable, rule

# above this many columns the unrolled graph costs more than the host's LAPACK
LARGEST = 64


def _check(x: Arr) -> tuple[int, int]:
    """(rows, columns) of a float matrix that is small enough: for these sizes only, as many as there are steps."""
    m, n = map(int, x.shape[-2:])
    if not x.is_float or max(m, n) > LARGEST:
        raise NotLowerable(f"a factorisation of {m} x {n} {x.dtype}")
    return m, n


def _grid(m: int, n: int) -> tuple[Arr, Arr]:
    """Row and column numbers, [m, 1] and [1, n]."""
    return A.positions((m, n), 0), A.positions((m, n), 1)


def _column(x: Arr, j: int) -> Arr:
    return x.window(x.ndim - 1, j, 1)


def _row(x: Arr, i: int) -> Arr:
    return x.window(x.ndim - 2, i, 1)


def mt(x: Arr) -> Arr:
    """The matrices transposed."""
    return x.transpose(-2, -1)


def _tril(x: Arr) -> Arr:
    i, k = _grid(*x.shape[-2:])
    return where(k <= i, x, 0.0)


def eye(n: int, dtype: str, m: int | None = None) -> Arr:
    """Ones on the diagonal of an [n, m] matrix."""
    i, k = _grid(n, n if m is None else m)
    return i.eq(k).to(dtype)


def _like_batch(x: Arr, batch: tuple[int, ...]) -> Arr:
    return x.expand(*batch, *x.shape[-2:])


def _joined(columns: list[Arr], batch: tuple[int, ...], dtype: str) -> Arr:
    """The columns' numbers side by side, [..., count]; an empty matrix has none."""
    return A.cat(columns, -1).to(dtype) if columns else A.full((*batch, 0), 0, dtype)


@composite
def cholesky(a: Arr) -> tuple[Arr, Arr]:
    """(L, info i32) with A = L L^T from A's lower triangle; info is the first non-positive pivot's number."""
    n, _ = _check(a)
    i, k = _grid(n, n)
    info = A.full(a.shape[:-2], 0, "i32")
    for j in range(n):
        pivot = _column(_row(a, j), j)
        bad = ~(pivot > 0.0)
        info = where(bad.reshape(*info.shape) & info.eq(0), j + 1, info)
        column = where(i > j, _column(a, j) / A.map_("sqrt", pivot), where(i.eq(j), A.map_("sqrt", pivot), 0.0))
        a = where(k.eq(j), column, where((k > j) & (i > j), a - column * mt(column), a))
    return _tril(a), info


@rule("linalg_cholesky_ex")
def _cholesky_ex(self, upper=False, check_errors=False):
    lower, info = cholesky(mt(self) if upper else self)
    return mt(lower) if upper else lower, info


@rule("cholesky")
def _cholesky(self, upper=False):
    return _cholesky_ex(self, upper)[0]


@composite
def lu(a: Arr) -> tuple[Arr, Arr, Arr]:
    """(LU, pivots i32 from 1, info i32) with partial pivoting, as LAPACK's getrf."""
    m, n = _check(a)
    i, k = _grid(m, n)
    rows = A.iota(m).expand(*a.shape[:-2], m)
    info = A.full(a.shape[:-2], 0, "i32")
    pivots = []
    for j in range(min(m, n)):
        size = where(A.iota(m) >= j, A.map_("abs", _column(a, j).squeeze(-1)), -1.0)
        p = size.arg("argmax", -1, True)  # [..., 1]
        pivots.append(p + 1)
        swapped = where(rows.eq(j), p, where(rows.eq(p), j, rows))
        a = a.gather(-2, swapped.unsqueeze(-1).expand(*a.shape))
        pivot = _column(_row(a, j), j)
        zero = pivot.eq(0.0)
        info = where(zero.reshape(*info.shape) & info.eq(0), j + 1, info)
        factor = where(zero, _column(a, j), _column(a, j) / pivot)
        a = where((i > j) & (k > j), a - factor * _row(a, j), where((i > j) & k.eq(j), factor, a))
    return a, _joined(pivots, a.shape[:-2], "i32"), info


@rule("linalg_lu_factor_ex")
def _lu_factor_ex(A, pivot=True, check_errors=False):
    if not pivot:
        raise NotLowerable("LU without pivoting")
    return lu(A)


@composite
def permutation(pivots: Arr, *, rows: int) -> tuple[Arr, ...]:
    """pivots [..., count, 1] -> [..., rows, 1]: which row of A each row of L U is."""
    positions, _ = _grid(rows, 1)
    out = positions.expand(*pivots.shape[:-2], rows, 1)
    for j in range(pivots.shape[-2]):
        p = _row(pivots, j).to("i64") - 1
        here, there = _row(out, j), out.gather(-2, p)
        out = where(positions.eq(j), there, where(positions.eq(p), here, out))
    return (out,)


def _permutation(pivots: Arr, rows: int) -> Arr:
    """pivots [..., count] -> [..., rows, 1]."""
    (order,) = permutation(pivots.unsqueeze(-1), rows=rows)
    return order


def _given(pivots: Arr, rows: int) -> Arr:
    """A caller's own pivots. Those that are no rows raise at the next read."""
    return (checked(pivots.to("i64") - 1, rows, "pivots") + 1).to(pivots.dtype)


def _unpacked(data: Arr) -> tuple[Arr, Arr]:
    """(L with unit diagonal [m, k], U [k, n])."""
    m, n = data.shape[-2:]
    size = min(m, n)
    i, k = _grid(m, size)
    left = data.slice(-1, 0, size)
    lower = where(k < i, left, i.eq(k).to(data.dtype))
    i, k = _grid(size, n)
    return lower, where(k >= i, data.slice(-2, 0, size), 0.0)


def _matrix(order: Arr, dtype: str) -> Arr:
    """P with P[order[c], c] = 1."""
    return A.iota(order.shape[-2]).unsqueeze(1).eq(mt(order)).to(dtype)


@rule("lu_unpack")
def _lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    pivots = _given(LU_pivots, LU_data.shape[-2]) if unpack_pivots else LU_pivots
    return _lu_parts(LU_data, pivots, unpack_data, unpack_pivots)


def _lu_parts(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    _check(LU_data)
    empty = A.full((0,), 0, LU_data.dtype)
    lower, upper = _unpacked(LU_data) if unpack_data else (empty, empty)
    p = _matrix(_permutation(LU_pivots, LU_data.shape[-2]), LU_data.dtype) if unpack_pivots else empty
    return p, lower, upper


def _linalg_lu(**bound):
    data, pivots, _ = _lu_factor_ex(bound["A"], bound["pivot"])
    return _lu_parts(data, pivots)


rule("linalg_lu")(_linalg_lu)


@composite
def solve_triangular(a: Arr, b: Arr, *, upper: bool, unit: bool) -> tuple[Arr, ...]:
    """X with A X = B for the upper or lower triangle of A, or for that with a unit diagonal."""
    n, _ = _check(a)
    i, _ = _grid(n, 1)
    for j in reversed(range(n)) if upper else range(n):
        x = _row(b, j) if unit else _row(b, j) / _column(_row(a, j), j)
        left = i < j if upper else i > j
        b = where(i.eq(j), x, where(left, b - _column(a, j) * x, b))
    return (b,)


def _triangular(a: Arr, b: Arr, upper: bool, unit: bool = False) -> Arr:
    """`solve_triangular` with batch dimensions that broadcast."""
    batch = broadcast_batch(a, b)
    (x,) = solve_triangular(_like_batch(a, batch), _like_batch(b, batch), upper=upper, unit=unit)
    return x


@rule("linalg_solve_triangular")
def _solve_triangular(self, B, upper, left=True, unitriangular=False):
    if left:
        return _triangular(self, B, upper, unitriangular)
    return mt(_triangular(mt(self), mt(B), not upper, unitriangular))


@rule("triangular_solve")
def _triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    batch = broadcast_batch(self, A)
    a = _like_batch(A, batch)
    x = _triangular(mt(a) if transpose else a, self, upper != transpose, unitriangular)
    return x, a


def broadcast_batch(*xs: Arr) -> tuple[int, ...]:
    """The common batch shape of matrices."""
    return A.broadcast_shapes(*(x.shape[:-2] for x in xs))


def lu_solve(data: Arr, pivots: Arr, b: Arr, adjoint: bool) -> Arr:
    """X with A X = B (or A^T X = B) from A's factors."""
    batch = broadcast_batch(data, b)
    b = _like_batch(b, batch)
    order = _like_batch(_permutation(pivots, data.shape[-2]), batch)
    if not adjoint:
        return _triangular(data, _triangular(data, b.gather(-2, order.expand(*b.shape)), False, True), True)
    z = _triangular(mt(data), _triangular(mt(data), b, False), True, True)
    return matmul(_matrix(order, z.dtype), z)


@rule("linalg_lu_solve")
def _lu_solve(LU, pivots, B, left=True, adjoint=False):
    _check(LU)
    pivots = (clamp(pivots.to("i64") - 1, LU.shape[-2]) + 1).to(pivots.dtype)  # eager asks nothing of them
    return lu_solve(LU, pivots, B, adjoint) if left else mt(lu_solve(LU, pivots, mt(B), not adjoint))


def _solve_ex(**bound):
    a, b, left = bound["A"], bound["B"], bound["left"]
    if bound["check_errors"]:
        raise NotLowerable("errors that the call itself reports")
    vectors = b.ndim == 1 or (a.ndim - 1 == b.ndim and a.shape[:-1] == b.shape)
    right = b.unsqueeze(-1) if vectors else b
    data, pivots, info = lu(a)
    x = lu_solve(data, pivots, right, False) if left else mt(lu_solve(data, pivots, mt(right), True))
    return x.squeeze(-1) if vectors else x, data, pivots, info


rule("_linalg_solve_ex")(_solve_ex)


def _inv_ex(**bound):
    a = bound["A"]
    data, pivots, info = lu(a)
    return lu_solve(data, pivots, eye(a.shape[-1], a.dtype), False), info


rule("linalg_inv_ex")(_inv_ex)


def _cholesky_solve(**bound):
    b, factor, upper = bound["self"], bound["A"], bound["upper"]
    lower = mt(factor) if upper else factor
    return _triangular(mt(lower), _triangular(lower, b, False), True)


rule("_cholesky_solve_helper")(_cholesky_solve)


@rule("cholesky_inverse")
def _cholesky_inverse(self, upper=False):
    return _cholesky_solve(self=eye(self.shape[-1], self.dtype), A=self, upper=upper)


@composite
def householder(a: Arr) -> tuple[Arr, Arr]:
    """(R above and reflectors below the diagonal, tau), as LAPACK's geqrf."""
    m, n = _check(a)
    i, k = _grid(m, n)
    taus = []
    for j in range(min(m, n)):
        column, alpha = _column(a, j), _column(_row(a, j), j)
        below = where(i > j, column, 0.0)
        rest = (below * below).sum(-2, True)
        norm = A.map_("sqrt", alpha * alpha + rest)
        beta = where(rest.eq(0.0), alpha, where(alpha >= 0.0, -norm, norm))
        tau = where(rest.eq(0.0), 0.0, (beta - alpha) / beta)
        v = where(i > j, below / where(rest.eq(0.0), 1.0, alpha - beta), i.eq(j).to(a.dtype))
        w = (v * a).sum(-2, True)
        a = where(k > j, a - tau * v * w, where(k.eq(j), where(i.eq(j), beta, where(i > j, v, column)), a))
        taus.append(tau.reshape(*tau.shape[:-2], 1))
    return a, _joined(taus, a.shape[:-2], a.dtype)


@composite
def reflect(reflectors: Arr, tau: Arr, x: Arr, *, transpose: bool) -> tuple[Arr, ...]:
    """Q x, or Q^T x, for Q = H_0 H_1 ... of geqrf's output."""
    m = reflectors.shape[-2]
    i, _ = _grid(m, 1)
    steps = range(int(tau.shape[-1]))
    for j in steps if transpose else reversed(steps):
        v = where(i > j, _column(reflectors, j), i.eq(j).to(x.dtype))
        t = tau.window(tau.ndim - 1, j, 1).unsqueeze(-1)
        x = x - t * v * (v * x).sum(-2, True)
    return (x,)


def _reflected(reflectors: Arr, tau: Arr, x: Arr, transpose: bool) -> Arr:
    (y,) = reflect(reflectors, tau, x, transpose=transpose)
    return y


@rule("geqrf")
def _geqrf(self):
    return householder(self)


@rule("linalg_householder_product")
def _householder_product(input, tau):
    m, n = _check(input)
    return _reflected(input, tau, eye(m, input.dtype, n).expand(*input.shape), False)


@rule("ormqr")
def _ormqr(self, input2, input3, left=True, transpose=False):
    _check(self)
    if left:
        return _reflected(self, input2, input3, transpose)
    return mt(_reflected(self, input2, mt(input3), not transpose))


def _linalg_qr(**bound):
    a, mode = bound["A"], bound["mode"]
    m, n = _check(a)
    data, tau = householder(a)
    i, k = _grid(m, n)
    size = m if mode == "complete" else min(m, n)
    r = where(k >= i, data, 0.0).slice(-2, 0, size)
    if mode == "r":
        return A.full((0,), 0, a.dtype), r
    return _reflected(data, tau, eye(m, a.dtype, size).expand(*a.shape[:-2], m, size), False), r


rule("linalg_qr")(_linalg_qr)

# Taylor terms that reach rounding for a norm of at most 1, and halvings that cover every finite result
_TERMS = {"f32": 12, "f64": 19}
HALVINGS = 16


@rule("linalg_matrix_exp")
def _matrix_exp(self):
    n, _ = _check(self)
    x = up(self)
    if x.dtype not in _TERMS:
        raise NotLowerable(f"matrix_exp of {self.dtype}")
    norm = A.map_("abs", x).sum(-2, True).amax(-1, True)
    count = A.map_("maximum", A.map_("ceil", A.map_("log2", norm)), 0.0)
    count = A.map_("minimum", count, float(HALVINGS))
    x = x * A.map_("exp2", -count)
    unit = eye(n, x.dtype).expand(*self.shape)
    out = unit
    for k in range(_TERMS[x.dtype], 0, -1):  # Horner: 1 + x (1 + x / 2 (1 + x / 3 ...))
        out = unit + matmul(x, out) / float(k)
    for step in range(HALVINGS):
        out = where(count > float(step), matmul(out, out), out)
    return out.to(self.dtype)
