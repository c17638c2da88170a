"""What torch's references ask of `torch.fx.experimental.symbolic_shapes` and of sympy, for numbers that are plain.

Stands in for both until anybody imports them (`ops_core.unimported`). Whatever else is asked for is theirs.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

SYMBOLS = "torch.fx.experimental.symbolic_shapes"


class Basic:
    """`sympy.Basic`: nothing is an expression yet."""


def _own(name: str) -> Any:
    """torch's own of that name; from then on the references ask there."""
    return getattr(importlib.import_module(SYMBOLS), name)


def _if_plain(name: str) -> Callable[..., Any]:
    """What gives a plain number back as it is."""

    def same(a: Any, *how: Any) -> Any:
        return a if type(a) is bool or type(a) is int else _own(name)(a, *how)

    return same


expect_true, guard_size_oblivious = _if_plain("expect_true"), _if_plain("guard_size_oblivious")
guard_or_false, guard_or_true = _if_plain("guard_or_false"), _if_plain("guard_or_true")
statically_known_true = _if_plain("statically_known_true")
guard_int, guarding_hint_or_throw = _if_plain("guard_int"), _if_plain("guarding_hint_or_throw")


def has_guarding_hint(a: Any) -> bool:
    """Whether a size's value is known."""
    return not isinstance(a, torch.types.py_sym_types) or _own("has_guarding_hint")(a)


def is_nested_int(s: Any) -> bool:
    """Whether a size is a nested tensor's."""
    return isinstance(s, torch.SymInt) and _own("is_nested_int")(s)


def sym_and(*all: Any) -> Any:
    """And, also of symbols."""
    return reduce(operator.and_, all)


def sym_or(*all: Any) -> Any:
    """Or, also of symbols."""
    return reduce(operator.or_, all)


def sym_eq(x: Any, y: Any) -> Any:
    """Equality of numbers, or of lists of them, also of symbols."""
    if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
        return len(x) == len(y) and reduce(operator.and_, map(sym_eq, x, y), True)
    return x == y if type(x) is type(y) is int else _own("sym_eq")(x, y)


def free_unbacked_symbols(x: Any) -> Any:
    """The symbols without a value in a tensor's sizes, strides and offset."""
    plain = isinstance(x, torch.Tensor) and all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))
    return frozenset() if plain else _own("free_unbacked_symbols")(x)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what the import system asks
        raise AttributeError(name)
    return _own(name)
