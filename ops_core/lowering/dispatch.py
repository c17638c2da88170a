"""Chooses the way of one op: rule, view, traced decomposition; derives the in-place and out= faces."""

from __future__ import annotations

from typing import Any

import torch

from ops_core.array import Arr
from ops_core.lowering import views
from ops_core.lowering.movement import like
from ops_core.lowering.promote import torch_dtype
from ops_core.lowering.registry import COMPLEX_RULES, RULES, Complex, Effects, NotLowerable, Rule, call_rule
from ops_core.lowering.schema import Op
from ops_core.lowering.trace import traced

# out= of these accumulates in the dtype of `out` when no dtype is given
_DTYPE_FROM_OUT = frozenset({"sum", "prod", "mean", "nansum", "cumsum", "cumprod"})


def find_rule(op: Op, table: dict[str, Rule] = RULES) -> Rule | None:
    """The rule of an overload, else of its base."""
    return table.get(op.name) or table.get(op.base_name)


def _is_complex(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_complex(v) for v in value)
    return isinstance(value, (Complex, complex))


def run(op: Op, bound: dict[str, Any]) -> Effects:
    """Lower `op` on arrays."""
    bound = {"from_" if k == "from" else k: v for k, v in bound.items()}
    twin = op.twin
    own = op.name in RULES or (op.face == "mutable" and op.base_name in RULES)
    if op.face == "out" and not own and (twin is not None or op.base_name in RULES):
        return _through_out(op, twin, bound)
    if op.face == "functional" or own or twin is None:
        return _effects(functional(op, bound))
    return _through_inplace(op, twin, bound)


def _effects(result: Any) -> Effects:
    return result if isinstance(result, Effects) else Effects(result, {})


# eager has fixed-point kernels of its own for these
_HOST_DTYPES = {"upsample_bilinear2d": "u8", "upsample_bicubic2d": "u8"}


def functional(op: Op, bound: dict[str, Any]) -> Any:
    """A functional op (or one with a rule of its own) by the first way that exists."""
    if op.base in _HOST_DTYPES and bound["input" if "input" in bound else "self"].dtype == _HOST_DTYPES[op.base]:
        raise NotLowerable(f"{op.name} of {_HOST_DTYPES[op.base]}")
    if any(_is_complex(v) for v in bound.values()) or _asks_complex(bound):
        rule = find_rule(op, COMPLEX_RULES)
    else:
        rule = find_rule(op)
    if rule is not None:
        return call_rule(rule, bound)
    view = views.find(op.base, op.func._overloadname)
    if view is not None:
        return apply_view(view[0], list(bound.values()))
    return traced(op, bound)


def _asks_complex(bound: dict[str, Any]) -> bool:
    dtype = bound.get("dtype")
    return isinstance(dtype, torch.dtype) and dtype.is_complex


def apply_view(forward: Any, args: list[Any]) -> Any:
    """A view function on a real array, or on both parts of a complex one."""
    if not isinstance(args[0], Complex):
        return forward(*args)
    re, im = (forward(part, *args[1:]) for part in (args[0].re, args[0].im))
    return [Complex(a, b) for a, b in zip(re, im, strict=False)] if isinstance(re, list) else Complex(re, im)


def _through_inplace(op: Op, twin: Op, bound: dict[str, Any]) -> Effects:
    """The functional twin, written back to the mutated arguments (in schema order)."""
    effects = run(
        twin, {a.name: bound.get("from_" if a.name == "from" else a.name) for a in twin.arguments} | _rng(bound)
    )
    results = effects.outputs
    if len(op.mutated) == 1 and isinstance(bound[op.mutated[0]], list):
        new = [like(r, old) for r, old in zip(results, bound[op.mutated[0]], strict=False)]
        return Effects(None, effects.writes | {op.mutated[0]: new})
    extra = list(results) if isinstance(results, (list, tuple)) else [results]
    fresh = extra if op.face == "inplace" and not op.returns else extra[-len(op.mutated) :]
    writes = {name: like(value, bound[name]) for name, value in zip(op.mutated, fresh, strict=False)}
    kept = extra[: -len(op.mutated)] if op.face == "mutable" else [writes[op.mutated[0]]]
    return Effects(kept, effects.writes | writes)


