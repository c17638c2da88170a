"""The numbers that the structure of a window leaves open, in the recorder's order (csrc/window.h).

Sizes, strides, offsets and ints of the nodes, then bytes of the slots. lazy_backend/compiler.py has a window's form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Numbers = list[int]


def renumbered(source: Mapping[str, Any], put: Callable[[Any], Any]) -> dict[str, Any]:
    """The window with `put(n)` for each of its numbers n."""
    nodes = [renumbered_node(node, put) for node in source["nodes"]]
    slots = [(put(nbytes), alive, had_data) for nbytes, alive, had_data in source["slots"]]
    return {**source, "nodes": nodes, "slots": slots}


def renumbered_node(node: tuple, put: Callable[[Any], Any]) -> tuple:
    """A node of the window with `put(n)` for each of its numbers n."""

    def argument(x: Any) -> Any:
        match x:
            case list():
                return [argument(y) for y in x]
            case ("tensor", slot, dtype, sizes, strides, offset):
                return ("tensor", slot, dtype, each(sizes), each(strides), put(offset))
        return put(x) if type(x) is int else x

    def result(x: Any) -> Any:
        if x is None:
            return None
        _, slot, dtype, sizes, strides, _ = x
        return ("tensor", slot, dtype, each(sizes), each(strides), 0)

    def each(ints: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([put(n) for n in ints])

    op, args, outs, seed, line = node
    return op, [argument(x) for x in args], [result(x) for x in outs], seed, line


def numbers(source: Mapping[str, Any]) -> Numbers:
    """All that a window has beside its structure."""
    found: Numbers = []
    renumbered(source, found.append)
    return found


def node_numbers(node: tuple) -> Numbers:
    """A node's part of them."""
    found: Numbers = []
    renumbered_node(node, found.append)
    return found
