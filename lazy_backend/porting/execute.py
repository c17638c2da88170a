"""Runs a core graph on a device under test: as kernels (levels 2 and 3) or as core ops (level 1)."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from codegen import core_calls, schedule
from codegen.index import contiguous
from codegen.plan import Arg as PlanArg
from codegen.plan import Launch, Plan, SlotInfo
from lazy_backend.driver.base import Address, Arg, Buffer, Local, Scalar, Tensor
from lazy_backend.driver.errors import Unsupported
from lazy_backend.porting.bench import Bench
from ops_core import dtypes, numerics
from ops_core.ir import Graph, Node

Operand = tuple[tuple[int, ...], str]  # shape, dtype

_SCALARS = {"bool": np.uint8, "i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}


def to_memory(values: np.ndarray, dtype: str) -> np.ndarray:
    """NumPy values as the device stores them (bfloat16 is 16 bits there)."""
    return numerics.bitcast(values, "bf16", "u16") if dtype == "bf16" else np.ascontiguousarray(values)


def from_memory(raw: np.ndarray, dtype: str) -> np.ndarray:
    """What `to_memory` was given, from raw bytes."""
    if dtype == "bf16":
        return numerics.bitcast(raw.view(np.uint16), "u16", "bf16")
    return raw.view(numerics.numpy_dtype(dtype))


class Runner:
    """A graph ready to run; mems: slot -> device memory. extern: which nodes the driver's library computes; tiles: the
    schedules of products."""

    def __init__(
        self,
        b: Bench,
        graph: Graph,
        mems: Mapping[int, Any],
        sizes: Mapping[int, int],
        params: Sequence = (),
        extern: Callable[[Node], bool] = lambda node: False,
        tiles: schedule.Tiles | None = None,
    ):
        self.b, self.mems, self.params = b, mems, params
        if b.caps.level == 1:
            b.needs("core_op")
            calls = core_calls.plan(graph, b.caps)
            self.pieces, self.temps = [b.alloc(max(n, 1)) for n in calls.pieces], calls.temps
            self._prepare_params(calls)
            self.steps = [self._call(call) for call in calls.calls]
        else:
            b.needs("program_load", "kernel_create", "launch")
            plan = schedule.plan(graph, {slot: SlotInfo(n) for slot, n in sizes.items()}, b.caps, extern, tiles)
            self.pieces, self.temps = [b.alloc(max(n, 1)) for n in plan.pieces], plan.temps
            self.steps = self._launches(plan)

    def run(self) -> None:
        """Queue everything."""
        for step in self.steps:
            step()

    def _launches(self, plan: Plan) -> list[Any]:
        device, queue = self.b.device, self.b.queue
        kernels = [self.b.kernel(k.source, k.name) for k in plan.kernels]

        def step(launch: Launch | core_calls.CoreCall) -> Any:
            if isinstance(launch, core_calls.CoreCall):
                return self._call(launch)
            args = [self._argument(arg) for arg in launch.args]
            kernel = kernels[launch.kernel]
            return lambda: device.launch(queue, kernel, launch.global_size, launch.local_size, args)

        return [step(launch) for launch in plan.launches]

    def _argument(self, arg: PlanArg) -> Arg:
        memory = Address if self.b.caps.address_args else Buffer
        match arg.kind:
            case "slot":
                return memory(self.mems[int(arg.value)])
            case "temp":
                return memory(*self._place(int(arg.value)))
            case "local":
                return Local(int(arg.value))
            case _:
                return self.scalar(arg, self.params)

    def _place(self, temp: int) -> tuple[Any, int]:
        """The memory and offset of an intermediate."""
        return self.pieces[self.temps[temp].piece], self.temps[temp].offset

    @staticmethod
    def scalar(arg: PlanArg, params: Sequence) -> Scalar:
        """A static number, or a run-time scalar of `params`, in the argument's type."""
        value = params[int(arg.value)] if arg.kind == "scalar" else arg.value
        return Scalar(np.asarray(value, _SCALARS[arg.type]).tobytes())

    def _prepare_params(self, calls: core_calls.CorePlan) -> None:
        for index, dtype, temp in calls.params:
            mem, offset = self._place(temp)
            self.b.put(mem, np.asarray(self.params[index], numerics.numpy_dtype(dtype)), offset)

    def _call(self, call: core_calls.CoreCall) -> Any:
        tensors = [self._tensor(t) for t in call.tensors]
        outputs, inputs, attrs = tensors[: call.n_outputs], tensors[call.n_outputs :], json.loads(call.attrs)
        return lambda: self.b.device.core_op(self.b.queue, call.op, outputs, inputs, attrs)

    def _tensor(self, t: core_calls.TensorRef) -> Tensor:
        dtype = dtypes.BY_NAME[t.dtype]
        mem, start = (self.mems[t.number], 0) if t.kind == "slot" else self._place(t.number)
        return Tensor(mem, start + t.offset * dtype.bytes, dtype.code, t.sizes, t.strides)


