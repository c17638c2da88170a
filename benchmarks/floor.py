"""`python -m benchmarks.floor WORKLOAD`: what a step cannot do without, from steps of eager CPU and of no device.

The first line that it writes is counted once, as JSON:
bytes          that cross memory however well a step is fused: what existed before and is read or overwritten, what the
               backward pass needs of the forward pass (written and read), and what is left at the end
ops            that Python asks for

It answers each line of stdin with a line that is measured then, so that it can take turns with the engines:
contraction_s  time in matrix products, convolutions, attention and recurrent layers of torch's CPU libraries
between_s      time of Python and autograd between ops: modules, optimizers, the backward pass's graph
triad          bytes a second
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
PROFILED_SECONDS = 0.1  # of a turn, as an engine's block has


@dataclass
class Floor:
    """What a step of one workload cannot do without. Times in seconds, a value for each round."""

    workload: str
    bytes: int = 0
    ops: int = 0
    contraction_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    triad: list[float] = field(default_factory=list)
    error: str = ""

    def summarise(self, counted: dict[str, int], turns: list[dict[str, float]]) -> None:
        """What was counted once, and each turn's answer."""
        self.bytes, self.ops = counted["bytes"], counted["ops"]
        self.contraction_s, self.between_s, self.triad = (
            [turn[name] for turn in turns] for name in ("contraction_s", "between_s", "triad")
        )

    def parts(self, op_us: float) -> list[tuple[float, float, float]]:
        """(contractions, memory, Python) of each round; op_us: of asking for one op."""
        rounds = zip(self.contraction_s, self.triad, self.between_s, strict=True)
        return [(library, self.bytes / triad, between + self.ops * op_us * 1e-6) for library, triad, between in rounds]


class Profiled(NamedTuple):
    """Seconds a step: in contractions, and between ops. calls: outermost ops a step."""

    contraction_s: float
    between_s: float
    calls: float


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


def profiled(step: Step, steps: int) -> Profiled:
    """A step under torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        whole = time.perf_counter() - start
    events = [e for e in found.events() or [] if e.name.startswith("aten::")]
    contractions = sum(e.self_cpu_time_total for e in events if e.name in CONTRACTIONS) * 1e-6
    outermost = list(not_inside(events))
    inside = sum(e.time_range.elapsed_us() for e in outermost) * 1e-6
    return Profiled(contractions / steps, (whole - inside) / steps, len(outermost) / steps)


def not_inside(events: list[FunctionEvent]) -> Iterator[FunctionEvent]:
    """The events that no other one contains. One thread at a time asks for ops: the script's, or autograd's."""
    end = -math.inf
    for event in sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end)):
        if event.time_range.start >= end:
            end = event.time_range.end
            yield event


def call_seconds(calls: int = 1000) -> float:
    """What the profiler and Python's call add between ops, for each op: `detach` asks for nothing else."""
    x = torch.empty(1, device="meta")

    def step() -> Tensor:
        for _ in range(calls):
            x.detach()
        return x

    return profiled(step, 3).between_s / calls


def between_seconds(on_cpu: Profiled, on_nothing: Profiled) -> float:
    """Time between ops without what each call adds, which is counted with the ops.

    on_nothing: on torch's meta device, whose ops leave Python's own data in the caches. It has ops written in Python,
    and takes apart what the CPU has as one (LSTM), so the smaller of the two counts.
    """
    call = call_seconds()
    return max(0.0, min(p.between_s - p.calls * call for p in (on_cpu, on_nothing)))


def triad(mbytes: int = 64) -> float:
    """Bytes a second of a + 2 b -> c over arrays that no cache holds."""
    a, b, c = (torch.rand(mbytes << 18) for _ in range(3))

    def once() -> float:
        start = time.perf_counter()
        torch.add(a, b, alpha=2, out=c)
        return time.perf_counter() - start

    return 3 * a.nbytes / statistics.median(once() for _ in range(15))


def main() -> None:
    """Counts, then measures as often as it is told."""
    identity: Callable[[Any], Any] = lambda f: f  # noqa: E731
    torch.manual_seed(0)
    make = WORKLOADS[sys.argv[1]].make
    step, nothing = make("cpu", identity), make("meta", identity)
    for _ in range(3):
        step()
        nothing()
    start = time.perf_counter()
    step()
    steps = max(1, min(20, round(PROFILED_SECONDS / (time.perf_counter() - start))))
    moved, ops = traffic(step)
    print(json.dumps({"bytes": moved, "ops": ops}), flush=True)
    for _ in sys.stdin:
        on_cpu = profiled(step, steps)
        between = between_seconds(on_cpu, profiled(nothing, steps))
        row = {"contraction_s": on_cpu.contraction_s, "between_s": between, "triad": triad()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
