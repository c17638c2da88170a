"""Samplers that reject: a fixed number of rounds, each with its own random stream, and a last proposal that is kept.

Round r draws under key seed + (r + 1) * GOLDEN, so rounds of one op never share bits and the op still consumes
ceil(n / 4) counters. The odds that no round accepts are under 1e-9 an element.
"""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import required
from ops_core.lowering.pointwise import abs_
from ops_core.lowering.promote import opmath
from ops_core.lowering.random import open_uniform, standard_normal
from ops_core.lowering.registry import rule

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
# (1 - acceptance) ** rounds, for the worst acceptance of each method: gamma 0.95, poisson and binomial 0.86
GAMMA_ROUNDS, COUNT_ROUNDS = 8, 12
# terms of the direct sums below a mean of 10: the tail beyond is under 1e-12
DIRECT_TERMS = 48


# the smallest normal number: a gamma sample is never 0
_SMALLEST = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}


class _Stream:
    """Independent draws of one op."""

    def __init__(self, shape: tuple[int, ...], seed: Arr, offset: Arr, dtype: str):
        self.shape, self.seed, self.offset, self.dtype, self.round = shape, seed, offset, dtype, 0

    def _key(self) -> Arr:
        self.round += 1
        return self.seed + A.coerce(self.round * GOLDEN, "i64")

    def uniform(self) -> Arr:
        return open_uniform(self.shape, self._key(), self.offset, self.dtype)

    def normal(self) -> Arr:
        return standard_normal(self.shape, self._key(), self.offset, self.dtype)


def gamma(alpha: Arr, stream: _Stream) -> Arr:
    """Marsaglia and Tsang's method; below 1 the sample of alpha + 1 times u ** (1 / alpha)."""
    boost = alpha < 1.0
    shape = where(boost, alpha + 1.0, alpha)
    d = shape - 1.0 / 3.0
    c = 1.0 / A.map_("sqrt", d * 9.0)
    done = A.full(alpha.shape, False, "bool")
    result = d
    for _ in range(GAMMA_ROUNDS):
        x = stream.normal()
        v = 1.0 + c * x
        v = v * v * v
        u = stream.uniform()
        ok = (v > 0.0) & (A.map_("log", u) < 0.5 * x * x + d - d * v + d * A.map_("log", v))
        result = where(done, result, where(v > 0.0, d * v, result))
        done = done | ok
    power = A.map_("pow", stream.uniform(), 1.0 / where(boost, alpha, 1.0))
    return where(boost, result * power, result)


@rule("_standard_gamma")
def _standard_gamma(self, seed, offset):
    dtype = opmath(self.dtype)
    out = gamma(self.to(dtype), _Stream(self.shape, seed, offset, dtype))
    return A.map_("maximum", out, _SMALLEST[self.dtype]).to(self.dtype)


@rule("_sample_dirichlet")
def _sample_dirichlet(self, seed, offset):
    dtype = opmath(self.dtype)
    draws = A.map_("maximum", gamma(self.to(dtype), _Stream(self.shape, seed, offset, dtype)), _SMALLEST[dtype])
    return (draws / draws.sum(-1, True)).to(self.dtype)


@rule("poisson")
def _poisson(self, seed, offset):
    dtype = opmath(self.dtype)
    rate = self.to(dtype)
    required(rate >= 0.0, "poisson")
    stream = _Stream(self.shape, seed, offset, dtype)
    small = A.map_("minimum", rate, 10.0)
    term = A.map_("exp", -small)
    direct = _count_below(stream.uniform(), term, lambda k, t: t * small / float(k))
    large = A.map_("maximum", rate, 10.0)
    root = A.map_("sqrt", large)
    b = 0.931 + 2.53 * root
    log_rate = A.map_("log", large)
    rejected = _transformed(stream, large, b, lambda k: k * log_rate - large - A.map_("lgamma", k + 1.0), None, 0.43)
    return where(rate.eq(0.0), 0.0, where(rate < 10.0, direct, rejected)).to(self.dtype)


