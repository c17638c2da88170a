"""The plan: what a compiled window is. Kernels, launches and calls in order, and where intermediates lie.

A plan is plain data: the C++ executor runs it, the archive stores it, tests execute it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class SlotInfo(NamedTuple):
    """A buffer of the window. nbytes: its size; dtype: the one it was allocated for, if known."""

    nbytes: int
    dtype: str | None = None


class Arg(NamedTuple):
    """One kernel argument.

    kind     value                         type
    slot     number of the slot            ""
    temp     index into `Plan.temps`       ""
    bytes    a static int or float         i32 i64 f32 f64
    scalar   index into the window's run-time scalars, converted to:  bool i32 i64 f32 f64
    local    bytes of work-group memory    ""
    """

    kind: str
    value: int | float
    type: str = ""


class Temp(NamedTuple):
    """An intermediate: bytes [offset, offset + nbytes) of one of the plan's pieces of memory."""

    piece: int
    offset: int
    nbytes: int


class Life(NamedTuple):
    """A buffer of nbytes that is touched by launches first..last, inclusive."""

    nbytes: int
    first: int
    last: int


@dataclass
class KernelSource:
    """One kernel. key: hex digest of its structure; equal keys are equal kernels. mlir: as the builder wrote it;
    linalg: what it was made from, `linalg` on tensors after the upstream passes, one module for each operand.
    addresses, apart: it is given numbers for memory, and says what lies apart (see `codegen.printer.print_source`).

    `origins`: the window nodes that it computes, of the first group that asked for it;
    `name` is the function's name inside `source`.
    """

    key: str
    name: str
    mlir: str
    language: str
    origins: list[int] = field(default_factory=list)
    linalg: str = ""
    addresses: bool = False
    apart: bool = False

    @functools.cached_property
    def source(self) -> str:
        """The text in the device's language. Printed when it is first asked for: a kernel may be known already."""
        from codegen.printer import print_source

        return print_source(self.mlir, self.language, self.addresses, self.apart).program()


@dataclass
class Launch:
    """One launch. Sizes count work items; `global_size` is a multiple of `local_size`."""

    kernel: int
    args: list[Arg]
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    origins: list[int] = field(default_factory=list)

    def temps(self) -> list[int]:
        """The temps that it names."""
        return [int(a.value) for a in self.args if a.kind == "temp"]

    def renumbered(self, numbers: Mapping[int, int]) -> Launch:
        """Itself with other numbers for its temps."""
        args = [a._replace(value=numbers[int(a.value)]) if a.kind == "temp" else a for a in self.args]
        return replace(self, args=args)


@dataclass(frozen=True)
class TensorRef:
    """A strided tensor: kind "slot" (a buffer of the window) or "temp" (index into the plan's temps).

    offset and strides count elements.
    """

    kind: str
    number: int
    offset: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class CoreCall:
    """One `core_op` of the driver contract: outputs first, then inputs; attrs is JSON text."""

    op: str
    n_outputs: int
    tensors: tuple[TensorRef, ...]
    attrs: str
    origin: int

    def temps(self) -> list[int]:
        """The temps that it names."""
        return [t.number for t in self.tensors if t.kind == "temp"]

    def renumbered(self, numbers: Mapping[int, int]) -> CoreCall:
        """Itself with other numbers for its temps."""
        tensors = tuple(replace(t, number=numbers[t.number]) if t.kind == "temp" else t for t in self.tensors)
        return replace(self, tensors=tensors)


@dataclass
class Plan:
    """A compiled window: launches, and calls of a library, run in order over slots, temps and run-time scalars."""

    kernels: list[KernelSource] = field(default_factory=list)
    launches: list[Launch | CoreCall] = field(default_factory=list)
    temps: list[Temp] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)  # bytes of each
