"""Kernels for sizes that vary: the size constants that were seen to differ become arguments.

The first window of a structure gets kernels with its sizes as constants. When the same structure comes with other
sizes, each of its kernels is compared, text against text, with what the structure used before: uses of index constants
that differ become kernel arguments, once, and every later size finds that kernel. Nothing is guessed: the value of
each argument is the constant that the scheduler wrote for the size at hand.

Compared are *uses*, not constants: a size that happens to equal a vector's width shares its constant with it, and does
so no more at the next size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from codegen.functionalize import Window
from lazy_backend.sized import Traces

# Constants as codegen.builder writes them, at the top of the function, before any pass has folded them.
_CONSTANT = re.compile(r"^  (%c\d+) = arith\.constant (.*)\n", re.MULTILINE)
_NUMBER = re.compile(r"^(?:dense<)?(-?\d+|0x[0-9A-F]+)>? : ((?:vector<\d+x)?(index|f32|f64)>?)$")
# How the bits of a float constant are read: a mean divides by a size.
_FLOATS = {"f32": ("<I", "<f"), "f64": ("<Q", "<d")}
_USE = re.compile(r"%c\d+\b")
_SIGNATURE = re.compile(r"^(gpu\.func @\w+\()([^)]*)(\).*\n)", re.MULTILINE)
_INDEX_BITS = re.compile(r"#dlti\.dl_spec<index = (\d+) : i32>")

# Generic forms of one kernel within one structure: beyond, sizes are compiled in (each form is a compile).
MAX_FORMS = 8
# Arguments that a kernel may gain. Drivers promise room for 64 in all; a product's operands and sizes take some 20.
MAX_ARGUMENTS = 24

# Sizes of one structure that are compiled at first sight. The first is compiled as constants, the second finds what
# varies, the third settles it; where tiles still differ from size to size (products), more would be a compile each.
MAX_COMPILED = 3
# How often a further size runs the generic plan, its varying ops on the host, before it gets kernels.
# benchmarks: cached decoding, where a size comes once.
MIN_RUNS = 2


Classes = tuple[tuple[int, ...], ...]


class Text(NamedTuple):
    """A kernel's MLIR without its name and constants. skeleton: pieces of text around the uses of constants.

    uses: of each the type (index, f32, f64 or a vector of them; empty for any other) and the number as it is written.
    """

    skeleton: tuple[str, ...]
    uses: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, mlir: str, name: str) -> Text:
        """The text of a kernel called `name`, as the scheduler wrote it."""
        constants: dict[str, tuple[str, str]] = {}
        for constant, value in _CONSTANT.findall(mlir):
            number = _NUMBER.match(value)
            constants[constant] = (number[2], number[1]) if number else ("", value)
        body = _CONSTANT.sub("", mlir).replace(f"@{name}(", "@k(")
        return cls(tuple(_USE.split(body)), tuple(constants[use] for use in _USE.findall(body)))

    def shape(self) -> tuple:
        """What siblings have in common: all but the numbers."""
        return self.skeleton, tuple(type or value for type, value in self.uses)

    def differing(self, other: Text) -> frozenset[int]:
        """Numbers of the uses whose values differ."""
        return frozenset(i for i, (a, b) in enumerate(zip(self.uses, other.uses, strict=True)) if a != b)

    def classes(self, varied: Iterable[int], siblings: list[Text]) -> Classes:
        """The uses that varied, those together that had one value in every sibling."""
        together: dict[tuple, list[int]] = {}
        for use in sorted(varied):
            values = tuple(text.uses[use][1] for text in (*siblings, self))
            together.setdefault((_element(self.uses[use][0]), *values), []).append(use)
        return tuple(map(tuple, together.values()))


def _element(type: str) -> str:
    return type.partition("x")[2].rstrip(">") if type.startswith("vector") else type


class Variant(NamedTuple):
    """The MLIR to build and the (value, type) arguments that follow the kernel's own."""

    mlir: str
    extra: tuple[tuple[int | float, str], ...]


class Form(NamedTuple):
    """A kernel with arguments for `classes` of uses; all other uses are as in `like`."""

    classes: Classes
    like: Text

    def fits(self, text: Text) -> bool:
        """Whether the kernel computes what the text does, given the right arguments."""
        free = {use for members in self.classes for use in members}
        return text.differing(self.like) <= free and all(
            len({text.uses[use][1] for use in members}) == 1 for members in self.classes
        )