def _rng(bound: dict[str, Any]) -> dict[str, Any]:
    return {k: bound[k] for k in ("seed", "offset") if isinstance(bound.get(k), Arr)}


def _through_out(op: Op, twin: Op | None, bound: dict[str, Any]) -> Effects:
    """The functional twin (or, where PyTorch has none, our rule of the base), cast into the out= arguments."""
    targets = [bound[name] for name in op.out_names]
    if twin is None:
        effects = _effects(functional(op, {k: v for k, v in bound.items() if k not in op.out_names}))
        return _into(op, targets, effects)
    inner = {a.name: bound.get("from_" if a.name == "from" else a.name, a.default) for a in twin.arguments}
    inner |= _rng(bound)
    first = targets[0][0] if isinstance(targets[0], list) else targets[0]
    takes_dtype = any(a.name == "dtype" for a in twin.arguments)
    explicit = any(a.name == "dtype" for a in op.arguments)
    if takes_dtype and (not explicit or (inner.get("dtype") is None and op.base in _DTYPE_FROM_OUT)):
        inner["dtype"] = torch_dtype(first)
    return _into(op, targets, run(twin, inner))


def _into(op: Op, targets: list[Any], effects: Effects) -> Effects:
    """Results cast to the out= arguments `targets`, which they also replace."""
    results = effects.outputs if isinstance(effects.outputs, (list, tuple)) else [effects.outputs]
    if isinstance(targets[0], list):
        return Effects(None, {op.out_names[0]: [like(r, old) for r, old in zip(results, targets[0], strict=False)]})
    new = [like(r, old) for r, old in zip(results, targets, strict=False)]
    return Effects(new, effects.writes | dict(zip(op.out_names, new, strict=False)))


STATIC_SCALARS = {
    "pow": {"exponent"}, "norm": {"p"}, "linalg_vector_norm": {"ord"}, "dist": {"p"},
    "arange": {"start", "end", "step"}, "range": {"start", "end", "step"}, "_foreach_norm": {"ord"},
    "_foreach_pow": {"exponent"}, "logspace": {"base"},
    "_scaled_dot_product_fused_attention_overrideable": {"dropout_p", "scale"},
    "_scaled_dot_product_fused_attention_overrideable_backward": {"dropout_p", "scale"},
}  # fmt: skip


def static_scalars(op: str) -> set[str]:
    """Scalar arguments that must be Python numbers; `lower` asks for further ones by raising `NeedsStatic`."""
    base = op.split(".")[1]
    return set(STATIC_SCALARS.get(base) or STATIC_SCALARS.get(base.rstrip("_")) or ())


# ops with a composite kernel in torch that are worth keeping whole
_WHOLE = (
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_fused_attention_overrideable_backward",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "_batch_norm_with_update",
    "_batch_norm_no_update", "batch_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "_softmax",
    "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "_safe_softmax", "native_dropout",
    "native_dropout_backward", "embedding", "embedding_dense_backward", "linear", "convolution_overrideable",
    "convolution_backward_overrideable", "convolution", "convolution_backward", "linear_backward", "_to_copy", "clone",
    "_native_batch_norm_legit_no_training", "kaiser_window", "range", "_grouped_mm",
)  # fmt: skip


def record_list() -> list[str]:
    """Overloads the recorder must intercept although torch has a composite kernel: kept whole they make few kernels."""
    names = []
    for base in _WHOLE:
        packet = getattr(torch.ops.aten, base)
        names += [f"aten.{base}.{overload}" for overload in packet.overloads()]
    names += [f"aten.{n[6:]}" if "." in n else f"aten.{n[6:]}.default"
              for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::_foreach_")]  # fmt: skip
    return sorted(names)