def graph_of(
    op: str, inputs: Sequence[Operand], outputs: Sequence[Operand], attrs: Mapping[str, Any], reversed_: bool = False
) -> Graph:
    """One core op between loads and stores; slots 0, 1, .. are its inputs, then its outputs.

    reversed_: the inputs' last dimension lies outermost in memory, as in views of transposed tensors.
    """
    graph = Graph()

    def view(slot: int, shape: tuple[int, ...]) -> dict[str, object]:
        strides = contiguous(shape[::-1])[::-1] if reversed_ and slot < len(inputs) else contiguous(shape)
        return {"slot": slot, "sizes": shape, "strides": strides, "offset": 0}

    loaded = tuple(graph.add("load", (), shape, dtype, **view(i, shape)) for i, (shape, dtype) in enumerate(inputs))
    for i, value in enumerate(graph.add_multi(op, loaded, list(outputs), **attrs)):
        graph.add_multi("store", (value,), [], **view(len(inputs) + i, value.shape))
    return graph


def one_op(
    b: Bench,
    op: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    attrs: Mapping[str, Any],
    library: bool = False,
    reversed_: bool = False,
) -> Runner:
    """One core op on tensors of ones, ready to run: as the device runs it by itself, or through its library's entry."""
    ones = [np.ones(math.prod(shape), numerics.numpy_dtype(dtype)) for shape, dtype in (*inputs, *outputs)]
    raw = [to_memory(x, dtype) for x, (_, dtype) in zip(ones, (*inputs, *outputs), strict=True)]
    mems = {slot: b.upload(data) for slot, data in enumerate(raw)}
    sizes = {slot: data.nbytes for slot, data in enumerate(raw)}
    graph = graph_of(op, inputs, outputs, attrs, reversed_)
    return Runner(b, graph, mems, sizes, extern=lambda node: library and node.op == op)


def seconds(b: Bench, work: Callable[[], None], repeat: int) -> float:
    """Time of one `work` among `repeat` queued ones, warm; best of three."""
    work()
    b.device.synchronize(b.queue)
    return min(seconds_once(b, work, repeat) for _ in range(3))


def seconds_once(b: Bench, work: Callable[[], None], repeat: int) -> float:
    """Time of one `work` among `repeat` queued ones, on the device's clock where it has one."""
    began, start = time.perf_counter(), b.device.event_record(b.queue)
    for _ in range(repeat):
        work()
    end = b.device.event_record(b.queue)
    b.device.event_wait(end)
    took = time.perf_counter() - began
    with contextlib.suppress(Unsupported):  # then the host's clock will do
        took = (b.device.event_time_ns(end) - b.device.event_time_ns(start)) * 1e-9 or took
    for event in (start, end):
        b.device.event_destroy(event)
    return took / repeat


def library_times(
    b: Bench, op: str, inputs: Sequence[Operand], outputs: Sequence[Operand], attrs: Mapping[str, Any]
) -> tuple[float, float]:
    """Seconds of one core op through the driver's library entry, and as generated kernels; operands are dense.

    Raises `Unsupported` where the entry refuses such operands, also where it does so for views of transposed memory.
    """
    one_op(b, op, inputs, outputs, attrs, library=True, reversed_=True).run()
    runs = [one_op(b, op, inputs, outputs, attrs, library).run for library in (True, False)]
    library, generated = (seconds(b, run, 5) for run in runs)
    return library, generated
