"""Every function of the scalar catalogue, for each dtype, on scalars and vectors, against its NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest

from codegen import scalar
from codegen.scalar import CATALOGUE
from ops_core.scalars import BY_NAME as REFERENCES
from tests.codegen.run_kernel import MEMORY, PLACES, elementwise, run

COUNT = 256
# Ranges where the others' domain is narrower
DOMAINS = {
    "acosh": (1, 50), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-0.99, 0.99), "erf_inv": (-0.99, 0.99),
    "lgamma": (0.1, 20), "digamma": (0.1, 20), "log": (0.01, 99), "log2": (0.01, 99), "log10": (0.01, 99),
    "log1p": (-0.9, 99), "sqrt": (0, 99), "rsqrt": (0.01, 99),
}  # fmt: skip
TOLERANCE = {"f32": 2e-6, "f64": 1e-13}


def operands(fn: str, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(len(fn))
    reference = REFERENCES[fn]
    if dtype[0] == "f":
        low, high = DOMAINS.get(fn, (-8, 8))
        arrays = [rng.uniform(low, high, COUNT) for _ in range(reference.arity)]
        if fn == "pow":
            arrays[0] = np.abs(arrays[0])
    else:
        bits = 8 * MEMORY[dtype]().itemsize
        arrays = [
            rng.integers(0 if dtype[0] in "ub" else -20, 2 if dtype == "bool" else 20, COUNT)
            for _ in range(reference.arity)
        ]
        if fn in ("shl", "shr"):
            arrays[1] = rng.integers(0, bits, COUNT)
        if fn in ("div", "fmod", "remainder"):
            arrays[1][arrays[1] == 0] = 3
    return [a.astype(MEMORY[dtype]) for a in arrays]


CASES = [
    (fn, dtype)
    for fn in CATALOGUE
    for dtype in ("f32", "f64", "i32", "i64", "i8", "u8", "bool")
    if fn in REFERENCES and scalar.kind(dtype).replace("u", "i") in REFERENCES[fn].dtypes
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ("f32", "f64", "i32", "i64", "i8", "u8", "bool"))
@pytest.mark.parametrize("width", (1, 4))
@pytest.mark.sampled
def test_catalogue(place: str, dtype: str, width: int) -> None:
    """All functions of one dtype, one output column each, in one kernel."""
    from codegen.builder import Builder

    fns = [fn for fn, d in CASES if d == dtype]
    k = Builder("catalogue", index_bits=64)
    i = k.global_id(0) * width
    arrays, outputs = [], []
    for fn in fns:
        values = operands(fn, dtype)
        buffers = [k.buffer(dtype, readonly=True) for _ in values]
        result = "bool" if REFERENCES[fn].result == "bool" else dtype
        out = k.buffer(result)
        k.store(out, i, k.map(fn, *(k.load(b, i, width) for b in buffers)))
        outputs.append((fn, values, np.zeros(COUNT, MEMORY[result])))
        arrays += [*values, outputs[-1][2]]
    run(place, k.finish(), (COUNT // width,), None, *arrays)
    with np.errstate(all="ignore"):
        for fn, values, got in outputs:
            wide = [v.astype(np.float64) for v in values] if dtype == "f32" else values
            want = REFERENCES[fn].reference(*(values if fn == "nextafter" else wide))
            tolerance = TOLERANCE.get(dtype, 0) * (20 if fn in ("digamma", "fmod", "remainder") else 1)
            np.testing.assert_allclose(got, want.astype(got.dtype), rtol=tolerance, atol=tolerance, err_msg=fn)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fn", ("div", "fmod", "remainder"))
def test_integer_division_never_traps(place: str, fn: str) -> None:
    least = np.iinfo(np.int32).min
    x = np.array([7, least, -7, 0], np.int32)
    y, got = np.array([0, -1, -1, 0], np.int32), np.ones(4, np.int32)
    run(place, elementwise(lambda k, a, b: k.map(fn, a, b), ("i32", "i32"), "i32", 1), (4,), None, x, y, got)
    assert got.tolist() == ([0, least, 7, 0] if fn == "div" else [0, 0, 0, 0])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", (1, 4))
@pytest.mark.parametrize("source", MEMORY)
@pytest.mark.sampled
def test_casts(place: str, source: str, width: int) -> None:
    """To every dtype as NumPy casts; f16 and bf16 go through f32 and are rounded once."""
    from codegen.builder import HALVES, Builder
    from tests.codegen.run_kernel import bf16, from_bf16

    values = np.array([0, 1, 2, 100, 3, 0, 7, 64] if source[0] in "ub" else [0, -1, 2.5, 100.75, -3.5, 0.25, 7, -64])
    x = bf16(values) if source == "bf16" else values.astype(MEMORY[source])
    plain = from_bf16(x) if source == "bf16" else x
    k = Builder("casts", index_bits=64)
    buffer = k.buffer(source, readonly=True)
    v = k.load(buffer, k.global_id(0) * width, width)
    arrays = []
    for target in MEMORY:
        k.store(k.buffer(target), k.global_id(0) * width, k.cast(v, "f32" if target in HALVES else target))
        arrays.append(np.zeros(8, MEMORY[target]))
    run(place, k.finish(), (8 // width,), None, x, *arrays)
    for target, got in zip(MEMORY, arrays, strict=True):
        if target in ("u32", "u64") and plain.dtype.kind in "fi" and (plain < 0).any():
            continue  # a negative float as unsigned is nobody's promise
        through = plain.astype(np.int64) if plain.dtype.kind == "f" and target[0] in "ui" else plain
        want = bf16(through) if target == "bf16" else through.astype(MEMORY[target])
        np.testing.assert_array_equal(got, want, err_msg=target)
