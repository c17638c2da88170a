"""View ops as index maps: from an index of the result to an index of the operand, and back where one to one."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from codegen.index import ZERO, Expr, Index, contiguous, delinearize, linear
from ops_core.ir import Node, Value
from ops_core.sizes import as_many


def operand_index(node: Node, index: Index) -> Index:
    """Where element `index` of the result of view op `node` lies in its operand."""
    return _OPERAND[node.op](node, index)


def result_index(node: Node, index: Index) -> Index | None:
    """Where element `index` of the operand lies in the result; None if `node` is not one to one."""
    return _RESULT[node.op](node, index)


def _expand(node: Node, index: Index) -> Index:
    shape = node.inputs[0].shape
    tail = index[len(index) - len(shape) :]
    return tuple(ZERO if n == 1 else i for n, i in zip(shape, tail, strict=True))


def _reshape_to(index: Index, shape: tuple[int, ...], new: tuple[int, ...]) -> Index:
    if prod(shape) == 0:
        return (ZERO,) * len(new)
    kept = [i for i, n in zip(index, shape, strict=True) if n != 1]
    if [n for n in shape if n != 1] == [n for n in new if n != 1]:
        rest = iter(kept)
        return tuple(ZERO if n == 1 else next(rest) for n in new)
    return delinearize(linear(index, contiguous(shape)), new)


def _reshape(node: Node, index: Index) -> Index:
    return _reshape_to(index, node.outputs[0].shape, node.inputs[0].shape)


def _permute(node: Node, index: Index) -> Index:
    source = [ZERO] * len(index)
    for i, d in zip(index, node.attrs["dims"], strict=True):
        source[d] = i
    return tuple(source)


def _slice(node: Node, index: Index) -> Index:
    attrs = node.attrs
    return tuple(i * step + start for i, start, step in zip(index, attrs["start"], attrs["step"], strict=True))


def _unexpand(node: Node, index: Index) -> Index | None:
    before, after = node.inputs[0].shape, node.outputs[0].shape
    return _reshape_to(index, before, after) if as_many(before, after) else None


def _unreshape(node: Node, index: Index) -> Index:
    return _reshape_to(index, node.inputs[0].shape, node.outputs[0].shape)


def _unpermute(node: Node, index: Index) -> Index:
    return tuple(index[d] for d in node.attrs["dims"])


def _unslice(node: Node, index: Index) -> Index | None:
    """Only whole dims, forward or reversed, are one to one."""
    if node.inputs[0].shape != node.outputs[0].shape:
        return None
    return _slice(node, index)


_OPERAND = {"expand": _expand, "reshape": _reshape, "permute": _permute, "slice": _slice}
_RESULT = {"expand": _unexpand, "reshape": _unreshape, "permute": _unpermute, "slice": _unslice}
VIEWS = frozenset(_OPERAND)

Range = tuple[Expr, int, int]  # lo <= expr < hi


def moved_operands(node: Node, index: Index) -> list[tuple[Value, Index, list[Range]]]:
    """Operands of a `pad` or `cat` at element `index` of the result, each with where it counts.

    Later entries fill what earlier ones leave. An operand of one element has the same index wherever it is looked at,
    so that it is read once for all lanes of a vector.
    """
    if node.op == "pad":
        x, fill = node.inputs
        at = tuple(i - low for i, low in zip(index, node.attrs["low"], strict=True))
        high = node.attrs["high"]
        ranges = [(i, 0, n) for i, n, lo, hi in zip(at, x.shape, node.attrs["low"], high, strict=True) if lo or hi]
        return [(x, at, ranges), (fill, (), [])]
    dim, start, parts = node.attrs["dim"], 0, []
    for operand in node.inputs:
        along = index[dim] - start
        at = (*index[:dim], ZERO if operand.shape[dim] == 1 else along, *index[dim + 1 :])
        parts.append((operand, at, [(along, 0, operand.shape[dim])]))
        start += operand.shape[dim]
    return [p for p in parts if p[0].shape[dim]]


def indexed_operands(
    node: Node, index: Index, number: Callable[[Value, Index, int], Expr]
) -> tuple[list[tuple[Value, Index]], Index]:
    """The index operands of a `gather` or `index` with their own indices, and the index of the data.

    number(value, index, size): the expression of an index that is read from memory.
    """
    x, *indices = node.inputs
    if node.op == "gather":
        dim = node.attrs["dim"]
        found = number(indices[0], index, x.shape[dim])
        return [(indices[0], index)], (*index[:dim], found, *index[dim + 1 :])
    rank = len(indices[0].shape)
    at = index[:rank]
    all_found = tuple(number(v, at, n) for v, n in zip(indices, x.shape, strict=False))
    return [(v, at) for v in indices], (*all_found, *index[rank:])
