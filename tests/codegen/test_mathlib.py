"""The math library: error bounds against float64, special values, and the same bits wherever a function runs."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch

from codegen.mathlib import BOUNDS
from tests.codegen.run_kernel import PLACES, elementwise, run

ORACLES: dict[str, Callable[..., torch.Tensor]] = {
    fn: getattr(torch, {"erf_inv": "erfinv"}.get(fn, fn)) for fn in BOUNDS["f32"] if fn not in ("pow", "atan2")
}
ABSOLUTE = ("lgamma", "digamma")  # about their zeros
QUICK, CHUNK = 1 << 16, 1 << 24


def apply(place: str, fn: str, *operands: np.ndarray, width: int = 1) -> np.ndarray:
    out = np.empty_like(operands[0])
    element = {4: "f32", 8: "f64"}[out.itemsize]
    text = elementwise(lambda k, *v: k.map(fn, *v), (element,) * len(operands), element, width)
    run(place, text, (out.size // width,), None, *operands, out)
    return out


def ulps(got: np.ndarray, exact: np.ndarray, fn: str = "") -> np.ndarray:
    """Distance from the exact value in units of the last place that float32 has there."""
    errors = np.zeros(got.shape)
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        differs = got.view(np.uint32) != rounded.view(np.uint32)  # few, so the rest is for them alone
        got, exact, rounded = got[differs], exact[differs], rounded[differs]
        size = np.maximum(np.abs(exact), 1) if fn in ABSOLUTE else np.abs(exact)
        unit = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 24, -149))
        same = (got == rounded) | (np.isnan(got) & np.isnan(exact))
        errors[differs] = np.where(same, 0, np.nan_to_num(np.abs(got - exact) / unit, nan=np.inf))
    return errors


def floats(start: int, count: int, step: int) -> np.ndarray:
    """float32 values by their bits."""
    return np.arange(start, start + count * step, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def worst(fn: str, x: np.ndarray) -> tuple[float, float]:
    """The greatest error over arguments, and where."""
    if fn in ABSOLUTE:
        x = np.abs(x)
    exact = ORACLES[fn](torch.from_numpy(x).double()).numpy()
    error = ulps(apply("Intel", fn, x), exact, fn)
    return float(error.max()), float(x[error.argmax()])


@pytest.mark.parametrize("fn", ORACLES)
def test_bound_on_a_sample(fn: str) -> None:
    """Every 65521st float32, and a close look at the arguments around 1."""
    for x in (floats(0, QUICK, 65521), floats(0x3F000000, QUICK, 257), floats(0xBF000000, QUICK, 257)):
        error, at = worst(fn, x)
        assert error <= BOUNDS["f32"][fn], f"{fn}({at!r})"


@pytest.mark.parametrize("place", PLACES)
def test_bound_where_every_float_has_its_worst(place: str) -> None:
    """What the slow test below found, and that tan and acosh had 2.25 and 2.15 ulp at theirs."""
    found = {
        "log": 1.3335577, "log2": 1.3359534, "log10": 1.3334974, "log1p": 0.33365056, "cosh": 4.5446525,
        "sinh": 1.4182405, "tanh": 0.51745725, "asinh": 0.51813507, "acosh": 1.0291108, "atanh": 0.68949848,
        "sin": 2.7946780e26, "cos": 1946879232.0, "tan": 56422.219, "asin": 0.52947426, "acos": -0.50808283,
        "atan": 1.1204195, "expm1": 0.39623004,
    }  # fmt: skip
    for fn, at in found.items():
        x = np.full(16, at, np.float32)
        error = ulps(apply(place, fn, x), ORACLES[fn](torch.from_numpy(x).double()).numpy(), fn).max()
        assert error <= BOUNDS["f32"][fn], (fn, error)


@pytest.mark.slow
@pytest.mark.parametrize("fn", ORACLES)
def test_bound_on_every_float(fn: str) -> None:
    for start in range(0, 1 << 32, CHUNK):
        error, at = worst(fn, floats(start, CHUNK, 1))
        assert error <= BOUNDS["f32"][fn], f"{fn}({at!r})"


def test_bounds_of_two_arguments() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-80, 80, QUICK)).astype(np.float32)
    y = (rng.uniform(-1.1, 1.1, QUICK) * 88 / np.log(x)).astype(np.float32)
    near = (1 + rng.uniform(-0.4, 0.4, QUICK)).astype(np.float32)
    steep = (rng.uniform(-80, 80, QUICK) / np.log(near)).astype(np.float32)
    for base, exponent in ((x, y), (near, steep)):
        with np.errstate(over="ignore"):
            exact = np.power(base.astype(np.longdouble), exponent).astype(np.float64)
        assert ulps(apply("Intel", "pow", base, exponent), exact).max() <= BOUNDS["f32"]["pow"]
    exact = np.arctan2(y.astype(np.float64), x)
    assert ulps(apply("Intel", "atan2", y, x), exact).max() <= BOUNDS["f32"]["atan2"]


def exponentials(rng: np.random.Generator, low: float, high: float, count: int = 1 << 13) -> np.ndarray:
    """Positive numbers whose logarithms lie in a range."""
    return np.exp(rng.uniform(low, high, count))


def doubles(fn: str) -> np.ndarray:
    """Arguments of a function of float64: all its range, its steep and its flat parts, and what is next to 0."""
    rng, count = np.random.default_rng(0), 1 << 13
    near = rng.normal(size=count)
    ranges: dict[str, list[np.ndarray]] = {
        "exp": [rng.uniform(-745, 709.7, count)],
        "exp2": [rng.uniform(-1074, 1024, count)],
        "expm1": [rng.uniform(-40, 709.7, count)],
        "log log2 log10": [exponentials(rng, -740, 709), rng.uniform(0.5, 2, count), 1 + near * 1e-4],
        "log1p": [exponentials(rng, -100, 700), -rng.uniform(0, 1, count)],
        "sinh cosh": [rng.uniform(-710.4, 710.4, count)],
        "asinh": [exponentials(rng, -40, 700)],
        "acosh": [1 + exponentials(rng, -35, 5), exponentials(rng, 0.1, 700)],
        "asin acos atanh": [rng.uniform(-1, 1, count), 1 - exponentials(rng, -30, -1)],
        "sin cos tan": [rng.uniform(-1e9, 1e9, count), rng.integers(-(10**6), 10**6, count) * np.pi / 2, near * 1e12],
        "atan": [exponentials(rng, -50, 50)],
        "tanh": [near * 5],
    }
    inside = [near[np.abs(near) < 0.99], near[np.abs(near) < 5] / 5]
    around = [1 + np.abs(near)] if fn == "acosh" else inside if fn in ("asin", "acos", "atanh") else [near, near * 1e-9]
    if fn in ("log", "log2", "log10"):
        around = [np.abs(near)]
    here = next(arrays for names, arrays in ranges.items() if fn in names.split())
    x = np.concatenate(here + around)
    return x[: x.size // 8 * 8].copy()


def double_ulps(got: np.ndarray, exact: np.ndarray, least: float = 0.0) -> float:
    """The greatest distance from a long double in units of float64's last place; of `least` where that is more."""
    with np.errstate(all="ignore"):
        want = exact.astype(np.float64)
        size = np.maximum(np.abs(want), least)
        unit = np.ldexp(np.longdouble(1), np.maximum(np.frexp(size)[1] - 53, -1074))
        finite = np.isfinite(want)
        assert np.array_equal(got[~finite], want[~finite], equal_nan=True)
        return float(np.abs((got - exact) / unit)[finite].max())


