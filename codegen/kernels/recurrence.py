"""Recurrent layers: one launch for all steps. The cells' own arithmetic and what is read and written for it is here;
how a device walks the steps is in `recurrence_rows` and `recurrence_groups`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from codegen.builder import V
from codegen.kernels.recurrence_groups import Groups
from codegen.kernels.recurrence_rows import Rows
from codegen.kernels.recurrence_walk import Recurrence, Walk
from codegen.kernels.step import Steps
from ops_core.lowering.recurrence import CELLS


def _walk(name: str, spec: Recurrence, backward: bool, caps: Any) -> Walk:
    return (Rows if caps.is_cpu else Groups)(f"{name}_walk", spec, backward, caps)


def _bound(w: Walk, spec: Recurrence, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Those operands that there are, declared in this order."""
    return {n: spec.binds[n](w.k) for n in names if n in spec.binds}


def along(dim: int, width: int) -> tuple[int | None, int]:
    """How a bind reads a vector along a dim."""
    return (dim if width > 1 else None), width


def recurrence(name: str, spec: Recurrence, caps: Any) -> Steps:
    """Reads gates, hidden, weight, memory (lstm), bias (optional); writes out, saved, last (those that are bound)."""
    kind, w = CELLS[spec.kind], _walk(name, spec, False, caps)
    bound = _bound(w, spec, ("gates", "hidden", "memory", "bias", "out", "saved", "last"))
    state, memory = w.terms(), w.state() if spec.kind == "lstm" else None

    def begin(own: V, row: V, column: V) -> None:
        state.begin(own, column, bound["hidden"]([row, column], *along(1, w.width)))
        if memory:
            memory.begin(own, column, bound["memory"]([row, column], *along(1, w.width)))

    def bias(column: V, block: int) -> V:
        return bound["bias"]([column + block * spec.size], *along(0, w.width))  # type: ignore[no-any-return]

    def write(to: str, index: Sequence[V], value: V) -> None:
        if to in bound:
            bound[to](index, [value], along(len(index) - 1, w.width)[0])

    def cell(time: V, own: V, row: V, column: V, h: list[V]) -> None:
        x = [bound["gates"]([time, row, column + b * spec.size], *along(2, w.width)) for b in range(kind.gates)]
        before = memory.before(own, column, w.width) if memory else None
        new, after, saved = kind.forward(w.k.map, x, h, state.before(own, column, w.width), before)
        state.after(own, column, w.k.round_to(new, spec.dtype))
        if memory:
            memory.after(own, column, w.k.round_to(after, spec.dtype))
        write("out", [time, row, column], new)
        for b, value in enumerate(saved):
            write("saved", [time, row, column + b * spec.size], value)

    w.each(begin)
    w.steps(bias if "bias" in bound else None, cell, spec.reverse)
    if memory and "last" in bound:
        memory.turn(w.k.const(spec.steps, "index"))
        w.each(lambda own, row, c: write("last", [row, c], memory.before(own, c, w.width)))
    return w.finish(list(bound))


def recurrence_backward(name: str, spec: Recurrence, caps: Any) -> Steps:
    """Reads grad, saved, weight, grad_memory (optional); writes what is bound of dx, dh (gru), carry (lstm, gru)."""
    kind, w = CELLS[spec.kind], _walk(name, spec, True, caps)
    bound = _bound(w, spec, ("grad", "saved", "grad_memory", "dx", "dh", "carry"))
    back, carry = w.terms(), w.state() if kind.carries else None
    zero = w.k.const(0.0, spec.sums, w.width)

    def begin(own: V, row: V, column: V) -> None:
        for block in range(kind.gates):
            back.begin(own, column + block * spec.size, zero)
        if carry:
            given = "grad_memory" in bound
            carry.begin(own, column, bound["grad_memory"]([row, column], *along(1, w.width)) if given else zero)

    def write(to: str, index: Sequence[V], value: V) -> None:
        if to in bound:
            bound[to](index, [value], along(len(index) - 1, w.width)[0])

    def cell(time: V, own: V, row: V, column: V, h: list[V]) -> None:
        grad = h[0] + bound["grad"]([time, row, column], *along(2, w.width))
        saved = [bound["saved"]([time, row, column + b * spec.size], *along(2, w.width)) for b in range(kind.saved)]
        before = carry.before(own, column, w.width) if carry else None
        dx, dh, after = kind.backward(w.k.map, grad, before, saved)
        for b, (x, y) in enumerate(zip(dx, dh, strict=True)):
            back.after(own, column + b * spec.size, w.k.round_to(y, spec.dtype))
            write("dx", [time, row, column + b * spec.size], x)
            write("dh", [time, row, column + b * spec.size], y)
        if carry:
            carry.after(own, column, w.k.round_to(after, spec.dtype))

    w.each(begin)
    w.steps(None, cell, not spec.reverse)
    if carry and "carry" in bound:
        carry.turn(w.k.const(spec.steps, "index"))
        w.each(lambda own, row, c: write("carry", [row, c], carry.before(own, c, w.width)))
    return w.finish(list(bound))
