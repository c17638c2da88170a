"""Running sums, products, maxima and log-sum-exps: one work item walks a row, or a vector of neighbouring rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from codegen.builder import Builder, V
from codegen.emit import registers
from codegen.kernels.operand import Sink, Source
from codegen.kernels.reduction import identity
from codegen.kernels.rows import locate, shares
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node

State = list[V]


def _binary(fn: str) -> Callable[[Builder, State, V, V], State]:
    return lambda k, state, x, at: [k.map(fn, state[0], x)]


def _maximum(k: Builder, state: State, x: V, at: V) -> State:
    """The last position of the largest value; NaN sticks."""
    best, where = state
    # Of booleans true is -1 in a lane, and to MLIR.
    taken = k.map("or", x, k.map("not", best)) if x.dtype == "bool" else x >= best
    if BY_NAME[x.dtype].kind == "f":
        taken = (taken & (best == best)) | (x != x)
    return [k.select(taken, x, best), k.select(taken, k.broadcast(at, x.width), where)]


def _log_sum_exp(k: Builder, state: State, x: V, at: V) -> State:
    """log(exp(a) + exp(b)) = max + log1p(exp(-|a - b|)); equal infinities have no difference."""
    best = k.map("maximum", state[0], x)
    gap = k.map("abs", state[0] - x)
    sum = best + k.map("log1p", k.map("exp", -gap))
    return [k.select((state[0] == x) & (k.map("abs", x) == float("inf")), x, sum)]


ADVANCE = {"cumsum": _binary("add"), "cumprod": _binary("mul"), "cummax": _maximum, "logcumsumexp": _log_sum_exp}
# Kept in double precision, as in eager: a sum of 2^20 floats was 1e-5 off, 120 units in the last place.
WIDE = ("cumsum", "cumprod")
START = {"cumsum": "sum", "cumprod": "prod", "cummax": "amax", "logcumsumexp": "amax"}


def scan(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    """The kernel of a scan along attribute `dim`."""
    (source,), dim = sources, node.attrs["dim"]
    shape, dtype = source.shape, source.dtype
    rows = [n for d, n in enumerate(shape) if d != dim]
    wanted = caps.vector_bytes // max(4, BY_NAME[dtype].bytes) if caps.is_cpu else 1
    width = wanted if dim != len(shape) - 1 and shape[-1] % wanted == 0 else 1
    along = len(shape) - 1 if width > 1 else None
    if along is not None:
        rows[-1] //= width
    kept = registers(dtype)
    if node.op in WIDE and kept == "f32" and caps.is_cpu and caps.has_f64:
        kept = "f64"
    k = Builder(name, 64 if source.program.wide or sink.program.wide else 32)
    read, write = source.bind(k), sink.bind(k)
    shared = shares(prod(rows), shape[dim] * width, caps)
    with shared.rows(k) as item:
        index = locate(item, rows)
        if along is not None:
            index[-1] = index[-1] * width
        start = [k.const(identity(START[node.op], dtype), kept, width)]
        if node.op == "cummax":
            start.append(k.const(0, "index", width))
        with k.for_(0, shape[dim], init=start) as loop:
            here = [*index[:dim], loop.iv, *index[dim:]]
            state = ADVANCE[node.op](k, loop.args, k.cast(read(here, along, width), kept), loop.iv)
            loop.yield_(*state)
            results = [k.cast(state[0], node.outputs[0].dtype), *(k.cast(v, "i64") for v in state[1:])]
            write(here, results, along)
    return Steps([Step(name, k.finish(), ("in0", "out"), *shared.geometry)], [])
