"""What automatic mixed precision may use. The lists of ops are in csrc/autocast.cpp."""

from __future__ import annotations

import torch

from .devices import get_device_properties


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes of `torch.autocast("lazy", dtype)`. Kernels compute in float32 and round, so any device has both."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors work; they do on every device, natively or through float32."""
    return including_emulation or get_device_properties().capabilities["has_bf16"]
