"""Operands of a kernel template that are better in memory than computed where the template reads them."""

from __future__ import annotations

from collections.abc import Container, Iterator

from codegen.composites import GROUPED
from codegen.groups import INLINE
from codegen.views import VIEWS
from ops_core.composites import PREFIX
from ops_core.ir import Node, Value
from ops_core.sizes import usual

# An operand of a contraction that is put together of parts, or looked up, is kept where each element is part of this
# many terms; one row of queries reads a cache that grew by a token where it lies. benchmarks: recommender training, 9 x
# 32 by 32 x 9 of nine parts: a step 0.6x -> 2.1x of eager.
KEPT_TERMS = 4


def costly_operands(anchor: Node, copies: Container[Value], inlined: Container[Value]) -> Iterator[Value]:
    """Operands, seen through views, that would be looked up, or put together, anew for each of many terms. Those of a
    sort, where they are drawn one by one: randperm of a million 9.9 -> 7 ms; parts and look-ups gain nothing.

    copies: values that are in memory; inlined: those that are computed again where they are read.
    """
    ops = ("rand_bits",) if anchor.op == "sort" else ("cat", "pad", "gather", "index")
    if anchor.op in GROUPED:
        ops = (*ops, "map")
    elif anchor.op.startswith(PREFIX):  # a cache that grew by `cat` is in memory once it is stored
        ops = ("pad",)
    terms = [KEPT_TERMS] * len(anchor.inputs)
    if anchor.op == "matmul":
        terms = list(anchor.outputs[0].shape[:-3:-1])  # an element of A is in as many terms as there are columns

    def costly(value: Value) -> bool:  # whether one of these ops is computed for each element that is read
        if value.node.op in ops:
            return True
        inside = value.node.op in INLINE or value in inlined
        return inside and value not in copies and any(map(costly, value.node.inputs))

    for value, again in zip(anchor.inputs, terms, strict=True):
        while value.node.op in VIEWS:
            value = value.node.inputs[0]
        if usual(again) >= KEPT_TERMS and value not in copies and costly(value):
            yield value
