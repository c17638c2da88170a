"""Parts that a window repeats with other sizes: a model that is called for inputs of several lengths.

What varies shows in one window then, and its first plan can be for sizes that vary (`lazy_backend.sized`): a kernel for
all lengths in place of one for each. Which nodes repeat others is told by what stands still from call to call: weights.
What is learned of a node serves later windows, which begin and end elsewhere in the script's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from lazy_backend.numbering import node_numbers

# So many sizes with one weight in a window are taken for sizes that vary: one kernel for all is built sooner, but a
# network with a head for four levels, which never differ, is up to a tenth faster with constants.
# benchmarks: first step of bert_lengths, 2.45 -> 1.7 s.
FEWEST = 5
# A convolution's kernel for sizes that vary is a few times as long: a head for five levels took 1.5 s in place of 1.3.
UNTRACED = frozenset(("aten.convolution.default", "aten.convolution_backward.default"))
# Kinds of nodes that are remembered; a model has some ten.
MAX_KINDS = 1024


class _Node(NamedTuple):
    """A node by what its repetitions share (kind: the op, and the kinds of its arguments and results), and its numbers
    in the order of `lazy_backend.numbering`. still: (which tensor argument, slot, view) of what was there before."""

    kind: tuple
    numbers: list[int]
    sizes: list[tuple[int, ...]]
    slots: list[int]
    still: list[tuple]


class _Met(NamedTuple):
    """A node of a part that was repeated: its numbers, the bytes of its slots, and those numbers that did not vary."""

    numbers: list[int]
    nbytes: list[int]
    fixed: list[int]

    def other(self, numbers: list[int]) -> bool:
        """Whether a node of these numbers is the same but for sizes."""
        return numbers != self.numbers and all(numbers[i] == self.numbers[i] for i in self.fixed)


# By their kind, in the order in which they came: all nodes of one length are told of the same other length.
_met: dict[tuple, list[_Met]] = {}


def other_sizes(source: Mapping[str, Any]) -> list[int] | None:
    """The window's numbers, as `numbering.numbers`, if the parts of which other sizes are known had those."""
    learn(source)
    if not _met or any(node[0] in UNTRACED for node in source["nodes"]):
        return None
    found: list[int] = []
    nbytes = [slot[0] for slot in source["slots"]]
    known = False
    for node in (_node(node, source["slots"]) for node in source["nodes"]):
        met = next((met for met in _met.get(node.kind, ()) if met.other(node.numbers)), None)
        found += met.numbers if met else node.numbers
        if met:
            known = True
            for slot, size in zip(node.slots, met.nbytes, strict=True):
                nbytes[slot] = size
    return found + nbytes if known else None


def forget() -> None:
    """Forgets what was learned."""
    _met.clear()


def learn(source: Mapping[str, Any]) -> None:
    """Remembers the nodes of parts that the window repeats, if it does with many sizes."""
    used = Counter((node[0], slot) for node in source["nodes"] for _, slot, *_ in _tensors(node[1]))
    if not any(n >= FEWEST and source["slots"][slot][2] for (_, slot), n in used.items()):
        return  # as most windows
    nodes = [_node(node, source["slots"]) for node in source["nodes"]]
    came: dict[tuple, list[int]] = {}
    for i, node in enumerate(nodes):
        for still in node.still:
            came.setdefault((node.kind, *still), []).append(i)
    if all(len({tuple(nodes[i].sizes) for i in places}) < FEWEST for places in came.values()):
        return
    if len(_met) >= MAX_KINDS:
        forget()
    # How far a node with a weight is from the next that has the weight; what comes behind it is as far from its own.
    offsets = {i: j - i for places in came.values() for i, j in pairwise(places)}
    offset = offsets[min(offsets)]
    for i, node in enumerate(nodes):
        offset = offsets.get(i, offset)
        if i + offset < len(nodes) and nodes[i + offset].kind == node.kind:
            _remember(node, nodes[i + offset], [slot[0] for slot in source["slots"]])


def _remember(node: _Node, other: _Node, nbytes: list[int]) -> None:
    met = _met.setdefault(node.kind, [])
    if node.numbers == other.numbers or any(m.numbers == node.numbers or m.other(node.numbers) for m in met):
        return
    fixed = [i for i, (a, b) in enumerate(zip(node.numbers, other.numbers, strict=True)) if a == b]
    met += [_Met(n.numbers, [nbytes[slot] for slot in n.slots], fixed) for n in (node, other)]


def _node(node: tuple, slots: list[tuple]) -> _Node:
    op, args, outs, _, _ = node
    taken, given = list(_tensors(args)), list(_tensors(outs))
    still = [(at, slot, *view) for at, (_, slot, _, *view) in enumerate(taken) if slots[slot][2]]
    every = [*taken, *given]
    sizes, places = [t[3] for t in every], [t[1] for t in every]
    return _Node((op, _kind(args), _kind(outs)), node_numbers(node), sizes, places, still)


def _tensors(x: Any) -> Iterator[tuple]:
    """As `codegen.functionalize.tensors`, which a run from an archive goes without."""
    if isinstance(x, list):
        for y in x:
            yield from _tensors(y)
    elif isinstance(x, tuple) and x[0] == "tensor":
        yield x


def _kind(x: Any) -> Any:
    match x:
        case list():
            return tuple(map(_kind, x))
        case ("tensor", _, dtype, sizes, _, _):
            return "tensor", dtype, len(sizes)
        case ("scalar", _, kind):
            return "scalar", kind
        case ("host_scalar", dtype, wrapped, (_, _, kind)):
            return "scalar", dtype, wrapped, kind
    return int if type(x) is int else x
