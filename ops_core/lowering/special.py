"""Special functions as formulas over the scalar catalogue, with ATen's approximations."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering import cephes
from ops_core.lowering.pointwise import abs_, pointwise
from ops_core.lowering.promote import name_of, opmath
from ops_core.lowering.registry import rule

INV_SQRT_PI, SQRT_2_OVER_PI = 1 / math.sqrt(math.pi), math.sqrt(2 / math.pi)


def poly(x: Arr, coefficients: Sequence[float]) -> Arr:
    """Horner's rule, highest power first."""
    out = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        out = out * x + c
    return out


def chebyshev(x: Arr, coefficients: Sequence[float]) -> Arr:
    """Clenshaw's sum, highest order first."""
    older, old = A.full_like(x, 0.0), A.full_like(x, 0.0)
    current = A.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        older, old = old, current
        current = x * old - older + c
    return (current - older) * 0.5


def exp(x: Arr) -> Arr:
    """Exponential."""
    return A.map_("exp", x)


def log(x: Arr) -> Arr:
    """Natural logarithm."""
    return A.map_("log", x)


def sqrt(x: Arr) -> Arr:
    """Square root."""
    return A.map_("sqrt", x)


def _i_scaled(x: Arr, near: Sequence[float], far: Sequence[float], odd: bool) -> Arr:
    """exp(-|x|) I(|x|) for order 0, or order 1 (odd)."""
    x = abs_(x)
    small = chebyshev(x / 2.0 - 2.0, near)
    large = chebyshev(32.0 / x - 2.0, far) / sqrt(x)
    return where(x <= 8.0, small * x if odd else small, large)


def i0e(x: Arr) -> Arr:
    """exp(-|x|) I0(x)."""
    return _i_scaled(x, cephes.I0E_A, cephes.I0E_B, False)


def i1e(x: Arr) -> Arr:
    """exp(-|x|) I1(x)."""
    out = _i_scaled(x, cephes.I1E_A, cephes.I1E_B, True)
    return where(x < 0, -out, out)


def i0(x: Arr) -> Arr:
    """Modified Bessel function of order 0."""
    return exp(abs_(x)) * i0e(x)


def i1(x: Arr) -> Arr:
    """Modified Bessel function of order 1."""
    return exp(abs_(x)) * i1e(x)


@rule("kaiser_window")
def _kaiser_window(window_length, periodic=True, beta=12.0, dtype=None):
    """i0(beta sqrt(1 - t^2)) / i0(beta) for t from -1 to 1."""
    name = name_of(dtype or torch.get_default_dtype())
    if window_length <= 1:
        return A.full((window_length,), 1, name)
    compute = opmath(name)
    t = A.iota(window_length).to(compute) * (2.0 / (window_length - (not periodic))) - 1.0
    bell = A.map_("sqrt", A.map_("maximum", 1.0 - t * t, A.full((), 0, compute))) * float(beta)
    return (i0(bell) / i0(A.full((), float(beta), compute))).to(name)


for _name, _fn in {"i0": i0, "special_i0e": i0e, "special_i1": i1, "special_i1e": i1e,
                   "special_modified_bessel_i0": i0, "special_modified_bessel_i1": i1}.items():  # fmt: skip
    pointwise(_name, operands=("self",), floating=True)(lambda self, _fn=_fn: _fn(self))


def _k(x: Arr, order: int, scaled: bool) -> Arr:
    near, far = ((cephes.K0_A, cephes.K0_B), (cephes.K1_A, cephes.K1_B))[order]
    sum_ = chebyshev(x * x - 2.0, near)
    small = sum_ - log(x * 0.5) * i0(x) if order == 0 else log(x * 0.5) * i1(x) + sum_ / x
    large = chebyshev(8.0 / x - 2.0, far) / sqrt(x)
    out = where(x <= 2.0, small * exp(x) if scaled else small, large if scaled else exp(-x) * large)
    return where(x.eq(0.0), math.inf, where(x < 0.0, math.nan, out))


for _order in (0, 1):
    for _prefix, _scaled in (("special_modified_bessel_k", False), ("special_scaled_modified_bessel_k", True)):
        pointwise(f"{_prefix}{_order}", operands=("x", "self"), floating=True)(
            lambda x=None, self=None, _o=_order, _s=_scaled: _k(self if x is None else x, _o, _s)
        )


