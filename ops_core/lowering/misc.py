"""Ops that belong to no family: forward-mode helpers, CTC, hashing, in-place renormalisation, observers."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.indexing import wrap
from ops_core.lowering.order import _cummax, _cummin
from ops_core.lowering.pointwise import sigmoid_of
from ops_core.lowering.promote import opmath, up
from ops_core.lowering.quantize import _channels, _fake
from ops_core.lowering.reduction import vector_norm
from ops_core.lowering.registry import Effects, NotLowerable, rule


@rule("_aminmax.default")
def _aminmax(self):
    return self.amin(), self.amax()


@rule("_aminmax.dim")
def _aminmax_dim(self, dim, keepdim=False):
    return self.amin(dim, keepdim), self.amax(dim, keepdim)


@rule("_cummax_helper")
def _cummax_helper(self, values, indices, dim):
    return Effects(None, dict(zip(("values", "indices"), _cummax(self, dim), strict=False)))


@rule("_cummin_helper")
def _cummin_helper(self, values, indices, dim):
    return Effects(None, dict(zip(("values", "indices"), _cummin(self, dim), strict=False)))


def _halves(x: Arr, dim: int) -> list[Arr]:
    n = x.shape[x.dim(dim)] // 2
    return x.split(dim, [n, n])


@rule("glu_jvp")
def _glu_jvp(glu, x, dx, dim):
    b = sigmoid_of(_halves(up(x), dim)[1])
    da, db = _halves(up(dx), dim)
    return (b * da + up(glu) * (db - b * db)).to(glu.dtype)


@rule("glu_backward_jvp")
def _glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    a, b = _halves(up(x), dim)
    da, db = _halves(up(dx), dim)
    ga, _ = _halves(up(grad_x), dim)
    s = sigmoid_of(b)
    glu, slope = a * s, db - db * s
    dglu = s * da + glu * slope
    first = up(dgrad_glu) * s + ga * slope
    second = first * (a - glu) + ga * (da - dglu)
    return A.cat([first, second], dim).to(x.dtype)


@rule("_compute_linear_combination")
def _compute_linear_combination(input, coefficients):
    flat = input.reshape(input.shape[0], -1)
    return A.matmul(coefficients.to(input.dtype), flat).reshape(coefficients.shape[0], *input.shape[1:])


@rule("hash_tensor")
def _hash_tensor(self, dim=(), keepdim=False, mode=0):
    """The exclusive or of all elements' bits (floats as float64), by halving."""
    bits = self.to("f64").bitcast("u64") if self.is_float else self.to("i64").to("u64")
    dims = self.dims(dim)
    kept = [d for d in range(self.ndim) if d not in dims]
    x = bits.permute(*kept, *dims).reshape(*(self.shape[d] for d in kept), math.prod(self.shape[d] for d in dims))
    n = x.shape[-1]
    if n == 0:
        x, n = A.full((*x.shape[:-1], 1), 0, "u64"), 1
    while n > 1:
        half = n // 2
        pairs = x.slice(-1, 0, half) ^ x.slice(-1, half, 2 * half)
        x = A.cat([pairs, x.slice(-1, 2 * half)], -1) if n % 2 else pairs
        n = half + n % 2
    return x.reshape(*(1 if d in dims else s for d, s in enumerate(self.shape) if keepdim or d not in dims))


@rule("embedding_renorm")
def _embedding_renorm(self, indices, max_norm, norm_type):
    rows = wrap(indices, self.shape[0]).reshape(-1)
    x = up(self)
    norm = vector_norm(x, float(norm_type), 1, True)
    limit = max_norm.to(x.dtype) if isinstance(max_norm, Arr) else float(max_norm)
    touched = A.full((self.shape[0],), False, "bool").index_put([rows], A.full(rows.shape, True, "bool"))
    return where(touched.unsqueeze(1) & (norm > limit), x * (limit / (norm + 1e-7)), x).to(self.dtype)


