"""Activation functions and their backwards."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.pointwise import abs_, pointwise, sigmoid_of, tanh_of
from ops_core.lowering.promote import up
from ops_core.lowering.registry import rule

GRAD = ("grad_output", "self")
SQRT_HALF, SQRT_2_OVER_PI, INV_SQRT_2PI = math.sqrt(0.5), math.sqrt(2 / math.pi), 1 / math.sqrt(2 * math.pi)


@pointwise("relu", operands=("self",))
def _relu(self):
    return A.map_("maximum", self, 0)


@pointwise("relu6", operands=("self",))
def _relu6(self):
    return A.map_("minimum", A.map_("maximum", self, 0), 6)


@pointwise("threshold", operands=("self",))
def _threshold(self, threshold, value):
    return where(self <= threshold, value, self)


@pointwise("threshold_backward", operands=GRAD)
def _threshold_backward(grad_output, self, threshold):
    return where(self <= threshold, 0, grad_output)


@pointwise("leaky_relu", operands=("self",))
def _leaky_relu(self, negative_slope=0.01):
    return where(self > 0, self, self * negative_slope)


@pointwise("leaky_relu_backward", operands=GRAD)
def _leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    return where(self > 0, grad_output, grad_output * negative_slope)


@pointwise("_prelu_kernel", operands=("self", "weight"))
def _prelu(self, weight):
    return where(self > 0, self, self * weight)


@pointwise("elu", operands=("self",))
def _elu(self, alpha=1, scale=1, input_scale=1):
    return where(self > 0, self * scale, A.map_("expm1", self * input_scale) * alpha * scale)


@pointwise("elu_backward", operands=("grad_output", "self_or_result"))
def _elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    x = self_or_result
    if is_result:
        negative = (
            grad_output * input_scale * (x + (A.map_("mul", alpha, scale) if isinstance(alpha, Arr) else alpha * scale))
        )
    else:
        negative = grad_output * input_scale * alpha * scale * A.map_("exp", x * input_scale)
    return where(x <= 0, negative, grad_output * scale)


@pointwise("celu", operands=("self",))
def _celu(self, alpha=1.0):
    return where(self > 0, self, A.map_("expm1", self / alpha) * alpha)


def _tanh_cdf(x: Arr) -> Arr:
    """(1 + tanh u) / 2 of the approximation, as sigmoid(2 u): cheaper, and nothing cancels."""
    return sigmoid_of(2.0 * SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))


@pointwise("gelu", operands=("self",))
def _gelu(self, approximate="none"):
    if approximate == "tanh":
        return self * _tanh_cdf(self)
    return 0.5 * self * (1.0 + A.map_("erf", self * SQRT_HALF, beside_one=True))


@pointwise("gelu_backward", operands=GRAD)
def _gelu_backward(grad_output, self, approximate="none"):
    x = self
    if approximate == "tanh":
        cdf = _tanh_cdf(x)
        slope = 2.0 * SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x)
        return grad_output * (cdf + x * (cdf * (1.0 - cdf) * slope))
    cdf = 0.5 * (1.0 + A.map_("erf", x * SQRT_HALF, beside_one=True))
    return grad_output * (cdf + x * (INV_SQRT_2PI * A.map_("exp", -0.5 * x * x)))


@pointwise("silu", operands=("self",))
def _silu(self):
    return self / (A.map_("exp", -self) + 1.0)


@pointwise("silu_backward", operands=GRAD)
def _silu_backward(grad_output, self):
    s = sigmoid_of(self)
    return grad_output * s * (1.0 + self * (1.0 - s))


@pointwise("mish", operands=("self",))
def _mish(self):
    return self * tanh_of(softplus_of(self))


@pointwise("mish_backward", operands=GRAD)
def _mish_backward(grad_output, self):
    t = tanh_of(softplus_of(self))
    return grad_output * (t + self * sigmoid_of(self) * (1.0 - t * t))


def softplus_of(x: Arr) -> Arr:
    """log(1 + exp(x)) without overflow."""
    return A.map_("maximum", x, 0.0) + A.map_("log1p", A.map_("exp", -abs_(x)))


@pointwise("softplus", operands=("self",))
def _softplus(self, beta=1, threshold=20):
    z = self * beta
    return where(z > threshold, self, A.map_("log1p", A.map_("exp", z)) / beta)


@pointwise("softplus_backward", operands=GRAD)
def _softplus_backward(grad_output, self, beta, threshold):
    z = self * beta
    e = A.map_("exp", z)
    return where(z > threshold, grad_output, grad_output * e / (e + 1.0))


@pointwise("sigmoid_backward", operands=("grad_output", "output"))
def _sigmoid_backward(grad_output, output):
    return grad_output * (1.0 - output) * output


@pointwise("tanh_backward", operands=("grad_output", "output"))
def _tanh_backward(grad_output, output):
    return grad_output * (1.0 - output * output)


@rule("log_sigmoid_forward")
def _log_sigmoid(self):
    x = up(self)
    decay = A.map_("exp", -abs_(x))
    return (A.map_("minimum", x, 0.0) - A.map_("log1p", decay)).to(self.dtype), decay.to(self.dtype)


@pointwise("hardtanh", operands=("self",))
def _hardtanh(self, min_val=-1, max_val=1):
    return A.map_("minimum", A.map_("maximum", self, min_val), max_val)


@pointwise("hardtanh_backward", operands=GRAD)
def _hardtanh_backward(grad_output, self, min_val, max_val):
    return where((self <= min_val) | (self >= max_val), 0, grad_output)


@pointwise("hardsigmoid", operands=("self",))
def _hardsigmoid(self):
    return A.map_("minimum", A.map_("maximum", self + 3.0, 0.0), 6.0) / 6.0


@pointwise("hardsigmoid_backward", operands=GRAD)
def _hardsigmoid_backward(grad_output, self):
    return where((self > -3.0) & (self < 3.0), grad_output / 6.0, 0.0)


@pointwise("hardswish", operands=("self",))
def _hardswish(self):
    return self * A.map_("minimum", A.map_("maximum", self + 3.0, 0.0), 6.0) / 6.0


@pointwise("hardswish_backward", operands=GRAD)
def _hardswish_backward(grad_output, self):
    return where(self <= -3.0, 0.0, where(self < 3.0, grad_output * (self / 3.0 + 0.5), grad_output))


@pointwise("hardshrink", operands=("self",))
def _hardshrink(self, lambd=0.5):
    return where((self <= lambd) & (self >= -lambd), 0.0, self)


@pointwise("softshrink", operands=("self",))
def _softshrink(self, lambd=0.5):
    return where(self > lambd, self - lambd, where(self < -lambd, self + lambd, where(self.ne(self), self, 0.0)))


@pointwise("hardshrink_backward", "softshrink_backward", operands=("grad_output", "grad_out", "self"))
def _shrink_backward(self, lambd, grad_output=None, grad_out=None):
    return where((self >= -lambd) & (self <= lambd), 0.0, grad_out if grad_output is None else grad_output)
