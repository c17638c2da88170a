"""Functions that PyTorch calls back, also from frames that Dynamo watches, and that it must not trace."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(fn: Function) -> Function:
    """`fn`, run by Dynamo as it is, with all that it calls. Does not import Dynamo, as torch.compiler.disable would."""
    set_code_exec_strategy(cast(FunctionType, fn).__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return fn
