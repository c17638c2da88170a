"""How an atomic update combines memory with a new value: `combine_KIND` for each kind of `memref.atomic_rmw`.

Half types are combined in f32 and rounded, so they have functions of their own: `combine_KIND_bf16` on f32.
"""

from __future__ import annotations

from functools import partial

from codegen.builder import Builder, V
from codegen.mathlib.table import FUNCTIONS

FLOATS = {"addf": "add", "mulf": "mul", "maximumf": "maximum", "minimumf": "minimum"}
INTEGERS = {"addi": "add", "muli": "mul", "maxs": "maximum", "mins": "minimum", "andi": "and", "ori": "or"}
UNSIGNED = {"maxu": "maximum", "minu": "minimum"}


def combine(k: Builder, old: V, new: V, fn: str, half: str = "") -> V:
    """The catalogue function, rounded to a half type."""
    return k.round_to(k.map(fn, old, new), half or old.dtype)


def combine_unsigned(k: Builder, old: V, new: V, fn: str) -> V:
    """The catalogue function on integers read as unsigned."""
    dtype = "u" + old.dtype[1:]
    return k.map(fn, k.bitcast(old, dtype), k.bitcast(new, dtype))


def assign(k: Builder, old: V, new: V) -> V:
    """The new value."""
    return new


for _kind, _fn in FLOATS.items():
    for _element in ("f32", "f64"):
        FUNCTIONS[f"combine_{_kind}", _element] = partial(combine, fn=_fn)
    for _half in ("f16", "bf16"):
        FUNCTIONS[f"combine_{_kind}_{_half}", "f32"] = partial(combine, fn=_fn, half=_half)
for _element in ("i8", "i16", "i32", "i64"):
    for _kind, _fn in INTEGERS.items():
        FUNCTIONS[f"combine_{_kind}", _element] = partial(combine, fn=_fn)
    for _kind, _fn in UNSIGNED.items():
        FUNCTIONS[f"combine_{_kind}", _element] = partial(combine_unsigned, fn=_fn)
for _element in ("f32", "f64", "i8", "i16", "i32", "i64"):
    FUNCTIONS["combine_assign", _element] = assign
for _half in ("f16", "bf16"):
    FUNCTIONS[f"combine_assign_{_half}", "f32"] = assign
