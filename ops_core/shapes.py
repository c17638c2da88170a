"""Meta kernels for the ops that PyTorch gives none: their lowering, into a graph that nobody runs, says the shapes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import _meta_registrations
from torch._meta_registrations import _create_grouped_mm_output_tensor, meta_conv, meta_grouped_mm
from torch._prims_common import suggest_memory_format
from torch._refs import native_group_norm, native_layer_norm
from torch._subclasses.fake_impls import op_implementations_dict
from torch.utils._pytree import tree_map

from ops_core import dtypes, routes
from ops_core.ir import Graph, Value
from ops_core.lowering import NeedsStatic, NotLowerable, lower
from ops_core.lowering.registry import RULES
from ops_core.lowering.schema import Op
from ops_core.untraced import untraced

# What has one of these has a Meta kernel; what has the device's own key needs none.
_KEYS = (
    "Meta",
    "PrivateUse1",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)


# PyTorch's own Meta kernels of these want the optional biases, give other statistics than the CPU, only raise, or
# never do.
_REPLACED = (
    "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward_impl", "aten::_batch_norm_no_update",
    "aten::_native_batch_norm_legit_no_training", "aten::convolution_overrideable",
    "aten::convolution_backward_overrideable", "aten::kaiser_window.beta", "aten::multinomial",
    "aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update",
    "aten::multilabel_margin_loss_forward", "aten::_native_batch_norm_legit.no_stats",
)  # fmt: skip

# PyTorch's Meta kernels of which the results are channels last on a CPU, where the input is.
_PADDING = {
    f"{name}_pad{rank}d{face}": getattr(_meta_registrations, f"meta_{'' if face else name + '_'}pad{rank}d{face}")
    for name in ("reflection", "replication")
    for rank in (2, 3)
    for face in ("", "_backward")
}


@functools.cache  # asked again after `register`, they would all have one
def without_meta() -> list[Op]:
    """The overloads that lower to core ops and of which PyTorch cannot say the shape."""
    have = {name for key in _KEYS for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)}
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    ops = (routes.overload(name) for name in names if name not in have)
    lowered = (op for op in ops if routes.route_of(op) in ("core", "decomposed"))
    return [op for op in lowered if not op.out_names or op.twin is not None or {op.name, op.base_name} & RULES.keys()]


def register() -> torch.library.Library:
    """Give each of them a Meta kernel; the kernels live as long as the library that is returned."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    ops = without_meta() + [routes.overload(name) for name in _REPLACED]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch remarks on what is replaced
        for op in ops:
            kernel = _batch_norm if "batch_norm" in op.name else infer
            library.impl(op.func.name().removeprefix("aten::"), partial(kernel, op), "Meta", allow_override=True)
        for name, meta in _PADDING.items():
            library.impl(name, partial(_padding, meta), "Meta", allow_override=True)
        library.impl("_grouped_mm", _grouped_mm, "Meta", allow_override=True)
        library.impl("convolution", _convolution, "Meta", allow_override=True)
        library.impl("native_layer_norm", _layer_norm, "Meta", allow_override=True)
        library.impl("native_group_norm", _group_norm, "Meta", allow_override=True)
    return library


