"""Recurrent layers over a whole sequence: the pointwise part of a step of each kind, once for graphs and for kernels.

`csrc/recurrence.cpp` records the two ops. Sizes: T steps, B sequences, H wide states. Gates are blocks of H columns.
"""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ops_core import array as A
from ops_core.array import Arr
from ops_core.composites import Specs, composite
from ops_core.lowering.promote import up
from ops_core.lowering.registry import rule

# A function of the scalar catalogue on operands of either world: `array.map_`, `Builder.map`.
Map = Callable[..., Any]


class Cell(NamedTuple):
    """One kind of layer. A step's input and hidden products have `gates` blocks each.

    forward(map, x, h, state, memory) -> new state, new memory (None but for lstm), the `saved` blocks.
    backward(map, grad, carry, saved) -> gradients of the blocks of x, those of h, the carry of the step before.
    grad: of the state after the step, with what the next step's hidden product hands back. carry: the rest of what that
    step hands back: the gradient of the memory (lstm), a part of that of the state (gru), None.
    """

    gates: int
    saved: int
    forward: Callable[[Map, Sequence[Any], Sequence[Any], Any, Any], tuple[Any, Any, Sequence[Any]]]
    backward: Callable[[Map, Any, Any, Sequence[Any]], tuple[Sequence[Any], Sequence[Any], Any]]
    carries: bool = False  # whether there is a carry
    distinct: bool = False  # whether the gradients of x and of h are not the same


def _sigmoid(fn: Map, x: Any) -> Any:
    return 1.0 / (fn("exp", -x) + 1.0)


def _lstm(fn: Map, x: Sequence[Any], h: Sequence[Any], state: Any, memory: Any) -> tuple[Any, Any, Sequence[Any]]:
    i, f, o = (_sigmoid(fn, x[n] + h[n]) for n in (0, 1, 3))
    g = fn("tanh", x[2] + h[2])
    after = f * memory + i * g
    t = fn("tanh", after)
    return o * t, after, (i, f, g, o, memory, t)


def _lstm_backward(fn: Map, grad: Any, carry: Any, saved: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any]:
    i, f, g, o, memory, t = saved
    d = carry + grad * o * (1.0 - t * t)
    gates = d * g * i * (1.0 - i), d * memory * f * (1.0 - f), d * i * (1.0 - g * g), grad * t * o * (1.0 - o)
    return gates, gates, d * f


def _gru(fn: Map, x: Sequence[Any], h: Sequence[Any], state: Any, memory: Any) -> tuple[Any, Any, Sequence[Any]]:
    r, z = _sigmoid(fn, x[0] + h[0]), _sigmoid(fn, x[1] + h[1])
    n = fn("tanh", x[2] + r * h[2])
    return n + z * (state - n), None, (r, z, n, state, h[2])


def _gru_backward(fn: Map, grad: Any, carry: Any, saved: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any]:
    r, z, n, state, h = saved
    d = grad + carry
    dz = d * (state - n) * (1.0 - z) * z
    dn = d * (1.0 - z) * (1.0 - n * n)
    dr = dn * h * (1.0 - r) * r
    return (dr, dz, dn), (dr, dz, dn * r), d * z


def _tanh(fn: Map, x: Sequence[Any], h: Sequence[Any], state: Any, memory: Any) -> tuple[Any, Any, Sequence[Any]]:
    after = fn("tanh", x[0] + h[0])
    return after, None, (after,)


def _tanh_backward(fn: Map, grad: Any, carry: Any, saved: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any]:
    gates = (grad * (1.0 - saved[0] * saved[0]),)
    return gates, gates, None


def _relu(fn: Map, x: Sequence[Any], h: Sequence[Any], state: Any, memory: Any) -> tuple[Any, Any, Sequence[Any]]:
    after = fn("maximum", x[0] + h[0], 0.0)
    return after, None, (after,)


def _relu_backward(fn: Map, grad: Any, carry: Any, saved: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any]:
    gates = (fn("where", fn("gt", saved[0], 0.0), grad, 0.0),)
    return gates, gates, None


CELLS = {
    "lstm": Cell(4, 6, _lstm, _lstm_backward, carries=True),
    "gru": Cell(3, 5, _gru, _gru_backward, carries=True, distinct=True),
    "rnn_tanh": Cell(1, 1, _tanh, _tanh_backward),
    "rnn_relu": Cell(1, 1, _relu, _relu_backward),
}


