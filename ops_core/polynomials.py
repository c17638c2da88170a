"""Orthogonal polynomials whose degrees are data: the highest is read, then the recurrence runs on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ops_core.device_kernels import Kernel, into, registrar

KERNELS: dict[str, Kernel] = {}
# Degrees beyond which ATen's Hermite polynomials are nan.
_HERMITE_LIMIT = {torch.float32: 128, torch.float64: 512}


@dataclass(frozen=True)
class Family:
    """A family with P_0 = 1.

    Attributes:
        first: P_1 from x.
        following: P_(k + 1) from x, k, P_k and P_(k - 1).
        limit: dtype -> the highest degree that is a number.
    """

    first: Callable[[Tensor], Tensor]
    following: Callable[[Tensor, int, Tensor, Tensor], Tensor]
    limit: dict[torch.dtype, int] | None = None


FAMILIES = {
    "hermite_polynomial_h": Family(
        lambda x: x + x, lambda x, k, q, p: (x + x) * q - 2 * k * p, _HERMITE_LIMIT
    ),
    "hermite_polynomial_he": Family(lambda x: x, lambda x, k, q, p: x * q - k * p, _HERMITE_LIMIT),
    "laguerre_polynomial_l": Family(
        lambda x: 1 - x, lambda x, k, q, p: ((2 * k + (1 - x)) * q - k * p) / (k + 1)
    ),
    "legendre_polynomial_p": Family(lambda x: x, lambda x, k, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1)),
}  # fmt: skip


def evaluate(family: Family, x: Tensor, n: Tensor) -> Tensor:
    """P_n(x); 0 for a negative degree.

    Args:
        x: where, float32 or float64, of any shape that broadcasts with that of ``n``.
        n: degrees, in x's dtype; fractions are dropped.
    """
    degree = torch.where(n < 2.0**63, n.trunc(), -1.0)  # neither nan nor beyond int64, both of which ATen takes as < 0
    top = int(degree.max().item()) if n.numel() else 0
    if family.limit is not None:
        top = min(top, family.limit[x.dtype])
    before, last = torch.ones_like(x), family.first(x)
    out = torch.where(degree == 0, before, torch.where(degree == 1, last, 0.0))
    for k in range(1, top):
        before, last = last, family.following(x, k, last, before)
        out = torch.where(degree == k + 1, last, out)
    return out if family.limit is None else torch.where(degree > family.limit[x.dtype], math.nan, out)


def _declare(name: str, family: Family) -> None:
    operator = getattr(torch.ops.aten, f"special_{name}").default

    def polynomial(x: Tensor | float, n: Tensor | float) -> Tensor:
        dtype = torch.result_type(x, n)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        if dtype not in _HERMITE_LIMIT:  # ATen has no kernel of it: raises as eager does
            operator(torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype))
        # Either may be a number, or a tensor of one element on the CPU: the other's device counts.
        devices = [t.device for t in (x, n) if isinstance(t, Tensor)]
        device = next((d for d in devices if d.type != "cpu"), devices[0])
        operands = (torch.as_tensor(value, dtype=dtype, device=device) for value in (x, n))
        return evaluate(family, *torch.broadcast_tensors(*operands))

    def out_face(x: Tensor | float, n: Tensor | float, *, out: Tensor) -> Tensor:
        return into(out, polynomial(x, n))

    kernel = registrar(KERNELS)
    kernel(f"special_{name}.default")(polynomial)
    kernel(f"special_{name}.out")(out_face)


for _name, _family in FAMILIES.items():
    _declare(_name, _family)
