"""Steps of a plan for a level 1 chip: core op calls as csrc/module.cpp takes them."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.core_calls import CorePlan
from codegen.plan import CoreCall, Temp, TensorRef
from ops_core import dtypes


def core_steps(plan: CorePlan) -> list[tuple]:
    """The steps of a plan. A run-time scalar is a `full` whose value the executor writes into its attrs, hence without
    any here."""
    scalars: list[tuple] = []
    for index, dtype, temp in plan.params:
        target: tuple = (("temp", plan.temps[temp].offset, ""), dtypes.BY_NAME[dtype].code, 0, [], [])
        scalars.append(("core", "full", "", 1, [target, (("scalar", index, dtype), 0, 0, [], [])], 0))
    return scalars + [core_step(call, plan.temps, 0) for call in plan.calls]


def core_step(call: CoreCall, temps: Sequence[Temp], handle: int) -> tuple:
    """("core", op, attrs, number of outputs, tensors, handle for profiles): see `plan_from_python`."""
    return ("core", call.op, call.attrs, call.n_outputs, [_tensor(t, temps) for t in call.tensors], handle)


def _tensor(ref: TensorRef, temps: Sequence[Temp]) -> tuple:
    dtype = dtypes.BY_NAME[ref.dtype]
    place = ("slot", ref.number, "") if ref.kind == "slot" else ("temp", temps[ref.number].offset, "")
    return (place, dtype.code, ref.offset * dtype.bytes, list(ref.sizes), list(ref.strides))
