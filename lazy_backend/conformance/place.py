"""Copies a case's inputs to a device without changing their layout or how they alias."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}


def place(tree: Any, device: str, wide: bool = False) -> Any:
    """Return ``tree`` with fresh leaf tensors on ``device``: same sizes, strides, offsets and sharing of memory.

    Args:
        tree: any pytree; leaves that are no tensors stay as they are.
        wide: also promote floating point tensors and dtypes to float64, for a reference that does not round.
    """
    memories: dict[int, torch.Tensor] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.dtype) and wide:
            return WIDE.get(value, value)
        if not isinstance(value, torch.Tensor):
            return value
        moved = _strided(value.detach(), device, memories) if _is_plain(value) else value.detach().clone().to(device)
        if wide:
            moved = moved.to(WIDE.get(moved.dtype, moved.dtype))
        return moved.requires_grad_(value.requires_grad)

    return tree_map(leaf, tree)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def _strided(tensor: torch.Tensor, device: str, memories: dict[int, torch.Tensor]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in memories:
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
        memories[key] = whole.clone() if device == "cpu" else whole.to(device)
    memory = memories[key]
    if memory.dtype is not tensor.dtype:
        memory = memory.view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def tensors_of(tree: Any, keep: Callable[[torch.Tensor], bool] = lambda _: True) -> list[torch.Tensor]:
    """Return the tensors of a pytree for which ``keep`` holds, in order."""
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and keep(leaf)]
