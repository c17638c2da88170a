"""Kernels for sizes that vary: the size constants that were seen to differ become arguments.

The first window of a structure gets kernels with its sizes as constants. When the same structure comes with other
sizes, each of its kernels is compared, text against text, with what the structure used before: index constants that
differ become kernel arguments, once, and every later size finds that kernel. Nothing is guessed: the value of
each argument is the constant that the scheduler wrote for the size at hand.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

# An index constant as codegen.builder writes it, before any pass has folded it.
_CONSTANT = re.compile(r"^  (%c\d+) = arith\.constant (-?\d+) : index$", re.MULTILINE)
_SIGNATURE = re.compile(r"^(gpu\.func @\w+\()([^)]*)(\).*)$", re.MULTILINE)
_INDEX_BITS = re.compile(r"#dlti\.dl_spec<index = (\d+) : i32>")

# Generic forms of one kernel within one structure: beyond, sizes are compiled in (each form is a compile).
MAX_FORMS = 8

# Sizes of one structure that are compiled at first sight. The first is compiled as constants, the second finds what
# varies, the third settles it; where tiles still differ from size to size (products), more would be a compile each.
MAX_COMPILED = 3
# How often a further size runs op by op before it gets kernels. benchmarks: cached decoding, where a size comes once.
MIN_RUNS = 2


class Text(NamedTuple):
    """A kernel's MLIR: with its name and index constants blanked, and the constants by name."""

    skeleton: str
    constants: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, mlir: str, name: str) -> Text:
        constants = tuple((c, int(value)) for c, value in _CONSTANT.findall(mlir))
        return cls(_CONSTANT.sub(r"  \1 = ?", mlir).replace(f"@{name}(", "@("), constants)

    def differing(self, other: Text) -> frozenset[str]:
        """Names of the constants whose values differ."""
        return frozenset(name for (name, a), (_, b) in zip(self.constants, other.constants, strict=True) if a != b)


class Variant(NamedTuple):
    """The MLIR to build and the (value, type) arguments that follow the kernel's own."""

    mlir: str
    extra: tuple[tuple[int, str], ...]


@dataclass
class Family:
    """The windows of one structure. `forms`: per skeleton, the sets of constants that are arguments."""

    seen: dict[str, list[Text]] = field(default_factory=dict)
    forms: dict[str, list[tuple[frozenset[str], Text]]] = field(default_factory=dict)
    compiled: int = 0
    met: Counter[str] = field(default_factory=Counter)

    def rare(self, sizes: str) -> bool:
        """Whether a window of these sizes has come too seldom to be worth kernels of its own."""
        self.met[sizes] += 1
        return self.compiled >= MAX_COMPILED and self.met[sizes] <= MIN_RUNS

    def variant(self, mlir: str, name: str) -> Variant:
        """The form of a kernel that serves this window and, where sizes have varied, its siblings."""
        text = Text.of(mlir, name)
        known = self.seen.setdefault(text.skeleton, [])
        forms = self.forms.setdefault(text.skeleton, [])
        for arguments, like in forms:
            if text.differing(like) <= arguments:
                return parametrised(mlir, text, arguments)
        if known and text not in known and len(forms) < MAX_FORMS:
            # The nearest one that this structure used before tells what has varied.
            arguments = min((text.differing(other) for other in known), key=len)
            forms.append((arguments, text))
            return parametrised(mlir, text, arguments)
        if text not in known:
            known.append(text)
        return Variant(mlir, ())


def parametrised(mlir: str, text: Text, arguments: frozenset[str]) -> Variant:
    """The kernel with some constants as further arguments, in the order of their definition."""
    values = [(name, value) for name, value in text.constants if name in arguments]
    bits = _INDEX_BITS.search(mlir)
    assert bits, "a kernel states its index width"
    mlir = _CONSTANT.sub(lambda m: "" if m[1] in arguments else m[0], mlir)
    more = "".join(f", {name}: index" for name, _ in values)
    mlir = _SIGNATURE.sub(lambda m: m[1] + m[2] + more + m[3], mlir, count=1)
    return Variant(mlir, tuple((value, f"i{bits[1]}") for _, value in values))
