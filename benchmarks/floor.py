"""`python -m benchmarks.floor WORKLOAD`: what a step cannot do without, from one step of eager CPU. Prints JSON.

contraction_s  time in matrix products, convolutions, attention and recurrent layers of torch's CPU libraries
bytes          that cross memory however well a step is fused: what existed before and is read or overwritten, what the
               backward pass needs of the forward pass (written and read), and what is left at the end
ops            that Python asks for
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .engines import ENGINES
from .workloads import WORKLOADS, Step

# Ops whose time a library decides; their own time, without the ops that they call.
CONTRACTIONS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution", "aten::convolution_backward",
    "aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward", "aten::mkldnn_rnn_layer",
    "aten::mkldnn_rnn_layer_backward", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip
# Ops that read as much of their first operand as they give.
LOOKUPS = ("aten::embedding", "aten::index", "aten::gather", "aten::index_select", "aten::take")
PROFILED_STEPS = 5


class Traffic(TorchDispatchMode):
    """Bytes that a step reads of storages older than itself and writes to them, and its ops that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}
        # A weak reference also keeps the number from being given again.
        self.made: dict[int, StorageWeakRef] = {}
        self.sizes: dict[int, int] = {}
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        storages = {storage(t) for t in tensors}
        views = all(storage(t) in storages for t in outputs) and not func._schema.is_mutable
        if views:
            return result
        self.ops += 1
        lookup = func._schema.name in LOOKUPS
        for number, t in enumerate(tensors):
            if storage(t) not in self.made:
                size = min(extent(t), extent(outputs[0])) if lookup and number == 0 and outputs else extent(t)
                self.read[storage(t)] = max(self.read.get(storage(t), 0), size)
        for t in outputs:
            if storage(t) in storages and storage(t) not in self.made:
                self.written[storage(t)] = max(self.written.get(storage(t), 0), extent(t))
            elif storage(t) not in storages:
                self.sizes[storage(t)] = t.untyped_storage().nbytes()
                self.made[storage(t)] = StorageWeakRef(t.untyped_storage())
        return result


def storage(t: Tensor) -> int:
    """What tells a tensor's memory from another's while it lives."""
    return t.untyped_storage()._cdata


def extent(t: Tensor) -> int:
    """Bytes of the elements that a tensor has, each counted once however often it is repeated."""
    size = t.element_size()
    for n, stride in zip(t.shape, t.stride(), strict=True):
        size *= n if stride else 1
    return size


def traffic(step: Step) -> tuple[int, int]:
    """(bytes that cross memory at least, ops) of a step that has run before."""
    saved: dict[int, int] = {}
    counted = Traffic()

    def pack(t: Tensor) -> Tensor:
        if storage(t) in counted.made:
            saved[storage(t)] = max(saved.get(storage(t), 0), extent(t))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), counted:
        result = step()
    left = sum(counted.sizes[key] for key, made in counted.made.items() if not made.expired() and key not in saved)
    del result
    return sum(counted.read.values()) + sum(counted.written.values()) + 2 * sum(saved.values()) + left, counted.ops


def contraction_seconds(step: Step) -> float:
    """Time a step that torch's CPU libraries take for contractions."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(PROFILED_STEPS):
            step()
    return sum(e.self_cpu_time_total for e in found.key_averages() if e.key in CONTRACTIONS) * 1e-6 / PROFILED_STEPS


def triad(mbytes: int = 64) -> float:
    """Bytes a second of a + 2 b -> c over arrays that no cache holds."""
    a, b, c = (torch.rand(mbytes << 18) for _ in range(3))

    def once() -> float:
        start = time.perf_counter()
        torch.add(a, b, alpha=2, out=c)
        return time.perf_counter() - start

    return 3 * a.nbytes / statistics.median(once() for _ in range(15))


def floor_of(workload: str) -> dict[str, float]:
    """What `python -m benchmarks.floor` prints, in a process that keeps its memory."""
    command = [sys.executable, "-m", "benchmarks.floor", workload]
    environment = os.environ | ENGINES["pooled"].environment
    # The profiler writes to stderr.
    answer = subprocess.run(command, env=environment, text=True, check=True, capture_output=True)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def main() -> None:
    """Prints the floor of the workload that the command line names."""
    torch.manual_seed(0)
    identity: Callable[[Any], Any] = lambda f: f  # noqa: E731
    step = WORKLOADS[sys.argv[1]].make("cpu", identity)
    for _ in range(3):
        step()
    seconds = contraction_seconds(step)
    moved, ops = traffic(step)
    print(json.dumps({"contraction_s": seconds, "bytes": moved, "ops": ops, "triad": triad()}))


if __name__ == "__main__":
    main()
