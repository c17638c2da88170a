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
    """Whether the library shall compute the node."""
    return node.op in offered and CLAIMS[node.op](node)


def _convolution(node: Node) -> bool:
    """Of float32. The host's oneDNN beats generated kernels in all shapes of the CNN demo (docs/performance.md)."""
    x, w = node.inputs
    (out,) = node.outputs
    # The library has a transposed one as an input's gradient, whose output such a padding would make larger.
    if node.attrs["transposed"] and any(map(ge, node.attrs["output_padding"], node.attrs["stride"])):
        return False
    work = prod(out.shape) * prod(w.shape[2:]) * w.shape[0 if node.attrs["transposed"] else 1]
    return {v.dtype for v in (x, w, out)} == {"f32"} and work >= MIN_CONVOLUTION


CLAIMS: dict[str, Callable[[Node], bool]] = {"convolution": _convolution}
