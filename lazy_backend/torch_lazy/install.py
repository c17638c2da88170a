"""Makes the device known to torch as "lazy"."""

from __future__ import annotations

import sys

import torch

from . import compiling, exchange, namesake, sharing


def install() -> None:
    """Names the device, adds `Tensor.lazy()`, `is_lazy` and so on, and registers `torch.lazy`. Once is enough."""
    if hasattr(torch, "lazy"):
        return
    torch.utils.rename_privateuse1_backend("lazy")
    torch._register_device_module("lazy", sys.modules["lazy_backend.torch_lazy"])
    namesake.install()
    sharing.install()
    exchange.install()
    compiling.install()
    if torch.distributed.is_available():
        from lazy_backend import distributed

        distributed.register()
    torch._logging._internal.register_log("lazy", "lazy_backend")  # TORCH_LOGS="+lazy", read after this
    torch.utils.generate_methods_for_privateuse1_backend(for_packed_sequence=True, for_storage=True)