@rule("_fused_moving_avg_obs_fq_helper.default")
def _fused_moving_avg_obs(
    self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min,
    quant_max, ch_axis, per_row_fake_quant=False, symmetric_quant=False,
):  # fmt: skip
    x = up(self)
    dims = tuple(d for d in range(x.ndim) if d != ch_axis % x.ndim) if per_row_fake_quant else None
    low, high = x.amin(dims), x.amax(dims)
    old_low, old_high = running_min.to(x.dtype), running_max.to(x.dtype)
    constant = averaging_const.to(x.dtype) if isinstance(averaging_const, Arr) else averaging_const
    low, high = low.reshape(*(low.shape or old_low.shape)), high.reshape(*(high.shape or old_high.shape))
    low, high = low.expand(*old_low.shape), high.expand(*old_high.shape)
    observing = observer_on.reshape().ne(0)

    def moved(old: Arr, new: Arr) -> Arr:
        return where(A.map_("abs", old).eq(math.inf), new, old + constant * (new - old))

    new_low = where(observing, moved(old_low, low), old_low)
    new_high = where(observing, moved(old_high, high), old_high)
    fresh_scale, fresh_zero = _qparams(new_low, new_high, quant_min, quant_max, symmetric_quant)
    s = where(observing, fresh_scale.reshape(*scale.shape), scale.to(x.dtype))
    z = where(observing, fresh_zero.reshape(*zero_point.shape), zero_point.to(x.dtype))
    if per_row_fake_quant:
        out, mask = _fake(x, _channels(s, x, ch_axis), _channels(z, x, ch_axis), quant_min, quant_max)
    else:
        out, mask = _fake(x, s.reshape(), z.reshape(), quant_min, quant_max)
    on = fake_quant_on.reshape().ne(0)
    writes = {"running_min": new_low.to(running_min.dtype), "running_max": new_high.to(running_max.dtype),
              "scale": s.to(scale.dtype), "zero_point": z.to(zero_point.dtype)}  # fmt: skip
    return Effects((where(on, out, x).to(self.dtype), mask | ~on), writes)


