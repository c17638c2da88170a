"""Index expressions: affine sums over loop variables, with floor division and remainder where a reshape needs them.

An `Expr` is `const + sum(coefficient * atom)`; an atom is a `Var` (0 <= v < size), a
quotient, a remainder, or a `Dyn` index that is read from memory. Expressions are
immutable, hashable and kept simple by construction, so equal accesses compare equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from ops_core.sizes import common_divisor, multiple, varies


@dataclass(frozen=True)
class Var:
    """A loop variable in [0, size). `id` orders and names it within a kernel."""

    id: int
    size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value; of every atom."""
        return 0, self.size - 1

    @cached_property
    def vars(self) -> frozenset[Var]:
        """The variables that it varies with; of every atom."""
        return frozenset((self,))


@dataclass(frozen=True)
class Dyn:
    """An index that is a run-time value: instruction `id` of the kernel, in [0, size), depending on `vars`."""

    id: int
    size: int
    vars: frozenset[Var] = frozenset()

    @property
    def bounds(self) -> tuple[int, int]:
        """As of a variable."""
        return 0, self.size - 1


@dataclass(frozen=True)
class Div:
    """`expr // by`, by > 0, expr >= 0: C's division agrees with Python's."""

    expr: Expr
    by: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Those of the operand, divided."""
        lo, hi = self.expr.bounds
        return lo // self.by, hi // self.by

    @property
    def vars(self) -> frozenset[Var]:
        """Those of the operand."""
        return self.expr.vars


@dataclass(frozen=True)
class Mod:
    """`expr % by`, by > 0, expr >= 0."""

    expr: Expr
    by: int

    @property
    def bounds(self) -> tuple[int, int]:
        """All remainders."""
        return 0, self.by - 1

    @property
    def vars(self) -> frozenset[Var]:
        """Those of the operand."""
        return self.expr.vars


Atom: TypeAlias = Var | Dyn | Div | Mod


@dataclass(frozen=True)
class Expr:
    """`const + sum(coefficient * atom)`; `terms` maps atom to coefficient, in order of first use."""

    const: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.const, frozenset(self.terms))))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Expr)
            and self._hash == other._hash
            and self.const == other.const
            and (self.terms == other.terms or frozenset(self.terms) == frozenset(other.terms))
        )

    @cached_property
    def vars(self) -> frozenset[Var]:
        """The variables that the expression varies with."""
        return frozenset().union(*(a.vars for a, _ in self.terms))

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, both inclusive."""
        lo = hi = self.const
        for atom, c in self.terms:
            a, b = atom.bounds
            lo, hi = (lo + c * a, hi + c * b) if c > 0 else (lo + c * b, hi + c * a)
        return lo, hi

    def coefficient(self, var: Var) -> int | None:
        """The factor of `var`, or None where the dependence is not affine. What memory holds (`Dyn`) does not count."""
        total = 0
        for atom, c in self.terms:
            if atom == var:
                total = c
            elif not isinstance(atom, Dyn) and var in atom.vars:
                return None
        return total

    def dynamic(self, var: Var) -> bool:
        """Whether an index read from memory varies with `var`."""
        return any(var in a.vars if isinstance(a, Dyn) else isinstance(a, (Div, Mod)) and a.expr.dynamic(var)
                   for a, _ in self.terms)  # fmt: skip

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return Expr(self.const + other, self.terms) if other else self
        if not self.terms and not self.const:
            return other
        terms = dict(self.terms)
        for atom, c in other.terms:
            terms[atom] = terms.get(atom, 0) + c
        return _normal(self.const + other.const, terms)

    def __mul__(self, factor: int) -> Expr:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Expr(self.const * factor, tuple((a, c * factor) for a, c in self.terms))

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (other * -1 if isinstance(other, Expr) else -other)

    def __floordiv__(self, by: int) -> Expr:
        if by == 1:
            return self
        whole = Expr(self.const // by, tuple((a, c // by) for a, c in self.terms if multiple(c, by)))
        rest = Expr(self.const % by, tuple((a, c) for a, c in self.terms if not multiple(c, by)))
        lo, hi = rest.bounds
        if lo // by == hi // by:
            return whole + lo // by
        g = common_divisor(by, *(c for _, c in rest.terms))
        if g > 1:
            return whole + Expr(rest.const // g, tuple((a, c // g) for a, c in rest.terms)) // (by // g)
        if not rest.const and len(rest.terms) == 1 and rest.terms[0][1] == 1 and isinstance(rest.terms[0][0], Div):
            inner = rest.terms[0][0]
            return whole + inner.expr // (inner.by * by)
        if coarse := _coarse(rest, by):
            g, high, _ = coarse
            return whole + high // (by // g)
        turns = -min(lo // by, 0)
        return whole - turns + Expr(0, ((Div(rest + turns * by, by), 1),))

    def __mod__(self, by: int) -> Expr:
        if by == 1:
            return ZERO
        # What varies stays, so that neighbours can still be joined (`codegen.nesting`).
        rest = Expr(
            self.const % by, tuple((a, c if varies(c) else c % by) for a, c in self.terms if not multiple(c, by))
        )
        lo, hi = rest.bounds
        if lo // by == hi // by:
            return rest - lo // by * by
        g = common_divisor(by, *(c for _, c in rest.terms))
        if g > 1:
            return Expr(rest.const // g, tuple((a, c // g) for a, c in rest.terms)) % (by // g) * g + rest.const % g
        if not rest.const and len(rest.terms) == 1 and isinstance(rest.terms[0][0], Mod):
            inner = rest.terms[0][0]
            if rest.terms[0][1] == 1 and multiple(inner.by, by):
                return inner.expr % by
        if coarse := _coarse(rest, by):
            g, high, low = coarse
            return high % (by // g) * g + low
        return Expr(0, ((Mod(rest - min(lo // by, 0) * by, by), 1),))

    def subs(self, env: Mapping[Var, Expr]) -> Expr:
        """The expression with variables replaced."""
        if not any(v in env for v in self.vars):
            return self
        result = Expr(self.const)
        for atom, c in self.terms:
            result = result + _subs_atom(atom, env) * c
        return result

    def redirect(self, number: Callable[[int], int]) -> Expr:
        """The expression with the instructions behind its dynamic indices renumbered."""
        return Expr(self.const, tuple((_redirect(a, number), c) for a, c in self.terms))


ZERO = Expr()


def _redirect(atom: Atom, number: Callable[[int], int]) -> Atom:
    if isinstance(atom, Dyn):
        return Dyn(number(atom.id), atom.size, atom.vars)
    return atom if isinstance(atom, Var) else type(atom)(atom.expr.redirect(number), atom.by)


def _coarse(expr: Expr, by: int) -> tuple[int, Expr, Expr] | None:
    """(g, high, low) with expr = g * high + low, 0 <= low < g and g a proper divisor of `by`."""
    steps = {abs(c) for _, c in expr.terms}
    for g in sorted((c for c in steps if 1 < c < by and multiple(by, c)), reverse=True):
        low = Expr(expr.const % g, tuple((a, c) for a, c in expr.terms if not multiple(c, g)))
        lo, hi = low.bounds
        if lo >= 0 and hi < g:
            return g, Expr(expr.const // g, tuple((a, c // g) for a, c in expr.terms if multiple(c, g))), low
    return None


def _subs_atom(atom: Atom, env: Mapping[Var, Expr]) -> Expr:
    if isinstance(atom, Var):
        return env.get(atom) or variable(atom)
    if isinstance(atom, Div):
        return atom.expr.subs(env) // atom.by
    if isinstance(atom, Mod):
        return atom.expr.subs(env) % atom.by
    new = frozenset().union(*(env[v].vars if v in env else (v,) for v in atom.vars))
    return Expr(0, ((Dyn(atom.id, atom.size, new), 1),))


def _normal(const: int, terms: dict[Atom, int]) -> Expr:
    """Drop zero terms and rejoin k*m*(e // m) + k*(e % m) into k*e.

    The remainder's operand may be another number with that remainder: `%` reduces coefficients, `//` does not.
    """
    for atom in [a for a in terms if isinstance(a, Mod)]:
        k = terms.get(atom, 0)
        quotient = atom.expr // atom.by
        if k and len(quotient.terms) == 1 and quotient.terms[0][1] == 1:
            partner = quotient.terms[0][0]
            if terms.get(partner) == k * atom.by:
                rest = tuple((a, c) for a, c in terms.items() if c and a not in (atom, partner))
                return Expr(const - quotient.const * atom.by * k, rest) + atom.expr * k
        for partner, c in terms.items():
            if k and isinstance(partner, Div) and partner.by == atom.by and c == k * atom.by:
                difference = partner.expr - atom.expr
                if all(multiple(n, atom.by) for n in (difference.const, *(n for _, n in difference.terms))):
                    rest = tuple((a, n) for a, n in terms.items() if n and a not in (atom, partner))
                    return Expr(const, rest) + partner.expr * k
    return Expr(const, tuple((a, c) for a, c in terms.items() if c))


def variable(var: Var) -> Expr:
    """The expression that is one variable."""
    return Expr(0, ((var, 1),))


def linear(index: Iterable[Expr], strides: Iterable[int], offset: int = 0) -> Expr:
    """offset + sum(index * stride)."""
    result = Expr(offset)
    for i, s in zip(index, strides, strict=True):
        result = result + i * s
    return result


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of `shape`, in elements."""
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= size
    return tuple(reversed(strides))


def delinearize(flat: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    """The row-major index in `shape` of element number `flat`."""
    return tuple(
        ZERO if n == 1 else (flat // s if k == 0 else flat // s % n)
        for k, (n, s) in enumerate(zip(shape, contiguous(shape), strict=True))
    )


Index = tuple[Expr, ...]
Transform = Callable[[Index], Index]
