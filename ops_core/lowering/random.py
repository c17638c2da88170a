"""Random ops from counter-based bits. The recorder passes `seed` and `offset` (i64 scalars); an op of n elements
consumes ceil(n / 4) counters, so results depend on seed and call order only."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

import torch

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import between_0_and_1, required
from ops_core.lowering.movement import like
from ops_core.lowering.promote import default_float, name_of, opmath, torch_dtype
from ops_core.lowering.registry import Effects, rule


def rng_counters(numel: int) -> int:
    """Philox counters that a random op of `numel` elements consumes."""
    return -(-numel // 4)


def uniform(shape: Any, seed: Arr, offset: Arr, dtype: str) -> Arr:
    """[0, 1): 24 random bits in f32, 32 in f64."""
    bits = A.rand_bits(tuple(shape), seed, offset)
    if dtype == "f64":
        return bits.to("f64") * 2.0**-32
    return (bits >> 8).to("i32").to("f32") * 2.0**-24


def open_uniform(shape: Any, seed: Arr, offset: Arr, dtype: str) -> Arr:
    """(0, 1): never an end point, symmetric about 1/2."""
    bits = A.rand_bits(tuple(shape), seed, offset)
    if dtype == "f64":
        return (bits.to("f64") + 0.5) * 2.0**-32
    return ((bits >> 9).to("i32").to("f32") + 0.5) * 2.0**-23


def standard_normal(shape: Any, seed: Arr, offset: Arr, dtype: str) -> Arr:
    """By the inverse distribution function: one draw an element, no pairing."""
    return A.map_("erf_inv", open_uniform(shape, seed, offset, dtype) * 2.0 - 1.0) * math.sqrt(2)


def _float_name(dtype: torch.dtype | None) -> str:
    return name_of(dtype or torch.get_default_dtype())


def _in(value: Any, dtype: str) -> Any:
    return value.to(dtype) if isinstance(value, Arr) else value


def _drawn(draw: Any, shape: Any, seed: Arr, offset: Arr, result: str) -> Arr:
    return draw(shape, seed, offset, opmath(result)).to(result)


@rule("rand")
def _rand(size, seed, offset, dtype=None):
    return _below_one(uniform(size, seed, offset, opmath(_float_name(dtype))), _float_name(dtype))


def _below_one(u: Arr, result: str) -> Arr:
    """Rounded to `result` without reaching 1."""
    limit = {"f16": 1 - 2.0**-11, "bf16": 1 - 2.0**-8}.get(result)
    return u.to(result) if limit is None else A.map_("minimum", u, limit).to(result)


@rule("rand_like")
def _rand_like(self, seed, offset, dtype=None):
    return _rand(self.shape, seed, offset, dtype or torch_dtype(self))


@rule("randn")
def _randn(size, seed, offset, dtype=None):
    return _drawn(standard_normal, size, seed, offset, _float_name(dtype))


@rule("randn_like")
def _randn_like(self, seed, offset, dtype=None):
    return _randn(self.shape, seed, offset, dtype or torch_dtype(self))


@rule("uniform")
def _uniform(self, seed, offset, from_=0, to=1):
    dtype = opmath(self.dtype)
    low, high = _in(from_, dtype), _in(to, dtype)
    span = high - low
    u = _below_one(uniform(self.shape, seed, offset, dtype), self.dtype)
    drawn = (u.to(dtype) * span + low).to(self.dtype)
    end = high.to(self.dtype) if isinstance(high, Arr) else A.full((), high, self.dtype)
    first = low.to(self.dtype) if isinstance(low, Arr) else A.full((), low, self.dtype)
    # A sum that was rounded to the end counts as the beginning, as on torch's other accelerators.
    return where(drawn >= end, first, drawn)


@rule("normal_functional")
def _normal_functional(self, seed, offset, mean=0, std=1):
    dtype = opmath(self.dtype)
    return (standard_normal(self.shape, seed, offset, dtype) * _in(std, dtype) + _in(mean, dtype)).to(self.dtype)


@rule("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal(seed, offset, mean=0, std=1):
    arrays = [x for x in (mean, std) if isinstance(x, Arr) and x.v.node.op != "param"]
    result = arrays[0].dtype
    dtype = opmath(result)
    if std is arrays[-1]:
        required(std >= 0, "deviation")
    shape = A.broadcast_shapes(*(x.shape for x in arrays))
    return (standard_normal(shape, seed, offset, dtype) * _in(std, dtype) + _in(mean, dtype)).to(result)


@rule("normal.float_float")
def _normal_float(mean, std, size, seed, offset, dtype=None):
    result = _float_name(dtype)
    draw = standard_normal(size, seed, offset, opmath(result))
    return (draw * _in(std, draw.dtype) + _in(mean, draw.dtype)).to(result)


@rule("bernoulli", "bernoulli.p")
def _bernoulli(self, seed, offset, p=None):
    """Probabilities are `self`, or `p` (number or tensor) in self's shape and dtype."""
    chance = self if p is None else p
    dtype = "f64" if isinstance(chance, Arr) and chance.dtype == "f64" else "f32"
    if isinstance(chance, Arr) and chance.v.node.op != "param":
        between_0_and_1(chance, "bernoulli")
    draw = uniform(self.shape, seed, offset, dtype)
    return (draw < _in(chance, dtype)).to(self.dtype)