def _asymptotic(x: Arr, order: int) -> tuple[Arr, Arr]:
    """P/Q ratios of the large-argument expansion of order 0 or 1."""
    z = 25.0 / (x * x)
    if order == 0:
        return poly(z, cephes.J0_PP) / poly(z, cephes.J0_PQ), poly(z, cephes.J0_QP) / poly(z, cephes.J0_QQ)
    return poly(z, cephes.J1_PP) / poly(z, cephes.J1_PQ), poly(z, cephes.J1_QP) / poly(z, cephes.J1_QQ)


PHASE = (math.pi / 4, 3 * math.pi / 4)


def _far(x: Arr, order: int, second: bool) -> Arr:
    """J (or Y, `second`) beyond 5."""
    p, q = _asymptotic(x, order)
    cos, sin = A.map_("cos", x - PHASE[order]), A.map_("sin", x - PHASE[order])
    wave = p * sin + 5.0 / x * q * cos if second else p * cos - 5.0 / x * q * sin
    return wave * SQRT_2_OVER_PI / sqrt(x)


def j0(x: Arr) -> Arr:
    """Bessel function of the first kind, order 0."""
    x = abs_(x)
    z = x * x
    near = (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * poly(z, cephes.J0_RP) / poly(z, cephes.J0_RQ)
    return where(x <= 5.0, where(x < 1e-5, 1.0 - z / 4.0, near), _far(x, 0, False))


def j1(x: Arr) -> Arr:
    """Bessel function of the first kind, order 1."""
    y = abs_(x)
    z = y * y
    near = (
        poly(z, cephes.J1_RP) / poly(z, cephes.J1_RQ) * y * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)
    )
    out = where(y <= 5.0, near, _far(y, 1, False))
    return where(x < 0.0, -out, out)


def _singular(x: Arr, out: Arr) -> Arr:
    """-inf at 0 and nan below."""
    return where(x.eq(0.0), -math.inf, where(x < 0.0, math.nan, out))


def y0(x: Arr) -> Arr:
    """Bessel function of the second kind, order 0."""
    z = x * x
    near = poly(z, cephes.Y0_YP) / poly(z, cephes.Y0_YQ) + (2 / math.pi) * log(x) * j0(x)
    return _singular(x, where(x <= 5.0, near, _far(x, 0, True)))


def y1(x: Arr) -> Arr:
    """Bessel function of the second kind, order 1."""
    z = x * x
    near = x * (poly(z, cephes.Y1_YP) / poly(z, cephes.Y1_YQ)) + (2 / math.pi) * (j1(x) * log(x) - 1.0 / x)
    return _singular(x, where(x <= 5.0, near, _far(x, 1, True)))


for _name, _fn in {"j0": j0, "j1": j1, "y0": y0, "y1": y1}.items():
    pointwise(f"special_bessel_{_name}", operands=("self",), floating=True)(lambda self, _fn=_fn: _fn(self))


@pointwise("special_spherical_bessel_j0", operands=("x",), floating=True)
def _spherical_j0(x):
    z = x * x
    series = [1 / math.factorial(2 * k + 1) * (-1) ** k for k in range(6, -1, -1)]
    return where(abs_(x).eq(math.inf), 0.0, where(abs_(x) < 0.5, poly(z, series), A.map_("sin", x) / x))


@pointwise("special_airy_ai", operands=("x",), floating=True)
def _airy_ai(x):
    # oscillating side
    root = sqrt(-x)
    angle = -2.0 * x * root / 3.0
    z = 1.0 / angle
    zz = z * z
    afn, afd = poly(zz, cephes.AIRY_AFN), poly(zz, cephes.AIRY_AFD)
    agn, agd = poly(zz, cephes.AIRY_AGN), poly(zz, cephes.AIRY_AGD)
    t = angle + math.pi / 4
    wave = A.map_("sin", t) * (1.0 + zz * afn / afd) - A.map_("cos", t) * (z * agn / agd)
    left = INV_SQRT_PI / sqrt(root) * wave
    # decaying side
    zeta_ = 2.0 * x * sqrt(x) / 3.0
    w = 1.0 / zeta_
    right = INV_SQRT_PI * (poly(w, cephes.AIRY_AN) / poly(w, cephes.AIRY_AD)) / (2.0 * sqrt(sqrt(x)) * exp(zeta_))
    # series about 0
    cube = x * x * x
    f, g, m, n, k = A.full_like(x, 1.0), x, A.full_like(x, 1.0), x, 1.0
    for _ in range(14 if x.dtype == "f64" else 9):
        m, n = m * cube / ((k + 1) * (k + 2)), n * cube / ((k + 2) * (k + 3))
        f, g, k = f + m, g + n, k + 3
    middle = 0.355028053887817239260 * f - 0.258819403792806798405 * g
    out = where(x < -2.09, left, where(x >= 2.09, where(x > 103.892, 0.0, right), middle))
    return where(abs_(x).eq(math.inf), math.nan, out)


