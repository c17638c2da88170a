"""Plans for every size of a structure: traced once, then computed for each further size.

The first window of a structure is compiled for its sizes. When the structure returns with others, the numbers of the
two windows that differ become symbols (`ops_core.sizes`), and the window is compiled once more with these: sizes are
arguments of its kernels, and every other number of the plan is an expression. A further size evaluates the
expressions, about a millisecond; no kernel is built. Where a guard does not hold, or a relation between sizes that held
so far (one is twice the other), the window is traced again.

A trace is believed only after a second trace, of other sizes, has given the plan that the first foretold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from codegen.functionalize import Window
from codegen.memory import pieces
from codegen.plan import Life
from ops_core.sizes import Tape, Traced, tracing

log = logging.getLogger("lazy_backend.sized")

# Traces of one structure: sizes of different classes (below and above a vector) need one each.
MAX_TRACES = 8
# Traces that may wait for a size that they foretell: more, and each is good for its own size only.
MAX_WAITING = 2
# Windows of a structure whose numbers are remembered, to tell which vary and how they belong together.
MAX_SEEN = 4
# One number is another times, or plus, this much at most.
MAX_FACTOR, MAX_OFFSET = 1 << 16, 8

Numbers = list[Any]


class Untraceable(Exception):
    """The plan has parts whose numbers cannot be expressions."""


def numbers(source: Mapping[str, Any]) -> Numbers:
    """All that a window has beside its structure, in one order for all windows of a structure."""
    found: Numbers = []

    def collect(x: Any) -> None:
        if isinstance(x, (tuple, list)):
            for y in x:
                collect(y)
        else:
            found.append(x)

    for _, args, outs, seed, _ in source["nodes"]:
        collect(args)
        collect(outs)
        collect(seed)
    found += [nbytes for nbytes, _, _ in source["slots"]]
    return found


def renumbered(source: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """The window with other numbers, in the order of `numbers`."""
    rest = iter(values)

    def put(x: Any) -> Any:
        return type(x)([put(y) for y in x]) if isinstance(x, (tuple, list)) else next(rest)

    nodes = [(op, put(args), put(outs), put(seed), line) for op, args, outs, seed, line in source["nodes"]]
    slots = [(next(rest), alive, had_data) for _, alive, had_data in source["slots"]]
    return {**source, "nodes": nodes, "slots": slots}


class Trace:
    """A plan whose numbers are expressions of those of a window that vary."""

    def __init__(self, source: Mapping[str, Any], seen: Sequence[Numbers], compile: Callable[[Window], dict[str, Any]]):
        now = seen[-1]
        columns = list(zip(*seen, strict=True))
        varying = [i for i, column in enumerate(columns) if any(x != column[0] for x in column[1:])]
        if any(type(x) is not int for i in varying for x in columns[i]):
            raise Untraceable("what varies is no size")
        self._alike: dict[tuple[int, ...], list[int]] = {}
        for i in varying:
            self._alike.setdefault(columns[i], []).append(i)
        fixed = sorted(set(range(len(now))) - set(varying))
        self._fixed = _picker(fixed)
        self._expected = self._fixed(now)
        self._first = _picker([members[0] for members in self._alike.values()])
        self._again = _picker([i for members in self._alike.values() for i in members[1:]])
        self._originals = _picker([members[0] for members in self._alike.values() for _ in members[1:]])
        tape = Tape()
        values = self._symbols(tape, now)
        with tracing(tape):
            plan = compile(Window.from_recorded(renumbered(source, values)))
        self._fill(plan, tape)

    def _symbols(self, tape: Tape, now: Numbers) -> Numbers:
        """The window's numbers, with a symbol, or an expression of others, for each that varies."""
        values = list(now)
        columns = sorted(self._alike, key=lambda column: column[-1])
        symbols = {column: tape.symbol(column[-1], column[0]) for column in self._alike}
        basic: list[tuple[tuple[int, ...], int]] = []
        for column in columns:
            relation = next(_relations(column, basic), None)
            if relation is None:
                basic.append((column, symbols[column]))
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

        self._steps: list[tuple[bool, tuple]] = []  # whether an expression stands in a step, and the step
        for step in plan["steps"]:
            before = len(results)
            with_places = places(step)
            self._steps.append((len(results) > before, with_places))
        self._lives = [[(number(n), first, last) for n, first, last in lives] for lives in plan["lives"]]
        self._alignment, self._rest = plan["alignment"], {"checks": plan["checks"], "once": False}
        self._evaluate = tape.compiled(results)

    def plan(self, now: Numbers) -> dict[str, Any] | None:
        """The plan for a window of these numbers; None where the trace is not one of such windows."""
        if self._fixed(now) != self._expected or self._again(now) != self._originals(now):
            return None
        if (values := self._evaluate(*self._first(now))) is None:
            return None

        def filled(x: Any) -> Any:
            if isinstance(x, _Place):
                return values[x]
            return type(x)([filled(y) for y in x]) if isinstance(x, (tuple, list)) else x

        temps: list[tuple[int, int]] = []
        sizes: list[int] = []
        for lives in self._lives:
            placed, more = pieces([Life(filled(n), first, last) for n, first, last in lives], self._alignment)
            temps += [(len(sizes) + temp.piece, temp.offset) for temp in placed]
            sizes += more
        return {
            "pieces": sizes,
            "temps": temps,
            "steps": [filled(step) if varies else step for varies, step in self._steps],
            **self._rest,
        }


