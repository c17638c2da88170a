"""Which indices of a kernel are multiples of a power of two, as far as its text tells.

So that one question about a kernel's arguments, at its start, answers for all of its vectors whether they are aligned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from codegen import mlir

Found = frozenset[Any]
NOTHING: Found = frozenset()


def vectors(block: Any) -> Iterator[tuple[Any, Any, int]]:
    """Memory, index and lanes of each access to a vector in memory."""
    for op in block.operations:
        o = op.operation
        if o.name in ("vector.load", "vector.store"):
            value = o.results[0] if o.name == "vector.load" else o.operands[0]
            memory, index = list(o.operands)[-2:]
            yield memory, index, mlir.bindings()[0].VectorType(value.type).shape[0]
        for region in o.regions:
            for inner in region.blocks:
                yield from vectors(inner)


def needed(value: Any, by: int) -> Found | None:
    """The arguments that have to be multiples of `by`, a power of two, for an index to be one; None: nobody knows."""
    if by == 1:
        return NOTHING
    ir = mlir.bindings()[0]
    owner = value.owner
    if isinstance(owner, ir.Block):
        loop = owner.owner.operation
        if loop.name == "gpu.func":
            return frozenset([value])
        first = loop.name == "scf.for" and value == owner.arguments[0]
        return _all(list(loop.operands)[0:3:2], by) if first else None
    o = owner.operation
    if o.name == "arith.constant":
        return None if o.attributes["value"].value % by else NOTHING
    if o.name in ("arith.addi", "arith.subi", "arith.xori", "arith.minsi", "arith.maxsi"):
        return _all(o.operands, by)
    if o.name == "arith.muli":
        a, b = o.operands
        return _product(a, b, by)
    if o.name == "arith.select":
        return _all(list(o.operands)[1:], by)
    if o.name in ("arith.index_cast", "arith.remsi"):  # the rest of a division by such a number
        return _all(o.operands, by)
    return None


def _all(values: Any, by: int) -> Found | None:
    """What all of some indices need."""
    found = NOTHING
    for value in values:
        needs = needed(value, by)
        if needs is None:
            return None
        found |= needs
    return found


def _product(a: Any, b: Any, by: int) -> Found | None:
    """What a product needs: the less of what one factor alone does, beside a constant's share."""
    for constant, other in ((a, b), (b, a)):
        owner = constant.owner
        if getattr(owner, "name", "") == "arith.constant":
            return needed(other, by // math.gcd(by, owner.operation.attributes["value"].value))
    return min((n for n in (needed(a, by), needed(b, by)) if n is not None), key=len, default=None)
