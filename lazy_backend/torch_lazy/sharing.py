"""Lazy storages in files and between processes: they travel through host memory, and have none to share."""

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


def _is_shared(storage: torch.UntypedStorage) -> bool:
    # torch answers yes for every device's memory, which CUDA's processes can share; ours cannot.
    return storage.device.type != "lazy" and _is_host_shared(storage)


def _write_file(storage: torch.UntypedStorage, *arguments: Any) -> None:
    host = storage.cpu() if storage.device.type == "lazy" else storage
    _write_host_file(host, *arguments)


def _set_from_file(storage: torch.UntypedStorage, *arguments: Any) -> torch.UntypedStorage:
    if storage.device.type != "lazy":
        return _set_host_from_file(storage, *arguments)
    host = torch.UntypedStorage(storage.nbytes())
    _set_host_from_file(host, *arguments)
    return storage.copy_(host)


_write_host_file, _set_host_from_file = torch.UntypedStorage._write_file, torch.UntypedStorage._set_from_file
_share_host_memory, _is_host_shared = torch.UntypedStorage.share_memory_, torch.UntypedStorage.is_shared


def install() -> None:
    """Teaches pickle (whose storages torch writes from memory) and torch.multiprocessing about lazy tensors."""
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(Parameter, _reduce)
    methods: dict[str, Callable[..., Any]] = {
        "_write_file": _write_file,
        "_set_from_file": _set_from_file,
        "share_memory_": _share_memory,
        "is_shared": _is_shared,
    }
    for name, function in methods.items():
        setattr(torch.UntypedStorage, name, function)
