"""Cases for the kernel groups that no database entry reaches: a direct call of one overload, or a short program."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .case import SEED, Case, Run, Tolerance, Unit
from .group_inputs import INPUTS, Call, Draw
from .place import place, tensors_of

# Their values are the device's own business (a choice of algorithm, memory that nobody wrote).
SHAPE_ONLY = {"aten._fused_sdp_choice.default"}
TOLERANCE = Tolerance(atol=1e-5, rtol=1e-4)


def units() -> Iterator[Unit]:
    """Yield a unit for every overload of the table and every program."""
    for name in INPUTS:
        yield Unit(f"groups/{name}:float32", torch.float32, partial(_case, name, partial(_call, name)))
    for name, program in PROGRAMS.items():
        yield Unit(f"groups/{name}:float32", torch.float32, partial(_case, name, program))


def overload(name: str) -> torch._ops.OpOverload:
    """Return the overload called ``aten.base.overload``."""
    _, base, which = name.split(".")
    return getattr(getattr(torch.ops.aten, base), which)


def _case(name: str, run: Run, samples: int, variants: frozenset[str]) -> Iterator[Case]:
    if "forward" in variants:
        settle = partial(tree_map, lambda leaf: str(type(leaf))) if name in SHAPE_ONLY else lambda outputs: outputs
        yield Case("forward", 0, run, settle, TOLERANCE)


def _call(name: str, device: str, wide: bool = False) -> Any:
    made = INPUTS[name](Draw())
    return call_overload(overload(name), made if isinstance(made, Call) else Call(*made), device, wide)


def call_overload(
    func: torch._ops.OpOverload, call: Call, device: str, wide: bool = False, on_cpu: str | None = None
) -> Any:
    """Call ``func`` on copies of the arguments on ``device``: (result, the tensors among the arguments afterwards).

    ``on_cpu``: name of an argument that stays where it is.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, call, strict=False)) | call.kwargs
    placed = place(given, device, wide) | {name: given[name] for name in given if name == on_cpu}
    if not tensors_of(placed):
        placed["device"] = device
    args, kwargs = [placed.pop(name) for name in names[: len(call)]], placed
    return func(*args, **kwargs), tensors_of((args, kwargs))


def _cell(kind: str, device: str, wide: bool = False) -> Any:
    """Outputs and all gradients of an RNN cell; on a device that is no cpu it takes the fused cell."""
    torch.manual_seed(SEED)
    cell = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}[kind](4, 3).to(device)
    draw = Draw()
    x, h, c = place((draw.f(2, 4), draw.f(2, 3), draw.f(2, 3)), device)
    state = (h.requires_grad_(), c.requires_grad_()) if kind == "lstm" else h.requires_grad_()
    outputs = cell(x.requires_grad_(), state)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((o * (i + 1)).sin().sum() for i, o in enumerate(outputs))
    total.backward()
    grads = [t.grad for t in (x, h, *((c,) if kind == "lstm" else ()), *cell.parameters())]
    return outputs, grads


def _copy_between(name: str, device: str, wide: bool = False) -> Any:
    source, target = Draw().f(3, 4).to(device), torch.zeros(3, 4)
    if device != "cpu":
        overload(name)(source, target)
        return target
    return source


def _set_storage(device: str, wide: bool = False) -> Any:
    memory = Draw().f(12).to(device)
    view = torch.zeros(1).to(device)
    view.set_(memory.untyped_storage(), 2, (2, 3), (4, 1))
    memory[3] = 7.0
    return view


def _whole_storage(device: str, wide: bool = False) -> Any:
    memory = Draw().f(12).to(device)
    view = torch.zeros(1).to(device)
    torch.ops.aten.set_.source_Storage(view, memory.untyped_storage())
    memory[3] = 7.0
    return view


def _dep_token(device: str, wide: bool = False) -> Any:
    return torch.zeros_like(torch.ops.aten._make_dep_token.default(device=device))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "aten._thnn_fused_lstm_cell.default": partial(_cell, "lstm"),
    "aten._thnn_fused_gru_cell.default": partial(_cell, "gru"),
    "aten._copy_from.default": partial(_copy_between, "aten._copy_from.default"),
    "aten._copy_from_and_resize.default": partial(_copy_between, "aten._copy_from_and_resize.default"),
    "aten.set_.source_Storage_storage_offset": _set_storage,
    "aten.set_.source_Storage": _whole_storage,
    "aten._make_dep_token.default": _dep_token,
}
