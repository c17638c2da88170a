"""Plans for every size of a structure: traced once, then computed for each further size.

The first window of a structure is compiled for its sizes. When the structure returns with others, the numbers of the
two windows that differ become symbols (`ops_core.sizes`), and the window is compiled once more with these: sizes are
arguments of its kernels, and every other number of the plan is an expression. A further size evaluates the
expressions and puts their values into a copy of the plan (csrc/python_plan.cpp); no kernel is built. Where a guard does
not hold, or a relation between sizes that held so far (one is twice the other), the window is traced again.

A trace is believed only after a second trace, of other sizes, has given the plan that the first foretold (two that
agree about which numbers vary and how they belong together: where one was a constant, kernels have an argument less).
And only as far as the two went: a number that was the same in both may decide what leaves no guard (a dim that indexes
a list, the turns of a loop), so the trace is for this number only, until one more has given its plan for another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from codegen.functionalize import Window
from lazy_backend.driver import abi
from lazy_backend.numbering import Numbers, numbers, renumbered
from lazy_backend.repeats import other_sizes
from ops_core.sizes import Tape, Traced, tracing
from ops_core.untraced import untraced

log = logging.getLogger("lazy_backend.sized")

# Traces of one structure: sizes of different classes (below and above a vector) need one each, one that confirms it,
# and one more for each number that was the same in both. `benchmarks.lengths` takes eleven; with 8 it had none left at
# step 12, and compiled 40 more plans for one size each.
MAX_TRACES = 24
# Traces that may wait for a size that they foretell: more, and each is good for its own size only. A product of
# sizes below a vector's has up to four classes that hold a size or two (with 2, lengths 9, 4, 3 ended the search).
MAX_WAITING = 4
# Windows of a structure whose numbers are remembered, to tell which vary and how they belong together. Experts of which
# one more has another share in each step tell so one by one: with the first three and the latest, it was never all.
MAX_SEEN = 8
# One number is another times, or plus, this much at most.
MAX_FACTOR, MAX_OFFSET = 1 << 16, 8


class Untraceable(Exception):
    """The plan has parts whose numbers cannot be expressions."""


class Trace:
    """A plan whose numbers are expressions of those of a window that vary."""

    def __init__(self, source: Mapping[str, Any], seen: Sequence[Numbers], compile: Callable[[Window], dict[str, Any]]):
        now = self._now = seen[-1]
        columns = list(zip(*seen, strict=True))
        self._count = len(now)
        self._alike: dict[tuple[int, ...], list[int]] = {}
        self._fixed: list[tuple[int, int]] = []
        for i, column in enumerate(columns):
            if all(x == column[0] for x in column):
                self._fixed.append((i, column[0]))
            else:
                self._alike.setdefault(column, []).append(i)
        tape = Tape()
        self._related: list[tuple] = []
        values = iter(self._symbols(tape, now))
        with tracing(tape):
            plan = compile(Window.from_recorded(renumbered(source, lambda _: next(values))))
        self._fill(plan, tape)

    def _symbols(self, tape: Tape, now: Numbers) -> Numbers:
        """The window's numbers, with a symbol, or an expression of others, for each that varies."""
        values = list(now)
        columns = sorted(self._alike, key=lambda column: column[-1])
        symbols = {column: tape.symbol(column[-1], column[0]) for column in self._alike}
        basic: list[_Basic] = []
        for column in columns:
            words, relation = next(_relations(column, basic), ((), None))
            self._related.append((tuple(self._alike[column]), words))
            if relation is None:
                basic.append(_Basic(self._alike[column][0], column, symbols[column]))
            elif relation != symbols[column]:  # the comparison is the guard
                raise AssertionError("a relation holds for the window at hand")
            for i in self._alike[column]:
                values[i] = symbols[column] if relation is None else relation
        return values

    def _fill(self, plan: dict[str, Any], tape: Tape) -> None:
        """Notes where in the plan an expression stands."""
        results: list[Any] = []

        def number(x: Any) -> Any:
            if not isinstance(x, Traced):
                return x
            results.append(x)
            return _Place(len(results) - 1)

        def places(x: Any) -> Any:
            return type(x)([places(y) for y in x]) if isinstance(x, (tuple, list)) else number(x)

        self._steps = [places(step) for step in plan["steps"]]
        self._pieces = [number(nbytes) for nbytes in plan["pieces"]]
        self._checks = [(*texts, number(size)) for *texts, size in plan["checks"]]
        self._same = {"temps": plan["temps"], "once": plan["once"]}
        self._evaluate = untraced(tape.compiled(results))
        self._equal = [(i, first) for first, *more in self._alike.values() for i in more]
        self._varying = [members[0] for members in self._alike.values()]
        self._proven: set[int] = set()  # of the varying ones: the trace foretold a plan for another number
        self.confirmed = False  # it foretold a plan at all

    def sized(self) -> dict[str, Any]:
        """For csrc/python_plan.cpp: the sizes for which the trace is believed, and their plans."""
        return {
            "count": self._count,
            "fixed": self._fixed + [(i, self._now[i]) for i in self._unproven()],
            "alike": self._equal,
            "symbols": self._varying,
            "evaluate": self._evaluate,
            "spots": [spot for _, spot in sorted(self._spots())],
        }

    def _unproven(self) -> list[int]:
        return [i for i in self._varying if i not in self._proven]

    def like(self, other: Trace) -> bool:
        """Whether the same numbers vary in both, in the same relations."""
        return self._count == other._count and sorted(self._related) == sorted(other._related)

    def foretells(self, other: Trace) -> bool:
        """Whether the plan that the other trace made for its own window is this trace's too; True where it has none."""
        foretold = self.plan(other._now)
        if foretold is None or foretold != other.plan(other._now):
            return foretold is None
        self.confirmed = True
        self._proven |= {i for i in self._varying if other._now[i] != self._now[i]}
        return True

    def believed(self, now: Numbers) -> dict[str, Any] | None:
        """The plan for a window of these numbers, where other traces have shown that this one holds for them."""
        known = self.confirmed and len(now) == self._count and all(now[i] == self._now[i] for i in self._unproven())
        return self.plan(now) if known else None

    def _spots(self) -> Iterator[tuple[int, tuple[str, int, int]]]:
        """Which value stands where, in the words of csrc/python_plan.cpp."""
        for n, step in enumerate(self._steps):
            for kind, found in _library_call(step) if step[0] == "core" else _launch(step):
                yield from ((x.number, (kind, n, i)) for i, x in enumerate(found) if isinstance(x, _Place))
        for kind, found in ("piece", self._pieces), ("check", [size for *_, size in self._checks]):
            yield from ((x.number, (kind, n, 0)) for n, x in enumerate(found) if isinstance(x, _Place))

    def plan(self, now: Numbers) -> dict[str, Any] | None:
        """The plan for a window of these numbers; None where the trace is not one of such windows."""
        if len(now) != self._count or any(now[i] != n for i, n in self._fixed):
            return None
        if any(now[i] != now[first] for i, first in self._equal):
            return None
        if (values := self._evaluate(*[now[i] for i in self._varying])) is None:
            return None

        def filled(x: Any) -> Any:
            if isinstance(x, _Place):
                return values[x.number]
            return type(x)([filled(y) for y in x]) if isinstance(x, (tuple, list)) else x

        changing = {"pieces": self._pieces, "steps": self._steps, "checks": self._checks}
        return {what: filled(values) for what, values in changing.items()} | self._same