def randint(shape: Any, low: int | Arr, high: int | Arr, seed: Arr, offset: Arr) -> Arr:
    """low <= i < high as i64: multiply-shift of 32 random bits (bias under 2^-32 * range)."""
    bits = A.rand_bits(tuple(shape), seed, offset).to("i64")
    span = high - low
    if isinstance(span, int) and span > 2**31:  # wider than the product can hold: spread the bits
        if span > 2**63:  # of both signs
            return ((bits << 32) ^ bits) + low
        spread = (bits << 31) ^ bits
        return (spread if span == 2**63 else A.map_("remainder", spread, span)) + low
    return ((bits * span) >> 32) + low


@rule("randint")
def _randint(high, size, seed, offset, low=0, dtype=torch.int64):
    return randint(size, low, high, seed, offset).to(name_of(dtype or torch.int64))


@rule("randint_like")
def _randint_like(self, high, seed, offset, low=0, dtype=None):
    return randint(self.shape, low, high, seed, offset).to(self.dtype if dtype is None else name_of(dtype))


@rule("random")
def _random(self, seed, offset, from_=0, to=None):
    """Integers in [from, to); without bounds, all that the dtype holds exactly from 0."""
    limits = {"bool": 2, "u8": 256, "i8": 128, "i16": 1 << 15, "i32": 1 << 31, "i64": 1 << 63, "f16": 2049,
              "bf16": 257, "f32": (1 << 24) + 1, "f64": (1 << 53) + 1}  # fmt: skip
    high = to if to is not None or from_ != 0 else limits[self.dtype]
    return randint(self.shape, from_, high if high is not None else limits[self.dtype], seed, offset).to(self.dtype)


@rule("exponential")
def _exponential(self, seed, offset, lambd=1):
    dtype = opmath(self.dtype)
    return (-A.map_("log", open_uniform(self.shape, seed, offset, dtype)) / _in(lambd, dtype)).to(self.dtype)


@rule("geometric")
def _geometric(self, p, seed, offset):
    dtype = opmath(self.dtype) if self.is_float else "f32"
    chance = _in(p, dtype) if isinstance(p, Arr) else A.full((), p, dtype)
    tail = A.map_("log1p", -chance)
    draw = A.map_("log", open_uniform(self.shape, seed, offset, dtype)) / tail
    return A.map_("ceil", draw).to(self.dtype)


@rule("cauchy")
def _cauchy(self, seed, offset, median=0, sigma=1):
    dtype = opmath(self.dtype)
    u = open_uniform(self.shape, seed, offset, dtype) - 0.5
    return (A.map_("tan", u * math.pi) * _in(sigma, dtype) + _in(median, dtype)).to(self.dtype)


