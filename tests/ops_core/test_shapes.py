"""Ops without a Meta kernel get their shapes from their lowering: the shapes and dtypes that the CPU gives."""

import pytest
import torch

from lazy_backend.conformance.group_inputs import INPUTS, Call, Draw
from ops_core.lowering.schema import op_of
from ops_core.shapes import infer, without_meta

COVERED = sorted({op.name for op in without_meta()} & set(INPUTS))


def described(results):
    return [(tuple(t.shape), t.dtype) for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]


def test_there_are_such_ops_and_the_group_inputs_reach_many():
    assert len(COVERED) > 20


@pytest.mark.parametrize("name", COVERED)
def test_inferred_results_are_the_cpus(name):
    overload = getattr(getattr(torch.ops.aten, name.split(".")[1]), name.split(".")[2])

    def call(run, device):
        made = INPUTS[name](Draw())
        moved = torch.utils._pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, tuple(made))
        named = torch.utils._pytree.tree_map(
            lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, made.kwargs if isinstance(made, Call) else {}
        )
        return run(*moved, **named)

    try:
        actual = call(lambda *args, **kwargs: infer(op_of(overload), *args, **kwargs), "meta")
    except NotImplementedError as error:
        pytest.skip(f"only the host can tell: {error}")
    assert described(actual) == described(call(overload, "cpu"))