def _count_below(u: Arr, term: Arr, following: Callable[[int, Arr], Arr]) -> Arr:
    """How many partial sums of a probability mass function lie below u."""
    total, count = term, A.full_like(u, 0.0)
    for k in range(1, DIRECT_TERMS):
        count = count + (u > total).to(u.dtype)
        term = following(k, term)
        total = total + term
    return count


def _transformed(
    stream: _Stream, mean: Arr, b: Arr, log_mass: Callable[[Arr], Arr], top: Arr | None, shift: float
) -> Arr:
    """Hoermann's PTRS / BTRS: rejection from a table mountain of spread b about `mean`."""
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    limit = 0.9277 - 3.6224 / (b - 2.0)
    done = A.full(mean.shape, False, "bool")
    result = A.map_("floor", mean)
    for _ in range(COUNT_ROUNDS):
        u, v = stream.uniform() - 0.5, stream.uniform()
        us = 0.5 - abs_(u)
        k = A.map_("floor", (2.0 * a / us + b) * u + mean + shift)
        valid = k >= 0.0 if top is None else (k >= 0.0) & (k <= top)
        quick = (us >= 0.07) & (v <= limit)
        slow = A.map_("log", v * inverse_alpha / (a / (us * us) + b)) <= log_mass(k)
        ok = valid & (quick | (slow & ~((us < 0.013) & (v > us))))
        result = where(~done & ok, k, result)
        done = done | ok
    return result


@rule("binomial")
def _binomial(count, prob, seed, offset):
    dtype = opmath(count.dtype)
    n, p = A.broadcast(count.to(dtype), prob.to(dtype))
    flip = p > 0.5
    q = where(flip, 1.0 - p, p)
    stream = _Stream(n.shape, seed, offset, dtype)
    odds = q / (1.0 - q)
    few = n * q < 10.0
    m = where(few, n, 0.0)
    first = A.map_("exp", m * A.map_("log1p", -q))
    direct = _count_below(
        stream.uniform(), first, lambda k, t: t * odds * A.map_("maximum", m - (k - 1.0), 0.0) / float(k)
    )
    big_n, big_q = where(few, 100.0, n), where(few, 0.5, q)
    spread = A.map_("sqrt", big_n * big_q * (1.0 - big_q))
    mode = A.map_("floor", (big_n + 1.0) * big_q)
    log_odds = A.map_("log", big_q / (1.0 - big_q))

    def weight(k: Arr) -> Arr:
        return -A.map_("lgamma", k + 1.0) - A.map_("lgamma", big_n - k + 1.0) + k * log_odds

    centre = weight(mode)
    # PTRS accepts against the mass itself; here its logarithm relative to a normal's peak
    peak = A.map_("log", spread) + 0.5 * math.log(2 * math.pi)
    rejected = _transformed(stream, big_n * big_q, 1.15 + 2.53 * spread,
                            lambda k: weight(k) - centre - peak, big_n, 0.43)  # fmt: skip
    out = A.map_("minimum", where(few, direct, rejected), n)
    return where(flip, n - out, out).to(count.dtype)


