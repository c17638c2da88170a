"""Normalisations and their backwards. Statistics are computed in float32 for half inputs."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr
from ops_core.lowering.promote import opmath, up
from ops_core.lowering.registry import Effects, rule


def _normalise(x: Arr, dims: tuple[int, ...], eps: Any) -> tuple[Arr, Arr, Arr]:
    """(x - mean) * rstd with both statistics (keepdim)."""
    mean = x.mean(dims, True)
    centered = x - mean
    var = (centered * centered).mean(dims, True)
    rstd = A.map_("rsqrt", var + _number(eps, x))
    return centered * rstd, mean, rstd


def _number(value: Any, like: Arr) -> Any:
    return value.to(like.dtype) if isinstance(value, Arr) else value


def _affine(x: Arr, weight: Arr | None, bias: Arr | None) -> Arr:
    x = x if weight is None else x * weight.to(x.dtype)
    return x if bias is None else x + bias.to(x.dtype)


def _saved_dtype(input: Arr, *parameters: Arr | None) -> str:
    """Of the statistics that are kept for the backward: the parameters', as on the CPU."""
    return next((p.dtype for p in parameters if p is not None), input.dtype)


@rule("native_layer_norm")
def _native_layer_norm(input, normalized_shape, weight, bias, eps):
    x = up(input)
    out, mean, rstd = _normalise(x, _inner(input, normalized_shape), eps)
    stat = _saved_dtype(input, weight, bias)
    return _affine(out, weight, bias).to(input.dtype), mean.to(stat), rstd.to(stat)


def _normalise_backward(grad: Arr, normal: Arr, rstd: Arr, dims: tuple[int, ...]) -> Arr:
    """Gradient of the input of `_normalise` from that of its output."""
    return rstd * (grad - grad.mean(dims, True) - normal * (grad * normal).mean(dims, True))


@rule("native_layer_norm_backward")
def _native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    outer = tuple(range(input.ndim - len(normalized_shape)))
    dims = tuple(range(len(outer), input.ndim))
    x, grad = up(input), up(grad_out)
    normal = (x - mean.to(x.dtype)) * rstd.to(x.dtype)
    scaled = grad if weight is None else grad * weight.to(x.dtype)
    dx = _normalise_backward(scaled, normal, rstd.to(x.dtype), dims).to(input.dtype) if output_mask[0] else None
    reduce = (lambda y: y.sum(outer)) if outer else (lambda y: y)
    dw = reduce(grad * normal).to(weight.dtype) if output_mask[1] and weight is not None else None
    db = reduce(grad).to(bias.dtype) if output_mask[2] and bias is not None else None
    return dx, dw, db


def _inner(input: Arr, normalized_shape: Any) -> tuple[int, ...]:
    return tuple(range(input.ndim - len(normalized_shape), input.ndim))


@rule("_fused_rms_norm")
def _fused_rms_norm(input, normalized_shape, weight, eps):
    x = up(input)
    if eps is None:
        eps = 2.0**-52 if x.dtype == "f64" else 2.0**-23
    rstd = A.map_("rsqrt", (x * x).mean(_inner(input, normalized_shape), True) + _number(eps, x))
    return _affine(x * rstd, weight, None).to(input.dtype), rstd


@rule("_fused_rms_norm_backward")
def _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    dims = _inner(input, normalized_shape)
    outer = tuple(range(input.ndim - len(dims)))
    x, grad, r = up(input), up(grad_out), up(rstd)
    normal = x * r
    scaled = grad if weight is None else grad * weight.to(x.dtype)
    dx = r * (scaled - normal * (scaled * normal).mean(dims, True)) if output_mask[0] else None
    dw = (grad * normal) if output_mask[1] and weight is not None else None
    dw = None if dw is None else (dw.sum(outer) if outer else dw).to(weight.dtype)
    return None if dx is None else dx.to(input.dtype), dw


