"""What the scheduler hands to a contraction template; it gets back `Steps`.

A template (`matmul`, `conv_*`, `attention`) turns a spec into one or more kernels. The spec's operands are callables:
a template asks for elements and hands over results, so views, prologues and epilogues are the scheduler's own code.
Where the size of a dim is a multiple of the width of an access along it, so is the coordinate of the access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from codegen.builder import Builder, V

# A term of a sum: its number, or its group and its number in there.
Term = V | tuple[V, V]
Load = Callable[..., V]


class Store(NamedTuple):
    """What a kernel does with its results.

    put     put(batch, i, j, acc, width=1): the epilogue with all its stores, for one element or, with width > 1, for a
            vector along dim `contiguous` of the output from (i, j) on
    ask     ask(batch, i, j): a request for the cache lines from (i, j) on that `put` reads and writes, of no effect but
            on time; None where these are no rows of memory
    turns   vectors whose epilogues take turns (`codegen.kernels.lockstep`)
    calls   whether the epilogue calls library functions. Their constants do not change from tile to tile, so that a
            compiler holds them in registers, and the sums of a product on the stack: 4096 x 128 x 128 with its sine and
            cosine on two cores of Emerald Rapids 1280 us, 890 where nothing is held over the end of a sum; without
            functions 690.
    """

    put: Callable[..., None]
    ask: Callable[[V, V, V], None] | None = None
    turns: int = 1
    calls: bool = False


class Operand(NamedTuple):
    """A matrix (per batch) that is read.

    bind        called once for each kernel that reads it: declares the arguments and returns
                load(batch, i, j, width=1) -> V of `dtype`; with width > 1 a vector along `contiguous` from (i, j) on.
                Asked only for elements that exist.
    dtype       of the loaded value, in registers
    contiguous  the dim with stride 1 in memory (0 or 1), None if there is none: load is then called with width=1 only
    batched     False: does not depend on batch
    flops       operations for each element, of the prologue and quotients of its address; 0 is a plain load
    bytes       size of an element in memory
    run         where it is not 1, terms may be asked for as (run, place in it), of so many each, with fewer quotients
    """

    bind: Callable[[Builder], Load]
    dtype: str
    contiguous: int | None
    batched: bool = True
    flops: int = 0
    bytes: int = 4
    run: int = 1

    @property
    def transposed(self) -> Operand:
        """The same elements with dims i and j exchanged."""

        def bind(k: Builder) -> Load:
            load = self.bind(k)
            return lambda batch, i, j, width=1: load(batch, j, i, width)

        return self._replace(bind=bind, contiguous=None if self.contiguous is None else 1 - self.contiguous)


class Groups(Protocol):
    """What each batch of a product has: rows of A and of the result, or terms, from `first` to `end`. These are known
    to the kernel only, so the product's own number of rows (or terms) is the most that there may be.

    rows: whether rows are meant
    """

    rows: bool
    first: V
    end: V

    def begin(self, k: Builder, batch: V) -> None:
        """Set the bounds for the batch of a work item, before all that depends on them. Declares arguments."""


class Runs(NamedTuple):
    """Columns j with j % period < valid exist. Vectors of at most `width` stay within a run, and start in it at a
    multiple of their width where `valid` is one."""

    period: int
    valid: int
    width: int


class Output(NamedTuple):
    """A matrix (per batch) that is written.

    bind        called once in the kernel that finishes the sums: declares the kernel's arguments and returns where
                results go. `put` is called once for each element, unless `again`.
    contiguous  1: rows are contiguous in memory, 0: columns are
    runs        where columns come in runs: the others do not exist
    again       whether elements may be stored more than once, by several work items too: nothing that the epilogue
                reads is written by it, so all of them write the same bits
    """

    bind: Callable[[Builder], Store]
    contiguous: int = 1
    runs: Runs | None = None
    again: bool = False

    @property
    def transposed(self) -> Output:
        """The same elements with dims i and j exchanged."""

        def bind(k: Builder) -> Store:
            store = self.bind(k)
            put, ask = store.put, store.ask
            across = ask and (lambda batch, i, j: ask(batch, j, i))
            return store._replace(put=lambda batch, i, j, acc, width=1: put(batch, j, i, acc, width), ask=across)

        return Output(bind, 1 - self.contiguous, again=self.again)