def _launch(step: tuple) -> Iterator[tuple[str, list[Any]]]:
    _, _, work, group, args = step
    yield from (("global", work), ("local", group), ("arg", [value for _, value, _ in args]))


def _library_call(step: tuple) -> Iterator[tuple[str, list[Any]]]:
    _, _, _, _, tensors, _ = step
    yield "offset", [offset for _, _, offset, _, _ in tensors]
    for kind, lists in (("size", [t[3] for t in tensors]), ("stride", [t[4] for t in tensors])):
        yield kind, [n for ints in lists for n in (*ints, *[0] * (abi.MAX_RANK - len(ints)))]


@dataclass(frozen=True)
class _Place:
    """Stands for an expression."""

    number: int  # among the values


class _Basic(NamedTuple):
    """What varies in a way of its own: where it first stands, its numbers in the windows seen, its symbol."""

    place: int
    column: tuple[int, ...]
    symbol: int


def _relations(column: tuple[int, ...], basic: Sequence[_Basic]) -> Iterator[tuple[tuple, int]]:
    """Expressions of symbols that gave this number in every window so far, the simplest first, in words and as such."""
    for one in basic:
        if column[-1] >= one.column[-1] > 0 and column[-1] % one.column[-1] == 0:
            factor = column[-1] // one.column[-1]
            if factor <= MAX_FACTOR and all(x == factor * y for x, y in zip(column, one.column, strict=True)):
                yield ("times", one.place, factor), one.symbol * factor
    for n, one in enumerate(basic):
        for two in basic[n:]:
            product = one.column[-1] * two.column[-1]
            if product and column[-1] % product == 0:
                factor = column[-1] // product
                if all(x == factor * y * z for x, y, z in zip(column, one.column, two.column, strict=True)):
                    yield ("product", *sorted((one.place, two.place)), factor), one.symbol * two.symbol * factor
    for one in basic:
        offset = column[-1] - one.column[-1]
        if abs(offset) <= MAX_OFFSET and all(x == y + offset for x, y in zip(column, one.column, strict=True)):
            yield ("plus", one.place, offset), one.symbol + offset