# reparameterised gradients, as in ATen/native/Distributions.h
_GAMMA_UV = (
    (0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1.0, 0.32668115, 0.10406089, 0.0014179084),
    (0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
    (
        0.040121004,
        -0.0065914022,
        -0.0026286047,
        -0.0013441777,
        0.017050642,
        -0.0021309326,
        0.00085092367,
        -1.5247877e-07,
    ),
)


def _nan_to_zero(x: Arr) -> Arr:
    return where(x.ne(x), 0.0, x)


@rule("_standard_gamma_grad")
def _standard_gamma_grad(self, output):
    dtype = opmath(self.dtype)
    alpha, x = A.broadcast(self.to(dtype), output.to(dtype))
    log, power, exp = (lambda v: A.map_("log", v)), (lambda v, e: A.map_("pow", v, e)), (lambda v: A.map_("exp", v))
    numer, denom = A.full_like(x, 1.0), alpha
    series1, series2 = 1.0 / alpha, 1.0 / (alpha * alpha)
    for i in range(1, 6):
        numer, denom = numer * -x / float(i), denom + 1.0
        series1, series2 = series1 + numer / denom, series2 + numer / (denom * denom)
    pow_x = power(x, alpha)
    pdf = power(x, alpha - 1.0) * exp(-x)
    slope = (log(x) - A.map_("digamma", alpha)) * pow_x * series1 - pow_x * series2
    small = _nan_to_zero(-slope / pdf)
    near = (1.0 + 24.0 * alpha * (1.0 + 12.0 * alpha)) * (
        1440.0 * alpha * alpha + 6.0 * x * (53.0 - 120.0 * x) - 65.0 * x * x / alpha + alpha * (107.0 + 3600.0 * x)
    ) / (1244160.0 * alpha * alpha * alpha * alpha)  # fmt: skip
    root = A.map_("sqrt", 8.0 * alpha)
    term2 = root / (alpha - x)
    term3 = power(x - alpha - alpha * log(x / alpha), -1.5)
    term1 = log(x / alpha) * where(x < alpha, term2 - term3, term2 + term3) - A.map_("sqrt", 2.0 / alpha) * (
        alpha + x) / ((alpha - x) * (alpha - x))  # fmt: skip
    far = -(1.0 + 1.0 / (12.0 * alpha) * (1.0 + 1.0 / (24.0 * alpha))) * x * term1 / root
    large = where((x >= 0.9 * alpha) & (x <= 1.1 * alpha), near, far)
    u, v = log(x / alpha), log(alpha)
    c = [(u * d + b) * u + a for a, b, d in zip(*_GAMMA_UV, strict=False)]
    p, q = (c[i] + v * (c[i + 1] + v * (c[i + 2] + v * c[i + 3])) for i in (0, 4))
    return where(x < 0.8, small, where(alpha > 8.0, large, exp(p / q))).to(self.dtype)


def _beta_small_alpha(x: Arr, alpha: Arr, beta: Arr) -> Arr:
    """Near 0: Taylor series of the gradient with respect to alpha."""
    factor = A.map_("digamma", alpha) - A.map_("digamma", alpha + beta) - A.map_("log", x)
    numer = A.full_like(x, 1.0)
    series = 1.0 / alpha * (factor + 1.0 / alpha)
    for i in range(1, 11):
        numer = numer * (float(i) - beta) * x / float(i)
        denom = alpha + float(i)
        series = series + numer / denom * (factor + 1.0 / denom)
    return _nan_to_zero(x * A.map_("pow", 1.0 - x, -beta) * series)


def _beta_small_beta(x: Arr, alpha: Arr, beta: Arr) -> Arr:
    """Near 0: Taylor series of the gradient with respect to beta."""
    factor = A.map_("digamma", alpha + beta) - A.map_("digamma", beta)
    numer, betas, dbetas = A.full_like(x, 1.0), A.full_like(x, 1.0), A.full_like(x, 0.0)
    series = factor / alpha
    for i in range(1, 9):
        numer = numer * -x / float(i)
        dbetas = dbetas * (beta - float(i)) + betas
        betas = betas * (beta - float(i))
        series = series + numer / (alpha + float(i)) * (dbetas + factor * betas)
    return _nan_to_zero(-A.map_("pow", 1.0 - x, 1.0 - beta) * series)


def _stirling(x: Arr) -> Arr:
    return 1.0 + 1.0 / (12.0 * x) + 1.0 / (288.0 * x * x)


def _beta_mid(x: Arr, alpha: Arr, beta: Arr) -> Arr:
    """Both parameters large: Rice's saddle point expansion, and a polynomial across its singularity."""
    total = alpha + beta
    mean = alpha / total
    spread = A.map_("sqrt", alpha * beta / (total + 1.0)) / total
    b2 = beta * beta
    poly = 47.0 * x * b2 * b2 + alpha * (
        (43.0 + 20.0 * (16.0 + 27.0 * beta) * x) * b2 * beta + alpha * (
            3.0 * (59.0 + 180.0 * beta - 90.0 * x) * b2 + alpha * (
                (453.0 + 1620.0 * beta * (1.0 - x) - 455.0 * x) * beta + alpha * (
                    8.0 * (1.0 - x) * (135.0 * beta - 11.0)))))  # fmt: skip
    front = (1.0 + 12.0 * alpha) * (1.0 + 12.0 * beta) / (total * total)
    near = front / (1.0 - x) * poly / (12960.0 * alpha * alpha * alpha * b2 * (1.0 + 12.0 * total))
    axbx = alpha * (x - 1.0) + beta * x
    term1 = (2.0 * alpha * alpha * (x - 1.0) + alpha * beta * (x - 1.0) - x * b2) / (
        A.map_("sqrt", 2.0 * alpha / beta) * A.map_("pow", total, 1.5) * axbx * axbx
    )
    term2 = 0.5 * A.map_("log", alpha / (total * x))
    term3 = A.map_("sqrt", 8.0 * alpha * beta / total) / axbx
    base = beta * A.map_("log", beta / (total * (1.0 - x))) + alpha * A.map_("log", alpha / (total * x))
    term4 = A.map_("pow", base, -1.5)
    inner = term1 + term2 * (term3 + where(x < mean, term4, -term4))
    scale = _stirling(alpha) * _stirling(beta) / _stirling(total)
    far = scale * -x / A.map_("sqrt", 2.0 * alpha * beta / total) * inner
    return where((x >= mean - 0.1 * spread) & (x <= mean + 0.1 * spread), near, far)


# numerator and denominator of the rational correction, by powers of log x, log alpha / x, and b
_DIRICHLET = (
    (((1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
      (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
      (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013)),
     ((0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
      (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
      (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05)),
     ((-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
      (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
      (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05))),
    (((1.0, -0.02924021934, -0.04438342661, 0.007285809825),
      (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
      (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149)),
     ((0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
      (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
      (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05)),
     ((0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
      (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
      (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06))),
)  # fmt: skip


@rule("_dirichlet_grad")
def _dirichlet_grad(x, alpha, total):
    result = x.dtype
    x, alpha, total = A.broadcast(*(v.to(opmath(result)) for v in (x, alpha, total)))
    beta = total - alpha
    boundary = total * x * (1.0 - x)
    u = A.map_("log", x)
    a = A.map_("log", alpha) - u
    b = A.map_("log", total) - a
    powers_u, powers_a = (None, u, u * u), (None, a, a * a)

    def combined(table: tuple[Any, ...]) -> Arr:
        out: Arr | None = None
        for row, pu in zip(table, powers_u, strict=True):
            for (c0, c1, c2, c3), pa in zip(row, powers_a, strict=True):
                term = c0 + b * (c1 + b * (c2 + b * c3))
                for factor in (pu, pa):
                    term = term if factor is None else term * factor
                out = term if out is None else out + term
        assert out is not None
        return out

    approx = x * (A.map_("digamma", total) - A.map_("digamma", alpha)) / beta
    out = combined(_DIRICHLET[0]) / combined(_DIRICHLET[1]) * approx
    out = where((alpha > 6.0) & (beta > 6.0), _beta_mid(x, alpha, beta), out)
    out = where((x >= 0.5) & (boundary < 0.75), -_beta_small_beta(1.0 - x, beta, alpha), out)
    out = where((x <= 0.5) & (boundary < 2.5), _beta_small_alpha(x, alpha, beta), out)
    return out.to(result)
