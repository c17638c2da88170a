"""Index expressions agree with integer arithmetic, and equal accesses are equal expressions."""

from __future__ import annotations

from itertools import product

from codegen.emit import lane_step
from codegen.index import Expr, Var, contiguous, delinearize, linear, variable

A, B = Var(0, 4), Var(1, 6)
a, b = variable(A), variable(B)


def value(expr: Expr, at: dict[Var, int]) -> int:
    """The number an expression stands for."""
    constants = {v: Expr(n) for v, n in at.items()}
    result = expr.subs(constants)
    assert not result.terms
    return result.const


def test_quotients_and_remainders_are_pythons() -> None:
    for expr, by in product([a * 6 + b, a * 5 - b, b * -1 + 3, a * 12 + b * 2 + 7], [2, 3, 4, 6, 7]):
        for x, y in product(range(4), range(6)):
            at = {A: x, B: y}
            assert value(expr // by, at) == value(expr, at) // by
            assert value(expr % by, at) == value(expr, at) % by


def test_a_reshape_there_and_back_is_the_same_index() -> None:
    flat = linear((a, b), contiguous((4, 6)))
    for shape in ((24,), (8, 3), (2, 2, 6), (3, 8)):
        assert linear(delinearize(flat, shape), contiguous(shape)) == flat


def test_a_reshape_there_and_back_of_parts_that_its_rows_do_not_divide() -> None:
    """The coefficient of a part is reduced in the remainder, not in the quotient: 20 is 4 modulo 8."""
    part, element = variable(Var(2, 12)), variable(Var(3, 20))
    flat = part * 20 + element
    for shape in ((30, 8), (5, 6, 8), (40, 6), (8, 30), (2, 5, 24)):
        assert linear(delinearize(flat, shape), contiguous(shape)) == flat, shape
        assert linear(delinearize(flat * 3, shape), contiguous(shape)) == flat * 3, shape


def test_dims_that_a_reshape_only_regroups_need_no_division() -> None:
    assert delinearize(a * 6 + b, (4, 6)) == (a, b)
    assert delinearize(a * 6 + b, (4, 2, 3)) == (a, b // 3, b % 3)


def test_quotients_are_of_non_negative_numbers() -> None:
    quotient = (b * -1 + 2) // 4
    ((atom, _),) = quotient.terms
    assert atom.expr.bounds[0] >= 0
    assert [value(quotient, {B: n}) for n in range(6)] == [(2 - n) // 4 for n in range(6)]


def test_bounds_hold_every_value() -> None:
    expr = a * 5 - b * 2 + 1
    values = [value(expr, {A: x, B: y}) for x, y in product(range(4), range(6))]
    assert expr.bounds == (min(values), max(values))


def test_lanes_move_together_within_blocks_of_the_vector_width() -> None:
    v = variable(Var(0, 64))
    assert lane_step(v % 16 + v // 16 * 100, Var(0, 64), 8) == 1
    assert lane_step(v // 16, Var(0, 64), 8) == 0
    assert lane_step(v % 12, Var(0, 64), 8) is None
