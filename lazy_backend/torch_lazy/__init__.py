"""The module `torch.lazy`: what `torch.cuda` is for CUDA, for the lazy device.

Times are in milliseconds where torch's are (events), memory is in bytes. A `device` is anything that torch takes:
None (the current one), an index, a string or a `torch.device`.
"""

from lazy_backend import _C

from .amp import get_amp_supported_dtype, is_bf16_supported
from .devices import (
    DeviceProperties,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_available,
    set_device,
    synchronize,
)
from .install import install
from .memory import (
    OutOfMemoryError,
    empty_cache,
    empty_host_cache,
    get_memory_info,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_memory_limit,
    set_per_process_memory_fraction,
)
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import Event, Stream, current_stream, default_stream, set_stream, stream
from .windows import reset_stats, stats, window

__all__ = [
    "DeviceProperties",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "empty_host_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_memory_info",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "install",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "reset_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_memory_limit",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stats",
    "stream",
    "synchronize",
    "window",
]


def is_initialized() -> bool:
    """Whether a driver has been opened."""
    return _C.driver_opened()


def init() -> None:
    """Opens the driver now instead of at the first use. Raises RuntimeError with what was tried where there is none."""
    _C.device_count()


def __getattr__(name: str) -> object:
    if name == "_initialized":  # asked by torch.utils.checkpoint before it looks at generators
        return is_initialized()
    raise AttributeError(f"module 'torch.lazy' has no attribute {name!r}")


_lazy_init = init  # the name that torch looks up
_is_in_bad_fork = _C._is_in_bad_fork