class _Place(int):
    """Stands for an expression: its number among the values."""


def _picker(places: Sequence[int]) -> Callable[[Numbers], tuple]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[i] for i in places)


def _relations(column: tuple[int, ...], basic: Sequence[tuple[tuple[int, ...], int]]) -> Iterator[int]:
    """Expressions of symbols that gave this number in every window so far, the simplest first."""
    for other, symbol in basic:
        if column[-1] >= other[-1] > 0 and column[-1] % other[-1] == 0:
            factor = column[-1] // other[-1]
            if factor <= MAX_FACTOR and all(a == factor * b for a, b in zip(column, other, strict=True)):
                yield symbol * factor
    for n, (one, a) in enumerate(basic):
        for two, b in basic[n:]:
            product = one[-1] * two[-1]
            if product and column[-1] % product == 0:
                factor = column[-1] // product
                if all(x == factor * y * z for x, y, z in zip(column, one, two, strict=True)):
                    yield a * b * factor
    for other, symbol in basic:
        offset = column[-1] - other[-1]
        if abs(offset) <= MAX_OFFSET and all(a == b + offset for a, b in zip(column, other, strict=True)):
            yield symbol + offset


class Traces:
    """The traces of one structure."""

    def __init__(self) -> None:
        self.seen: list[Numbers] = []
        self.believed: list[Trace] = []
        self.waiting: list[Trace] = []  # for another size that gives the plan they foretell
        self.made = 0

    def foretold(self, now: Numbers) -> dict[str, Any] | None:
        """The plan of a window of these numbers from a trace that is believed."""
        return next((plan for trace in self.believed if (plan := trace.plan(now))), None)

    def plan(self, source: Mapping[str, Any], compile: Callable[[Window], dict[str, Any]]) -> dict[str, Any] | None:
        """The plan of a window from a new trace, if there can be one; notes the window's numbers."""
        now = numbers(source)
        if now in self.seen or self.made >= MAX_TRACES:
            return None
        if self.seen and len(now) != len(self.seen[0]):
            return None
        self.seen = [*self.seen[: MAX_SEEN - 1], now]
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
        for other in self.waiting:
            foretold = other.plan(now)
            if foretold is not None:
                self.waiting.remove(other)
                if foretold == plan:
                    self.believed.insert(0, trace)  # the next size is most likely of the same class
                    return plan
                log.warning("two traces of a window disagree; it is compiled for each size")
                self.give_up()
                return None
        self.waiting.append(trace)
        if len(self.waiting) > MAX_WAITING:
            self.give_up()
        return plan
