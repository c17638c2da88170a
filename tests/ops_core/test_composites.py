"""A composite is one node for those who have a kernel for it, and its core ops for all others."""

import numpy as np
import pytest
import torch

from ops_core import composites, interpret
from ops_core.array import Arr, building
from ops_core.ir import Graph
from ops_core.lowering import lower, recurrence

OP = "aten._scaled_dot_product_fused_attention_overrideable"


def attention_graph(memory, causal):
    graph = Graph()
    qkv = []
    for x in memory:
        shape = tuple(x.shape)
        strides = tuple(x.stride())
        qkv.append(graph.add("load", (), shape, "f32", slot=len(qkv), sizes=shape, strides=strides, offset=0))
    lowered = lower(graph, f"{OP}.default", [*qkv, None, 0.0, causal], {})
    out = lowered.outputs[0]
    strides = tuple(int(np.prod(out.shape[d + 1 :])) for d in range(4))
    graph.add_multi("store", (out,), [], slot=3, sizes=out.shape, strides=strides, offset=0)
    return graph


def test_attention_is_one_node_that_expands_to_core_ops():
    x = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    graph = attention_graph(x, True)
    assert [n.op for n in graph.nodes].count("composite.attention") == 1
    assert not any(n.op.startswith("composite.") for n in composites.expand_all(graph).nodes)
    assert composites.expand_all(graph, keep=lambda node: True) is graph


def test_expanded_attention_is_torchs():
    for causal in (False, True):
        x = [torch.randn(2, 3, 5, 4) for _ in range(3)]
        memory = {i: t.numpy().reshape(-1).copy() for i, t in enumerate(x)} | {3: np.zeros(120, np.float32)}
        interpret.run(attention_graph(x, causal), memory)
        want = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)
        np.testing.assert_allclose(memory[3], want.numpy().reshape(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", recurrence.CELLS)
def test_shapes_that_are_given_are_those_of_the_expansion(kind, dtype):
    """a recurrent layer's, which are not found by walking its steps"""
    cell = recurrence.CELLS[kind]
    with building(Graph()) as graph:

        def given(*shape):
            return Arr(graph.add("input", (), shape, dtype))

        memory = [given(3, 4)] * (kind == "lstm")
        forward = given(5, 3, cell.gates * 4), given(3, 4), given(cell.gates * 4, 4), *memory, given(cell.gates * 4)
        backward = given(5, 3, 4), given(5, 3, cell.saved * 4), given(cell.gates * 4, 4), *memory
        calls = [
            (recurrence.recurrence, "recurrence", forward, {"biased": True}),
            (recurrence.recurrence_backward, "recurrence_backward", backward, {}),
        ]
        for made, name, operands, more in calls:
            found, walked = (
                [(x.shape, x.dtype) for x in f(*operands, kind=kind, reverse=True, **more)]
                for f in (made, composites.EXPANSIONS[name])
            )
            assert found == walked
