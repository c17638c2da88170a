"""Error function, gamma function and powers."""

from __future__ import annotations

from codegen.builder import Builder, V
from codegen.mathlib.table import define


@define("rsqrt")
def rsqrt(k: Builder, x: V) -> V:
    return 1.0 / k.map("sqrt", x)
