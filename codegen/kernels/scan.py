"""Running sums, products, maxima and log-sum-exps: one work item walks a row, or a vector of neighbouring rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from codegen.builder import Builder, V
from codegen.emit import registers
from codegen.kernels.operand import Sink, Source
from codegen.kernels.reduction import identity
from codegen.kernels.rows import ITEMS_PER_UNIT, locate, shares
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node
from ops_core.sizes import usual

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
# Neighbouring elements that a CPU's work item walks down with, their states in the cache. Zen 5, two cores, us for 16,
# 512 and 2048 (eager): cumsum of (32, 512, 192) along its first dim 705, 513, 503 (11,000), logcumsumexp 3185, 1279,
# 1320; of (8, 4096, 64) along its second 185, 170, 148 (1,430) and 2124, 721, 724.
RUN_ELEMENTS = 512
START = {"cumsum": "sum", "cumprod": "prod", "cummax": "amax", "logcumsumexp": "amax"}


def scan(name: str, node: Node, sources: list[Source], sink: Sink, caps: Any) -> Steps:
    """The kernel of a scan along attribute `dim`."""
    (source,), dim = sources, node.attrs["dim"]
    shape, dtype = source.shape, source.dtype
    rows = [n for d, n in enumerate(shape) if d != dim]
    width = caps.vector_bytes // max(4, BY_NAME[dtype].bytes) if caps.is_cpu and dim != len(shape) - 1 else 1
    while shape[-1] % width:
        width //= 2
    along, run = (len(shape) - 1, 1) if width > 1 else (None, 1)
    kept = registers(dtype)
    if node.op in WIDE and kept == "f32" and caps.is_cpu and caps.has_f64:
        kept = "f64"
    if along is not None:
        vectors = rows[-1] // width
        run = _run(usual(vectors), usual(prod(rows)) // width, width, caps) if node.op != "cummax" else 1
        rows[-1] = -(-vectors // run)
    k = Builder(name, 64 if source.program.wide or sink.program.wide else 32)
    read, write = source.bind(k), sink.bind(k)
    first = identity(START[node.op], dtype)
    shared = shares(prod(rows), shape[dim] * width * run, caps)

    def advance(state: State, here: list[V], at: V) -> State:
        state = ADVANCE[node.op](k, state, k.cast(read(here, along, width), kept), at)
        write(here, [k.cast(state[0], node.outputs[0].dtype), *(k.cast(v, "i64") for v in state[1:])], along)
        return state

    with shared.rows(k) as item:
        index = locate(item, rows)
        if run > 1:
            states, start = k.private(kept, run * width), index[-1] * run
            with k.for_(0, run * width, width) as column:
                k.store(states, column.iv, k.const(first, kept, width))
            with k.for_(0, shape[dim]) as loop, k.for_(0, k.map("minimum", run, vectors - start)) as column:
                here = [*index[:dim], loop.iv, *index[dim:-1], (start + column.iv) * width]
                at = column.iv * width
                k.store(states, at, advance([k.load(states, at, width)], here, loop.iv)[0])
        else:
            if along is not None:
                index[-1] = index[-1] * width
            begin = [k.const(first, kept, width)]
            if node.op == "cummax":
                begin.append(k.const(0, "index", width))
            with k.for_(0, shape[dim], init=begin) as loop:
                loop.yield_(*advance(loop.args, [*index[:dim], loop.iv, *index[dim:]], loop.iv))
    return Steps([Step(name, k.finish(), ("in0", "out"), *shared.geometry)], [])


def _run(vectors: int, all_vectors: int, width: int, caps: Any) -> int:
    """How many neighbouring vectors a CPU's work item walks with: lines of memory one by one come slowly."""
    run = max(1, min(RUN_ELEMENTS // width, vectors))
    while run > 1 and all_vectors // run < caps.compute_units * ITEMS_PER_UNIT:
        run //= 2
    return run
