"""Fused RNN cells, attention, and the transformer's inference fast path."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.composites import composite
from ops_core.lowering.activation import _gelu
from ops_core.lowering.contraction import _linear, product
from ops_core.lowering.loss import _masked_softmax
from ops_core.lowering.norm import _native_layer_norm
from ops_core.lowering.pointwise import sigmoid_of, tanh_of
from ops_core.lowering.promote import opmath, up
from ops_core.lowering.random import dropout_mask
from ops_core.lowering.registry import NotLowerable, rule


def _gates(
    gates: Arr, hidden: Arr, bias: Arr | None, hidden_bias: Arr | None, count: int
) -> tuple[list[Arr], list[Arr]]:
    """The `count` gate pre-activations of input and hidden state, biases added."""
    x, h = up(gates), up(hidden)
    if bias is not None:
        x = x + bias.to(x.dtype)
    if hidden_bias is not None:
        h = h + hidden_bias.to(h.dtype)
    size = x.shape[1] // count
    return x.split(1, [size] * count), h.split(1, [size] * count)


@rule("_thnn_fused_lstm_cell")
def _lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    x, h = _gates(input_gates, hidden_gates, input_bias, hidden_bias, 4)
    i, f, g, o = (fn(a + b) for fn, a, b in zip((sigmoid_of, sigmoid_of, tanh_of, sigmoid_of), x, h, strict=False))
    cy = f * up(cx) + i * g
    workspace = A.cat([i, f, g, o], 1)
    return (o * tanh_of(cy)).to(cx.dtype), cy.to(cx.dtype), workspace.to(input_gates.dtype)


@rule("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = up(workspace).split(1, [workspace.shape[1] // 4] * 4)
    t = tanh_of(up(cy))
    gh = A.full_like(t, 0) if grad_hy is None else up(grad_hy)
    gc = gh * o * (1.0 - t * t)
    gc = gc if grad_cy is None else gc + up(grad_cy)
    gates = A.cat(
        [gc * g * i * (1.0 - i), gc * up(cx) * f * (1.0 - f), gc * i * (1.0 - g * g), gh * t * o * (1.0 - o)], 1
    )
    bias = gates.sum(0).to(workspace.dtype) if has_bias else None
    return gates.to(workspace.dtype), (gc * f).to(cx.dtype), bias


@rule("_thnn_fused_gru_cell")
def _gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    x, h = _gates(input_gates, hidden_gates, input_bias, hidden_bias, 3)
    r, z = sigmoid_of(x[0] + h[0]), sigmoid_of(x[1] + h[1])
    n = tanh_of(x[2] + r * h[2])
    state = up(hx)
    workspace = A.cat([r, z, n, state, h[2]], 1)
    return (n + z * (state - n)).to(hx.dtype), workspace.to(input_gates.dtype)


@rule("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad_hy, workspace, has_bias):
    r, z, n, hx, hn = up(workspace).split(1, [workspace.shape[1] // 5] * 5)
    g = up(grad_hy)
    gz = g * (hx - n) * (1.0 - z) * z
    gn = g * (1.0 - z) * (1.0 - n * n)
    gr = gn * hn * (1.0 - r) * r
    inputs, hidden = A.cat([gr, gz, gn], 1), A.cat([gr, gz, gn * r], 1)
    biases = [v.sum(0).to(workspace.dtype) if has_bias else None for v in (inputs, hidden)]
    return inputs.to(workspace.dtype), hidden.to(workspace.dtype), (g * z).to(grad_hy.dtype), *biases


def _causal(rows: int, columns: int) -> Arr:
    """True where a query may look."""
    return A.positions((rows, columns), 1) <= A.positions((rows, columns), 0)


def _scores(q: Arr, k: Arr, bias: Arr | None, scale: float, causal: bool) -> Arr:
    """Scaled, biased and masked scores [..., Lq, Lk] in arithmetic dtype."""
    s = product(up(q), up(k).transpose(-1, -2)) * scale
    if bias is not None:
        s = where(bias, s, -math.inf) if bias.dtype == "bool" else s + bias.to(s.dtype)
    return where(_causal(*s.shape[-2:]), s, -math.inf) if causal else s


def _weights(s: Arr, lse: Arr) -> Arr:
    """exp(s - lse); rows that see nothing are 0."""
    return where(lse.eq(-math.inf), 0.0, A.map_("exp", s - lse))


@composite
def attention(q: Arr, k: Arr, v: Arr, *bias: Arr, scale: float, causal: bool) -> tuple[Arr, ...]:
    """q [B, H, Lq, D], k [B, H, Lk, D], v [B, H, Lk, Dv], bias [B, H, Lq, Lk] -> (output, logsumexp [B, H, Lq] f32)."""
    s = _scores(q, k, bias[0] if bias else None, scale, causal)
    top = s.amax(-1, True)
    shift = where(top.eq(-math.inf), 0.0, top)
    e = A.map_("exp", s - shift)
    total = e.sum(-1, True)
    out = product(where(total.eq(0.0), 0.0, e / total), up(v))
    lse = where(total.eq(0.0), -math.inf, A.map_("log", total) + shift)
    return out.to(q.dtype), lse.reshape(*lse.shape[:-1])


@composite
def attention_backward(
    grad: Arr, q: Arr, k: Arr, v: Arr, out: Arr, lse: Arr, *bias: Arr, scale: float, causal: bool
) -> tuple[Arr, ...]:  # fmt: skip
    """Gradients of q, k, v and of the scores (that of the bias, [B, H, Lq, Lk])."""
    p = _weights(_scores(q, k, bias[0] if bias else None, scale, causal), lse.unsqueeze(-1))
    g, wide_v = up(grad), up(v)
    dv = product(p.transpose(-1, -2), g)
    dp = product(g, wide_v.transpose(-1, -2))
    ds = p * (dp - (g * up(out)).sum(-1, True))
    dq = product(ds, up(k)) * scale
    dk = product(ds.transpose(-1, -2), up(q)) * scale
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), ds


def _heads(x: Arr, heads: int) -> Arr:
    """Key or value heads repeated for grouped queries."""
    b, h, n, d = x.shape
    return x if h == heads else x.unsqueeze(2).expand(b, h, heads // h, n, d).reshape(b, heads, n, d)


def _ungroup(grad: Arr, heads: int) -> Arr:
    """The adjoint of `_heads`."""
    b, h, n, d = grad.shape
    return grad if h == heads else grad.reshape(b, heads, h // heads, n, d).sum(2)


def _bias(attn_bias: Arr | None, shape: tuple[int, ...]) -> tuple[Arr, ...]:
    return () if attn_bias is None else (attn_bias.expand(*shape),)


def _scale(scale: Any, q: Arr) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)


@rule("_scaled_dot_product_fused_attention_overrideable")
def _fused_attention(
    query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, scale=None,
    seed=None, offset=None,
):  # fmt: skip
    k, v = _heads(key, query.shape[1]), _heads(value, query.shape[1])
    bias = _bias(attn_bias, (*query.shape[:3], k.shape[2]))
    factor = _scale(scale, query)
    zero = A.full((), 0, "i64")
    if isinstance(dropout_p, Arr) or dropout_p != 0:
        if seed is None:
            raise NotLowerable("attention dropout without a random stream")
        s = _scores(query, k, bias[0] if bias else None, factor, is_causal)
        top = s.amax(-1, True)
        e = A.map_("exp", s - where(top.eq(-math.inf), 0.0, top))
        total = e.sum(-1, True)
        p = where(total.eq(0.0), 0.0, e / total)
        out = product(p * _kept(p.shape, dropout_p, seed, offset), up(v)).to(query.dtype)
        lse = (A.map_("log", total) + where(top.eq(-math.inf), 0.0, top)).squeeze(-1)
        return out, lse, None, None, None, None, seed, offset, None
    out, lse = attention(query, k, v, *bias, scale=factor, causal=bool(is_causal))
    return out, lse, None, None, None, None, zero, zero, None


def _kept(shape: tuple[int, ...], p: Any, seed: Arr, offset: Arr) -> Arr:
    """The dropout multiplier: 0, or 1 / (1 - p)."""
    keep = 1.0 - (p.to("f32") if isinstance(p, Arr) else p)
    return where(dropout_mask(shape, p, seed.reshape(), offset.reshape()), 1.0 / keep, 0.0, "f32")


@rule("_scaled_dot_product_fused_attention_overrideable_backward")
def _fused_attention_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, scale=None,
):  # fmt: skip
    k, v = _heads(key, query.shape[1]), _heads(value, query.shape[1])
    bias = _bias(attn_bias, (*query.shape[:3], k.shape[2]))
    factor = _scale(scale, query)
    if isinstance(dropout_p, Arr) or dropout_p != 0:
        p = _weights(_scores(query, k, bias[0] if bias else None, factor, is_causal), logsumexp.unsqueeze(-1))
        kept = _kept(p.shape, dropout_p, philox_seed, philox_offset)
        g = up(grad_out)
        ds = p * (product(g, up(v).transpose(-1, -2)) * kept - (g * up(out)).sum(-1, True))
        dq, dk = product(ds, up(k)) * factor, product(ds.transpose(-1, -2), up(query)) * factor
        dv = product((p * kept).transpose(-1, -2), g)
    else:
        dq, dk, dv, ds = attention_backward(
            grad_out, query, k, v, out, logsumexp, *bias, scale=factor, causal=bool(is_causal)
        )
    db = None
    if attn_bias is not None and grad_input_mask[3]:
        db = reduce_to(ds, attn_bias.shape).to(attn_bias.dtype)
    return (
        dq.to(query.dtype),
        _ungroup(dk, key.shape[1]).to(key.dtype),
        _ungroup(dv, key.shape[1]).to(value.dtype),
        db,
    )


def reduce_to(x: Arr, shape: tuple[int, ...]) -> Arr:
    """Summed over what broadcasting `shape` to x's shape added."""
    lead = x.ndim - len(shape)
    x = x.sum(tuple(range(lead))) if lead else x
    dims = tuple(d for d, n in enumerate(shape) if n == 1 and x.shape[d] != 1)
    return x.sum(dims, True) if dims else x