@rule("native_group_norm")
def _native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    x = up(input).reshape(N, group, C // group * HxW)
    out, mean, rstd = _normalise(x, (2,), eps)
    column = (C, *(1,) * (input.ndim - 2))
    out = _affine(out.reshape(*input.shape), *(p if p is None else p.reshape(*column) for p in (weight, bias)))
    stat = _saved_dtype(input, weight, bias)
    return out.to(input.dtype), mean.reshape(N, group).to(stat), rstd.reshape(N, group).to(stat)


@rule("native_group_norm_backward")
def _native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    x, grad = up(input).reshape(N, group, C // group * HxW), up(grad_out)
    r = up(rstd).to(x.dtype).reshape(N, group, 1)
    normal = (x - mean.to(x.dtype).reshape(N, group, 1)) * r
    dx = dw = db = None
    rows = grad.reshape(N, C, HxW)
    if output_mask[0]:
        scaled = rows if weight is None else rows * weight.to(x.dtype).reshape(1, C, 1)
        dx = _normalise_backward(scaled.reshape(*x.shape), normal, r, (2,)).reshape(*input.shape).to(input.dtype)
    if output_mask[1] and weight is not None:
        dw = (rows * normal.reshape(N, C, HxW)).sum((0, 2)).to(weight.dtype)
    if output_mask[2]:
        db = rows.sum((0, 2)).to(input.dtype if weight is None else weight.dtype)
    return dx, dw, db


def _channel(x: Arr, ndim: int) -> Arr:
    """A per-channel vector broadcast against [N, C, ...]."""
    return x.reshape(1, x.shape[0], *(1,) * (ndim - 2))


def _batch_norm(
    input: Arr, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any
) -> tuple[Arr, Arr, Arr, dict[str, Arr]]:
    """(output, mean, rstd, new running statistics by argument name); mean and rstd per channel in f32/f64."""
    x = up(input)
    writes: dict[str, Arr] = {}
    channels = input.shape[1]
    if training:
        dims = tuple(d for d in range(input.ndim) if d != 1)
        count = math.prod(input.shape[d] for d in dims)
        out, mean, rstd = _normalise(x, dims, eps)
        mean, rstd = mean.reshape(channels), rstd.reshape(channels)
        if running_mean is not None:
            writes["running_mean"] = _moving(running_mean, mean, momentum)
        if running_var is not None:
            centered = x - _channel(mean, input.ndim)
            unbiased = (centered * centered).sum(dims) / (max(count - 1, 0) or math.nan)
            writes["running_var"] = _moving(running_var, unbiased, momentum)
    else:
        mean = running_mean.to(x.dtype)
        rstd = A.map_("rsqrt", running_var.to(x.dtype) + _number(eps, x))
        out = (x - _channel(mean, input.ndim)) * _channel(rstd, input.ndim)
    out = _affine(out, *(p if p is None else _channel(p, input.ndim) for p in (weight, bias)))
    return out.to(input.dtype), mean, rstd, writes


def _moving(old: Arr, new: Arr, momentum: Any) -> Arr:
    weight = _number(momentum, new)
    return (new * weight + old.to(new.dtype) * (1.0 - weight)).to(old.dtype)


def _statistics(training: bool, mean: Arr, rstd: Arr) -> tuple[Arr, Arr]:
    """What batch norm saves: the batch statistics, or nothing in evaluation."""
    empty = A.full((0,), 0, mean.dtype)
    return (mean, rstd) if training else (empty, empty)


@rule("native_batch_norm.default", "_native_batch_norm_legit.default")
def _native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    out, mean, rstd, writes = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    stat = _saved_dtype(input, weight, bias, running_mean, running_var)
    return Effects((out, *_statistics(training, mean.to(stat), rstd.to(stat))), writes)


@rule("_native_batch_norm_legit.no_stats")
def _native_batch_norm_no_stats(input, weight, bias, training, momentum, eps):
    return _native_batch_norm(input, weight, bias, None, None, True, momentum, eps).outputs


@rule("_native_batch_norm_legit_functional")
def _native_batch_norm_functional(input, weight, bias, running_mean, running_var, training, momentum, eps):
    out, mean, rstd, writes = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return (out, *_statistics(training, mean, rstd), writes.get("running_mean", running_mean),
            writes.get("running_var", running_var))  # fmt: skip


@rule("_native_batch_norm_legit_no_training")
def _native_batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, _ = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return out, *_statistics(False, mean, rstd)


@rule("_batch_norm_with_update.default")
def _batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, writes = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    stat = _saved_dtype(input, weight, bias, running_mean, running_var)
    return Effects((out, mean.to(stat), rstd.to(stat), A.full((0,), 0, "u8")), writes)


@rule("_batch_norm_with_update_functional")
def _batch_norm_with_update_functional(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, writes = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return out, mean, rstd, A.full((0,), 0, "u8"), writes["running_mean"], writes["running_var"]


@rule("_batch_norm_no_update")
def _batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, _ = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return out, *_statistics(False, mean, rstd), A.full((0,), 0, "u8")


@rule("batch_norm_update_stats")
def _batch_norm_update_stats(input, running_mean, running_var, momentum):
    x = up(input)
    dims = tuple(d for d in range(input.ndim) if d != 1)
    mean = x.mean(dims)
    centered = x - _channel(mean, input.ndim)
    total = (centered * centered).sum(dims)
    count = math.prod(input.shape[d] for d in dims)
    writes = {}
    if running_mean is not None:
        writes["running_mean"] = _moving(running_mean, mean, momentum)
    if running_var is not None:
        writes["running_var"] = _moving(running_var, total / (max(count - 1, 0) or math.nan), momentum)
    return Effects((mean, total / count), writes)


@rule("native_batch_norm_backward", "batch_norm_backward")
def _native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd=None, train=None, eps=1e-5,
    output_mask=(True, True, True), save_var=None, update=None, reserve=None,
):  # fmt: skip
    training = train if train is not None else update
    saved = save_invstd if save_invstd is not None else save_var
    x, grad = up(input), up(grad_out)
    dims = tuple(d for d in range(input.ndim) if d != 1)
    if training:
        mean, rstd = save_mean.to(x.dtype), saved.to(x.dtype)
    else:
        mean = running_mean.to(x.dtype)
        rstd = A.map_("rsqrt", running_var.to(x.dtype) + _number(eps, x))
    mean, rstd = _channel(mean, input.ndim), _channel(rstd, input.ndim)
    normal = (x - mean) * rstd
    dx = dw = db = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * _channel(weight.to(x.dtype), input.ndim)
        dx = _normalise_backward(scaled, normal, rstd, dims) if training else scaled * rstd
        dx = dx.to(input.dtype)
    kept = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        dw = (grad * normal).sum(dims).to(kept)
    if output_mask[2]:
        db = grad.sum(dims).to(kept)
    return dx, dw, db


@rule("_weight_norm_interface")
def _weight_norm_interface(v, g, dim=0):
    x = up(v)
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    norm = A.map_("sqrt", (x * x).sum(dims, True))
    return (x * (up(g) / norm)).to(v.dtype), norm.to(g.dtype if g.dtype != "bf16" else "f32")


@rule("_weight_norm_interface_backward")
def _weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    grad, v, g, norm = up(grad_w), up(saved_v), up(saved_g), saved_norms.to(opmath(saved_v.dtype))
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    dot = (grad * v).sum(dims, True)
    dg = dot / norm
    dv = (g / norm) * (grad - v * (dot / (norm * norm)))
    return dv.to(saved_v.dtype), dg.to(saved_g.dtype)
