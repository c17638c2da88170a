"""Stage 4's cases: each core op on small tensors, in every dtype that it takes, strided and not."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.index import contiguous
from ops_core import dtypes, numerics, scalars
from ops_core.ir import Graph, Node

FLOATS = ("f32", "f64", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
# Relative to the largest magnitude of the result: a few roundings of the dtype (sums and products more).
TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 3e-5, "f64": 1e-11}


@dataclass(frozen=True)
class Input:
    """A tensor to load: values, dtype, and whether its memory is transposed."""

    values: np.ndarray
    dtype: str
    transposed: bool = False


@dataclass(frozen=True)
class Case:
    """One node on some inputs. outputs: a dtype each."""

    op: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]

    def graph(self) -> tuple[Graph, dict[int, np.ndarray], dict[int, str]]:
        """Loads, the node, stores; the initial memory and the dtype of each slot."""
        graph, memory, kinds = Graph(), {}, {}
        loaded = []
        for slot, x in enumerate(self.inputs):
            data = x.values.T if x.transposed else x.values
            memory[slot], kinds[slot] = np.ascontiguousarray(data).reshape(-1).copy(), x.dtype
            strides = contiguous(data.shape)[::-1] if x.transposed else contiguous(data.shape)
            attrs = {"slot": slot, "sizes": x.values.shape, "strides": strides, "offset": 0}
            loaded.append(graph.add("load", (), x.values.shape, x.dtype, **attrs))
        shapes = self._shapes([x.values for x in self.inputs])
        specs = [(shape, dtype) for shape, dtype in zip(shapes, self.outputs, strict=True)]
        for value in graph.add_multi(self.op, tuple(loaded), specs, **self.attrs):
            slot = len(memory)
            count = int(np.prod(value.shape))
            memory[slot], kinds[slot] = np.zeros(count, numerics.numpy_dtype(value.dtype)), value.dtype
            attrs = {"slot": slot, "sizes": value.shape, "strides": contiguous(value.shape), "offset": 0}
            graph.add_multi("store", (value,), [], **attrs)
        return graph, memory, kinds

    def _shapes(self, values: list[np.ndarray]) -> list[tuple[int, ...]]:
        if "shape" in self.attrs:
            return [tuple(self.attrs["shape"])]
        if self.op == "map":
            return [values[0].shape] * len(self.outputs)
        if self.op == "pad":
            return [tuple(np.add(np.add(values[0].shape, self.attrs["low"]), self.attrs["high"]).tolist())]
        from ops_core.table import BY_NAME

        reference = BY_NAME[self.op].reference
        assert reference is not None, self.op
        with np.errstate(all="ignore"):
            result = reference({**self.attrs, "dtype": self.outputs[0]}, *values)
        return [np.shape(r) for r in (result if isinstance(result, tuple) else (result,))]


class Maker:
    """Reproducible inputs of one dtype."""

    def __init__(self, dtype: str, seed: str):
        self.dtype, self.kind = dtype, dtypes.BY_NAME[dtype].kind
        self.random = np.random.default_rng(zlib.crc32(f"{seed} {dtype}".encode()))

    def __call__(self, *shape: int, low: float = -4, high: float = 4, transposed: bool = False) -> Input:
        """A tensor of values in [low, high]."""
        if self.kind == "f":
            values = self.random.uniform(low, high, shape)
        elif self.kind == "b":
            values = self.random.integers(0, 2, shape).astype(np.float64)
        else:
            least = max(int(low), 0) if self.kind == "u" else int(low)
            values = self.random.integers(least, int(high) + 1, shape).astype(np.float64)
        return Input(numerics.cast(values, self.dtype), self.dtype, transposed)

    def index(self, bound: int, *shape: int) -> Input:
        """Indices in [0, bound)."""
        return Input(self.random.integers(0, bound, shape), "i64")


CONV = {
    "stride": (2, 1),
    "padding": (1, 0),
    "dilation": (1, 2),
    "transposed": False,
    "output_padding": (0, 0),
    "groups": 2,
}
Written = tuple[tuple[Input, ...], tuple[str, ...] | None, dict[str, Any]]
Row = tuple[tuple[str, ...], Callable[[Maker], list[Written]]]
ALL = (*FLOATS, *INTEGERS, "bool")
NUMBERS = (*FLOATS, *INTEGERS)


def _dims(*attrs: dict[str, Any], out: tuple[str, ...] | None = None) -> Callable[[Maker], list[Written]]:
    """One input of shape (5, 6, 7), plain and permuted in memory, for each set of attributes."""
    return lambda m: [((m(5, 6, 7, transposed=t),), out, a) for a in attrs for t in (False, True)]


# op -> dtypes, and what to run for a dtype: (inputs, output dtypes or None for the first input's, attrs).
ROWS: dict[str, Row] = {
    "full": (ALL, lambda m: [((), (m.dtype,), {"value": 1, "shape": (3, 4)})]),
    "iota": (("i64", "i32", "f32"), lambda m: [((), (m.dtype,), {"shape": (100,)})]),
    "expand": (ALL, lambda m: [((m(5, 1),), None, {"shape": (3, 5, 4)})]),
    "permute": (ALL, _dims({"dims": (2, 0, 1)})),
    "reshape": (ALL, _dims({"shape": (30, 7)}, {"shape": (5, 42)})),
    "slice": (ALL, _dims({"start": (1, 5, 0), "size": (3, 3, 7), "step": (1, -2, 1)})),
    "pad": (ALL, lambda m: [((m(4, 5), m()), None, {"low": (1, 0), "high": (2, 3)})]),
    "cat": (ALL, lambda m: [((m(2, 3), m(4, 3), m(1, 3, transposed=True)), None, {"dim": 0})]),
    "gather": (ALL, lambda m: [((m(5, 6), m.index(5, 3, 6)), None, {"dim": 0})]),
    "index": (ALL, lambda m: [((m(5, 6, 7), m.index(5, 4), m.index(6, 4)), None, {"dims": (0, 1)})]),
    "index_put": (
        ("f32", "f64", "i64", "i32"),
        lambda m: [
            ((m(50, 3), m(8, 3), Input(np.arange(8)[::-1] * 5, "i64")), None, {"dims": (0,), "reduce": "set"}),
            ((m(5, 3), m(40, 3), m.index(5, 40)), None, {"dims": (0,), "reduce": "add"}),
        ],
    ),
    "scatter": (
        ("f32", "f64", "i64", "i32"),
        lambda m: [
            ((m(5, 6), m.index(5, 9, 6), m(9, 6)), None, {"dim": 0, "reduce": r}) for r in ("add", "amax", "amin")
        ],
    ),
    "sum": (NUMBERS, _dims({"dims": (1,)}, {"dims": (0, 2)}, {"dims": (0, 1, 2)})),
    "prod": (("f32", "f64", "i64"), _dims({"dims": (2,)})),
    "amax": (ALL, _dims({"dims": (0,)}, {"dims": (1, 2)})),
    "amin": (ALL, _dims({"dims": (0,)}, {"dims": (1, 2)})),
    "argmax": (NUMBERS, _dims({"dims": (1,)}, out=("i64",))),
    "argmin": (NUMBERS, _dims({"dims": (1,)}, out=("i64",))),
    "cumsum": (("f32", "f64", "i64"), _dims({"dim": 0}, {"dim": 2})),
    "cumprod": (("f32", "f64", "i64"), lambda m: [((m(4, 5, low=-2, high=2),), None, {"dim": 1})]),
    "cummax": (("f32", "f64", "i64"), lambda m: [((m(4, 9),), (m.dtype, "i64"), {"dim": 1})]),
    "logcumsumexp": (("f32", "f64"), _dims({"dim": 1})),
    "matmul": (
        (*FLOATS, "i64", "i32"),
        lambda m: [
            ((m(2, 17, 9), m(2, 9, 33)), None, {}),
            ((m(40, 24, transposed=True), m(24, 50)), None, {}),
            ((m(1, 100), m(100, 3, transposed=True)), None, {}),
        ],
    ),
    "convolution": (
        FLOATS,
        lambda m: [
            ((m(2, 4, 9, 8), m(6, 2, 3, 2)), None, CONV),
            ((m(2, 4, 5, 6), m(4, 3, 3, 2)), None, {**CONV, "transposed": True, "output_padding": (1, 0)}),
        ],
    ),
    "sort": (
        (*NUMBERS,),
        lambda m: [
            (
                (m(4, 33, low=-100, high=100),),
                (m.dtype, "i64"),
                {"dim": 1, "descending": d, "stable": True, "start": start, "count": count},
            )
            for d in (False, True)
            for start, count in ((0, 33), (0, 5), (20, 1))
        ],
    ),
    "searchsorted": (
        ("f32", "i64"),
        lambda m: [((Input(np.sort(m(20).values), m.dtype), m(4, 5)), ("i64",), {"right": r}) for r in (False, True)],
    ),
    "nonzero": (("bool", "i64", "f32"), lambda m: [((m(5, 6, low=0, high=1.4),), ("i64",), {"size": 12})]),
    "rand_bits": (
        ("u32",),
        lambda m: [((Input(np.asarray(7), "i64"), Input(np.asarray(2**33 + 5), "i64")), ("u32",), {"shape": (1001,)})],
    ),
}  # fmt: skip

# Where a scalar function is defined, and not so steep that a rounding of its input decides its output.
_DOMAINS = {
    "sqrt": (0.1, 9), "rsqrt": (0.1, 9), "reciprocal": (0.2, 4), "log": (0.1, 9), "log2": (0.1, 9), "log10": (0.1, 9),
    "log1p": (-0.8, 9), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "erf_inv": (-0.9, 0.9),
    "acosh": (1.2, 9), "lgamma": (0.2, 9), "digamma": (2, 9), "tan": (-1.2, 1.2), "pow": (0.2, 3), "div": (1, 9),
    "fmod": (1, 9), "remainder": (1, 9), "shl": (0, 6), "shr": (0, 6),
}  # fmt: skip
_BITS_OF = {"f32": "i32", "f64": "i64", "f16": "i16", "i64": "f64", "i32": "f32", "i16": "f16"}


def map_cases(fn: scalars.ScalarFn, dtype: str) -> Iterator[Case]:
    """A scalar function on plain and on transposed operands."""
    m = Maker(dtype, fn.name)
    low, high = _DOMAINS.get(fn.name, (-4, 4))
    for transposed in (False, True):
        operands = [m(13, 9, low=low, high=high, transposed=transposed) for _ in range(fn.arity)]
        attrs: dict[str, Any] = {"fn": fn.name}
        targets = [dtype]
        if fn.name == "where":
            operands[0] = Maker("bool", fn.name)(13, 9)
        if fn.name == "convert":
            targets = [d for d in ("f32", "i64", "bool", "f16", "bf16") if d != dtype]
        elif fn.name == "bitcast":
            targets = [_BITS_OF[dtype]] if dtype in _BITS_OF else []
        elif fn.result == "bool":
            targets = ["bool"]
        for target in targets:
            to = {"to": target} if fn.result == "to" else {}
            outputs = (dtype, "i32") if fn.name == "frexp" else (target,)
            yield Case("map", tuple(operands), outputs, attrs | to)


def cases(name: str) -> Iterator[Case]:
    """Every case of a structural op, or of "map FUNCTION"."""
    if name.startswith("map "):
        fn = scalars.BY_NAME[name.removeprefix("map ")]
        kinds = {"f": FLOATS, "i": INTEGERS, "b": ("bool",)}
        for kind in fn.dtypes:
            for dtype in kinds[kind]:
                yield from map_cases(fn, dtype)
        return
    allowed, write = ROWS[name]
    for dtype in allowed:
        for inputs, outputs, attrs in write(Maker(dtype, name)):
            yield Case(name, inputs, outputs or (inputs[0].dtype,), attrs)


def names() -> list[str]:
    """The structural ops, then the scalar functions."""
    return [*ROWS, *(f"map {fn.name}" for fn in scalars.TABLE)]


def is_exact(node: Node) -> bool:
    """Whether every device must give the reference's bits: no arithmetic on floats that may round differently."""
    inexact = {"sum", "prod", "cumsum", "cumprod", "logcumsumexp", "matmul", "convolution", "scatter", "index_put"}
    return node.op not in inexact and node.op != "map"
