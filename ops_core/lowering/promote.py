"""Type promotion as torch does it, over graph arrays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from ops_core import dtypes
from ops_core.array import Arr, is_float
from ops_core.lowering.registry import Complex, NotLowerable, Scalar

HALF = ("f16", "bf16")
FROM_TORCH = {getattr(torch, d.torch): d.name for d in dtypes.TABLE}
TO_TORCH = {name: dtype for dtype, name in FROM_TORCH.items()}
COMPLEX_PARTS = {torch.complex32: "f16", torch.complex64: "f32", torch.complex128: "f64"}
_COMPLEX_OF = {"f16": torch.complex32, "f32": torch.complex64, "f64": torch.complex128}


def name_of(dtype: torch.dtype) -> str:
    """The graph's name of a real torch dtype."""
    if dtype not in FROM_TORCH:
        raise NotLowerable(f"{dtype} has no core dtype")
    return FROM_TORCH[dtype]


def torch_dtype(x: Any) -> torch.dtype:
    """The torch dtype of an array."""
    return _COMPLEX_OF[x.dtype] if isinstance(x, Complex) else TO_TORCH[x.dtype]


def default_float() -> str:
    """torch's default dtype."""
    return name_of(torch.get_default_dtype())


def opmath(dtype: str) -> str:
    """The dtype that arithmetic on `dtype` runs in: float32 for half types."""
    return "f32" if dtype in HALF else dtype


def is_wrapped(x: Any) -> bool:
    """A Python number, or a run-time scalar, which promotes like one. A `param` with attribute `tensor` stands
    for a 0-dim host tensor and promotes as such."""
    if isinstance(x, Arr):
        return isinstance(x, Scalar) or (x.v.node.op == "param" and not x.v.node.attrs.get("tensor", False))
    return isinstance(x, (bool, int, float, complex))


def _number_dtype(x: Any) -> torch.dtype:
    """What a wrapped number promotes as."""
    if isinstance(x, Arr):
        return torch.get_default_dtype() if x.is_float else torch_dtype(x)
    if isinstance(x, complex):
        return torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64
    return torch.bool if isinstance(x, bool) else torch.int64 if isinstance(x, int) else torch.get_default_dtype()


@cache
def promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch.promote_types, remembered."""
    return torch.promote_types(a, b)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """A category of higher priority against one of lower priority (0-dim tensors, then numbers)."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return promote(higher, lower)
    return higher


def result_type(operands: Iterable[Any]) -> torch.dtype:
    """torch.result_type of arrays, complex pairs, run-time scalars and Python numbers."""
    dim: torch.dtype | None = None
    zero: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for x in operands:
        if is_wrapped(x):
            own = _number_dtype(x)
            wrapped = own if wrapped is None else promote(wrapped, own)
        elif x.ndim:
            dim = torch_dtype(x) if dim is None else promote(dim, torch_dtype(x))
        else:
            zero = torch_dtype(x) if zero is None else promote(zero, torch_dtype(x))
    result = _combine(dim, _combine(zero, wrapped))
    assert result is not None
    return result


def cast(x: Any, dtype: str) -> Any:
    """An array converted; Python numbers pass (they take the dtype of the array beside them)."""
    return x.to(dtype) if isinstance(x, Arr) else x


def up(x: Arr) -> Arr:
    """Half types as float32, others unchanged."""
    return x.to(opmath(x.dtype))


def to_float(x: Arr) -> Arr:
    """Floating in its arithmetic dtype; integers and bool as the default dtype."""
    return up(x) if is_float(x.dtype) else x.to(default_float())
