"""Which devices there are, which one is current, and what they are."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.types import Device

from lazy_backend import _C


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is, under the names that torch's own modules use. Memory in bytes."""

    name: str
    vendor: str
    driver_version: str
    total_memory: int
    multi_processor_count: int
    max_threads_per_block: int
    shared_memory_per_block: int
    L2_cache_size: int
    is_integrated: bool
    capabilities: dict[str, Any]  # every field of lazy_driver.h's lazy_properties


def index_of(device: Device) -> int:
    """The index that `device` names; the current device's without one. Raises ValueError for another type."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "lazy":
        raise ValueError(f"expected a lazy device, got {device}")
    return current_device() if device.index is None else device.index


def device_count() -> int:
    """How many devices the driver has, none of which it opens; 0 where there is no driver."""
    return _C.count_devices()


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def current_device() -> int:
    """The index of the calling thread's current device."""
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: Device) -> None:
    """Makes `device` the calling thread's current one."""
    torch._C._accelerator_setDeviceIndex(index_of(device))


class device:
    """Context manager: makes a device current inside."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        self._previous = torch._C._accelerator_exchangeDevice(self.idx)

    def __exit__(self, *exception: object) -> None:
        torch._C._accelerator_setDeviceIndex(self._previous)


class device_of(device):
    """Context manager: makes the device of a lazy tensor current inside."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "lazy" else None)


def synchronize(device: Device = None) -> None:
    """Waits until the device has done everything recorded so far. Raises a device error of that work."""
    _C.synchronize(index_of(device))


@functools.cache
def _properties(index: int) -> DeviceProperties:
    from lazy_backend.driver import abi

    found = abi.unpack(abi.Properties.from_buffer_copy(_C.device_properties(index))).complete()
    return DeviceProperties(
        name=found.name,
        vendor=found.vendor,
        driver_version=found.driver_version,
        total_memory=found.global_memory_bytes,
        multi_processor_count=found.compute_units,
        max_threads_per_block=found.max_work_group_size,
        shared_memory_per_block=found.local_memory_bytes,
        L2_cache_size=found.cache_bytes,
        is_integrated=found.host_visible,
        capabilities=asdict(found),
    )


def get_device_properties(device: Device = None) -> DeviceProperties:
    """What the device is."""
    return _properties(index_of(device))


def get_device_name(device: Device = None) -> str:
    """The name that the driver gives the device."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """The supported dtypes, as `torch.accelerator.get_device_capability` gives them."""
    return torch.accelerator.get_device_capability(torch.device("lazy", index_of(device)))