def erfcx(x: Arr) -> Arr:
    """exp(x^2) erfc(x): directly below 2, by the continued fraction above."""
    y = A.map_("maximum", abs_(x), 2.0)
    tail = y
    for k in range(50 if x.dtype == "f64" else 16, 0, -1):
        tail = y + (k / 2) / tail
    return where(x >= 2.0, INV_SQRT_PI / tail, exp(x * x) * A.map_("erfc", x))


@pointwise("special_erfcx", operands=("self",), floating=True)
def _erfcx(self):
    return erfcx(self)


@pointwise("special_log_ndtr", operands=("self",), floating=True)
def _log_ndtr(self):
    t = self * math.sqrt(0.5)
    return where(self < -1.0, log(erfcx(-t) / 2.0) - t * t, A.map_("log1p", -A.map_("erfc", t) / 2.0))


@pointwise("special_ndtri", operands=("self",), floating=True)
def _ndtri(self):
    tail = 0.13533528323661269189  # exp(-2)
    upper = self > 1.0 - tail
    y = where(upper, 1.0 - self, self)
    c = y - 0.5
    cc = c * c
    centre = (c + c * (cc * poly(cc, cephes.NDTRI_P0) / poly(cc, cephes.NDTRI_Q0))) * math.sqrt(2 * math.pi)
    x = sqrt(-2.0 * log(y))
    z = 1.0 / x
    near, far = (
        z * poly(z, cephes.NDTRI_P1) / poly(z, cephes.NDTRI_Q1),
        z * poly(z, cephes.NDTRI_P2) / poly(z, cephes.NDTRI_Q2),
    )
    edge = x - log(x) / x - where(x < 8.0, near, far)
    out = where(y > tail, centre, where(upper, edge, -edge))
    out = where(self.eq(0.0), -math.inf, where(self.eq(1.0), math.inf, out))
    return where((self < 0.0) | (self > 1.0), math.nan, out)


def zeta(x: Arr, q: Arr) -> Arr:
    """Hurwitz zeta by Euler and Maclaurin: nine direct terms, twelve corrections. Below 0, further direct terms."""
    x, q = A.broadcast(x, q)
    total = A.map_("pow", q, -x)
    a, b = q, total
    done = A.full(q.shape, False, "bool")
    for i in range(24):  # a must pass 9: up to 9 steps for q > 0, more for the first negative q
        go = ~done & ((a <= 9.0) if i >= 9 else A.full(q.shape, True, "bool"))
        a = where(go, a + 1.0, a)
        b = where(go, A.map_("pow", a, -x), b)
        total = where(go, total + b, total)
    total = total + b * a / (x - 1.0) - 0.5 * b
    term, k = b, 0.0  # with its rising factorial, which alone would overflow
    for c in cephes.ZETA:
        term = term * ((x + k) / a)
        total = total + term / c
        term = term * ((x + (k + 1.0)) / a)
        k += 2.0
    whole = q.eq(A.map_("floor", q))
    out = where((q <= 0.0) & whole, math.inf, total)
    out = where((q <= 0.0) & ~whole & x.ne(A.map_("floor", x)), math.nan, out)
    return where(x.eq(1.0), math.inf, where(x < 1.0, math.nan, out))


@pointwise("special_zeta", floating=True)
def _zeta(self, other):
    return zeta(self, other if isinstance(other, Arr) else A.full((), other, self.dtype))


