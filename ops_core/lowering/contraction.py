"""Matrix products and convolutions with their backwards."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.promote import name_of, opmath, result_type
from ops_core.lowering.registry import Effects, rule


def product(a: Arr, b: Arr) -> Arr:
    """a @ b in the operands' dtype (halves accumulate in f32 inside); bool as integers."""
    if a.dtype == "bool":
        return A.matmul(a.to("i32"), b.to("i32")).to("bool")
    if a.shape[-1] == 0:
        return A.full((*A.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), 0, a.dtype)
    return A.matmul(a, b)


def _wide(x: Arr) -> Arr:
    """Halves as f32, so that the scalar epilogue of a product rounds once."""
    return x.to(opmath(x.dtype))


def _scaled_sum(self: Arr, out: Arr, beta: Any, alpha: Any) -> Arr:
    """beta * self + alpha * out; beta == 0 ignores self, which may be memory that nobody wrote (torch.mv's is)."""
    dtype = out.dtype
    out = out if _one(alpha) else out * _as(alpha, dtype)
    if not isinstance(beta, Arr):
        return out if beta == 0 else out + (self.to(dtype) if _one(beta) else self.to(dtype) * beta)
    return out + where(beta.ne(0), self.to(dtype) * beta.to(dtype), 0)


def _one(x: Any) -> bool:
    return not isinstance(x, Arr) and x == 1


def _as(x: Any, dtype: str) -> Any:
    return x.to(dtype) if isinstance(x, Arr) else x


def _fused_product(self: Arr, a: Arr, b: Arr, beta: Any, alpha: Any) -> Arr:
    simple = _one(beta) and _one(alpha) and a.dtype not in ("f16", "bf16")
    out = product(a, b) if simple else product(_wide(a), _wide(b))
    return _scaled_sum(self, out, beta, alpha).to(a.dtype)


@rule("mm")
def _mm(self, mat2):
    return product(self, mat2)


@rule("mm.dtype", "bmm.dtype")
def _mm_dtype(self, mat2, out_dtype):
    return product(self.to(name_of(out_dtype)), mat2.to(name_of(out_dtype)))


@rule("_int_mm")
def _int_mm(self, mat2):
    return product(self.to("i32"), mat2.to("i32"))


@rule("bmm")
def _bmm(self, mat2):
    return product(self, mat2)


@rule("addmm")
def _addmm(self, mat1, mat2, beta=1, alpha=1):
    return _fused_product(self, mat1, mat2, beta, alpha)


@rule("_addmm_activation")
def _addmm_activation(self, mat1, mat2, beta=1, alpha=1, use_gelu=False):
    from ops_core.lowering.activation import _gelu

    out = _scaled_sum(self, product(_wide(mat1), _wide(mat2)), beta, alpha)
    return (_gelu(out) if use_gelu else A.map_("maximum", out, 0)).to(mat1.dtype)


@rule("baddbmm")
def _baddbmm(self, batch1, batch2, beta=1, alpha=1):
    return _fused_product(self, batch1, batch2, beta, alpha)


@rule("addbmm")
def _addbmm(self, batch1, batch2, beta=1, alpha=1):
    out = product(_wide(batch1), _wide(batch2)).sum(0)
    return _scaled_sum(self, out, beta, alpha).to(batch1.dtype)


@rule("mv")
def _mv(self, vec):
    return product(self, vec.unsqueeze(1)).squeeze(1)


@rule("addmv")
def _addmv(self, mat, vec, beta=1, alpha=1):
    out = product(_wide(mat), _wide(vec).unsqueeze(1)).squeeze(1)
    return _scaled_sum(self, out, beta, alpha).to(mat.dtype)


@rule("addr")
def _addr(self, vec1, vec2, beta=1, alpha=1):
    result = name_of(result_type([self, vec1, vec2]))
    dtype = opmath(result)
    if dtype == "bool":
        out = vec1.unsqueeze(1) & vec2.unsqueeze(0)
        out = out if alpha else A.full_like(out, False)
        return out | self if beta else out
    return _scaled_sum(self, vec1.to(dtype).unsqueeze(1) * vec2.to(dtype).unsqueeze(0), beta, alpha).to(result)


