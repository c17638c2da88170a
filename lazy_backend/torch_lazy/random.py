"""Random number generators: one default generator a device, whose numbers depend on its seed and the calls so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.types import Device

from lazy_backend import _C

from .devices import device_count, index_of


class _Defaults(Sequence[torch.Generator]):
    """`default_generators[i]`: opened with the driver, not before."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: int) -> torch.Generator:  # type: ignore[override]
        return _C.default_generator(range(device_count())[index])


default_generators = _Defaults()


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    default_generators[index_of(None)].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator. `torch.manual_seed` calls it, also in scripts that use no device: opens none."""
    _C.seed_all(torch.Generator().manual_seed(seed).initial_seed())


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    default_generators[index_of(None)].seed()


def seed_all() -> None:
    """Seeds every device's generator with the same random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[index_of(None)].initial_seed()


def get_rng_state(device: Device = "lazy") -> Tensor:
    """The state of a device's generator: 16 bytes, uint8 on the CPU."""
    return default_generators[index_of(device)].get_state()


def get_rng_state_all() -> list[Tensor]:
    """`get_rng_state` of every device."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: Tensor, device: Device = "lazy") -> None:
    """Restores what `get_rng_state` gave, on whatever device it is. Raises for a tensor of another size or type."""
    default_generators[index_of(device)].set_state(new_state.cpu())


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """`set_rng_state` of every device, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
