"""A graph under test: written with `Arr`, planned, run on a device, compared with the NumPy interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.index import contiguous
from codegen.plan import Plan, SlotInfo
from codegen.schedule import plan
from ops_core import interpret, numerics
from ops_core.array import Arr, building, emit
from ops_core.dtypes import TABLE
from ops_core.ir import Graph
from tests.codegen.run_plan import capabilities, run_plan

TOLERANCE = {"f16": 2e-3, "bf16": 2e-2, "f32": 2e-5, "f64": 1e-12}


class Case:
    """Collects slots while a graph is written. `memory`: the initial 1-D contents of each slot."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.memory: dict[int, np.ndarray] = {}
        self.dtypes: dict[int, str] = {}
        self.params: list[Any] = []

    def slot(self, data: np.ndarray, dtype: str | None = None) -> int:
        """A new buffer holding `data`."""
        names = {np.dtype(d.numpy): d.name for d in TABLE if d.name != "bf16"}
        number = len(self.memory)
        self.memory[number] = np.ascontiguousarray(data).reshape(-1).copy()
        self.dtypes[number] = dtype or names[data.dtype]
        return number

    def view(self, slot: int, sizes: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> Arr:
        """A load of a strided view."""
        attrs = {"slot": slot, "sizes": tuple(sizes), "strides": tuple(strides or contiguous(sizes)), "offset": offset}
        with building(self.graph):
            return emit("load", (), sizes, self.dtypes[slot], **attrs)

    def input(self, data: np.ndarray, dtype: str | None = None) -> Arr:
        """A load of a whole new buffer."""
        return self.view(self.slot(data, dtype), data.shape)

    def param(self, value: Any, dtype: str = "f64") -> Arr:
        self.params.append(value)
        with building(self.graph):
            return emit("param", (), (), dtype, index=len(self.params) - 1)

    def store(self, x: Arr, slot: int, strides: Sequence[int] | None = None, offset: int = 0) -> None:
        attrs = {"slot": slot, "sizes": x.shape, "strides": tuple(strides or contiguous(x.shape)), "offset": offset}
        with building(self.graph):
            self.graph.add_multi("store", (x.v,), [], **attrs)

    def output(self, x: Arr) -> int:
        """Store a value to a new buffer; returns its slot."""
        slot = self.slot(np.zeros(x.shape, numerics.numpy_dtype(x.dtype)), x.dtype)
        self.store(x, slot)
        return slot

    def plan(self, **caps: Any) -> Plan:
        slots = {n: SlotInfo(m.nbytes, self.dtypes[n]) for n, m in self.memory.items()}
        return plan(self.graph, slots, capabilities(**caps))

    def check(self, launches: int | None = None, exact: bool = False, platform: str = "Intel", **caps: Any) -> Plan:
        """Run on the device and compare every slot with the interpreter; returns the plan."""
        result = self.plan(**caps)
        expected = {n: m.copy() for n, m in self.memory.items()}
        interpret.run(self.graph, expected, self.params)
        memory = {n: to_device(m, self.dtypes[n]) for n, m in self.memory.items()}
        got = run_plan(result, memory, self.params, platform)
        for n, want in expected.items():
            have = from_device(got[n], self.dtypes[n])
            if exact or self.dtypes[n] not in TOLERANCE:
                np.testing.assert_array_equal(have, want)
            else:
                tolerance = TOLERANCE[self.dtypes[n]]
                scale = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0)))
                np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * scale)
        if launches is not None:
            assert len(result.launches) == launches, [k.mlir for k in result.kernels]
        return result


def to_device(memory: np.ndarray, dtype: str) -> np.ndarray:
    """bf16 is float32 in the interpreter and 16 bits on a device."""
    return (memory.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else memory


def from_device(memory: np.ndarray, dtype: str) -> np.ndarray:
    return (memory.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else memory


def build(write: Callable[[Case], None]) -> Case:
    """The case that `write` writes, with array operators at hand."""
    case = Case()
    with building(case.graph):
        write(case)
    return case
