"""DLPack: a lazy tensor's memory for other libraries, without a copy where the host sees it. Exporting is a read.

What is exported is the memory, so later writes show on both sides: the device's once they have run (`synchronize`), the
other library's at once. `.numpy()` and `np.asarray` follow torch's rule for every device but the CPU: a TypeError.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from lazy_backend import _C

from .devices import get_device_properties


def _host_tensor(tensor: torch.Tensor, on_host: bool, copy: bool | None) -> torch.Tensor:
    """A CPU tensor over the memory of `tensor`; a copy where there is no such memory and the consumer takes one."""
    if get_device_properties(tensor.device).is_integrated:
        return _C.host_view(tensor.resolve_neg())
    if on_host and copy is not False:
        return tensor.cpu()
    raise BufferError(
        f"the memory of {tensor.device} is not visible to the host, so no other library can share it: take tensor.cpu()"
    )


def _exporting(export: Callable[..., Any]) -> Callable[..., Any]:
    def to_dlpack(tensor: torch.Tensor, *, dl_device: Any = None, copy: bool | None = None) -> Any:
        if tensor.device.type == "lazy":
            from torch.utils.dlpack import DLDeviceType

            on_host = dl_device is not None and dl_device[0] == DLDeviceType.kDLCPU
            tensor = _host_tensor(tensor, on_host, copy)
        return export(tensor, dl_device=dl_device, copy=copy)

    to_dlpack.__doc__ = export.__doc__
    return to_dlpack


def _dlpack_device(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
    if self.device.type != "lazy":
        return _dlpack_device_of_others(self)
    from torch.utils.dlpack import DLDeviceType

    if get_device_properties(self.device).is_integrated:
        return DLDeviceType.kDLCPU, 0
    return DLDeviceType.kDLExtDev, self.device.index


_dlpack_device_of_others = torch.Tensor.__dlpack_device__


def install() -> None:
    """Tensor.__dlpack__ (which calls these two), __dlpack_device__, torch.utils.dlpack.to_dlpack, torch.to_dlpack."""
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        setattr(torch._C, name, _exporting(getattr(torch._C, name)))
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = torch._C._to_dlpack
    torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]
