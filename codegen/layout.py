"""Strided views of a buffer, and reading one view out of a value that was written through another.

The value fills its buffer densely. Its dims, ordered by stride, are the digits of a mixed-radix number: the
element's place in memory. A wanted view is then found as slices of (split) digits, merged and reordered.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ops_core.ir import Graph, Value
from ops_core.sizes import alike


class View(NamedTuple):
    """Element (i, j, ..) lies at offset + i*strides[0] + j*strides[1] + ..; in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def fills(self, numel: int) -> bool:
        """Covers each of a buffer's `numel` elements exactly once."""
        if self.offset or prod(self.sizes) != numel:
            return False
        expected = 1
        for size, stride in sorted(zip(self.sizes, self.strides, strict=True), key=lambda d: d[1]):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected *= size
        return True

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of them."""
        return *self.strides, self.offset, *self.sizes


class Digit(NamedTuple):
    """One dim of the buffer: `size` places of `stride` elements each."""

    size: int
    stride: int


def view_of(graph: Graph, value: Value, have: View, want: View) -> Value | None:
    """`want` of a buffer whose contents are `value` in layout `have`; None where no chain of view ops gives it."""
    if alike(have.numbers, want.numbers):
        return value
    order = sorted((d for d in range(len(have.sizes)) if have.sizes[d] != 1), key=lambda d: -have.strides[d])
    digits = split([Digit(have.sizes[d], have.strides[d]) for d in order], want.strides)
    starts, rest = [], want.offset
    for digit in digits:
        starts.append(rest // digit.stride)
        rest %= digit.stride
    found = select(digits, starts, want)
    if found is None:
        return None
    counts, steps, runs = found

    out = permute(graph, value, [*order, *(d for d in range(len(have.sizes)) if have.sizes[d] == 1)])
    out = reshape(graph, out, tuple(d.size for d in digits))
    out = cut(graph, out, starts, counts, steps)
    # Merge each wanted dim's run of digits; digits in no run have one place left.
    by_place = sorted(runs, key=lambda dim: runs[dim][0])
    out = reshape(graph, out, tuple(want.sizes[dim] for dim in by_place))
    dims = sorted(runs)
    out = permute(graph, out, [by_place.index(dim) for dim in dims])
    out = reshape(graph, out, tuple(want.sizes[d] if d in runs else 1 for d in range(len(want.sizes))))
    return expand(graph, out, want.sizes)


def box(have: View, part: View) -> list[int] | None:
    """Where a part of a buffer in layout `have` starts in each dim, if it has the same dims and every element between;
    else None."""
    if len(part.sizes) != len(have.sizes):
        return None
    starts, rest = [0] * len(have.sizes), part.offset
    for d in sorted(range(len(have.sizes)), key=lambda d: -have.strides[d]):
        if part.strides[d] != have.strides[d] and part.sizes[d] != 1:
            return None
        if have.sizes[d] != 1:
            starts[d], rest = rest // have.strides[d], rest % have.strides[d]
        if starts[d] + part.sizes[d] > have.sizes[d]:
            return None
    return starts if rest == 0 else None


def split(digits: list[Digit], strides: tuple[int, ...]) -> list[Digit]:
    """Break digits at the wanted strides, so that a wanted dim is a slice of one digit or a run of whole ones."""
    for stride in sorted({s for s in strides if s > 0}, reverse=True):
        out = []
        for digit in digits:
            whole = digit.size * digit.stride
            if digit.stride < stride < whole and stride % digit.stride == 0 and whole % stride == 0:
                out += [Digit(whole // stride, stride), Digit(stride // digit.stride, digit.stride)]
            else:
                out.append(digit)
        digits = out
    return digits


def select(
    digits: list[Digit], starts: list[int], want: View
) -> tuple[list[int], list[int], dict[int, tuple[int, int]]] | None:
    """How many places of each digit are taken, with what step, and each wanted dim's run [first, last] of digits."""
    counts, steps = [1] * len(digits), [1] * len(digits)
    runs: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    for dim in sorted(range(len(want.sizes)), key=lambda d: want.strides[d]):
        size, stride = want.sizes[dim], want.strides[dim]
        if size == 1 or stride == 0:
            continue
        place = next(
            (i for i, d in enumerate(digits) if d.stride <= stride < d.stride * d.size and stride % d.stride == 0), None
        )
        if place is None:
            return None
        step, last = stride // digits[place].stride, place
        while starts[place] + (size - 1) * step >= digits[place].size:
            # Runs over: the digit must be taken whole, and the rest comes from the next one up.
            if step != 1 or starts[place] != 0 or size % digits[place].size or place == 0 or place in taken:
                return None
            counts[place] = digits[place].size
            taken.add(place)
            size //= digits[place].size
            place -= 1
        if place in taken:
            return None
        taken.add(place)
        counts[place], steps[place] = size, step
        runs[dim] = (place, last)
    return counts, steps, runs


def permute(graph: Graph, value: Value, dims: list[int]) -> Value:
    """The value with dimension `dims[i]` as its i-th; itself where that changes nothing."""
    if dims == sorted(dims):
        return value
    return graph.add("permute", (value,), tuple(value.shape[d] for d in dims), value.dtype, dims=tuple(dims))


def reshape(graph: Graph, value: Value, shape: tuple[int, ...]) -> Value:
    """The value's elements, in order, in `shape`; itself where it has that shape."""
    return value if alike(value.shape, shape) else graph.add("reshape", (value,), shape, value.dtype, shape=shape)


def expand(graph: Graph, value: Value, shape: tuple[int, ...]) -> Value:
    """The value repeated along its dimensions of size 1 up to `shape`; itself where it has that shape."""
    return value if alike(value.shape, shape) else graph.add("expand", (value,), shape, value.dtype, shape=shape)


def cut(graph: Graph, value: Value, starts: list[int], counts: list[int], steps: list[int]) -> Value:
    """`counts[d]` elements of each dimension, every `steps[d]`-th from `starts[d]` on; itself where that is all."""
    if alike(counts, value.shape) and not any(starts):
        return value
    attrs = {"start": tuple(starts), "size": tuple(counts), "step": tuple(steps)}
    return graph.add("slice", (value,), tuple(counts), value.dtype, **attrs)