@rule("_transform_bias_rescale_qkv")
def _transform_bias_rescale_qkv(qkv, qkv_bias, num_heads):
    b, t, width = qkv.shape
    d = width // 3 // num_heads
    x = up(qkv) + qkv_bias.to(opmath(qkv.dtype))
    q, k, v = (p.reshape(b, t, num_heads, d).permute(0, 2, 1, 3) for p in x.split(2, [width // 3] * 3))
    return (q / math.sqrt(d)).to(qkv.dtype), k.to(qkv.dtype), v.to(qkv.dtype)


@rule("_native_multi_head_attention")
def _native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    if query.v is key.v and key.v is value.v:
        qkv = _linear(query, qkv_weight)
    else:
        parts = zip((query, key, value), qkv_weight.split(0, [embed_dim] * 3), strict=False)
        qkv = A.cat([_linear(x, w) for x, w in parts], 2)
    q, k, v = _transform_bias_rescale_qkv(qkv, qkv_bias, num_head)
    scores = product(q, k.transpose(-1, -2))
    if mask is None:
        top = up(scores)
        e = A.map_("exp", top - top.amax(-1, True))
        weights = (e / e.sum(-1, True)).to(scores.dtype)
    else:
        weights = _masked_softmax(scores, mask, None, mask_type)
    context = product(weights, v).permute(0, 2, 1, 3).reshape(query.shape[0], query.shape[1], embed_dim)
    out = _linear(context, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, (up(weights).mean(1).to(weights.dtype) if average_attn_weights else weights)


@rule("_transformer_encoder_layer_fwd")
def _transformer_encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
    norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None,
    mask_type=None,
):  # fmt: skip
    def norm(x: Arr, weight: Arr, bias: Arr) -> Arr:
        return _native_layer_norm(x, (embed_dim,), weight, bias, eps)[0]

    def attend(x: Arr) -> Arr:
        return _native_multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                            mask, False, True, mask_type)[0]  # fmt: skip

    def feed(x: Arr) -> Arr:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = _gelu(up(hidden)).to(x.dtype) if use_gelu else A.map_("maximum", hidden, 0)
        return _linear(hidden, ffn_weight_2, ffn_bias_2)

    def add(x: Arr, y: Arr) -> Arr:
        return (up(x) + up(y)).to(x.dtype)

    if norm_first:
        x = add(attend(norm(src, norm_weight_1, norm_bias_1)), src)
        return add(feed(norm(x, norm_weight_2, norm_bias_2)), x)
    x = norm(add(attend(src), src), norm_weight_1, norm_bias_1)
    return norm(add(feed(x), x), norm_weight_2, norm_bias_2)
