"""Modules that torch imports at an eager script's first op or first step, though such a script needs none of them.

Dynamo takes 1 to 2 s, sympy 0.3. Functions of torch's run with other code until anybody imports these modules for their
own sake; from then on their code is torch's again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch
from torch.optim.optimizer import _use_grad_for_differentiable

from ops_core import plain_symbols
from ops_core.untraced import untraced

# Where torch keeps the references that serve as Meta kernels, and its optimizers.
_REFERENCES = (
    "torch._refs", "torch._decomp.decompositions", "torch._meta_registrations", "torch._prims_common", "torch._prims",
)  # fmt: skip
_OPTIMIZERS = "torch.optim"
_DYNAMO = "torch._dynamo"
# sympy itself: what imports torch's symbols imports it first.
_SYMPY = "sympy"


def import_when_used() -> None:
    """Keeps torch's references and optimizers from importing Dynamo and sympy. For a device that has been opened.

    What hides from Dynamo by `torch._disable_dynamo` imports it at the first call, to ask for its way around it. Until
    somebody else has imported Dynamo nobody traces, and the function itself is that way. An optimizer's step asks it
    for graph breaks, of which there are none without it. References ask whether sizes are symbols, of which there are
    none without sympy.
    """
    functions = list(_functions())
    if _DYNAMO not in sys.modules:
        for function in functions:
            if function.__code__.co_filename == torch._compile.__file__:
                for hidden in _within(function):
                    if isinstance(hidden, FunctionType):
                        hidden.__dict__.setdefault("__dynamo_disable", _until_dynamo(hidden))
        steps = [function for function in functions if function.__code__ is _STEP]
        _Until(_DYNAMO, {step: _plain_step(step).__code__ for step in steps})
    if _SYMPY not in sys.modules:
        sys.modules[_PLAIN] = plain_symbols
        asking = [cast(FunctionType, torch._check_with), *functions]
        _Until(_SYMPY, {function: _plain(function.__code__) for function in asking if _asks(function.__code__)})


def _functions() -> Iterator[FunctionType]:
    """The functions of torch's references and optimizers, with those that they wrap: `__wrapped__` may name another."""
    names = [name for name in sys.modules if name.startswith((*_REFERENCES, _OPTIMIZERS))]
    left = [value for name in names for value in vars(cast(ModuleType, sys.modules[name])).values()]
    seen: set[int] = set()
    while left:
        found = left.pop()
        if isinstance(found, type) and found.__module__.startswith(_OPTIMIZERS):
            left += vars(found).values()
        if isinstance(found, FunctionType) and id(found) not in seen:
            seen.add(id(found))
            left += _within(found)
            yield found


def _within(function: FunctionType) -> list[Any]:
    """What a function holds of those around it."""
    return [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


class _Until:
    """Other code for some functions, until anybody imports a module."""

    def __init__(self, module: str, codes: dict[FunctionType, CodeType]) -> None:
        self._module = module
        self._own = [(function, function.__code__) for function in codes]
        for function, code in codes.items():
            function.__code__ = code
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Finds no module; notices which one is looked for."""
        if name == self._module:
            for function, code in self._own:
                function.__code__ = code
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


def _until_dynamo(fn: FunctionType) -> Callable[..., Any]:
    @untraced
    def run(*args: Any, **kwargs: Any) -> Any:
        dynamo = sys.modules.get(_DYNAMO)
        if disable := getattr(dynamo, "disable", None):
            fn.__dict__["__dynamo_disable"] = hidden = disable(fn, True, wrapping=False)
            return hidden(*args, **kwargs)
        return fn(*args, **kwargs)

    return run


def _plain_step(func: Callable[..., Any]) -> FunctionType:
    """`torch.optim.optimizer._use_grad_for_differentiable` without Dynamo. Runs among that module's names."""

    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        try:
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return cast(FunctionType, _use_grad)


# What all steps of torch's optimizers are.
_STEP = cast(FunctionType, _use_grad_for_differentiable(import_when_used)).__code__
# What is imported instead of what: `import sympy` asks for a name without a dot.
_PLAIN = "_lazy_plain_symbols"
_INSTEAD = {_SYMPY: _PLAIN, plain_symbols.SYMBOLS: _PLAIN}


def _asks(code: CodeType) -> bool:
    """Whether a function, or one that it makes, imports sympy or torch's symbols."""
    return not _INSTEAD.keys().isdisjoint(code.co_names) or any(
        isinstance(const, CodeType) and _asks(const) for const in code.co_consts
    )


def _plain(code: CodeType) -> CodeType:
    """The same function, but for where it imports from."""
    consts = tuple(_plain(const) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_names=tuple(_INSTEAD.get(name, name) for name in code.co_names), co_consts=consts)
