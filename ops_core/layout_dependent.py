"""Ops whose saved factors are those of A or of A^T, as A's strides say: torch's backward formulas look at them again.

What ATen's CPU kernels do, over the device's LU factorisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ops_core.device_kernels import Kernel, into, registrar

KERNELS: dict[str, Kernel] = {}
kernel = registrar(KERNELS)


def _check(op: Callable[..., Any], A: Tensor) -> None:
    """Raises what `op` raises on the CPU for a tensor of this shape and dtype."""
    try:
        op(torch.empty_like(A, device="meta"))
    except (RuntimeError, AssertionError):  # in other words than the CPU kernel's
        op(torch.zeros(A.shape, dtype=A.dtype))


def _factors(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(LU, pivots, info) of A^T where that is the column-major one, else of A: both have one determinant."""
    return torch.linalg.lu_factor_ex(A.mT if A.is_contiguous() and not A.is_complex() else A)


def _sign(pivots: Tensor) -> Tensor:
    """Determinant of the permutation, +-1 as int64: every row that stays but on the diagonal is one exchange."""
    places = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * ((places != pivots).sum(-1) % 2)


@kernel("_linalg_det.default")
def det(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(determinants [...], LU, pivots i32) of square matrices [..., n, n]."""
    _check(torch.ops.aten._linalg_det.default, A)
    factors, pivots, _ = _factors(A)
    return _sign(pivots) * factors.diagonal(0, -2, -1).prod(-1), factors, pivots


@kernel("_linalg_slogdet.default")
def slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(signs [...], logarithms of the determinants' sizes [...], LU, pivots i32) of square matrices [..., n, n]."""
    _check(torch.ops.aten._linalg_slogdet.default, A)
    factors, pivots, _ = _factors(A)
    diagonal = factors.diagonal(0, -2, -1)
    return _sign(pivots) * diagonal.sgn().prod(-1), diagonal.abs().log().sum(-1), factors, pivots


def _out_face(function: Kernel, names: tuple[str, ...]) -> Kernel:
    def face(*args: Any, **named: Any) -> tuple[Tensor, ...]:
        outs = [named.pop(name) for name in names]
        return tuple(into(out, result) for out, result in zip(outs, function(*args, **named), strict=True))

    return face


kernel("_linalg_det.result")(_out_face(det, ("result", "LU", "pivots")))
kernel("_linalg_slogdet.sign")(_out_face(slogdet, ("sign", "logabsdet", "LU", "pivots")))
