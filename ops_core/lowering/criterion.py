"""Elementwise losses with a reduction, and their backwards."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import between_0_and_1
from ops_core.lowering.indexing import MEAN, NONE
from ops_core.lowering.pointwise import abs_
from ops_core.lowering.promote import name_of, opmath, result_type, up
from ops_core.lowering.registry import rule


def _operands(*xs: Arr) -> tuple[str, list[Arr]]:
    """(result dtype, the operands broadcast in its arithmetic dtype)."""
    result = name_of(result_type(xs))
    return result, list(A.broadcast(*(x.to(opmath(result)) for x in xs)))


def _reduced(losses: Arr, reduction: int, result: str) -> Arr:
    if reduction == NONE:
        return losses.to(result)
    return (losses.mean() if reduction == MEAN else losses.sum()).to(result)


def _spread(grad: Arr, x: Arr, reduction: int) -> Arr:
    """The gradient of each element's loss."""
    return up(grad) / x.numel if reduction == MEAN else up(grad)


def _number(value: Any, like: Arr) -> Any:
    return value.to(like.dtype) if isinstance(value, Arr) else float(value)


@rule("mse_loss")
def _mse_loss(self, target, reduction=MEAN):
    result, (x, t) = _operands(self, target)
    d = x - t
    return _reduced(d * d, reduction, result)


@rule("mse_loss_backward")
def _mse_loss_backward(grad_output, self, target, reduction):
    result, (x, t) = _operands(self, target)
    return (2.0 * (x - t) * _spread(grad_output, x, reduction)).to(result)


@rule("smooth_l1_loss")
def _smooth_l1_loss(self, target, reduction=MEAN, beta=1.0):
    result, (x, t) = _operands(self, target)
    b, z = _number(beta, x), abs_(x - t)
    return _reduced(where(z < b, 0.5 * z * z / b, z - _half(b)), reduction, result)


def _half(x: Any) -> Any:
    return x * 0.5


@rule("smooth_l1_loss_backward")
def _smooth_l1_loss_backward(grad_output, self, target, reduction, beta):
    result, (x, t) = _operands(self, target)
    b, d = _number(beta, x), x - t
    slope = where(abs_(d) < b, d / b, A.map_("sign", d))
    return (slope * _spread(grad_output, x, reduction)).to(result)


@rule("huber_loss")
def _huber_loss(self, target, reduction=MEAN, delta=1.0):
    result, (x, t) = _operands(self, target)
    b, z = _number(delta, x), abs_(x - t)
    return _reduced(where(z <= b, 0.5 * z * z, (z - _half(b)) * b), reduction, result)


@rule("huber_loss_backward")
def _huber_loss_backward(grad_output, self, target, reduction, delta):
    result, (x, t) = _operands(self, target)
    b, d = _number(delta, x), x - t
    slope = where(abs_(d) <= b, d, A.map_("sign", d) * b)
    return (slope * _spread(grad_output, x, reduction)).to(result)


# logarithms of probabilities are cut off here, as in eager
LOWEST_LOG = -100.0
EPSILON = 1e-12


@rule("binary_cross_entropy")
def _binary_cross_entropy(self, target, weight=None, reduction=MEAN):
    result, (x, t) = _operands(self, target)
    between_0_and_1(x, "input share")
    between_0_and_1(t, "target share")
    log = A.map_("maximum", A.map_("log", x), LOWEST_LOG)
    log_not = A.map_("maximum", A.map_("log1p", -x), LOWEST_LOG)
    losses = (t - 1.0) * log_not - t * log
    return _reduced(losses if weight is None else losses * weight.to(x.dtype), reduction, result)


@rule("binary_cross_entropy_backward")
def _binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=MEAN):
    result, (x, t) = _operands(self, target)
    grad = _spread(grad_output, x, reduction) * (x - t) / A.map_("maximum", (1.0 - x) * x, EPSILON)
    return (grad if weight is None else grad * weight.to(x.dtype)).to(result)


@rule("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(self, target, weight=None, pos_weight=None, reduction=MEAN):
    result, (x, t) = _operands(self, target)
    log_sigmoid = A.map_("minimum", x, 0.0) - A.map_("log1p", A.map_("exp", -abs_(x)))
    scaled = log_sigmoid if pos_weight is None else ((pos_weight.to(x.dtype) - 1.0) * t + 1.0) * log_sigmoid
    losses = (1.0 - t) * x - scaled
    return _reduced(losses if weight is None else losses * weight.to(x.dtype), reduction, result)
