"""Which core ops of a graph go to a library, where a driver offers one for them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import ge

from ops_core.ir import Node

# Multiplications below which generated kernels win: a call costs at least 100 us (it waits for the kernels before it,
# and those after it wait for it), which is this many. benchmarks: CNN demo, whose stem and 1x1 shortcuts stay below.
MIN_CONVOLUTION = 1 << 22


def claims(offered: frozenset[str], node: Node) -> bool:
    """Whether a library is asked for the node: it offers the op, and the work is worth a call."""
    return node.op in offered and CLAIMS[node.op](node) >= MIN_CONVOLUTION


def suits_host(node: Node) -> bool:
    """Whether the host's own library computes a node that it is asked for: convolutions of float32.

    Its oneDNN beats generated kernels in all shapes of the CNN demo (docs/performance.md).
    """
    # The library has a transposed one as an input's gradient, whose output such a padding would make larger.
    if node.attrs["transposed"] and any(map(ge, node.attrs["output_padding"], node.attrs["stride"])):
        return False
    return {v.dtype for v in (*node.inputs, *node.outputs)} == {"f32"}


def _convolution(node: Node) -> int:
    w = node.inputs[1]
    return prod(node.outputs[0].shape) * prod(w.shape[2:]) * w.shape[0 if node.attrs["transposed"] else 1]


def _matmul(node: Node) -> int:
    return prod(node.outputs[0].shape) * node.inputs[0].shape[-1]


# The core ops that a library may have -> the multiplications of a node.
CLAIMS: dict[str, Callable[[Node], int]] = {"convolution": _convolution, "matmul": _matmul}
