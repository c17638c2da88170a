"""Rules: how one ATen op becomes core ops, and what `lower` returns or raises."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from ops_core.array import Arr
from ops_core.ir import Value


class NotLowerable(Exception):
    """There is no way from this call to core ops; the node belongs on the host."""


class NeedsStatic(Exception):
    """The named run-time scalars must be known at compile time; lower again with Python numbers."""

    def __init__(self, names: Collection[str]):
        super().__init__(f"scalars must be static: {sorted(names)}")
        self.names = frozenset(names)


@dataclass
class Lowered:
    """`outputs`: one value a result (lists are flattened, None for what is not a tensor).
    `writes`: argument name -> the new value of that argument (a list of values for a list argument)."""

    outputs: tuple[Any, ...]
    writes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Effects:
    """What a rule returns when it also writes arguments (by name)."""

    outputs: Any
    writes: dict[str, Any]


class Scalar(Arr):
    """A run-time scalar argument. Using it as a Python number makes it static."""

    __slots__ = ("name",)

    def __init__(self, value: Value, name: str):
        super().__init__(value)
        self.name = name

    def _static(self, *_: object) -> NoReturn:
        raise NeedsStatic({self.name})

    __float__ = __int__ = __index__ = __bool__ = _static


@dataclass(frozen=True)
class Complex:
    """A complex tensor as two real ones of the same shape and dtype."""

    re: Any
    im: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of both parts."""
        return self.re.shape

    @property
    def dtype(self) -> str:
        """Dtype of a part."""
        return self.re.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.re.shape)


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
COMPLEX_RULES: dict[str, Rule] = {}
INERT = frozenset({"layout", "device", "pin_memory", "generator", "memory_format", "non_blocking", "requires_grad"})


def rule(*names: str, table: dict[str, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Register a rule for overloads ("aten.add.Tensor") or all overloads of a base ("aten.add"; "aten." is implied).
    It is called with the schema's arguments by name (`from` is `from_`), defaults filled in."""

    def register(fn: Rule) -> Rule:
        for name in names:
            table[name if name.split(".")[0] in ("aten", "prims", "lazy_backend") else f"aten.{name}"] = fn
        return fn

    return register


@cache
def accepted(fn: Rule) -> frozenset[str] | None:
    """Names that a rule takes; None when it takes any."""
    parameters = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def call_rule(fn: Rule, bound: dict[str, Any]) -> Any:
    """Call with `bound`, leaving out arguments that mean nothing on a device."""
    names = accepted(fn)
    return fn(**{k: v for k, v in bound.items() if names is None or k in names or k not in INERT})
