"""Which overloads a case ran, and which of them is to blame for a failure."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .judge import compare
from .place import tensors_of


class Overloads(TorchDispatchMode):
    """Collects the overloads that reach ``device``, below autograd: kernels and explicit composites."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device_type = torch.device(device).type
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if tensors_of([args, kwargs, result], lambda t: t.device.type == self.device_type):
            self.names.add(str(func))
        return result


class Composites(TorchDispatchMode):
    """Collects the implicit composites that a call goes through; works in inference mode, where they are visible."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func._can_decompose():
            return func(*args, **kwargs)
        self.names.add(str(func))
        with self:
            return func.decompose(*args, **kwargs)


def composites_of(run: Callable[..., Any]) -> set[str]:
    """Return the implicit composites that ``run("cpu")`` passes; empty where it cannot run in inference mode."""
    with torch.inference_mode():
        mode = Composites()
        try:
            with mode:
                run("cpu")
        except Exception:  # a case that raises here is judged elsewhere; what it went through still counts for nothing
            return set()
    return mode.names


class _Found(Exception):
    """Carries the overload to blame out of a traced call."""


class _Blame(TorchDispatchMode):
    """Runs every op on both devices from the same inputs and stops at the first whose results differ."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.device_type, self.dtype = torch.device(device).type, dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not tensors_of([args, kwargs], lambda t: t.device.type == self.device_type):
            return func(*args, **kwargs)
        twin_args, twin_kwargs = tree_map(_to_cpu, (args, kwargs))
        try:
            result = func(*args, **kwargs)
            got = tree_map(_to_cpu, (result, args, kwargs))
        except Exception as error:
            raise _Found(str(func)) from error
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in str(func):
            return result
        want = (func(*twin_args, **twin_kwargs), twin_args, twin_kwargs)
        if compare(got, want, self.dtype) is not None:
            raise _Found(str(func))
        return result


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def blame(run: Callable[..., Any], device: str, dtype: torch.dtype) -> str | None:
    """Return the first overload of ``run(device)`` that raises or differs from the CPU on equal inputs, if one does."""
    try:
        with _Blame(device, dtype):
            run(device)
    except _Found as found:
        return str(found)
    except Exception:  # raised outside of any op: nobody to blame
        return None
    return None