NUMPY = {fn: fn.replace("a", "arc", 1) for fn in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}
EXACT = {"erf": "erf", "erfc": "erfc", "erf_inv": "erfinv", "lgamma": "loggamma", "digamma": "digamma"}  # mpmath's


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fn", sorted(set(BOUNDS["f64"]) - {"pow", "atan2", "rsqrt", *EXACT}))
@pytest.mark.sampled
def test_bounds_of_doubles(fn: str, place: str) -> None:
    """against long doubles, the same on scalars and vectors"""
    x = doubles(fn)
    with np.errstate(all="ignore"):
        exact = getattr(np, NUMPY.get(fn, fn))(x.astype(np.longdouble))
    got = apply(place, fn, x)
    inside = (np.abs(x) <= 1e9) | (fn not in ("sin", "cos", "tan"))
    assert double_ulps(got[inside], exact[inside]) <= BOUNDS["f64"][fn]
    if not inside.all():  # the language's: OpenCL allows sines 4 ulp and tan 5
        assert double_ulps(got[~inside], exact[~inside]) <= 5
    assert np.array_equal(got[inside], apply(place, fn, x, width=8)[inside], equal_nan=True)


@pytest.mark.parametrize("fn", EXACT)
def test_bounds_of_doubles_that_numpy_does_not_have(fn: str) -> None:
    """against mpmath"""
    rng, count = np.random.default_rng(0), 400
    wide = {
        "erf": rng.normal(size=count) * 3,
        "erfc": rng.uniform(-6, 26, count),
        "erf_inv": np.concatenate([rng.uniform(-1, 1, count), 1 - np.exp(rng.uniform(-36, -1, count))]),
    }
    positive = exponentials(rng, -20, 20, count)
    x = np.concatenate([wide.get(fn, positive), rng.uniform(0, 1, count), rng.normal(size=8) / 1e4])
    x = np.abs(x) if fn in ABSOLUTE else x
    with mpmath.workprec(120):
        values = [getattr(mpmath, EXACT[fn])(mpmath.mpf(float(v))) for v in x]
        exact = np.array([np.longdouble(mpmath.nstr(v, 25)) for v in values])
    got = apply("Intel", fn, x)
    assert double_ulps(got, exact, 1.0 if fn in ABSOLUTE else 0.0) <= BOUNDS["f64"][fn]
    assert np.array_equal(got, apply("Intel", fn, x, width=8))


