"""What is computed with traced sizes: right for the sizes at hand, and from the tape for all that its guards admit."""

import math
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_core.sizes import Size, Tape, alike, common_divisor, deferred, multiple, plain, tied, tracing, usual, varies

OPERATORS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
NUMBERS = st.integers(1, 40)
TREES = st.recursive(
    st.integers(0, 2) | st.integers(-3, 9).map(lambda n: ("constant", n)),
    lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner),
    max_leaves=12,
)


def value(tree, sizes):
    match tree:
        case int(number):
            return sizes[number]
        case ("constant", number):
            return number
        case (compute, left, right):
            a, b = value(left, sizes), value(right, sizes)
            return compute(a, b) if compute not in (operator.floordiv, operator.mod) or b > 0 else a


def traced(sizes, others):
    tape = Tape()
    return tape, [tape.symbol(n, m) for n, m in zip(sizes, others, strict=True)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(trees=st.lists(TREES, min_size=1, max_size=3), sizes=st.tuples(*[NUMBERS] * 3), others=st.tuples(*[NUMBERS] * 3))
def test_what_a_tape_foretells_is_what_would_have_been_computed(trees, sizes, others):
    tape, symbols = traced(sizes, others)
    with tracing(tape):
        made = [value(tree, symbols) for tree in trees]
        same = made[0] == made[-1]
    assert list(map(plain, made)) == [value(tree, sizes) for tree in trees]
    evaluate = tape.compiled(made)
    assert evaluate(*sizes) == list(map(plain, made))
    if (found := evaluate(*others)) is not None:
        expected = [value(tree, others) for tree in trees]
        assert found == expected and (expected[0] == expected[-1]) == same


def test_an_expression_is_worked_out_once():
    tape, (n, m) = traced([6, 4], [9, 2])
    with tracing(tape):
        assert n * m + 1 is n * m + 1 and 12 // m is 12 // m, "of 63,000 operators of a BERT's windows 61,000"
        assert n - 4 is not n - m and 4 - n is not n - 4, "who is on which side, a constant and a size of its value"
        assert isinstance(n * 2, int) and isinstance(n * 2.0, float), "equal keys of a dict"


def test_a_number_that_is_tied_varies_no_more():
    tape, (n,) = traced([5], [9])
    with tracing(tape):
        fixed = tied(n)
        twice = n * 2
    assert fixed == 5 and not varies(fixed) and tied(7) == 7
    evaluate = tape.compiled([twice])
    assert evaluate(5) == [10] and evaluate(6) is None


def test_a_decision_is_a_guard():
    tape, (n,) = traced([5], [9])
    with tracing(tape):
        assert n > 4 and n != 6
        twice = n * 2
    evaluate = tape.compiled([twice])
    assert evaluate(7) == [14] and evaluate(6) is None and evaluate(3) is None


@pytest.mark.parametrize("needs", [str, int, float, repr, range, lambda n: n.bit_length(), lambda n: f"{n}"])
def test_what_needs_the_number_itself_holds_for_it_alone(needs):
    """a text, a loop that is written out; repr is for people and range's turns are counted by nobody here"""
    tape, (n,) = traced([5], [5])
    with tracing(tape):
        needs(n)
    admitted = tape.compiled([n])(6) is not None
    assert admitted == (needs in (repr, range))


def test_products_are_known_by_their_parts():
    tape, (n, m) = traced([5, 7], [5, 7])
    with tracing(tape):
        assert n * m * 4 == m * (4 * n) and multiple(n * m * 12, m * 4) and not multiple(n * 6, 4)
        assert n * m * 12 // (m * 4) == n * 3 and n * 4 + m * n * 4 == (m + 1) * n * 4 and n * 6 % 3 == 0
        assert common_divisor(n * 12, 8) == 4 and n - n == 0 and not varies(n - n)
        assert math.prod((n, 3, m)) == n * 3 * m and math.ceil(n / 2) == 3
    assert len(tape.guards) == 1, "all but the quotient are equal by name"


def test_what_is_less_than_its_divisor_is_its_own_remainder():
    """as the strides of a dim's neighbours; a divisor that may be as small leaves a guard"""
    tape, (n, m) = traced([5, 7], [5, 7])
    with tracing(tape):
        assert not varies(0 % n) and not varies(0 // n) and multiple(0, n)
        assert not varies(3 % (n * 4)) and not varies(3 // (n * 4)) and n * 3 % (n * m * 4) == n * 3
        assert tape.guards == {"v0 > 0": True, "v1 > 0": True}
        assert not varies(4 % (n * 4)) and len(tape.guards) == 3
        made = [5 % n, -1 % (n * 4), 1 % ((n - 9) * 4)]
    assert all(map(varies, made)) and len(tape.guards) == 3, "a divisor that may be negative says nothing"
    evaluate = tape.compiled(made)
    assert evaluate(2, 7) == [1, 7, -27] and evaluate(1, 7) is None


def test_a_deferred_function_decides_again_for_other_sizes():
    @deferred
    def clipped(numbers: list[int], most: int) -> int:
        return min(sum(numbers), most)

    tape, (n,) = traced([5], [100])
    with tracing(tape):
        made = clipped([n, 3], 20)
    assert made == 8 and isinstance(made, Size) and usual(made) == 20 and clipped([5, 3], 4) == 4
    assert not tape.guards or tape.compiled([made])(90) is None
    assert Tape.compiled(tape, [made])(5) == [8]


def test_usual_sizes_decide_without_a_guard():
    tape, (n,) = traced([5], [100])
    with tracing(tape):
        assert usual(n * 2 + 1) == 201 and usual(n // 3) == 33 and usual(7) == 7
    assert not tape.guards


def test_what_need_not_be_equal_is_not_tied_to_the_size_at_hand():
    """a cache of 32 rows of 32 is as any other, two that vary each by itself meet by accident; a sum may be one"""
    tape, (n, m, both) = traced([32, 32, 64], [9, 9, 18])
    with tracing(tape):
        assert not alike((n, 32), (32, n)) and not alike((n,), (n, 1))
        assert not alike((n, 1), (m, 2)) and not tape.guards
        assert alike((n, 32), (n, 32)) and alike((32, 1), (32, 1)) and not tape.guards
        assert not alike((n,), (m,)) and not alike((2 * n, m), (2 * m, n)) and not tape.guards
        assert not alike((n + m + 1,), (both,)) and not tape.guards
        assert alike((n + m,), (both,))
    evaluate = tape.compiled([])
    assert evaluate(7, 8, 15) == [] and evaluate(7, 8, 14) is None
