"""Lazy tensors between processes: they travel through host memory, and have none to share."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions
from torch.nn.parameter import Parameter


def _rebuild(host: torch.Tensor, device: torch.device, kind: type, requires_grad: bool) -> torch.Tensor:
    tensor = host.to(device).requires_grad_(requires_grad)
    return Parameter(tensor, requires_grad) if kind is Parameter else tensor


def _reduce(tensor: torch.Tensor) -> tuple[Callable, tuple[Any, ...]]:
    if tensor.device.type != "lazy":
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor with autograd history cannot go to another process; detach() it")
    return _rebuild, (tensor.detach().cpu(), tensor.device, type(tensor), tensor.requires_grad)


def _share_memory(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if storage.device.type == "lazy":
        raise RuntimeError(
            "a lazy tensor's memory cannot be shared between processes: share tensor.cpu(), or send the tensor "
            "through a torch.multiprocessing queue, which copies it"
        )
    return _share_host_memory(storage)


_share_host_memory = torch.UntypedStorage.share_memory_


def install() -> None:
    """Teaches torch.multiprocessing about lazy tensors."""
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(Parameter, _reduce)
    torch.UntypedStorage.share_memory_ = _share_memory
