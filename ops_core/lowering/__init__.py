"""From one ATen call to core ops: `lower(graph, op, args, kwargs)`.

Order of ways: a rule of ours, a `*_copy` of a view, then PyTorch's own decomposition or composite kernel, traced.
In-place and out= faces are lowered through their functional twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ops_core import array as A
from ops_core.array import Arr
from ops_core.ir import Graph, Value
from ops_core.lowering import (  # noqa: F401  (each import registers rules)
    activation,
    bits,
    complex,
    contraction,
    criterion,
    foreach,
    fourier,
    grouped,
    indexing,
    linalg,
    loss,
    misc,
    movement,
    network,
    norm,
    optimizer,
    order,
    padding,
    pointwise,
    pooling,
    quantize,
    random,
    recurrence,
    reduction,
    resample,
    sampling,
    special,
)
from ops_core.lowering.dispatch import record_list, run, static_scalars
from ops_core.lowering.promote import result_type
from ops_core.lowering.random import rng_counters
from ops_core.lowering.registry import Complex, Lowered, NeedsStatic, NotLowerable, Scalar
from ops_core.lowering.schema import op_named

__all__ = ["Complex", "Lowered", "NeedsStatic", "NotLowerable", "lower", "record_list", "result_type", "rng_counters",
           "static_scalars"]  # fmt: skip


def _wrap(value: Any, scalar: str | None = None) -> Any:
    """Contract values as arrays; `scalar` names a Scalar argument."""
    if isinstance(value, Value):
        return Scalar(value, scalar) if scalar and value.node.op == "param" else Arr(value)
    if isinstance(value, Complex):
        return Complex(Arr(value.re), Arr(value.im))
    if isinstance(value, (list, tuple)):
        return [_wrap(v, scalar) for v in value]
    return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, Arr):
        return value.v
    if isinstance(value, Complex):
        return Complex(value.re.v, value.im.v)
    if isinstance(value, (list, tuple)):
        return [_unwrap(v) for v in value]
    return value


def _flat(results: Any) -> tuple[Any, ...]:
    """Results as one tuple, lists flattened."""
    if isinstance(results, (list, tuple)):
        return tuple(v for r in results for v in (_flat(r) if isinstance(r, (list, tuple)) else (r,)))
    return () if results is None else (results,)


def lower(graph: Graph, op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Lowered:
    """Append the core ops of one call to `graph`.

    `op`: overload name ("aten.add.Tensor"). Tensors are `Value`s (`Complex` pairs of them for complex tensors),
    run-time scalars 0-dim `param` values, everything else Python. Random ops take `seed` and `offset` params.
    Raises `NotLowerable` when only the host can do it, `NeedsStatic` when named scalars must be Python numbers.
    """
    overload = op_named(op)
    kinds = {a.name: a.kind for a in overload.arguments}
    bound = overload.bind(args, kwargs)
    for name, value in bound.items():
        bound[name] = _wrap(value, name if kinds.get(name, "").startswith("scalar") else None)
    with A.building(graph):
        effects = run(overload, bound)
    writes = {name: _unwrap(value) for name, value in effects.writes.items()}
    return Lowered(tuple(_unwrap(v) for v in _flat(effects.outputs)), writes)
