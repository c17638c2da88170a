"""Sizes that remember how they came from the varying sizes of a window, so that one plan serves every size.

While a window is traced, sizes that vary are `Size`s: ints with the value of the window at hand, whose arithmetic is
written to a `Tape`. A comparison gives a plain bool and leaves a *guard* on the tape. What was decided for these
sizes is right for all sizes for which the guards hold, and every number that the decisions led to can be computed for
them from the tape. What is only a number, and decides nothing, comes from a function that is `deferred`: the tape
calls it again.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar


class Tape:
    """Straight-line arithmetic over symbols v0, v1, .. and the guards that were left on it."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}  # expression -> its name
        self.guards: dict[str, bool] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.results: dict[tuple[str, bool, str, Any], Any] = {}  # of operators: 19 of 20 were asked for before
        self.cache: dict[Any, Any] = {}  # of whoever caches what contains sizes
        self.open = True
        self._symbols: dict[str, Size] = {}

    def symbol(self, value: int, usual: int) -> Size:
        """A new symbol, numbered in order of creation; all before anything is computed. usual: see `usual`."""
        name = f"v{len(self._symbols)}"
        self._symbols[name] = _named(value, usual, self, name)
        return self._symbols[name]

    def given(self, parts: Sequence[str]) -> bool:
        """Whether all are numbers of the window, not sums and the like of them."""
        return all(part in self._symbols for part in parts)

    def positive(self, parts: Sequence[str]) -> bool:
        """Whether all are sizes of the window that are not 0."""
        return self.given(parts) and all(self._symbols[part] > 0 for part in parts)

    def name(self, text: str) -> str:
        """The name of an expression, which is computed once."""
        return self.lines.setdefault(text, f"v{len(self._symbols) + len(self.lines)}")

    def guard(self, text: str, outcome: bool) -> None:
        """Notes that a decision relied on `text` being `outcome`."""
        if self.open:
            self.guards.setdefault(text, outcome)

    def compiled(self, results: Sequence[Any]) -> Callable[..., list[Any] | None]:
        """A function of the symbols' values: the values of `results`, or None where a guard does not hold."""
        texts = {name: text for text, name in self.lines.items()}
        known = set(self._symbols)
        source = [f"def evaluate({', '.join(self._symbols)}):"]

        def need(text: str) -> str:
            for name in _NAME.findall(text):
                if name not in known:
                    known.add(name)
                    source.append(f"    {name} = {need(texts[name])}")
            return text

        for text, outcome in self.guards.items():
            source.append(f"    if {'not ' if outcome else ''}({need(text)}): return None")
        wanted = ", ".join([need(_text(result)) for result in results])
        source.append(f"    return [{wanted}]")
        scope: dict[str, Any] = dict(self.functions)
        exec("\n".join(source), scope)
        return scope["evaluate"]  # type: ignore[no-any-return]


_NAME = re.compile(r"\bv\d+\b")
_tape: Tape | None = None


@contextmanager
def tracing(tape: Tape) -> Iterator[None]:
    """Inside, `tape` is written."""
    global _tape
    before, _tape = _tape, tape
    try:
        yield
    finally:
        tape.open, _tape = False, before


def current() -> Tape | None:
    """The tape that is being written."""
    return _tape


def _text(x: Any) -> str:
    return x.name if isinstance(x, Traced) else repr(x)


class Traced:
    """What `Size` and `Real` share. A size is a product of an integer and of parts, names on the tape: equal products
    have one name, and a sum takes out what its terms have in common.

    usual: see `usual`.
    """

    tape: Tape
    name: str
    usual: Any
    factor: int
    parts: tuple[str, ...]


def _named(value: Any, usual: Any, tape: Tape, name: str) -> Any:
    """A number that is known by its name only."""
    made: Any = Size(value) if isinstance(value, int) else Real(value)
    made.usual, made.tape, made.name, made.factor, made.parts = usual, tape, name, 1, (name,)
    return made


def _product(value: int, usual: int, tape: Tape, factor: int, parts: tuple[str, ...]) -> int:
    """The product of an integer and parts."""
    if not parts or not factor:
        return value
    made = Size(value)
    made.usual, made.tape, made.factor, made.parts = usual, tape, factor, parts
    made.name = parts[0] if factor == 1 and len(parts) == 1 else tape.name(_spelled(factor, parts))
    return made


def _spelled(factor: int, parts: tuple[str, ...]) -> str:
    return " * ".join([str(factor)] * (factor != 1 or not parts) + list(parts))


def usual(x: Any) -> Any:
    """What a number is for the sizes that all traces of a window know: what is only a matter of speed is decided for
    these, alike in every trace and without a guard."""
    return x.usual if isinstance(x, Traced) else x


def _usually(compute: Callable[..., Any], value: Any, *args: Any) -> Any:
    try:
        return compute(*args)
    except (ArithmeticError, ValueError):
        return value


