"""Overloads that torch keeps for devices like this one: here the device runs them, and the CPU its own equivalent."""

from collections.abc import Callable
from typing import Any

import torch

from .group_inputs import Draw
from .place import place

ATEN = torch.ops.aten


def _convolution_inputs(d: Draw) -> tuple[Any, ...]:
    return d.f(2, 3, 6, 6), d.f(4, 3, 3, 3), d.f(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1


def _convolution(device: str, wide: bool = False) -> Any:
    inputs = place(_convolution_inputs(Draw()), device, wide)
    return (ATEN.convolution if device == "cpu" else ATEN.convolution_overrideable)(*inputs)


def _convolution_backward(device: str, wide: bool = False) -> Any:
    d = Draw()
    x, w, b, *how = _convolution_inputs(d)
    grad, x, w = place((d.f(2, 4, 6, 6), x, w), device, wide)
    if device == "cpu":
        return ATEN.convolution_backward(grad, x, w, list(b.shape), *how, [True] * 3)
    return ATEN.convolution_backward_overrideable(grad, x, w, *how, [True] * 3)


def _attention_inputs(d: Draw) -> tuple[torch.Tensor, ...]:
    return tuple(d.f(2, 2, 5, 4) for _ in range(3))


def _attention(device: str, wide: bool = False) -> Any:
    q, k, v = place(_attention_inputs(Draw()), device, wide)
    if device == "cpu":
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return ATEN._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.0, True)[0]


def _attention_backward(device: str, wide: bool = False) -> Any:
    """Gradients of query, key and value."""
    d = Draw()
    q, k, v, grad = place((*_attention_inputs(d), d.f(2, 2, 5, 4)), device, wide)
    if device == "cpu":
        q, k, v = (t.requires_grad_() for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(out, (q, k, v), grad)
    out, *kept, _ = ATEN._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.0, True)
    logsumexp, cum_q, cum_k, max_q, max_k, seed, offset = kept
    wanted = [True, True, True, False]
    return ATEN._scaled_dot_product_fused_attention_overrideable_backward(
        grad, q, k, v, None, wanted, out, logsumexp, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
    )[:3]


def _lstm_cell_backward(device: str, wide: bool = False) -> Any:
    """Gradients of both gate inputs, the cell's state and both biases."""
    d = Draw()
    drawn = (d.f(2, 12), d.f(2, 12), d.f(2, 3), d.f(12), d.f(12), d.f(2, 3), d.f(2, 3))
    x, h, c, x_bias, h_bias, grad_h, grad_c = place(drawn, device, wide)
    if device == "cpu":
        i, f, g, _ = (x + h + x_bias + h_bias).chunk(4, 1)
        after = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return ATEN._thnn_differentiable_lstm_cell_backward(grad_h, grad_c, x, h, x_bias, h_bias, c, after)
    _, after, workspace = ATEN._thnn_fused_lstm_cell(x, h, c, x_bias, h_bias)
    with torch.no_grad():
        return ATEN._thnn_fused_lstm_cell_backward(grad_h, grad_c, c, after, workspace, True)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "aten.convolution_overrideable.default": _convolution,
    "aten.convolution_backward_overrideable.default": _convolution_backward,
    "aten._scaled_dot_product_fused_attention_overrideable.default": _attention,
    "aten._scaled_dot_product_fused_attention_overrideable_backward.default": _attention_backward,
    "aten._thnn_fused_lstm_cell_backward.default": _lstm_cell_backward,
}