@dataclass
class Sized:
    """The kernels of one shape within a structure: texts that came, and generic forms made for them."""

    seen: list[Text] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)

    def form(self, text: Text) -> Form | None:
        """The form that serves a text, made now where there is room; None: its constants stay."""
        for form in self.forms:
            if form.fits(text):
                return form
        others = [other for other in self.seen if other != text]
        if text not in self.seen:
            self.seen.append(text)
        if len(self.seen) == 1 or len(self.forms) >= MAX_FORMS:
            return None
        # What differs from the nearest text, and whatever has varied before.
        varied = min((text.differing(other) for other in others), key=len)
        varied = varied.union(*(members for form in self.forms for members in form.classes))
        form = Form(text.classes(varied, others), text)
        if not varied or len(form.classes) > MAX_ARGUMENTS:
            return None
        self.forms.append(form)
        return form


@dataclass
class Family:
    """The windows of one structure."""

    kernels: dict[tuple, Sized] = field(default_factory=dict)
    compiled: int = 0
    traces: Traces = field(default_factory=Traces)
    first: list[tuple] = field(default_factory=list)  # of the first window, what of each node depends on sizes
    varying: set[int] = field(default_factory=set)  # nodes whose sizes were not always those of the first window

    def meet(self, window: Window) -> None:
        """Notes in which nodes a window differs from the first of its structure."""
        sized = [(n.args, n.outs, [window.slots[slot].nbytes for slot in sorted(n.slots())]) for n in window.nodes]
        self.first = self.first or sized
        self.varying |= {i for i, (a, b) in enumerate(zip(self.first, sized, strict=True)) if a != b}

    def rare(self, runs: int) -> bool:
        """Whether a window that ran `runs` times so far has come too seldom to be worth kernels of its own."""
        return self.compiled >= MAX_COMPILED and runs < MIN_RUNS and bool(self.varying)

    def variant(self, mlir: str, name: str) -> Variant:
        """The form of a kernel that serves this window and, where sizes have varied, its siblings."""
        text = Text.of(mlir, name)
        form = self.kernels.setdefault(text.shape(), Sized()).form(text)
        return parametrised(mlir, name, text, form.classes) if form else Variant(mlir, ())


def parametrised(mlir: str, name: str, text: Text, classes: Classes) -> Variant:
    """The kernel with an argument for each class of uses. Its text is the same for all sizes that the form fits."""
    argument = {use: number for number, members in enumerate(classes) for use in members}
    defined: dict[tuple[str, str], str] = {}
    lines: dict[str, str] = {}

    def operand(use: int) -> str:
        type, value = text.uses[use]
        if use not in argument:
            constant = defined.setdefault((type, value), f"%c{len(defined)}")
            literal = (
                f"dense<{value}> : {type}" if type.startswith("vector") else f"{value} : {type}" if type else value
            )
            lines[constant] = f"  {constant} = arith.constant {literal}\n"
            return constant
        size = f"%s{argument[use]}"
        if not type.startswith("vector"):
            return size
        vector = f"{size}v{re.sub('[^0-9]', '', type.partition('x')[0])}"
        lines[vector] = f"  {vector} = vector.broadcast {size} : {_element(type)} to {type}\n"
        return vector

    body = "".join(_joined(text.skeleton, map(operand, range(len(text.uses)))))
    types = [_element(text.uses[members[0]][0]) for members in classes]
    more = "".join(f", %s{number}: {type}" for number, type in enumerate(types))
    made = _SIGNATURE.sub(lambda m: m[1] + m[2] + more + m[3] + "".join(lines.values()), body, count=1)
    bits = _INDEX_BITS.search(mlir)
    assert bits, "a kernel states its index width"
    numbers = (text.uses[members[0]][1] for members in classes)
    extra = tuple(_argument(number, type, f"i{bits[1]}") for number, type in zip(numbers, types, strict=True))
    return Variant(made.replace("@k(", f"@{name}("), extra)


def _argument(number: str, type: str, index: str) -> tuple[int | float, str]:
    """A number as it is written, and its type: "index" is `index` bits wide."""
    if type == "index":
        return int(number), index
    bits, value = _FLOATS[type]
    return struct.unpack(value, struct.pack(bits, int(number, 16)))[0], type


def _joined(pieces: tuple[str, ...], between: Iterator[str]) -> Iterator[str]:
    yield pieces[0]
    for piece, operand in zip(pieces[1:], between, strict=True):
        yield operand
        yield piece
