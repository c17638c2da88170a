"""Writes of a part of a buffer as a new value of all of it: what was there outside, what is written inside.

So a chain of them is one of values, like any other: `u[1:-1] += ..` in each turn of a loop is one kernel a turn.
Written to memory at once, each is a kernel that all earlier readers of the buffer must precede, or have copied.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from codegen.layout import View, box
from codegen.views import VIEWS
from ops_core.array import Arr, emit, full, where
from ops_core.ir import Value
from ops_core.sizes import usual

# A smaller part goes to memory, as a token's keys into a cache: all of the buffer would be read and written for it.
LEAST = 0.5
# Operations that are computed for all elements where the part has them; a longer chain is computed for the part.
MOST_OPS = 64
# Of integers, these stop the program where the part's edge gives them a zero.
_DIVIDE = frozenset(("div", "remainder", "fmod"))


def dense(part: View, numel: int) -> View | None:
    """The layout of a buffer of so many elements of which `part` is some rows, columns..; None where it is no such."""
    sizes, outer = [], numel
    for stride in part.strides:
        if stride <= 0 or outer % stride:
            return None
        sizes.append(outer // stride)
        outer = stride
    return View(tuple(sizes), part.strides, 0) if outer == 1 else None


def large(part: View, have: View) -> bool:
    """Whether the part is worth a new value of all; alike for all sizes that vary."""
    return usual(prod(part.sizes)) >= LEAST * usual(prod(have.sizes))  # type: ignore[no-any-return]


def number(value: Value) -> Value | None:
    """The one number (0-dim) that a value has everywhere, if it is seen to."""
    while value.node.op in VIEWS:
        value = value.node.inputs[0]
    return None if value.shape else value


def padded(fill: Value, have: View, part: View, value: Value) -> Value | None:
    """One number everywhere, but `value` in `part`; None where the part is no box of its dims."""
    found = _edges(have, part)
    return Arr(value).pad(*found, Arr(fill)).v if found else None


def replaced(base: Value, have: View, part: View, value: Value, whole: Callable[[Value], Value | None]) -> Value | None:
    """`base`, in layout `have`, with `value` in its place in `part`; None where the part is no box of its dims.

    whole(v): all of what `v` is the same part of, if it is that of a buffer. To be called with a graph being built.
    """
    if (found := _edges(have, part)) is None:
        return None
    inside = full(part.sizes, True, "bool").pad(*found, False)
    return where(inside, Arr(_Spread(have.sizes, *found, whole)(value)), Arr(base)).v


def _edges(have: View, part: View) -> tuple[list[int], list[int]] | None:
    """How many elements come before the part, and behind it, in each dim."""
    if (low := box(have, part)) is None:
        return None
    return low, [n - lo - size for n, lo, size in zip(have.sizes, low, part.sizes, strict=True)]


class _Spread:
    """A value of the part -> one of all that is the same inside, and anything outside."""

    def __init__(self, sizes: tuple[int, ...], low: list[int], high: list[int], whole: Callable[[Value], Value | None]):
        self._sizes, self._low, self._high, self._whole = sizes, low, high, whole
        self._known: dict[Value, Value] = {}
        self._left = MOST_OPS

    def __call__(self, value: Value) -> Value:
        if value not in self._known:
            self._known[value] = self._spread(value)
        return self._known[value]

    def _spread(self, value: Value) -> Value:
        node = value.node
        if (found := self._whole(value)) is not None and found.shape == self._sizes:
            return found
        if node.op == "full":
            return full(self._sizes, node.attrs["value"], value.dtype).v
        if node.op == "expand" and prod(node.inputs[0].shape) == 1:
            return Arr(node.inputs[0]).reshape().expand(*self._sizes).v
        floats = value.dtype in ("f16", "bf16", "f32", "f64", "bool")
        if node.op == "map" and self._left and (floats or node.attrs["fn"] not in _DIVIDE):
            self._left -= 1
            return emit("map", [Arr(self(v)) for v in node.inputs], self._sizes, value.dtype, **node.attrs).v
        return Arr(value).pad(self._low, self._high).v