@rule("log_normal")
def _log_normal(self, seed, offset, mean=1, std=2):
    dtype = opmath(self.dtype)
    draw = standard_normal(self.shape, seed, offset, dtype)
    return A.map_("exp", draw * _in(std, dtype) + _in(mean, dtype)).to(self.dtype)


@rule("randperm")
def _randperm(n, seed, offset, dtype=torch.int64):
    order = A.rand_bits((n,), seed, offset).sort(0)[1]
    return order.to(name_of(dtype or torch.int64))


def dropout_mask(shape: Any, p: Any, seed: Arr, offset: Arr) -> Arr:
    """True with probability 1 - p."""
    return uniform(shape, seed, offset, "f32") >= _in(p, "f32")


@rule("native_dropout")
def _native_dropout(input, p, train, seed, offset):
    if train is False:
        return input, A.full(input.shape, True, "bool")
    mask = dropout_mask(input.shape, p, seed, offset)
    keep = 1.0 - _in(p, opmath(input.dtype))
    scale = 1.0 / keep if isinstance(keep, Arr) else (0.0 if keep == 0 else 1.0 / keep)
    scaled = input.to(opmath(input.dtype)) * scale
    return where(mask, scaled, 0.0).to(input.dtype), mask


@rule("native_dropout_backward")
def _native_dropout_backward(grad_output, mask, scale):
    result = grad_output.dtype if grad_output.is_float else default_float()
    dtype = opmath(result)
    return where(mask.to("bool"), grad_output.to(dtype) * _in(scale, dtype), 0.0).to(result)


@rule("rrelu_with_noise_functional")
def _rrelu_with_noise(self, noise, seed, offset, lower=0.125, upper=1 / 3, training=False):
    dtype = opmath(self.dtype)
    x, low, high = self.to(dtype), _in(lower, dtype), _in(upper, dtype)
    if not training:
        return where(x > 0, x, x * ((low + high) / 2.0)).to(self.dtype), noise
    slope = where(x > 0, 1.0, uniform(self.shape, seed, offset, dtype) * (high - low) + low)
    return (x * slope).to(self.dtype), slope.to(noise.dtype)


@rule("rrelu_with_noise.default")
def _rrelu_with_noise_mutable(self, noise, seed, offset, lower=0.125, upper=1 / 3, training=False):
    out, new = _rrelu_with_noise(self, noise, seed, offset, lower, upper, training)
    return Effects(out, {"noise": like(new, noise)})


@rule("rrelu_with_noise_.default")
def _rrelu_with_noise_inplace(self, noise, seed, offset, lower=0.125, upper=1 / 3, training=False):
    out, new = _rrelu_with_noise(self, noise, seed, offset, lower, upper, training)
    return Effects(out, {"self": out, "noise": like(new, noise)})


@rule("multinomial")
def _multinomial(self, num_samples, seed, offset, replacement=False):
    """With replacement: inverse distribution function. Without: the largest keys log(u) / p win (Efraimidis)."""
    if not 0 < self.ndim <= 2:
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if self.shape[-1] > 2**24:
        raise RuntimeError("number of categories cannot exceed 2^24")
    x = self.to(opmath(self.dtype))
    rows = x if x.ndim == 2 else x.unsqueeze(0)
    keyed = not replacement or num_samples == 1
    required(rows >= 0, "probability" if keyed else "negative chance")
    required(rows < math.inf, "probability" if keyed else "endless chance")
    required(rows.sum((1,)) > 0, "no chance")
    if keyed:
        u = open_uniform(rows.shape, seed, offset, rows.dtype)
        keys = where(rows > 0, A.map_("log", u) / rows, -math.inf)
        out = keys.arg("argmax", 1, True) if num_samples == 1 else keys.sort(1, descending=True, count=num_samples)[1]
    else:
        total = rows.scan("cumsum", 1)
        draws = uniform((rows.shape[0], num_samples), seed, offset, rows.dtype) * total.slice(1, rows.shape[1] - 1)
        found = A.searchsorted(total, draws, right=True)
        out = A.map_("minimum", found, rows.shape[1] - 1)
    return out if x.ndim == 2 else out.squeeze(0)