@pytest.mark.parametrize("place", PLACES)
def test_powers_and_angles_of_doubles(place: str) -> None:
    rng = np.random.default_rng(0)
    x, near = exponentials(rng, -300, 300), 1 + rng.uniform(-0.4, 0.4, 1 << 13)
    y, steep = rng.uniform(-1.1, 1.1, x.size) * 700 / np.log(x), rng.uniform(-700, 700, x.size) / np.log(near)
    for base, exponent in ((x, y), (near, steep), (near * 3, near * 5)):
        with np.errstate(all="ignore"):
            exact = np.power(base.astype(np.longdouble), exponent.astype(np.longdouble))
        got = apply(place, "pow", base, exponent)
        assert double_ulps(got, exact) <= BOUNDS["f64"]["pow"]
        assert np.array_equal(got, apply(place, "pow", base, exponent, width=8), equal_nan=True)
    rise, run = rng.normal(size=x.size) * x, rng.normal(size=x.size) * x[::-1]
    exact = np.arctan2(rise.astype(np.longdouble), run.astype(np.longdouble))
    assert double_ulps(apply(place, "atan2", rise, run), exact) <= BOUNDS["f64"]["atan2"]


# (argument, value)
INF, NAN, TINY = np.inf, np.nan, 1e-45
SPECIAL = {
    "exp": [(-INF, 0), (INF, INF), (NAN, NAN), (88.8, INF), (-104, 0), (-104.1, 0), (-103, TINY), (-0.0, 1)],
    "exp2": [(-INF, 0), (INF, INF), (NAN, NAN), (128, INF), (-149, TINY), (-151, 0), (-151.1, 0), (-0.0, 1)],
    "expm1": [(-INF, -1), (INF, INF), (3e38, INF), (-0.0, -0.0), (TINY, TINY)],
    "log": [(0.0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF), (TINY, -103.27893), (1, 0)],
    "log1p": [(-1, -INF), (-2, NAN), (INF, INF), (-0.0, -0.0), (TINY, TINY)],
    "sin": [(INF, NAN), (-INF, NAN), (-0.0, -0.0), (3e38, np.sin(np.float64(np.float32(3e38)))), (TINY, TINY)],
    "cos": [(INF, NAN), (0.0, 1), (1e30, np.cos(np.float64(np.float32(1e30))))],
    "tan": [(INF, NAN), (-0.0, -0.0), (1e10, np.tan(np.float64(np.float32(1e10))))],
    "tanh": [(INF, 1), (-INF, -1), (-0.0, -0.0), (50, 1), (NAN, NAN)],
    "sinh": [(INF, INF), (-INF, -INF), (89.4, np.sinh(np.float64(np.float32(89.4)))), (-0.0, -0.0)],
    "cosh": [(INF, INF), (-INF, INF), (-0.0, 1)],
    "asin": [(1, np.pi / 2), (-1, -np.pi / 2), (1.1, NAN), (-0.0, -0.0)],
    "acos": [(1, 0), (-1, np.pi), (-1.1, NAN)],
    "atan": [(INF, np.pi / 2), (-INF, -np.pi / 2), (-0.0, -0.0)],
    "asinh": [(INF, INF), (-INF, -INF), (3e38, np.arcsinh(np.float64(np.float32(3e38)))), (-0.0, -0.0)],
    "acosh": [(1, 0), (0.5, NAN), (-5, NAN), (INF, INF)],
    "atanh": [(1, INF), (-1, -INF), (2, NAN), (-0.0, -0.0)],
    "erf": [(INF, 1), (-INF, -1), (-0.0, -0.0), (NAN, NAN)],
    "erfc": [(INF, 0), (-INF, 2), (NAN, NAN)],
    "erf_inv": [(1, INF), (-1, -INF), (1.5, NAN), (-0.0, -0.0)],
    "lgamma": [
        (-1e-8, 18.42068074972452),
        (1, 0),
        (2, 0),
        (0.0, INF),
        (-0.0, INF),
        (-1, INF),
        (-3, INF),
        (INF, INF),
        (-INF, INF),
        (NAN, NAN),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-1, NAN), (-2, NAN), (INF, INF), (NAN, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0), (-1, NAN)],
}