@rule("dot", "vdot")
def _dot(self, other=None, tensor=None):
    other = tensor if other is None else other
    x, y = self.to(opmath(self.dtype)), other.to(opmath(self.dtype))
    if x.dtype == "bool":
        return (x & y).any()
    return (x * y).sum().to(self.dtype)


@rule("linear")
def _linear(input, weight, bias=None):
    x = input if input.ndim > 1 else input.unsqueeze(0)
    flat = x.reshape(-1 if x.numel else math.prod(x.shape[:-1]), x.shape[-1])
    w = weight if weight.ndim > 1 else weight.unsqueeze(0)
    out = product(flat, w.transpose(0, 1)) if bias is None else _fused_product(bias, flat, w.transpose(0, 1), 1, 1)
    lead = input.shape[:-1]
    return out.reshape(*lead, *(() if weight.ndim == 1 else (weight.shape[0],)))


@rule("linear_backward")
def _linear_backward(self, grad_output, weight, output_mask):
    grad = grad_output.reshape(-1, grad_output.shape[-1])
    x = self.reshape(-1, self.shape[-1])
    dx = product(grad, weight).reshape(*self.shape) if output_mask[0] else None
    dw = product(grad.transpose(0, 1), x) if output_mask[1] else None
    return dx, dw, grad.sum(0) if output_mask[2] else None


def convolve(
    x: Arr, w: Arr, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Arr:
    """The core convolution; x [N, C, ...], w [K, C / groups, ...] ([C, K / groups, ...] transposed)."""
    spatial = []
    for n, k, s, p, d, o in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=False):
        span = d * (k - 1)
        spatial.append((n - 1) * s - 2 * p + span + o + 1 if transposed else (n + 2 * p - span - 1) // s + 1)
    channels = w.shape[1] * groups if transposed else w.shape[0]
    shape = (x.shape[0], channels, *spatial)
    if math.prod(shape) == 0 or x.numel == 0 or w.numel == 0:
        return A.full(shape, 0, x.dtype)
    pointwise = set(w.shape[2:]) <= {1} and set(stride) <= {1} and not any(padding) and not any(output_padding)
    if pointwise and groups == 1:  # a product of channels at every place
        matrix = w.reshape(*w.shape[:2])
        flat = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        return A.matmul(matrix.transpose(0, 1) if transposed else matrix, flat).reshape(*shape)
    return A.emit(
        "convolution", (x, w), shape, x.dtype, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation),
        transposed=transposed, output_padding=tuple(output_padding), groups=groups,
    )  # fmt: skip


