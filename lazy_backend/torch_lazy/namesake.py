"""torch's Python names a dormant device of its own "lazy" in a few places, to treat it apart; not us.

Each of these functions compares a device's type with the constant "lazy". The constant is replaced by another name.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
import torch._lazy
from torch._subclasses.meta_utils import MetaConverter, MetaTensorDescriber

from .devices import synchronize

ELSEWHERE = "lazy tensor core"

FUNCTIONS: tuple[Callable, ...] = (
    torch.Tensor.__deepcopy__,  # clones, and loses which tensors share a storage
    MetaConverter.__call__,  # refuses to make a fake tensor
    MetaConverter.meta_tensor,  # takes functionalised tensors for real ones
    MetaTensorDescriber.describe_tensor,
)


def _renamed(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return constant.replace(co_consts=tuple(map(_renamed, constant.co_consts)))
    if isinstance(constant, tuple):
        return tuple(map(_renamed, constant))
    return ELSEWHERE if constant == "lazy" else constant


def install() -> None:
    """Changes the functions in place."""
    for function in FUNCTIONS:
        function.__code__ = _renamed(function.__code__)  # type: ignore[attr-defined]
    # torch.testing marks a step after random ops of any device called lazy.
    torch._lazy.mark_step = lambda *_: synchronize()
