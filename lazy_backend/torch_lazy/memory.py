"""Device memory. Asking waits for what was recorded, so that the numbers are the program's, not the queue's."""

from __future__ import annotations

from typing import Any

import torch
from torch.types import Device

from lazy_backend import _C

from .devices import get_device_properties, index_of

OutOfMemoryError = torch.OutOfMemoryError


def memory_stats(device: Device = None) -> dict[str, int]:
    """Counters by the names of `torch.cuda.memory_stats`: "allocated_bytes.all.peak" and so on. Bytes or counts."""
    return _C.memory_stats(index_of(device))


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors and plans hold now."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Device = None) -> int:
    """The most that `memory_allocated` has been since the start or `reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the driver: allocated, and kept for reuse."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Device = None) -> int:
    """The most that `memory_reserved` has been since the start or `reset_peak_memory_stats`."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Device = None) -> None:
    """The peaks start from the present values."""
    _C.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """The counts of allocations and frees start from 0."""
    _C.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Gives memory that no tensor uses back to the driver."""
    torch.accelerator.memory.empty_cache()


def empty_host_cache() -> None:
    """Gives pinned host memory that no tensor uses back to the system."""
    torch.accelerator.memory.empty_host_cache()


def set_memory_limit(limit: int, device: Device = None) -> None:
    """At most `limit` bytes are taken from the driver; more raises OutOfMemoryError. 0: no limit but the driver's."""
    _C.set_memory_limit(index_of(device), limit)


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """`set_memory_limit` as a share of the device's memory. Raises ValueError outside of 0 to 1."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a fraction from 0 to 1, got {fraction}")
    set_memory_limit(int(fraction * get_device_properties(device).total_memory), device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of the device; memory kept for reuse counts as free."""
    total = get_device_properties(device).total_memory
    return max(0, total - memory_allocated(device)), total


get_memory_info = mem_get_info


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """What lives on the device, by the Python line that made it, the largest first.

    Each entry: "line" (text), "bytes" and "tensors" (storages, views not counted).
    """
    return [dict(zip(("line", "bytes", "tensors"), row, strict=True)) for row in _C.memory_holdings(index_of(device))]


# How many lines of the snapshot the summary shows.
_SHOWN = 10

_ROWS = {
    "allocated": "allocated_bytes.all",
    "requested": "requested_bytes.all",
    "reserved": "reserved_bytes.all",
    "split and free": "inactive_split_bytes.all",
}


def memory_summary(device: Device = None) -> str:
    """The statistics, and the largest of what lives by its Python line, as a table of text in MiB."""
    stats = memory_stats(device)
    columns = ("current", "peak", "allocated", "freed")
    lines = [f"lazy:{index_of(device)} memory, MiB".ljust(24) + "".join(f"{c:>14}" for c in columns)]
    for label, name in _ROWS.items():
        lines.append(f"{label:24}" + "".join(f"{stats[f'{name}.{c}'] / 2**20:14.2f}" for c in columns))
    lines.append(f"{'allocations':24}" + "".join(f"{stats[f'allocation.all.{c}']:14d}" for c in columns))
    lines.append(f"retries {stats['num_alloc_retries']}, out of memory {stats['num_ooms']}")
    lines += ["", "largest of what lives".ljust(24) + f"{'MiB':>14}{'tensors':>14}"]
    lines += [
        f"{'':24}{entry['bytes'] / 2**20:14.2f}{entry['tensors']:14d}  {entry['line']}"
        for entry in memory_snapshot(device)[:_SHOWN]
    ]
    return "\n".join(lines)
