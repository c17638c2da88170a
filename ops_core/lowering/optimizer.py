"""Fused optimizers and AMP."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.promote import opmath
from ops_core.lowering.registry import Effects, rule


def _num(value: Any, dtype: str) -> Any:
    """A hyper-parameter (number, run-time scalar or 0-dim tensor) in the arithmetic dtype."""
    return value.to(dtype).reshape() if isinstance(value, Arr) else float(value)


def _unscale(grad: Arr, grad_scale: Arr | None) -> Arr:
    return grad if grad_scale is None else grad / grad_scale.to(grad.dtype).reshape()


def _per_tensor(step: Callable[..., dict[str, Arr]], lists: dict[str, Any], found_inf: Arr | None) -> Effects:
    """Run `step` on each tensor of the lists; where `found_inf` is set nothing changes."""
    count = max(len(v) for v in lists.values())
    writes: dict[str, list[Arr | None]] = {}
    skip = None if found_inf is None else found_inf.reshape().ne(0)
    for i in range(count):
        own: dict[str, Any] = {name: v[i] if len(v) else None for name, v in lists.items()}
        for name, new in step(**own).items():
            old = own[name]
            new = new.to(old.dtype)
            writes.setdefault(name, []).append(new if skip is None else where(skip, old, new))
    return Effects(None, dict(writes))


def _adam(bound: dict[str, Any], decoupled: bool) -> Effects:
    def step(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps):
        dtype = opmath(self.dtype)
        lr, beta1, beta2, eps, decay = (_num(bound[n], dtype) for n in ("lr", "beta1", "beta2", "eps", "weight_decay"))
        raw = _unscale(grads.to(dtype), bound["grad_scale"])
        p, g = self.to(dtype), (-raw if bound["maximize"] else raw)
        count = state_steps.to(dtype).reshape()
        if not (isinstance(decay, float) and decay == 0):
            if decoupled:
                p = p - p * (lr * decay)
            else:
                g = g + p * decay
        m = exp_avgs.to(dtype)
        m = m + (g - m) * (1.0 - beta1)
        v = exp_avg_sqs.to(dtype) * beta2 + (g * g) * (1.0 - beta2)
        correction1 = 1.0 - A.map_("pow", _array(beta1, dtype), count)
        correction2 = A.map_("sqrt", 1.0 - A.map_("pow", _array(beta2, dtype), count))
        new = {"exp_avgs": m, "exp_avg_sqs": v}
        root = v
        if bound["amsgrad"]:
            root = A.map_("maximum", max_exp_avg_sqs.to(dtype), v)
            new["max_exp_avg_sqs"] = root
        denominator = A.map_("sqrt", root) / correction2 + eps
        new["self"] = p - m * (lr / correction1) / denominator
        if bound["grad_scale"] is not None:
            new["grads"] = raw
        return new

    names = ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps")
    return _per_tensor(step, {n: bound[n] for n in names}, bound["found_inf"])


def _array(x: Any, dtype: str) -> Arr:
    return x if isinstance(x, Arr) else A.full((), x, dtype)


@rule("_fused_adam_.default", "_fused_adam_.tensor_lr")
def _fused_adam(**bound):
    return _adam(bound, False)


@rule("_fused_adamw_.default", "_fused_adamw_.tensor_lr")
def _fused_adamw(**bound):
    return _adam(bound, True)


@rule("_fused_sgd_.default", "_fused_sgd_.tensor_lr")
def _fused_sgd(**bound):
    def step(self, grads, momentum_buffer_list):
        dtype = opmath(self.dtype)
        lr, decay, momentum, dampening = (
            _num(bound[n], dtype) for n in ("lr", "weight_decay", "momentum", "dampening")
        )
        raw = _unscale(grads.to(dtype), bound["grad_scale"])
        p, g = self.to(dtype), (-raw if bound["maximize"] else raw)
        g = g if isinstance(decay, float) and decay == 0 else g + p * decay
        new = {}
        if momentum_buffer_list is not None:
            buffer = g if bound["is_first_step"] else momentum_buffer_list.to(dtype) * momentum + g * (1.0 - dampening)
            new["momentum_buffer_list"] = buffer
            g = g + buffer * momentum if bound["nesterov"] else buffer
        if bound["grad_scale"] is not None:
            new["grads"] = raw
        return {**new, "self": p - g * lr}

    return _per_tensor(step, {n: bound[n] for n in ("self", "grads", "momentum_buffer_list")}, bound["found_inf"])


@rule("_fused_adagrad_.default", "_fused_adagrad_.tensor_lr")
def _fused_adagrad(**bound):
    def step(self, grads, state_sums, state_steps):
        dtype = opmath(self.dtype)
        lr, lr_decay, decay, eps = (_num(bound[n], dtype) for n in ("lr", "lr_decay", "weight_decay", "eps"))
        raw = _unscale(grads.to(dtype), bound["grad_scale"])
        p, g = self.to(dtype), (-raw if bound["maximize"] else raw)
        g = g if isinstance(decay, float) and decay == 0 else g + p * decay
        rate = lr / (1.0 + (state_steps.to(dtype).reshape() - 1.0) * lr_decay)
        total = state_sums.to(dtype) + g * g
        new = {"state_sums": total, "self": p - g * rate / (A.map_("sqrt", total) + eps)}
        return new if bound["grad_scale"] is None else {**new, "grads": raw}

    return _per_tensor(step, {n: bound[n] for n in ("self", "grads", "state_sums", "state_steps")}, bound["found_inf"])


def _any_not_finite(xs: list[Arr]) -> Arr:
    flags = [(~(A.map_("abs", x.to(opmath(x.dtype))) < math.inf)).any() for x in xs]
    out = flags[0]
    for flag in flags[1:]:
        out = out | flag
    return out


@rule("_amp_foreach_non_finite_check_and_unscale_.default")
def _amp_unscale(self, found_inf, inv_scale):
    scaled = [(x.to(opmath(x.dtype)) * inv_scale.to(opmath(x.dtype)).reshape()).to(x.dtype) for x in self]
    if not self:
        return Effects(None, {})
    found = where(_any_not_finite(list(self)), 1.0, found_inf.reshape()).reshape(*found_inf.shape)
    return Effects(None, {"self": scaled, "found_inf": found})


@rule("_amp_update_scale_.default")
def _amp_update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    grow, back = (_num(v, self.dtype) for v in (scale_growth_factor, scale_backoff_factor))
    found = found_inf.reshape(*self.shape).ne(0)
    tracked = growth_tracker.reshape(*self.shape) + 1
    due = tracked.eq(growth_interval)
    grown = self * grow
    grown = where(due & (A.map_("abs", grown) < math.inf), grown, self)
    scale = where(found, self * back, grown)
    tracker = where(found | due, 0, tracked).reshape(*growth_tracker.shape)
    return Effects(scale, {"self": scale, "growth_tracker": tracker})
