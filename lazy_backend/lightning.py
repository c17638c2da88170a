"""PyTorch Lightning: `import lazy_backend.lightning`, then `Trainer(accelerator="lazy", strategy="lazy")`.

Lightning finds accelerators in a registry, not by entry points, so this module has to be imported once. The strategy
has to be named too: Lightning puts an accelerator that it does not know itself on the CPU. `precision="bf16-mixed"`
and `"16-mixed"` work as on any device.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
    from lightning.pytorch.plugins.precision import MixedPrecision, Precision
    from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
except ImportError:  # the same under its older name
    from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry
    from pytorch_lightning.plugins.precision import MixedPrecision, Precision
    from pytorch_lightning.strategies import SingleDeviceStrategy, StrategyRegistry

from lazy_backend import torch_lazy as lazy


class LazyAccelerator(Accelerator):
    """The lazy devices, for `Trainer(accelerator=...)`."""

    def setup_device(self, device: torch.device) -> None:
        """Makes `device` current. Raises ValueError for another type of device."""
        lazy.set_device(device)

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """What DeviceStatsMonitor logs: `torch.lazy.memory_stats`."""
        return lazy.memory_stats(device)

    def teardown(self) -> None:
        """Gives memory that no tensor uses back to the driver."""
        lazy.empty_cache()

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """The indices that `Trainer(devices=...)` names: a count (-1: all), a list, or either as text."""
        if isinstance(devices, str):
            named = [int(index) for index in devices.split(",") if index]
            devices = named if "," in devices else named[0]
        if isinstance(devices, int):
            devices = list(range(lazy.device_count() if devices == -1 else devices))
        return devices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The devices of these indices."""
        return [torch.device("lazy", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """How many devices there are."""
        return lazy.device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether there is a device."""
        return lazy.is_available()

    @staticmethod
    def name() -> str:
        """The name of the accelerator."""
        return "lazy"


class LazyStrategy(SingleDeviceStrategy):
    """One lazy device: the current one, or `device`."""

    strategy_name = "lazy"

    def __init__(self, device: Any = "lazy", **options: Any) -> None:
        super().__init__(device=torch.device("lazy", lazy.devices.index_of(device)), **options)

    @property
    def precision_plugin(self) -> Precision:
        """The numbers' precision. Lightning makes mixed precision for CUDA unless it knows the accelerator."""
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        if isinstance(plugin, MixedPrecision) and plugin.device != "lazy":
            plugin = MixedPrecision(plugin.precision, "lazy")
        self._precision_plugin = plugin


AcceleratorRegistry.register("lazy", LazyAccelerator, description="lazy devices", override=True)
StrategyRegistry.register("lazy", LazyStrategy, description="one lazy device", override=True)
