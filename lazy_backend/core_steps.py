"""Steps of a plan for a level 1 chip: core op calls as csrc/module.cpp takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from codegen.core_calls import CorePlan
from codegen.plan import CoreCall, TensorRef
from ops_core import dtypes


def core_steps(plan: CorePlan, lines: Sequence[str], first: int) -> list[tuple]:
    """The steps of a plan. lines: of each window node; first: the number of the plan's first temp in the window. Attrs
    say the line too; those of a run-time scalar, which is a `full`, are written by the executor."""
    scalars: list[tuple] = []
    for index, dtype, temp in plan.params:
        target: tuple = (("temp", first + temp, ""), dtypes.BY_NAME[dtype].code, 0, [], [])
        scalars.append(("core", "full", "", 1, [target, (("scalar", index, dtype), 0, 0, [], [])], 0))
    return scalars + [core_step(_with_line(call, lines), first, 0) for call in plan.calls]


def _with_line(call: CoreCall, lines: Sequence[str]) -> CoreCall:
    if call.origin < 0:
        return call
    return replace(call, attrs=json.dumps({**json.loads(call.attrs), "line": lines[call.origin]}))


def core_step(call: CoreCall, first: int, handle: int) -> tuple:
    """("core", op, attrs, number of outputs, tensors, handle for profiles): see `plan_from_python`."""
    return ("core", call.op, call.attrs, call.n_outputs, [_tensor(t, first) for t in call.tensors], handle)


def _tensor(ref: TensorRef, first: int) -> tuple:
    dtype = dtypes.BY_NAME[ref.dtype]
    place = (ref.kind, ref.number + (first if ref.kind == "temp" else 0), "")
    return (place, dtype.code, ref.offset * dtype.bytes, list(ref.sizes), list(ref.strides))
