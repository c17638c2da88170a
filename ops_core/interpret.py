"""The NumPy interpreter of a graph: what every compiled plan must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ops_core import numerics
from ops_core.composites import PREFIX, expand
from ops_core.ir import Graph, Node, Value
from ops_core.scalars import BY_NAME as SCALARS
from ops_core.table import BY_NAME

Scalar = float | int | bool
EXCEPTIONS: dict[str, type[Exception]] = {"IndexError": IndexError, "RuntimeError": RuntimeError}


def view_of(memory: np.ndarray, node: Node) -> np.ndarray:
    """The strided view (in elements) that a load or store names."""
    strides = [s * memory.itemsize for s in node.attrs["strides"]]
    return np.lib.stride_tricks.as_strided(memory[node.attrs["offset"] :], node.attrs["sizes"], strides)


def evaluate_map(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """A `map` node on arrays of its operands' dtypes."""
    fn, out = node.attrs["fn"], node.outputs[0].dtype
    if fn == "bitcast":
        return (numerics.bitcast(inputs[0], node.inputs[0].dtype, out),)
    result = SCALARS[fn].reference(*(numerics.promote_half(x) for x in inputs))
    return result if isinstance(result, tuple) else (result,)


def evaluate(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The outputs of one pure node."""
    with np.errstate(all="ignore"):
        if node.op == "map":
            results = evaluate_map(node, inputs)
        else:
            reference = BY_NAME[node.op].reference
            assert reference is not None, node.op
            out = node.outputs[0]
            result = reference({**node.attrs, "shape": out.shape, "dtype": out.dtype}, *inputs)
            results = result if isinstance(result, tuple) else (result,)
    arrays = tuple(numerics.cast(r, v.dtype) for r, v in zip(results, node.outputs, strict=False))
    for array, value in zip(arrays, node.outputs, strict=False):
        assert array.shape == value.shape, f"{node}: the reference gave {array.shape}"
    return arrays


def run(graph: Graph, loads: Mapping[int, np.ndarray], params: Sequence[Scalar] = ()) -> dict[Value, np.ndarray]:
    """Execute `graph`. `loads`: 1-D memory of each slot, written in place by `store`; dtype as `numerics.numpy_dtype`.
    `params`: the run-time scalars by index. Returns every value of the graph."""
    env: dict[Value, np.ndarray] = {}
    for node in graph.nodes:
        _execute(node, env, loads, params)
    return env


def _execute(
    node: Node, env: dict[Value, np.ndarray], loads: Mapping[int, np.ndarray], params: Sequence[Scalar]
) -> None:
    """One node; a composite as the nodes that it expands to."""
    if node.op.startswith(PREFIX):
        body = Graph()
        outputs = expand(body, node)
        for inner in body.nodes:
            _execute(inner, env, loads, params)
        env.update((value, env[y]) for value, y in zip(node.outputs, outputs, strict=True))
    elif node.op == "load":
        (out,) = node.outputs
        env[out] = numerics.cast(view_of(loads[node.attrs["slot"]], node), out.dtype)
    elif node.op == "store":
        view_of(loads[node.attrs["slot"]], node)[...] = env[node.inputs[0]]
    elif node.op == "check":
        _check(node, env[node.inputs[0]])
    elif node.op == "param":
        (out,) = node.outputs
        env[out] = np.asarray(params[node.attrs["index"]], numerics.numpy_dtype(out.dtype))
    else:
        env.update(zip(node.outputs, evaluate(node, [env[v] for v in node.inputs]), strict=False))


def _check(node: Node, index: np.ndarray) -> None:
    """Raises what a `check` node names where an index lies outside."""
    outside = index[(index < node.attrs["low"]) | (index >= node.attrs["size"])]
    if outside.size:
        raise EXCEPTIONS[node.attrs["raises"]](node.attrs["text"].format(index=outside.max(), size=node.attrs["size"]))
