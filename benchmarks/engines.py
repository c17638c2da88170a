"""What a workload can run on."""

from typing import NamedTuple

# glibc keeps its memory: without it eager CPU spends much of a step on page faults, so this is the fair baseline.
POOLED = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=68719476736:glibc.malloc.top_pad=268435456"


class Engine(NamedTuple):
    """A device, whether torch.compile wraps the model, and what the process's environment says."""

    device: str
    compiled: bool = False
    environment: dict[str, str] = {}  # noqa: RUF012 - never written


ENGINES: dict[str, Engine] = {
    "eager": Engine("cpu"),
    "pooled": Engine("cpu", environment={"GLIBC_TUNABLES": POOLED}),
    "compile": Engine("cpu", compiled=True, environment={"GLIBC_TUNABLES": POOLED}),
    "lazy": Engine("lazy"),
    "lazy-window1": Engine("lazy", environment={"LAZY_WINDOW": "1"}),
    "lazy-pocl": Engine("lazy", environment={"LAZY_OPENCL_PLATFORM": "pocl"}),
}
DEFAULT = ("eager", "pooled", "compile", "lazy")