def _told(seen: Sequence[Numbers]) -> int:
    """How many numbers of the windows differ from each other in one of them."""
    return len(set(zip(*seen, strict=True)))


class Traces:
    """The traces of one structure."""

    def __init__(self) -> None:
        self.seen: list[Numbers] = []
        self.traces: list[Trace] = []  # the latest first: the next size is most likely of its class
        self.made = 0

    def foretold(self, now: Numbers) -> dict[str, Any] | None:
        """The plan of a window of these numbers from a trace that is believed."""
        return next((plan | {"sized": t.sized()} for t in self.traces if (plan := t.believed(now))), None)

    def note(self, source: Mapping[str, Any]) -> None:
        """A window of the structure that came before, and was not compiled."""
        if not self.seen:
            self.seen.append(numbers(source))

    def plan(self, source: Mapping[str, Any], compile: Callable[[Window], dict[str, Any]]) -> dict[str, Any] | None:
        """The plan of a window from a new trace, if there can be one; notes the window's numbers."""
        now = numbers(source)
        if now in self.seen or self.made >= MAX_TRACES:
            return None
        if not self.seen and (other := other_sizes(source)) is not None:
            assert len(other) == len(now)
            self.seen = [other]
        if self.seen and len(now) != len(self.seen[0]):
            return None
        self.seen.append(now)
        if len(self.seen) > MAX_SEEN:  # without the one that tells least; the first has what is usual
            self.seen = max((self.seen[:i] + self.seen[i + 1 :] for i in range(1, MAX_SEEN)), key=_told)
        return self._traced(source, now, compile) if len(self.seen) > 1 else None

    def give_up(self) -> None:
        """No more traces of this structure."""
        self.made = MAX_TRACES

    def _traced(
        self, source: Mapping[str, Any], now: Numbers, compile: Callable[[Window], dict[str, Any]]
    ) -> dict[str, Any] | None:
        self.made += 1
        try:
            trace = Trace(source, self.seen, compile)
        except Untraceable as reason:
            log.info("a window is not traced: %s", reason)
            self.give_up()
            return None
        plan = trace.plan(now)
        assert plan is not None, "a trace holds for the window that it was made of"
        alike = [other for other in self.traces if trace.like(other)]
        if not all(trace.foretells(other) and other.foretells(trace) for other in alike):
            log.info("two traces of a window disagree; it is compiled for each size")
            self.give_up()
            return None
        # What waits for a trace of its kind gets none any more.
        self.traces = [trace, *(other for other in self.traces if other.confirmed or other in alike)]
        if sum(not t.confirmed for t in self.traces) > MAX_WAITING:
            self.give_up()
        return plan | {"sized": trace.sized()} if trace.confirmed else plan
