"""Kernels of the device that are Python over its other ops: what reads data, and what asks for an operand's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ops_core.untraced import untraced

Kernel = Callable[..., Any]


def registrar(table: dict[str, Kernel]) -> Callable[..., Callable[[Kernel], Kernel]]:
    """A decorator that enters a function with its schema's arguments for overloads ("nonzero.default")."""

    def kernel(*names: str) -> Callable[[Kernel], Kernel]:
        def register(fn: Kernel) -> Kernel:
            table.update(dict.fromkeys(names, untraced(fn)))
            return fn

        return register

    return kernel


def into(out: Tensor, result: Tensor) -> Tensor:
    """`result` in an out= argument, resized."""
    return out.resize_(result.shape).copy_(result)
