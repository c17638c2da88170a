"""simnpu: a level 1 chip. It compiles nothing; its core ops are the op table's NumPy references."""

# ruff: noqa: D102  (the methods of the contract are documented in lazy_backend.driver.base)
from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np

from lazy_backend.driver.base import Tensor
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.driver.errors import InvalidArgument, Unsupported

from . import cost
from .clock import Step
from .device import Command, Queue, Settings, SimDevice, SimDriver, ranges
from .memory import ALIGNMENT


@functools.cache
def _ops() -> Any:
    """ops_core, when the first core op runs: a chip that is only looked at imports nothing."""
    from ops_core import dtypes, interpret, ir, numerics, table

    class Ops:
        by_code: ClassVar = {d.code: d for d in dtypes.TABLE}
        references = table.BY_NAME
        Node, Value = ir.Node, ir.Value
        evaluate = staticmethod(interpret.evaluate)
        bitcast = staticmethod(numerics.bitcast)

    return Ops


class SimNpu(SimDevice):
    """A chip of fixed functions."""

    def properties(self) -> Capabilities:
        c = self.chip
        return Capabilities(
            level=1,
            name=c.name,
            vendor=c.vendor,
            driver_version="1",
            compute_units=c.compute_units,
            local_memory_bytes=c.scratchpad_kib << 10,
            global_memory_bytes=c.memory_mib << 20,
            cache_bytes=max(c.cache_kib, 16) << 10,
            mem_alignment=ALIGNMENT,
            has_f16=True,
            has_bf16=True,
            has_f64=True,
            launch_us=c.launch_us,
            bandwidth_gbs=c.bandwidth_gbs,
            peak_gflops_f32=c.peak_gflops["f32"],
        )

    def core_op(self, queue: Queue, name: str, outputs: list[Tensor], inputs: list[Tensor], attrs: dict) -> None:
        ops = _ops()
        if name not in ops.references or (ops.references[name].reference is None and name != "map"):
            raise Unsupported(f"no core op {name}")
        attrs = dict(attrs)
        op = attrs.get("fn", name) if name == "map" else name
        label = self.labelled(op, attrs.pop("line", ""))
        for tensor in (*outputs, *inputs):
            self.checked(tensor.mem, tensor.offset, _extent(tensor), f"core op {label}")
        work = cost.core_op_work(name, outputs, inputs, attrs, {code: d.name for code, d in ops.by_code.items()})
        memories = ranges([t.mem for t in (*outputs, *inputs)])

        def run() -> None:
            for tensor in inputs:
                if tensor.mem.uninitialised(tensor.offset, _extent(tensor), wholly=True):
                    self.find(f"core op {label} reads {tensor.mem}, which was never written")
            self._evaluate(name, outputs, inputs, attrs)

        self.submit(queue, Command(label, run, memories), Step("kernel", op, queue.number, work=work))

    def _evaluate(self, name: str, outputs: list[Tensor], inputs: list[Tensor], attrs: dict) -> None:
        ops = _ops()
        static = {
            key: tuple(value) if isinstance(value, list) else value for key, value in attrs.items()
        }  # JSON's lists
        node = ops.Node(name, (), static, 0)

        def value(i: int, t: Tensor) -> Any:
            return ops.Value(i, t.sizes, ops.by_code[t.dtype].name, node, i)

        node.inputs = tuple(value(i, t) for i, t in enumerate(inputs))
        node.outputs = tuple(value(i, t) for i, t in enumerate(outputs))
        try:
            results = ops.evaluate(node, [_read(t) for t in inputs])
        except (AssertionError, KeyError, ValueError, IndexError) as error:
            raise InvalidArgument(f"core op {name} {attrs}: {error}") from error
        for tensor, result in zip(outputs, results, strict=True):
            _write(tensor, result)


def _extent(t: Tensor) -> int:
    """Bytes from a view's first to the end of its last element."""
    if math.prod(t.sizes) == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(t.sizes, t.strides, strict=True))
    return (last + 1) * _ops().by_code[t.dtype].bytes


def _view(t: Tensor) -> np.ndarray:
    """The elements in memory; bfloat16 as its 16 bits."""
    dtype = _ops().by_code[t.dtype]
    raw = np.dtype(np.uint16) if dtype.name == "bf16" else np.dtype(dtype.numpy)
    if math.prod(t.sizes) == 0:
        return np.empty(t.sizes, raw)
    memory = t.mem.array(t.offset, _extent(t)).view(raw)
    return np.lib.stride_tricks.as_strided(memory, t.sizes, [stride * raw.itemsize for stride in t.strides])


def _read(t: Tensor) -> np.ndarray:
    """The value that the op computes with, a copy."""
    view = _view(t)
    return _ops().bitcast(view, "u16", "bf16").reshape(t.sizes) if _is_bf16(t) else view.copy()


def _write(t: Tensor, value: np.ndarray) -> None:
    _view(t)[...] = _ops().bitcast(value, "bf16", "u16").reshape(t.sizes) if _is_bf16(t) else value


def _is_bf16(t: Tensor) -> bool:
    return _ops().by_code[t.dtype].name == "bf16"


class SimNpuDriver(SimDriver):
    """simnpu."""

    name = "simnpu"
    device_class = SimNpu


def driver() -> SimNpuDriver:
    """Entry point; LAZY_SIM_CHIP names the chip (default npu)."""
    return SimNpuDriver(Settings.from_environment("npu"))