def _blocks(x: Arr, count: int) -> list[Arr]:
    """Blocks of columns, for arithmetic."""
    return up(x).split(1, [x.shape[1] // count] * count)


def _in_order(steps: dict[int, Arr]) -> Arr:
    """(T, B, ..) of what each step gave."""
    return A.stack([steps[t] for t in sorted(steps)], 0)


def _specs(gates: Arr, hidden: Arr, weight: Arr, *rest: Arr, kind: str, biased: bool, reverse: bool) -> Specs:
    (steps, rows, _), (_, width) = gates.shape, hidden.shape
    found: Specs = [((steps, rows, n * width), hidden.dtype) for n in (1, CELLS[kind].saved)]
    return [*found, ((rows, width), hidden.dtype)] if kind == "lstm" else found


def _specs_backward(grad: Arr, saved: Arr, weight: Arr, *grad_cell: Arr, kind: str, reverse: bool) -> Specs:
    (steps, rows, width), cell = grad.shape, CELLS[kind]
    gates: Specs = [((steps, rows, cell.gates * width), grad.dtype)] * (1 + cell.distinct)
    return [*gates, ((rows, width), grad.dtype)] if cell.carries else gates


@partial(composite, specs=_specs)
def recurrence(
    gates: Arr, hidden: Arr, weight: Arr, *rest: Arr, kind: str, biased: bool, reverse: bool
) -> tuple[Arr, ...]:
    """gates (T, B, gates * H), hidden (B, H), weight (gates * H, H), rest: an lstm's memory (B, H), then, if `biased`,
    a bias (gates * H) -> states (T, B, H), what backward needs (T, B, saved * H), an lstm's last memory (B, H)."""
    cell, dtype, steps = CELLS[kind], hidden.dtype, gates.shape[0]
    memory = rest[0] if kind == "lstm" else None
    across = up(weight).transpose(0, 1)
    outs, saved = {}, {}
    for t in range(steps)[:: -1 if reverse else 1]:
        product = A.matmul(up(hidden), across)
        product = product + up(rest[-1]) if biased else product
        x, h = _blocks(gates.select(0, t), cell.gates), _blocks(product, cell.gates)
        state, after, kept = cell.forward(A.map_, x, h, up(hidden), None if memory is None else up(memory))
        hidden, memory = state.to(dtype), None if after is None else after.to(dtype)
        outs[t], saved[t] = hidden, A.cat([k.to(dtype) for k in kept], 1)
    return _in_order(outs), _in_order(saved), *(() if memory is None else (memory,))


@partial(composite, specs=_specs_backward)
def recurrence_backward(
    grad: Arr, saved: Arr, weight: Arr, *grad_cell: Arr, kind: str, reverse: bool
) -> tuple[Arr, ...]:
    """grad (T, B, H), saved and weight as in `recurrence`, grad_cell (B, H) of an lstm's last memory, if it has one ->
    gradients of the gates (T, B, gates * H), of the hidden products (gru only), the first step's carry (lstm, gru)."""
    cell, dtype, steps = CELLS[kind], grad.dtype, grad.shape[0]
    carry = up(grad_cell[0]) if grad_cell else A.full_like(up(grad.select(0, 0)), 0) if cell.carries else None
    back: Arr | None = None
    xs, hs = {}, {}
    for t in range(steps)[:: 1 if reverse else -1]:
        total = up(grad.select(0, t))
        total = total if back is None else total + A.matmul(up(back), up(weight))
        dx, dh, carry = cell.backward(A.map_, total, carry, _blocks(saved.select(0, t), cell.saved))
        carry = None if carry is None else up(carry.to(dtype))
        xs[t] = A.cat([d.to(dtype) for d in dx], 1)
        back = hs[t] = A.cat([d.to(dtype) for d in dh], 1) if cell.distinct else xs[t]
    extra = (_in_order(hs),) if cell.distinct else ()
    return _in_order(xs), *extra, *(() if carry is None else (carry.to(dtype),))


@rule("lazy_backend.recurrence")
def _recurrence(gates, hidden, cell, weight, bias, kind, reverse):
    rest = [t for t in (cell, bias) if t is not None]
    out, saved, *memory = recurrence(
        gates, hidden, weight, *rest, kind=kind, biased=bias is not None, reverse=bool(reverse)
    )
    return out, saved, memory[0] if memory else None


@rule("lazy_backend.recurrence_backward")
def _recurrence_backward(grad, grad_cell, saved, weight, kind, reverse):
    rest = () if grad_cell is None else (grad_cell,)
    made = list(recurrence_backward(grad, saved, weight, *rest, kind=kind, reverse=bool(reverse)))
    cell = CELLS[kind]
    return made[0], made[1] if cell.distinct else None, made[-1] if cell.carries else None