ENDS = (INF, -INF, NAN, 0.0, 1, -1, 2, -2, 0.5, -5, 1.1, -1.1, 1.5, -3, -1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", PLACES)
def test_special_values(place: str, dtype: type) -> None:
    """Those at the ends of float32's range are numbers like others in float64."""
    for fn, cases in SPECIAL.items():
        cases = [c for c in cases if dtype is np.float32 or c[0] in ENDS]
        x, want = np.array(cases, np.float64).astype(dtype).T.copy()
        got = apply(place, fn, x)
        assert np.allclose(got, want, rtol=3e-7 if dtype is np.float32 else 1e-15, atol=0, equal_nan=True), (
            fn,
            got,
            want,
        )
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all(), (fn, got, want)


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("place", PLACES)
def test_erf_beside_one(place: str, width: int) -> None:
    """An absolute error of a GELU's: 1 is added, so that half of float32's last bit of 1 is lost anyway."""
    x = np.concatenate([np.linspace(-5, 5, QUICK), np.geomspace(1e-30, 100, QUICK)]).astype(np.float32)
    exact = torch.erf(torch.from_numpy(x.astype(np.float64))).numpy()
    got = apply(place, "erf_beside_one", x, width=width)
    assert np.abs(got - exact).max() <= 2.0**-23.2 and np.array_equal(np.signbit(got), np.signbit(x))
    ends = np.array([INF, -INF, 0.0, -0.0, 4, -4, 1e30, -3e38], np.float32)
    assert apply(place, "erf_beside_one", ends, width=width).tolist() == [1, -1, 0, 0, 1, -1, 1, -1]
    assert np.isnan(apply(place, "erf_beside_one", np.full(8, NAN, np.float32), width=width)).all()


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("place", PLACES)
def test_exponentials_of_a_softmax(place: str, width: int) -> None:
    """as good as exp from -87 to 0; 0 below, NaN for any NaN"""
    x = -np.concatenate([np.linspace(0, 87, QUICK), np.geomspace(1e-30, 1, QUICK)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert ulps(apply(place, "softmax_exp", x, width=width), exact).max() <= BOUNDS["f32"]["exp"]
    below = np.array([-87.1, -90, -104, -1e4, -3e38, -INF, -88, -1e10], np.float32)
    assert not apply(place, "softmax_exp", below, width=width).any()
    nans = np.array([0x7FC00000, 0x7FC00001, 0x7FC001FF, 0x7FFFFFFF, 0xFFC00000, 0xFFC00155, 0xFFFFFFFF, 0x7FC00100])
    assert np.isnan(apply(place, "softmax_exp", nans.astype(np.uint32).view(np.float32), width=width)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", PLACES)
def test_powers_as_in_ieee_754(place: str, dtype: type) -> None:
    values = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 2.5, INF, -INF, NAN, 1e10, 16777217.0)
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y).astype(dtype)
        angle = np.arctan2(y.astype(np.float64), x).astype(dtype)
    got = apply(place, "pow", x, y)
    assert np.allclose(got, want, rtol=3e-7, atol=0, equal_nan=True), [*zip(x, y, got, want, strict=True)]
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
    assert np.allclose(apply(place, "atan2", y, x), angle, rtol=3e-7, atol=0, equal_nan=True)


def test_same_bits_everywhere() -> None:
    """Scalars and vectors, and all languages: how a window is cut or where it runs changes nothing."""
    x = floats(0, QUICK, 65521)
    operands = {"pow": (x, np.roll(x, 7)), "atan2": (x, np.roll(x, 7))}
    for fn in BOUNDS["f32"]:
        first = apply("Intel", fn, *operands.get(fn, (x,)))
        for place, width in (("Intel", 8), ("Portable", 1), ("Portable", 4), ("c", 1), ("c", 8)):
            try:
                got = apply(place, fn, *operands.get(fn, (x,)), width=width)
            except pytest.skip.Exception:
                continue  # PoCL where its compiler does not know the processor; the tests of each place say so
            assert np.array_equal(got, first, equal_nan=True), (fn, place, width)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fn", ["exp", "exp2"])
def test_powers_in_vectors_of_any_mixture(fn: str, place: str) -> None:
    """Lanes whose results are normal, subnormal, infinite, 0 or NaN do not change their neighbours."""
    rng = np.random.default_rng(0)
    edges = [s * v for v in (87.0, 87.3, 88.7, 89.0, 103.9, 104.1, 126.0, 127.9, 149.5, INF, NAN, 0.0) for s in (1, -1)]
    x = rng.normal(size=QUICK).astype(np.float32)
    places = rng.random(QUICK) < 0.1
    x[places] = rng.choice(np.array(edges, np.float32), places.sum())
    with np.errstate(all="ignore"):
        exact = getattr(np, fn)(x.astype(np.float64))
    alone = apply(place, fn, x)
    assert ulps(alone, exact).max() <= BOUNDS["f32"][fn]
    # PoCL 3 crashes on 512-bit vectors where it builds for a processor that it does not know to have them.
    for width in (4, 8) if place == "Portable" else (4, 8, 16):
        assert np.array_equal(apply(place, fn, x, width=width), alone, equal_nan=True), width


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_are_exact(dtype: type, place: str, width: int) -> None:
    """Numbers of all sizes, neighbours of multiples, and what is no number: all of C's bits."""
    rng = np.random.default_rng(0)
    bits = np.uint32 if dtype is np.float32 else np.uint64
    y = rng.integers(0, np.iinfo(bits).max, QUICK, dtype=bits).view(dtype)
    with np.errstate(all="ignore"):
        near = (y * rng.integers(-40, 40, QUICK)).astype(dtype)
        far = (y * rng.normal(size=QUICK) * 1e5).astype(dtype)
        x = np.choose(rng.integers(4, size=QUICK), [near, np.nextafter(near, dtype(0)), far, y[::-1]])
        tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
        powers = 2.0 ** np.array([22, 51, 126, 127, -126])
        edges = np.array([0, -0.0, 1, -3, INF, -INF, NAN, tiny, -99 * tiny, huge, 2.0**24 + 2, *powers], dtype)
        x[: edges.size**2], y[: edges.size**2] = np.repeat(edges, edges.size), np.tile(edges, edges.size)
        exact = np.fmod(x, y) if dtype is np.float64 else np.fmod(x.astype(float), y.astype(float)).astype(dtype)
    got = apply(place, "fmod", x, y, width=width)
    different = (got.view(bits) != exact.view(bits)) & ~(np.isnan(got) & np.isnan(exact))
    assert not different.any(), (x[different][:3], y[different][:3], got[different][:3], exact[different][:3])