def _trigamma(x: Arr) -> Arr:
    """Reflection below 1/2, six recurrence steps, then the asymptotic series."""
    low = x < 0.5
    sine = A.map_("sin", x * math.pi)
    y = where(low, 1.0 - x, x)
    total = A.full_like(x, 0.0)
    for _ in range(6):
        total, y = total + 1.0 / (y * y), y + 1.0
    ixx = 1.0 / (y * y)
    total = total + (1.0 + 1.0 / (2.0 * y) + ixx * (1.0 / 6 - ixx * (1.0 / 30 - ixx * (1.0 / 42)))) / y
    return where(low, (math.pi * math.pi) / (sine * sine) - total, total)


@pointwise("polygamma", operands=("self",), floating=True)
def _polygamma(n, self):
    if n == 0:
        return A.map_("digamma", self)
    if n == 1:
        return _trigamma(self)
    sign = 1.0 if n % 2 else -1.0
    return zeta(A.full_like(self, n + 1.0), self) * (sign * math.exp(math.lgamma(n + 1.0)))


def _parity(n: Arr) -> Arr:
    """(-1)^n for whole n."""
    return where(A.map_("remainder", n, 2.0).eq(0.0), 1.0, -1.0, n.dtype)


def _recurrence(x: Arr, n: Arr, first: Arr, steps: int) -> Arr:
    """p0 = 1, p1 = first, p(k) = 2 x p(k-1) - p(k-2), picked at n <= steps."""
    p, q = A.full_like(x, 1.0), first
    out = where(n.eq(0.0), p, q)
    for k in range(2, steps + 1):
        p, q = q, (x + x) * q - p
        out = where(n >= float(k), q, out)
    return out


def _chebyshev_polynomial(kind: str, x: Arr, n: Arr, steps: int) -> Arr:
    """T, U, V or W of degree n: recurrence for low degrees, cos/cosh forms for high ones."""
    x, n = A.broadcast(x, A.map_("trunc", n))
    sign = _parity(n)
    first = {"t": x, "u": x + x, "v": x + x - 1.0, "w": x + x + 1.0}[kind]
    low = _recurrence(x, n, first, steps)
    theta = A.map_("acos", x)
    inside = {
        "t": lambda: A.map_("cos", n * theta),
        "u": lambda: A.map_("sin", (n + 1.0) * theta) / A.map_("sin", theta),
        "v": lambda: A.map_("cos", (n + 0.5) * theta) / A.map_("cos", theta / 2.0),
        "w": lambda: A.map_("sin", (n + 0.5) * theta) / A.map_("sin", theta / 2.0),
    }[kind]()
    phi = A.map_("acosh", abs_(x))
    cosh = A.map_("cosh", (n + 0.5) * phi) / A.map_("cosh", phi / 2.0)
    sinh = A.map_("sinh", (n + 0.5) * phi) / A.map_("sinh", phi / 2.0)
    outside = {
        "t": lambda: where(x < 0.0, sign, 1.0) * A.map_("cosh", n * phi),
        "u": lambda: where(x < 0.0, sign, 1.0) * A.map_("sinh", (n + 1.0) * phi) / A.map_("sinh", phi),
        "v": lambda: where(x < 0.0, sign * sinh, cosh),
        "w": lambda: where(x < 0.0, sign * cosh, sinh),
    }[kind]()
    high = where(abs_(x) < 1.0, inside, outside)
    odd = n + n + 1.0
    at_one = {"t": A.full_like(n, 1.0), "u": n + 1.0, "v": A.full_like(n, 1.0), "w": odd}[kind]
    at_minus = {"t": sign, "u": sign * (n + 1.0), "v": sign * odd, "w": sign}[kind]
    out = where(n > float(steps), high, low)
    out = where(x.eq(1.0), at_one, where(x.eq(-1.0), at_minus, out))
    return where(n < 0.0, 0.0, out)


def _as_array(x: Arr | float, like: Arr | float) -> Arr:
    return x if isinstance(x, Arr) else A.full((), x, like.dtype)  # type: ignore[union-attr]


def _declare(kind: str, shifted: bool) -> None:
    prefix = "special_shifted_" if shifted else "special_"
    steps = 6 if kind == "t" or shifted else 8
    steps = 4 if shifted and kind == "w" else steps

    @pointwise(f"{prefix}chebyshev_polynomial_{kind}", operands=("x", "n"), floating=True)
    def rule(x, n):
        x, n = _as_array(x, n), _as_array(n, x)
        return _chebyshev_polynomial(kind, x + x - 1.0 if shifted else x, n, steps)


for _kind in "tuvw":
    _declare(_kind, False)
    _declare(_kind, True)
