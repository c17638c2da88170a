"""Steps of a plan for a level 1 chip: core op calls as csrc/module.cpp takes them."""

from __future__ import annotations

from codegen.core_calls import CorePlan, TensorRef
from ops_core import dtypes


def core_steps(plan: CorePlan) -> list[tuple]:
    """("core", op, attrs, number of outputs, tensors): see `plan_from_python`.

    A run-time scalar is a `full` whose value the executor writes into its attrs, hence without any here.
    """

    def tensor(ref: TensorRef) -> tuple:
        dtype = dtypes.BY_NAME[ref.dtype]
        place = ("slot", ref.number, "") if ref.kind == "slot" else ("temp", plan.temps[ref.number].offset, "")
        return (place, dtype.code, ref.offset * dtype.bytes, list(ref.sizes), list(ref.strides))

    scalars: list[tuple] = []
    for index, dtype, temp in plan.params:
        target: tuple = (("temp", plan.temps[temp].offset, ""), dtypes.BY_NAME[dtype].code, 0, [], [])
        scalars.append(("core", "full", "", 1, [target, (("scalar", index, dtype), 0, 0, [], [])]))
    return scalars + [
        ("core", call.op, call.attrs, call.n_outputs, [tensor(t) for t in call.tensors]) for call in plan.calls
    ]
