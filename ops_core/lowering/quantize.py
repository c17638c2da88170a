"""Fake quantisation: the rounding of a quantised model in floating point, for training."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.promote import up
from ops_core.lowering.registry import rule


def _fake(x: Arr, scale: Any, zero: Any, low: int, high: int) -> tuple[Arr, Arr]:
    """(x as the nearest quantised value, whether it was inside the range)."""
    level = A.map_("round", x * (1.0 / scale)) + zero
    clamped = A.map_("minimum", A.map_("maximum", level, float(low)), float(high))
    return (clamped - zero) * scale, (level >= float(low)) & (level <= float(high))


def _channels(p: Arr, x: Arr, axis: int) -> Arr:
    return p.to(x.dtype).reshape(*(p.numel if d == axis % x.ndim else 1 for d in range(x.ndim)))


@rule("fake_quantize_per_tensor_affine_cachemask")
def _per_tensor(self, scale, zero_point, quant_min, quant_max):
    x = up(self)
    out, mask = _fake(
        x, scale.to(x.dtype) if isinstance(scale, Arr) else scale, float(zero_point), quant_min, quant_max
    )
    return out.to(self.dtype), mask


@rule("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _per_tensor_tensors(self, scale, zero_point, fake_quant_enabled, quant_min, quant_max):
    x = up(self)
    out, mask = _fake(x, scale.to(x.dtype).reshape(), zero_point.to(x.dtype).reshape(), quant_min, quant_max)
    on = fake_quant_enabled.reshape().ne(0)
    return where(on, out, x).to(self.dtype), mask | ~on


@rule("fake_quantize_per_channel_affine_cachemask")
def _per_channel(self, scale, zero_point, axis, quant_min, quant_max):
    x = up(self)
    out, mask = _fake(x, _channels(scale, x, axis), _channels(zero_point, x, axis), quant_min, quant_max)
    return out.to(self.dtype), mask


def _whole(zero: Arr, low: int, high: int) -> Arr:
    """A learnt zero point as the integer it stands for."""
    return A.map_("minimum", A.map_("maximum", A.map_("round", zero), float(low)), float(high))


@rule("_fake_quantize_learnable_per_tensor_affine")
def _learnable_per_tensor(self, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    x = up(self)
    zero = _whole(zero_point.to(x.dtype).reshape(), quant_min, quant_max)
    return _fake(x, scale.to(x.dtype).reshape(), zero, quant_min, quant_max)[0].to(self.dtype)


@rule("_fake_quantize_learnable_per_channel_affine")
def _learnable_per_channel(self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    x = up(self)
    zero = _whole(_channels(zero_point, x, axis), quant_min, quant_max)
    return _fake(x, _channels(scale, x, axis), zero, quant_min, quant_max)[0].to(self.dtype)


def _learnable_backward(
    grad: Arr, x: Arr, scale: Arr, zero: Arr, low: int, high: int, factor: Any
) -> tuple[Arr, Arr, Arr]:
    """Gradients of x, and elementwise of scale and zero point."""
    out, inside = _fake(x, scale, zero, low, high)
    level = A.map_("round", x * (1.0 / scale)) + zero
    edge = where(level < float(low), low - zero, high - zero)
    dscale = where(inside, (out - x) * (1.0 / scale), edge) * grad * factor
    dzero = where(inside, 0.0, grad * -1.0 * scale) * factor
    return where(inside, grad, 0.0), dscale, dzero


@rule("_fake_quantize_learnable_per_tensor_affine_backward")
def _learnable_per_tensor_backward(grad, self, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    x, g = up(self), up(grad)
    factor = grad_factor.to(x.dtype) if isinstance(grad_factor, Arr) else grad_factor
    zero = _whole(zero_point.to(x.dtype).reshape(), quant_min, quant_max)
    dx, dscale, dzero = _learnable_backward(g, x, scale.to(x.dtype).reshape(), zero, quant_min, quant_max, factor)
    return (dx.to(self.dtype), dscale.sum().reshape(1).to(scale.dtype), dzero.sum().reshape(1).to(zero_point.dtype))


@rule("_fake_quantize_learnable_per_channel_affine_backward")
def _learnable_per_channel_backward(grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    x, g = up(self), up(grad)
    factor = grad_factor.to(x.dtype) if isinstance(grad_factor, Arr) else grad_factor
    zero = _whole(_channels(zero_point, x, axis), quant_min, quant_max)
    dx, dscale, dzero = _learnable_backward(g, x, _channels(scale, x, axis), zero, quant_min, quant_max, factor)
    others = tuple(d for d in range(x.ndim) if d != axis % x.ndim)
    reduce = (lambda y: y.sum(others)) if others else (lambda y: y)
    return dx.to(self.dtype), reduce(dscale).to(scale.dtype), reduce(dzero).to(zero_point.dtype)
