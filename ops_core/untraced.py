"""Functions that PyTorch calls back, also from frames that Dynamo watches, and that it must not trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, TypeVar, cast

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(fn: Function) -> Function:
    """`fn`, run by Dynamo as it is, with all that it calls. Does not import Dynamo, as torch.compiler.disable would."""
    set_code_exec_strategy(cast(FunctionType, fn).__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return fn


# Where torch keeps the references that serve as Meta kernels.
_REFERENCES = ("torch._refs", "torch._decomp.decompositions", "torch._meta_registrations", "torch._prims_common")


def import_dynamo_when_it_is_used() -> None:
    """Keeps torch's references from importing Dynamo, which takes 2 s: an eager script's first `x + y` needs none.

    A reference hides from Dynamo by `torch._disable_dynamo`, which imports it at the first call to ask for its way
    around it. Until somebody else has imported Dynamo nobody traces, and the reference itself is that way.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith(_REFERENCES)]
    left = [value for module in modules for value in vars(module).values()]
    seen: set[int] = set()
    while left:
        function = left.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        # What it wraps: `__wrapped__` may name another.
        within = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        left += within
        if function.__code__.co_filename == torch._compile.__file__:
            for hidden in within:
                if isinstance(hidden, FunctionType):
                    hidden.__dict__.setdefault("__dynamo_disable", _until_dynamo(hidden))


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _until_dynamo(fn: FunctionType) -> Callable[..., Any]:
    @untraced
    def run(*args: Any, **kwargs: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")
        if disable := getattr(dynamo, "disable", None):
            fn.__dict__["__dynamo_disable"] = hidden = disable(fn, True, wrapping=False)
            return hidden(*args, **kwargs)
        return fn(*args, **kwargs)

    return run