def _as_on_cpu(result: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution's result, channels last where the input or the weight is (in 3d, not of doubles)."""
    formats = {suggest_memory_format(t) for t in (input, weight)} - {torch.contiguous_format}
    if result.ndim < 4 or not formats or (result.ndim == 5 and result.dtype == torch.float64):
        return result
    return result.to(memory_format=formats.pop())


@untraced
def _convolution(input: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    """PyTorch's own Meta kernel, with the CPU's strides."""
    return _as_on_cpu(meta_conv(input, weight, *rest), input, weight)


def _saved_as_on_cpu(results: Any, input: torch.Tensor, *parameters: Any) -> tuple[torch.Tensor, ...]:
    """A norm's result, and its statistics in the dtype of the parameters."""
    dtype = next((p.dtype for p in parameters if p is not None), input.dtype)
    out, *statistics = results
    return out, *(t.to(dtype) for t in statistics)


@untraced
def _layer_norm(input: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[torch.Tensor, ...]:
    """PyTorch's own Meta kernel, with the CPU's dtypes."""
    return _saved_as_on_cpu(native_layer_norm(input, shape, weight, bias, eps), input, weight, bias)


@untraced
def _group_norm(input: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    """PyTorch's own Meta kernel, with the CPU's dtypes."""
    return _saved_as_on_cpu(native_group_norm(input, weight, bias, *rest), input, weight, bias)


@untraced
def _batch_norm(op: Op, input: torch.Tensor, *rest: Any, **named: Any) -> Any:
    """`infer`, with the CPU's strides: channels last where the input is."""
    results = infer(op, input, *rest, **named)
    if not isinstance(results, tuple) or input.ndim not in (4, 5) or results[0].shape != input.shape:
        return results
    return results[0].to(memory_format=suggest_memory_format(input)), *results[1:]


@untraced
def _padding(meta: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """PyTorch's own Meta kernel, with the CPU's strides; of a gradient those that the padded tensor has."""
    *_, input = (t for t in args if isinstance(t, torch.Tensor))
    return meta(*args).to(memory_format=suggest_memory_format(input))


@untraced
def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """PyTorch's own Meta kernel, which refuses all but bf16, with the CPU's strides: rows are multiples of 16 bytes."""
    if a.dtype == torch.bfloat16:
        out = meta_grouped_mm(a, b, offs, bias, out_dtype)
    else:
        out = _create_grouped_mm_output_tensor(a, b, offs, out_dtype or a.dtype)
    if not (fill := -out.shape[-1] % (16 // out.itemsize)):
        return out
    padded = out.new_empty((*out.shape[:-1], out.shape[-1] + fill))
    return padded[..., : out.shape[-1]]


def register_fake() -> None:
    """The same for fake tensors, of which PyTorch takes any such device's convolutions to be contiguous."""
    default = torch.ops.aten.convolution.default
    torchs = op_implementations_dict[default]

    def convolution(mode: Any, op: Any, input: torch.Tensor, weight: torch.Tensor, *rest: Any, **named: Any) -> Any:
        result = torchs(mode, op, input, weight, *rest, **named)
        if input.device.type != torch._C._get_privateuse1_backend_name():
            return result
        with mode:
            return _as_on_cpu(result, input, weight)

    op_implementations_dict[default] = convolution


@untraced
def infer(op: Op, *args: Any, **kwargs: Any) -> Any:
    """Results of one call on meta tensors. Raises NotImplementedError where only the host can tell."""
    graph = Graph()
    count = iter(range(1 << 30))
    bound = dict(zip((a.name for a in op.arguments), args, strict=False)) | kwargs
    _check_dimension(bound)

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        name = str(leaf.dtype).removeprefix("torch.")
        if name not in dtypes.BY_TORCH:
            raise NotImplementedError(f"{op.name} of {leaf.dtype}")
        sizes, strides = tuple(leaf.shape), tuple(leaf.stride())
        where = {"slot": next(count), "sizes": sizes, "strides": strides, "offset": 0}
        return graph.add("load", (), sizes, dtypes.BY_TORCH[name].name, **where)

    values, named = tree_map(value, (args, kwargs))
    if torch.Tag.nondeterministic_seeded in op.func.tags:
        named |= {name: graph.add("param", (), (), "i64", index=i) for i, name in enumerate(("seed", "offset"))}
    try:
        lowered = lower(graph, op.name, values, named)
    except (NeedsStatic, NotLowerable) as error:
        raise NotImplementedError(f"{op.name}: {error}") from error
    if op.out_names:
        _resize(op, bound, lowered.writes)
    return _returned(op, bound, list(lowered.outputs))


def _check_dimension(bound: dict[str, Any]) -> None:
    """Raises IndexError for a `dim` that `self` has not."""
    dim, x = bound.get("dim"), bound.get("self")
    if not (isinstance(dim, int) and isinstance(x, torch.Tensor)):
        return
    rank = max(x.ndim, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")


def _resize(op: Op, bound: dict[str, Any], writes: dict[str, Any]) -> None:
    """Give every out= the shape of what is written into it."""
    for name in op.out_names:
        written, target = writes.get(name), bound[name]
        if isinstance(written, Value) and tuple(target.shape) != written.shape:
            target.resize_(written.shape)


def _returned(op: Op, bound: dict[str, Any], outputs: list[Any]) -> Any:
    """What the schema returns: the written arguments themselves, and new tensors for the rest."""
    if op.returns == ("List[Tensor]",):
        return [torch.empty(value.shape, dtype=_torch_dtype(value), device="meta") for value in outputs]
    results: list[Any] = []
    for position, spec in enumerate(op.func._schema.returns):
        alias = next((a.name for a in op.func._schema.arguments if _same_alias(a.alias_info, spec.alias_info)), None)
        if alias is not None:
            results.append(bound[alias])
        elif position < len(outputs) and isinstance(outputs[position], Value):
            value = outputs[position]
            results.append(torch.empty(value.shape, dtype=_torch_dtype(value), device="meta"))
        elif position < len(outputs) and outputs[position] is None:
            results.append(None)
        else:
            raise NotImplementedError(f"{op.name}: result {position}")
    return results[0] if len(results) == 1 else tuple(results) if results else None


def _same_alias(argument: Any, result: Any) -> bool:
    return bool(argument and result and argument.is_write and argument.before_set & result.before_set)


def _torch_dtype(value: Value) -> torch.dtype:
    return getattr(torch, dtypes.BY_NAME[value.dtype].torch)