def _operator(symbol: str, compute: Callable[[Any, Any], Any], swap: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        tape = self.tape
        if not tape.open:
            return compute(plain(other), plain(self)) if swap else compute(plain(self), plain(other))
        if type(other) is float:  # 2.0, which is 2's key too
            return found(tape, *(other, self) if swap else (self, other))
        key = symbol, swap, self.name, other.name if isinstance(other, Traced) else other
        result = tape.results.get(key)
        if result is None:
            result = tape.results[key] = found(tape, *(other, self) if swap else (self, other))
        return result

    def found(tape: Tape, a: Any, b: Any) -> Any:
        value = compute(plain(a), plain(b))
        most = _usually(compute, value, usual(a), usual(b))
        if symbol in _RULES and isinstance(a, int) and isinstance(b, int):
            rule = _RULES[symbol](value, most, tape, a, b)
            if rule is not None:
                return rule
        return _named(value, most, tape, tape.name(f"({_text(a)} {symbol} {_text(b)})"))

    return method


def _terms(x: int) -> tuple[int, tuple[str, ...]]:
    """Factor and parts."""
    return (x.factor, x.parts) if isinstance(x, Size) else (x, ())


def _less(parts: tuple[str, ...], by: Sequence[str]) -> tuple[str, ...]:
    """The parts without those of `by`."""
    left = list(parts)
    for part in by:
        left.remove(part)
    return tuple(left)


def _without(parts: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether `parts` has more of one than `others`."""
    return any(parts.count(part) > others.count(part) for part in parts)


def _multiplied(value: int, usual: int, tape: Tape, a: int, b: int) -> int:
    (f, p), (g, q) = _terms(a), _terms(b)
    return _product(value, usual, tape, f * g, tuple(sorted(p + q)))


def _added(value: int, usual: int, tape: Tape, a: int, b: int, sign: int = 1) -> int:
    (f, p), (g, q) = _terms(a), _terms(b)
    g *= sign
    if p == q or not f or not g:
        return _product(value, usual, tape, f + g, p if f else q)
    shared, common = [], list(q)
    for part in p:
        if part in common:
            common.remove(part)
            shared.append(part)
    factor = math.gcd(f, g)
    terms = _spelled(f // factor, _less(p, shared)), _spelled(g // factor, _less(q, shared))
    rest = f"({' + '.join(sorted(terms))})"
    return _product(value, usual, tape, factor, tuple(sorted((*shared, tape.name(rest)))))


def _subtracted(value: int, usual: int, tape: Tape, a: int, b: int) -> int:
    return _added(value, usual, tape, a, b, -1)


def _below(tape: Tape, a: int, b: int) -> bool:
    """Whether 0 < a < b whatever the sizes are, as long as those that b has beside a are not all 1: that is a guard."""
    (f, p), (g, q) = _terms(a), _terms(b)
    return 0 < f <= g and not _without(p, q) and tape.positive(q) and (f < g or a < b)


def _divided(value: int, usual: int, tape: Tape, a: int, b: int) -> int | None:
    if not multiple(a, b):
        return 0 if _below(tape, a, b) else None
    (f, p), (g, q) = _terms(a), _terms(b)
    return _product(value, usual, tape, f // g, _less(p, q)) if f else 0


def _left(value: int, usual: int, tape: Tape, a: int, b: int) -> int | None:
    return 0 if multiple(a, b) else a if _below(tape, a, b) else None


_RULES: dict[str, Callable[..., int | None]] = {
    "*": _multiplied, "+": _added, "-": _subtracted, "//": _divided, "%": _left,
}  # fmt: skip


def _comparison(symbol: str, compute: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if self is other:
            return symbol in ("==", "<=", ">=")
        if not isinstance(other, (int, float)):
            return NotImplemented
        outcome = compute(plain(self), plain(other))
        if not (isinstance(other, Traced) and other.name == self.name):
            self.tape.guard(f"{self.name} {symbol} {_text(other)}", outcome)
        return outcome

    return method


def _only(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion to something that cannot be traced: what follows is for this value only."""

    def method(self: Any, *args: Any) -> Any:
        value = plain(self)
        self.tape.guard(f"{self.name} == {value!r}", True)
        return compute(value, *args)

    return method


_OPERATORS = {
    "add": ("+", operator.add), "sub": ("-", operator.sub), "mul": ("*", operator.mul),
    "floordiv": ("//", operator.floordiv), "mod": ("%", operator.mod), "truediv": ("/", operator.truediv),
    "lshift": ("<<", operator.lshift), "rshift": (">>", operator.rshift), "and": ("&", operator.and_),
    "or": ("|", operator.or_), "pow": ("**", operator.pow),
}  # fmt: skip
_COMPARISONS = {
    "lt": ("<", operator.lt), "le": ("<=", operator.le), "gt": (">", operator.gt), "ge": (">=", operator.ge),
    "eq": ("==", operator.eq), "ne": ("!=", operator.ne),
}  # fmt: skip


def _methods() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, (symbol, compute) in _OPERATORS.items():
        made[f"__{name}__"] = _operator(symbol, compute, False)
        made[f"__r{name}__"] = _operator(symbol, compute, True)
    made |= {f"__{name}__": _comparison(symbol, compute) for name, (symbol, compute) in _COMPARISONS.items()}
    made["__neg__"] = lambda self: 0 - self
    made["__abs__"] = lambda self: self if self >= 0 else -self
    made["__bool__"] = lambda self: self != 0
    made |= {"__int__": _only(int), "__float__": _only(float), "__format__": _only(format), "__str__": _only(str)}
    made["__repr__"] = lambda self: f"<{self.name}={plain(self)!r}>"
    return made


class Size(int, Traced):
    """An int of a tape. bit_length, a number in a text and the like are guarded by its value."""

    __hash__ = int.__hash__
    bit_length = _only(int.bit_length)
    locals().update(_methods())


class Real(float, Traced):
    """A float that comes from sizes, as a mean's divisor."""

    __hash__ = float.__hash__
    locals().update(_methods())

    def __ceil__(self) -> Any:
        return _call(self.tape, math.ceil, (self,))


T = TypeVar("T", bound=Callable[..., Any])


def _call(tape: Tape, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    name = f"{function.__name__}_{id(function)}"
    tape.functions[name] = function
    value = function(*(_each(plain, x) for x in args))
    most = _usually(function, value, *(_each(usual, x) for x in args))
    return _named(value, most, tape, tape.name(f"{name}({', '.join(map(_argument, args))})"))


def _each(take: Callable[[Any], Any], x: Any) -> Any:
    return [_each(take, y) for y in x] if isinstance(x, list) else take(x)


def _argument(x: Any) -> str:
    return f"[{', '.join(map(_argument, x))}]" if isinstance(x, list) else _text(x)


def _sizes(args: Sequence[Any]) -> Iterator[Traced]:
    for x in args:
        if isinstance(x, list):
            yield from _sizes(x)
        elif isinstance(x, Traced):
            yield x


def deferred(function: T) -> T:
    """A function of numbers (and lists of them) to a number: traced as a whole, without guards for what it decides."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        tape = next((s.tape for s in _sizes(args)), None)
        return _call(tape, function, args) if tape and tape.open else function(*args)

    return call  # type: ignore[return-value]


def plain(x: Any) -> Any:
    """The number itself, which must decide nothing."""
    return int.__add__(x, 0) if isinstance(x, Size) else float.__add__(x, 0.0) if isinstance(x, Real) else x


def tied(n: int) -> int:
    """The number without its name: what is traced from here on holds for this number only, and asks for it."""
    if isinstance(n, Traced):
        n.tape.guard(f"{n.name} == {plain(n)!r}", True)
    return plain(n)  # type: ignore[no-any-return]


def real(n: int) -> float:
    """A size as a float. float() would hold a trace to this one size."""
    return n * 1.0


def varies(x: Any) -> bool:
    """Whether a size may be another next time."""
    return isinstance(x, Traced)


# The types of sizes that do not vary: nearly all that `alike` is asked about, 18,000 times for examples/gpt.py.
_PLAIN = frozenset({int})


def alike(xs: Sequence[int], ys: Sequence[int]) -> bool:
    """Whether two sequences are equal, for callers that lose only speed by a no. Nothing is decided by what is the same
    number this time only, as the shares of two experts: a size that varies and one that does not are taken to differ,
    as are two that the window has, which were seen to, and any that usually do."""
    if _PLAIN.issuperset(map(type, xs)) and _PLAIN.issuperset(map(type, ys)):
        return tuple(xs) == tuple(ys)
    if len(xs) != len(ys) or not all(map(_perhaps_alike, xs, ys)):
        return False
    return all(x == y for x, y in zip(xs, ys, strict=True))


def as_many(shape: Iterable[int], other: Iterable[int]) -> bool:
    """`alike` of how many elements two shapes have."""
    return alike((math.prod(shape),), (math.prod(other),))


def _perhaps_alike(x: int, y: int) -> bool:
    """What of `alike` leaves no guard."""
    if isinstance(x, Size) and isinstance(y, Size) and x.tape.given(x.parts) and x.tape.given(y.parts):
        return x.name == y.name
    return varies(x) == varies(y) and usual(x) == usual(y)


def multiple(size: int, of: int) -> bool:
    """Whether `size` is a multiple of `of`; where sizes vary, whether it is for all of them."""
    if not isinstance(size, Size) and not isinstance(of, Size):
        return size % of == 0
    (f, p), (g, q) = _terms(size), _terms(of)
    return g != 0 and f % g == 0 and (not f or not _without(q, p))


def common_divisor(*sizes: int) -> int:
    """The greatest common divisor; where sizes vary, an integer that divides all of them."""
    return math.gcd(*(_terms(n)[0] for n in sizes))
