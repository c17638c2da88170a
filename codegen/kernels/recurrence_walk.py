"""What a recurrent layer is, and what a device's way through its steps has to offer: `recurrence_rows` for CPUs,
`recurrence_groups` for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from codegen.builder import Builder, V
from codegen.kernels.step import Steps
from ops_core.lowering.recurrence import CELLS

Bind = Callable[[Builder], Callable[..., Any]]
Read = Callable[..., V]
# (row of the work item or group, row of the batch, column)
Put = Callable[[V, V, V], None]
# (time, row of the work item or group, row of the batch, column, the product by block of gates)
Cell = Callable[[V, V, V, V, list[V]], None]


class Recurrence(NamedTuple):
    """One layer: T `steps`, B rows (`batch`), states of `size` elements of `dtype`."""

    kind: str
    steps: int
    batch: int
    size: int
    dtype: str
    reverse: bool
    binds: Mapping[str, Bind]
    contiguous: int | None  # the dim of the weight along which it lies in memory
    index_bits: int = 32

    @property
    def sums(self) -> str:
        """The dtype of sums and states."""
        return "f64" if self.dtype == "f64" else "f32"

    def product(self, backward: bool) -> tuple[int, int]:
        """(blocks of H sums, terms) of a row in each step."""
        gates = CELLS[self.kind].gates
        return (1, gates * self.size) if backward else (gates, self.size)


class State(Protocol):
    """What is handed from step to step: some elements for each row."""

    def turn(self, step: V) -> None:
        """What step `step` finds is read from here on."""

    def before(self, row: V, column: V | int, width: int = 1) -> V:
        """Elements as the step finds them."""

    def after(self, row: V, column: V | int, value: V) -> None:
        """Elements for the next step."""

    def begin(self, row: V, column: V | int, value: V) -> None:
        """Elements for the first step."""


class Walk(Protocol):
    """The kernel of one layer under construction. Cells are computed `width` columns at a time.

    Memory is asked for in this order: operands, then `terms`, then other states.
    """

    k: Builder
    width: int

    def terms(self) -> State:
        """The state that each step's product is of."""

    def state(self) -> State:
        """Another state of as many elements as columns."""

    def each(self, put: Put) -> None:
        """put(..) for all columns of all rows."""

    def steps(self, bias: Callable[[V, int], V] | None, cell: Cell, backwards: bool) -> None:
        """All steps. bias(column, block): what is added to the product."""

    def finish(self, args: Sequence[str]) -> Steps:
        """The launches of a kernel whose operands are `args`."""
