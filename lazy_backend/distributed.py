"""torch.distributed on lazy tensors: the backend "lazy" runs collectives over gloo, through host memory.

`init_process_group("lazy")` makes groups for lazy and for CPU tensors. Without a name torch picks it too, for lazy
tensors alone, and DistributedDataParallel then finds no backend: torch takes such a group's default to be gloo.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import distributed as dist


def register() -> None:
    """Makes the backend known under the name "lazy", as the one for device "lazy", able to do CPU tensors."""
    dist.Backend.register_backend("lazy", create, devices=["lazy", "cpu"])


def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """A c10d backend for one process group. Raises what gloo raises when the ranks do not meet within `timeout`."""
    from lazy_backend import _C

    return _C.staged_collectives(dist.ProcessGroupGloo(store, rank, size, timeout))