def _qparams(low: Arr, high: Arr, quant_min: int, quant_max: int, symmetric: bool) -> tuple[Arr, Arr]:
    """Scale and zero point of a range that is widened to hold 0."""
    low, high = A.map_("minimum", low, 0.0), A.map_("maximum", high, 0.0)
    levels = float(quant_max - quant_min)
    if symmetric:
        low, high = -A.map_("maximum", -low, high), A.map_("maximum", -low, high)
        low, high = low * (levels / 2) / (levels / 2), high
        scale = high / (levels / 2)
    else:
        scale = (high - low) / levels
    scale = where(scale.eq(0.0), 0.1, scale)
    if symmetric:
        return scale, A.full_like(scale, float((quant_min + quant_max + 1) // 2))
    zero = A.map_("round", quant_min - low / scale)
    return scale, A.map_("minimum", A.map_("maximum", zero, float(quant_min)), float(quant_max))


# time steps unrolled at most: beyond, a graph of every step is larger than a device kernel's worth
CTC_STEPS = 256


class _Ctc:
    """One CTC problem: extended labels and lengths as arrays. log_probs [T, N, C]."""

    def __init__(self, log_probs: Arr, targets: Arr, input_lengths: Any, target_lengths: Any, blank: int):
        self.t, self.n, self.c = log_probs.shape
        if self.t > CTC_STEPS:
            raise NotLowerable(f"CTC over {self.t} steps")
        if isinstance(input_lengths, Arr) or isinstance(target_lengths, Arr):
            raise NotLowerable("the shape of CTC's state depends on lengths on the device")
        self.inputs = self._lengths(input_lengths)
        self.labels = self._lengths(target_lengths)
        longest = max(map(int, target_lengths), default=0)
        if targets.ndim == 2:
            targets = targets.slice(1, 0, longest)
        else:
            starts = self.labels.scan("cumsum", 0) - self.labels
            at = starts.unsqueeze(1) + A.iota(longest)
            targets = targets.take(A.map_("minimum", at, max(targets.shape[0] - 1, 0)))
        self.s = 2 * targets.shape[1] + 1
        labels = targets.to("i64")
        blanks = A.full((*labels.shape, 1), blank, "i64")
        pairs = A.cat([blanks, labels.unsqueeze(2)], 2).reshape(self.n, self.s - 1)
        self.ext = A.cat([pairs, A.full((self.n, 1), blank, "i64")], 1)  # [N, S]: blank l1 blank l2 ... blank
        width = self.labels * 2 + 1
        self.valid = A.positions((self.n, self.s), 1) < width.unsqueeze(1)
        self.ext = where(self.valid, self.ext, blank)
        before = A.cat([A.full((self.n, 2), -1, "i64"), self.ext.slice(1, 0, self.s - 2)], 1) if self.s > 2 else None
        self.skips = A.full((self.n, self.s), False, "bool")
        if before is not None:
            self.skips = self.ext.ne(blank) & self.ext.ne(before) & (A.positions((self.n, self.s), 1) >= 2)
        self.width = width

    def _lengths(self, lengths: Any) -> Arr:
        return A.cat([A.full((1,), int(v), "i64") for v in lengths], 0)

    def emitted(self, log_probs: Arr, t: int) -> Arr:
        """[N, S]: log probability of each extended label at step t."""
        return log_probs.select(0, t).gather(1, self.ext)

    def shift(self, x: Arr, by: int) -> Arr:
        """x moved by `by` labels along S, -inf moved in."""
        return x.pad((0, max(by, 0)), (0, max(-by, 0)), -math.inf).slice(1, max(-by, 0), max(-by, 0) + self.s)

    def last_two(self, alpha: Arr) -> Arr:
        """log of the two final states' sum."""
        last = A.map_("maximum", self.width - 1, 0).unsqueeze(1)
        one = alpha.gather(1, last)
        two = where(last > 0, alpha.gather(1, A.map_("maximum", last - 1, 0)), -math.inf)
        return log_sum(one, two).squeeze(1)


def log_sum(*xs: Arr) -> Arr:
    """log of the sum of exponentials; -inf where all are."""
    top = xs[0]
    for x in xs[1:]:
        top = A.map_("maximum", top, x)
    safe = where(top.eq(-math.inf), 0.0, top)
    total = A.map_("exp", xs[0] - safe)
    for x in xs[1:]:
        total = total + A.map_("exp", x - safe)
    return A.map_("log", total) + safe


@rule("_ctc_loss")
def _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    ctc = _Ctc(log_probs, targets, input_lengths, target_lengths, blank)
    start = A.positions((ctc.n, ctc.s), 1) < A.map_("minimum", ctc.width, 2).unsqueeze(1)
    alpha = where(start, ctc.emitted(log_probs, 0), -math.inf)
    steps = [alpha]
    for t in range(1, ctc.t):
        jump = where(ctc.skips, ctc.shift(alpha, 2), -math.inf)
        new = log_sum(alpha, ctc.shift(alpha, 1), jump) + ctc.emitted(log_probs, t)
        alive = (ctc.inputs > t).unsqueeze(1) & ctc.valid
        alpha = where(alive, new, where((ctc.inputs > t).unsqueeze(1), -math.inf, alpha))
        steps.append(where(alive, new, -math.inf))
    loss = -ctc.last_two(alpha)
    loss = where(ctc.inputs.eq(0), where(ctc.labels.eq(0), 0.0, math.inf, loss.dtype), loss)
    return loss, A.stack(steps, 1)


@rule("_ctc_loss_backward")
def _ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):  # fmt: skip
    ctc = _Ctc(log_probs, targets, input_lengths, target_lengths, blank)
    ends = A.positions((ctc.n, ctc.s), 1)
    final = ends.eq((ctc.width - 1).unsqueeze(1)) | (
        ends.eq((ctc.width - 2).unsqueeze(1)) & (ctc.width > 1).unsqueeze(1)
    )
    ahead = (
        A.cat([ctc.skips.slice(1, 2), A.full((ctc.n, 2), False, "bool")], 1)
        if ctc.s > 2
        else A.full((ctc.n, ctc.s), False, "bool")
    )
    beta = A.full((ctc.n, ctc.s), -math.inf, log_probs.dtype)
    nll = neg_log_likelihood.unsqueeze(1)
    parts = []
    for t in reversed(range(ctc.t)):
        emitted = ctc.emitted(log_probs, t)
        jump = where(ahead, ctc.shift(beta, -2), -math.inf)
        inner = log_sum(beta, ctc.shift(beta, -1), jump) + emitted
        last = ctc.inputs.eq(t + 1).unsqueeze(1)
        beta = where(
            last, where(final, emitted, -math.inf), where((ctc.inputs > t).unsqueeze(1) & ctc.valid, inner, -math.inf)
        )
        lp = log_probs.select(0, t)
        joint = where(ctc.valid, A.map_("exp", log_alpha.select(1, t) + beta - emitted + nll), 0.0)
        joint = where(joint.ne(joint), 0.0, joint)
        mass = A.full(lp.shape, 0, lp.dtype).scatter(1, ctc.ext, joint, "add")
        parts.append(where((ctc.inputs > t).unsqueeze(1), A.map_("exp", lp) - mass, 0.0))
    g = A.stack(parts[::-1], 0) * grad.reshape(1, ctc.n, 1)
    if zero_infinity:
        g = where(neg_log_likelihood.eq(math.inf).reshape(1, ctc.n, 1), 0.0, g)
    return g.to(opmath(log_probs.dtype)).to(log_probs.dtype)
