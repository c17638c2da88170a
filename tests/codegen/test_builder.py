"""What the builder folds, refuses and computes."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.builder import Builder
from tests.codegen.run_kernel import PLACES, bf16, elementwise, from_bf16, run

LANES = np.arange(16, dtype=np.float32)


def test_index_arithmetic_folds_in_python() -> None:
    k = Builder("fold")
    i = k.global_id(0)
    two, three = k.const(2, "index"), k.const(3, "index")
    assert i * 1 is i and i + 0 is i and 0 + i is i and i // 1 is i and i - 0 is i
    assert (i * 0).const == 0 and (i % 1).const == 0
    assert (two * three + 1).const == 7 and (three // two).const == 1 and (two < three).const is True


def test_a_value_has_no_truth_at_build_time() -> None:
    k = Builder("truth")
    with pytest.raises(TypeError, match=r"select or k\.if_"):
        bool(k.global_id(0) < 3)


def test_dtypes_do_not_mix() -> None:
    k = Builder("mix")
    x = k.load(k.buffer("f32"), 0)
    with pytest.raises(TypeError, match="differ in dtype"):
        x + k.cast(x, "i32")
    with pytest.raises(TypeError, match="cast it first"):
        k.store(k.buffer("i32"), 0, x)


def test_a_loop_yields_what_it_carries() -> None:
    k = Builder("carry")
    with pytest.raises(TypeError, match="yields"), k.for_(0, 3, init=[k.const(0, "f32")]) as loop:
        loop.yield_(k.const(0, "i32"))


@pytest.mark.parametrize("place", PLACES)
def test_lanes(place: str) -> None:
    """Extract, shuffle, pack, step and gather."""
    k = Builder("lanes", index_bits=32)
    x, y = k.buffer("f32", readonly=True), k.buffer("f32")
    v, w = k.load(x, 0, 4), k.load(x, 4, 4)
    k.store(y, 0, k.shuffle(v, w, [7, 0, 5, 2]))
    k.store(y, 4, k.pack([k.lane(v, 3), k.lane(w, 1)]))
    k.store(y, 6, k.shuffle(v, v, [1, 0]))
    k.store(y, 8, k.load(x, k.iota(4) * 3 + 1))
    k.store(y, 12, k.cast(k.iota(4) * 2, "f32"))
    got = np.zeros(16, np.float32)
    run(place, k.finish(), (1,), None, LANES, got)
    assert got.tolist() == [7, 0, 5, 2, 3, 5, 1, 0, 1, 4, 7, 10, 0, 2, 4, 6]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", (1, 2, 4, 8))
def test_reduce_combines_halves(place: str, width: int) -> None:
    """In the documented order, to the bit."""
    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    k = Builder("reduce")
    buffer, out = k.buffer("f32", readonly=True), k.buffer("f32")
    k.store(out, 0, k.reduce("add", k.load(buffer, 0, width)))
    got, want = np.zeros(1, np.float32), x[:width]
    run(place, k.finish(), (1,), None, x, got)
    while want.size > 1:
        want = want[: want.size // 2] + want[want.size // 2 :]
    assert got[0] == want[0]


@pytest.mark.parametrize("place", PLACES)
def test_branches(place: str) -> None:
    """if, else, and values under a rarely taken branch, for scalars and vectors."""
    k = Builder("branches")
    x, y = k.buffer("f32", readonly=True), k.buffer("f32")
    i = k.global_id(0)
    with k.if_(i < 4):
        k.store(y, i, 1.0)
    with k.else_():
        k.store(y, i, 2.0)
    v = k.load(x, 0, 4)
    with k.if_(i == 0):
        k.store(y, 8, k.rarely(v > 2.0, [v], lambda: [-v])[0])
        s = k.load(x, 5)
        k.store(y, 12, k.rarely(s > 9.0, [s], lambda: [-s])[0])
    got = np.zeros(16, np.float32)
    run(place, k.finish(), (8,), None, LANES, got)
    assert got.tolist() == [1] * 4 + [2] * 4 + [0, 1, 2, -3, 5, 0, 0, 0]


@pytest.mark.parametrize("place", PLACES)
def test_arguments(place: str) -> None:
    """Scalars arrive in order with their dtypes; buffers are picked by a condition."""
    k = Builder("arguments", index_bits=64)
    x, y, out = k.buffer("f32", readonly=True), k.buffer("f32", readonly=True), k.buffer("f32")
    n, flag, f, i = k.arg("index"), k.arg("bool"), k.arg("f32"), k.arg("i32")
    picked = k.select_buffer(flag, x, y)
    k.store(out, 0, k.load(picked, n) * f + k.cast(i, "f32"))
    for flag_value, want in ((1, 3 * 0.5 - 7), (0, 30 * 0.5 - 7)):
        got = np.zeros(1, np.float32)
        scalars = np.int64(3), np.uint8(flag_value), np.float32(0.5), np.int32(-7)
        run(place, k.finish(), (1,), None, LANES, LANES * 10, got, *scalars)
        assert got[0] == want


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cases", (1, 3))
def test_a_switch_picks_buffers_and_values(place: str, cases: int) -> None:
    """By number; the last case where there is no such number. What is written through a picked buffer arrives."""
    k = Builder("picked", index_bits=32)
    number = k.arg("index")
    given = [(k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("f32")) for _ in range(cases)]
    x, y, factor = k.switch(number, given)
    k.store(y, 1, k.load(x, 2) * factor)
    for n in range(5):
        outs = [np.zeros(2, np.float32) for _ in range(cases)]
        args = [a for i, out in enumerate(outs) for a in (LANES * 10**i, out, np.float32(i + 1))]
        run(place, k.finish(), (1,), None, np.int32(n), *args)
        last = min(n, cases - 1)
        assert [out[1] for out in outs] == [2 * 10**i * (i + 1) if i == last else 0 for i in range(cases)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", (1, 4))
@pytest.mark.parametrize("half", ("f16", "bf16"))
def test_stores_round_halves_once_to_nearest_even(place: str, half: str, width: int) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32)
    hard = (np.arange(4096, dtype=np.uint32) << 12) + 0x38000000 + rng.integers(-1, 2, 4096).astype(np.uint32)
    x = np.concatenate([bits, hard]).view(np.float32)
    x = np.where(np.isnan(x), np.float32(np.nan), x)
    got = np.zeros(x.size, np.uint16)
    run(place, elementwise(lambda k, v: v, ("f32",), half, width), (x.size // width,), None, x, got)
    with np.errstate(over="ignore"):
        want = bf16(x) if half == "bf16" else x.astype(np.float16).view(np.uint16)
    value = from_bf16(got) if half == "bf16" else got.view(np.float16)
    assert np.isnan(value[np.isnan(x)]).all()
    assert np.array_equal(got[~np.isnan(x)], want[~np.isnan(x)])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", (1, 4))
@pytest.mark.parametrize("half", ("f16", "bf16"))
def test_bits_of_halves(place: str, half: str, width: int) -> None:
    """All 65536 of them through registers and back; a NaN stays a NaN."""
    k = Builder("bits", index_bits=64)
    x, bits, back = k.buffer(half, readonly=True), k.buffer("i16"), k.buffer(half)
    i = k.global_id(0) * width
    v = k.bitcast(k.load(x, i, width), "i16", half=half)
    k.store(bits, i, v)
    k.store(back, i, k.bitcast(v, half))
    given = np.arange(1 << 16, dtype=np.uint16)
    first, second = np.zeros_like(given), np.zeros_like(given)
    run(place, k.finish(), (given.size // width,), None, given, first, second)
    special = 0x7C00 if half == "f16" else 0x7F80
    nan = (given & 0x7FFF) > special
    for got in (first, second):
        assert np.array_equal(got[~nan], given[~nan])
        assert ((got[nan] & 0x7FFF) > special).all()


ATOMICS = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum, "mul": np.multiply}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ("f32", "f64", "i32", "i64", "u8", "i16", "f16", "bf16"))
def test_atomics(place: str, dtype: str) -> None:
    """Many work items update eight neighbours, in one buffer for each function."""
    from tests.codegen.run_kernel import MEMORY

    k, count = Builder("atomics", index_bits=64), 512
    i, x = k.global_id(0), k.buffer(dtype, readonly=True)
    for fn in ATOMICS:
        k.atomic(fn, k.buffer(dtype), i % 8, k.load(x, i))
    values = np.random.default_rng(0).choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 2], count).reshape(-1, 8)
    values[10:] = np.where(values[10:] == 2, 1, values[10:])
    encode = bf16 if dtype == "bf16" else lambda a: np.asarray(a).astype(MEMORY[dtype])
    outs = [encode(np.ones(8)) for _ in ATOMICS]
    run(place, k.finish(), (count,), None, encode(values.ravel()), *outs)
    for (fn, ufunc), got in zip(ATOMICS.items(), outs, strict=True):
        want = ufunc.reduce(values, axis=0, initial=1)
        assert np.array_equal(from_bf16(got) if dtype == "bf16" else got, want), fn


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("dtype", "width"), [("f32", 1), ("f32", 8), ("f64", 4), ("i32", 8)])
def test_a_term_of_a_sum_is_rounded_once_or_twice(place: str, dtype: str, width: int) -> None:
    """once wherever a processor of today runs it; integers are exact"""
    rng = np.random.default_rng(0)
    kind = {"f32": np.float32, "f64": np.float64, "i32": np.int32}[dtype]
    a, b, c = (rng.normal(scale=1e3, size=4096).astype(kind) for _ in range(3))
    got = np.empty_like(c)
    text = elementwise(lambda k, *v: k.multiply_add(*v), (dtype,) * 3, dtype, width)
    run(place, text, (got.size // width,), None, a, b, c, got)
    exact = a.astype(np.longdouble) * b + c
    once, twice = exact.astype(kind), a * b + c
    assert ((got == once) | (got == twice)).all()
    if place == "Intel" and dtype != "i32":
        assert (got == once).all() and (once != twice).any()