def _spread(values: Any, rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


@rule("convolution", "_convolution", "convolution_overrideable")
def _convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, **_flags):
    rank = weight.ndim - 2
    batched = input.ndim == weight.ndim
    x = input if batched else input.unsqueeze(0)
    stride, padding, dilation, output_padding = (_spread(v, rank) for v in (stride, padding, dilation, output_padding))
    half = x.dtype in ("f16", "bf16") and bias is not None
    x, w = (v.to("f32") if half else v for v in (x, weight))
    out = convolve(x, w, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        out = out + bias.to(out.dtype).reshape(1, -1, *(1,) * rank)
    out = out.to(input.dtype)
    return out if batched else out.squeeze(0)


def _weight_gradient(x: Arr, grad: Arr, w_shape: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Arr:
    """Gradient of a forward convolution's weight: a convolution of x with grad, batch and channels exchanged."""
    n, c = x.shape[:2]
    k = grad.shape[1]
    spatial = x.shape[2:]
    if groups == 1:
        lhs, rhs = x.transpose(0, 1), grad.transpose(0, 1)  # [C, N, ...], [K, N, ...]
    else:  # channels of one group form the batch, (group, n) the channels
        lhs = x.reshape(n, groups, c // groups, *spatial)
        lhs = lhs.move(0, 2).move(0, 1).reshape(c // groups, groups * n, *spatial)
        rhs = grad.move(0, 1)  # [K, N, ...]: K is grouped already
    out = convolve(lhs, rhs, dilation, padding, stride, False, (0,) * len(spatial), groups)
    for d, size in enumerate(w_shape[2:], 2):
        out = out.slice(d, 0, size)
    out = out.transpose(0, 1)  # [K, C / groups, ...]
    return out.reshape(k, c // groups, *w_shape[2:])


@rule("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(
    grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask,
    bias_sizes=None,
):  # fmt: skip
    rank = weight.ndim - 2
    batched = input.ndim == weight.ndim
    x, grad = (input, grad_output) if batched else (input.unsqueeze(0), grad_output.unsqueeze(0))
    stride, padding, dilation = (_spread(v, rank) for v in (stride, padding, dilation))
    dx = dw = db = None
    if output_mask[0]:
        if transposed:
            dx = convolve(grad, weight, stride, padding, dilation, False, (0,) * rank, groups)
            for d, size in enumerate(x.shape[2:], 2):
                dx = dx.slice(d, 0, size)
        else:
            extra = [n - ((g - 1) * s - 2 * p + d * (k - 1) + 1) for n, g, s, p, d, k in
                     zip(x.shape[2:], grad.shape[2:], stride, padding, dilation, weight.shape[2:],
                         strict=False)]  # fmt: skip
            dx = convolve(grad, weight, stride, padding, dilation, True, extra, groups)
        dx = dx.reshape(*input.shape)
    if output_mask[1]:
        if transposed:
            dw = _weight_gradient(grad, x, weight.shape, stride, padding, dilation, groups)
        else:
            dw = _weight_gradient(x, grad, weight.shape, stride, padding, dilation, groups)
    if output_mask[2]:
        total = grad.to(opmath(grad.dtype)).sum((0, *range(2, grad.ndim)))
        db = total.to(grad.dtype)
    return dx, dw, db


def _slow_conv(self: Arr, weight: Arr, bias: Any, stride: Any, padding: Any, dilation: Any) -> Arr:
    return _convolution(self, weight, bias, stride, padding, dilation, False, (0,) * (weight.ndim - 2), 1)


@rule("_slow_conv2d_forward", "slow_conv3d", "slow_conv3d_forward", "thnn_conv2d")
def _slow_conv_forward(self, weight, kernel_size, bias, stride, padding):
    rank = len(kernel_size)
    shaped = weight.reshape(weight.shape[0], -1, *kernel_size)
    return _slow_conv(self, shaped, bias, stride, padding, (1,) * rank)


@rule("slow_conv_dilated2d", "slow_conv_dilated3d")
def _slow_conv_dilated(self, weight, kernel_size, bias, stride, padding, dilation):
    return _slow_conv(self, weight, bias, stride, padding, dilation)


@rule("_conv_depthwise2d", "conv_depthwise3d")
def _conv_depthwise(self, weight, kernel_size, bias, stride, padding, dilation):
    rank = len(kernel_size)
    return _convolution(self, weight, bias, stride, padding, dilation, False, (0,) * rank, self.shape[1])


@rule("slow_conv_transpose2d", "slow_conv_transpose3d")
def _slow_conv_transpose(self, weight, kernel_size, bias, stride, padding, output_padding, dilation):
    return _convolution(self, weight, bias, stride, padding, dilation, True, output_padding, 1)


@rule("_slow_conv2d_backward.output_mask")
def _slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask):
    return _convolution_backward(grad_output, self, weight, stride, padding, (1, 1), False, (0, 0), 1, output_mask)


@rule("_slow_conv2d_backward.grad_input")
def _slow_conv2d_backward_out(
    grad_output, self, weight, kernel_size, stride, padding, grad_input, grad_weight, grad_bias
):
    new = _slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, (True, True, True))
    return Effects(new, dict(zip(("grad_input", "grad_weight", "grad_bias"), new, strict=False)))


@rule("conv_tbc")
def _conv_tbc(self, weight, bias, pad=0):
    x, w = self.permute(1, 2, 0), weight.permute(2, 1, 0)  # [T, B, C] -> [B, C, T]; [K, C, O] -> [O, C, K]
    return _convolution(x, w, bias, (1,), (pad,), (1,), False, (0,), 1).permute(2, 0, 1)
