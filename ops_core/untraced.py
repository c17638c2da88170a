"""Functions that PyTorch calls back, also from frames that Dynamo watches, and that it must not trace."""

from __future__ import annotations

from types import FunctionType

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy


def untraced(fn: FunctionType) -> FunctionType:
    """`fn`, run by Dynamo as it is, with all that it calls. Does not import Dynamo, as torch.compiler.disable would."""
    set_code_exec_strategy(fn.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return fn
