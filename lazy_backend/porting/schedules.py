"""The schedules of a matrix product, timed in turns on the device: which is right, which is fastest."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from codegen.anchors import Factor, Product
from codegen.kernels.matmul import Tile
from lazy_backend.driver.errors import DriverError
from lazy_backend.porting import execute
from lazy_backend.porting.bench import Bench
from ops_core import numerics
from ops_core.array import Arr, building, emit, map_, matmul
from ops_core.dtypes import BY_NAME
from ops_core.ir import Graph

log = logging.getLogger("lazy_backend.tuning")

# Turns in which schedules are timed, and the least seconds that each lasts: against the clock's and the queue's jitter.
TURNS = 15
TURN_S = 2e-3
# What is slower than the best by this factor when all are first run is not timed further.
HOPELESS = 1.5
# What else runs makes a turn longer, never shorter, and beside a busy script most are: medians settled for none of five
# products. So the fastest turns of a schedule count, so many as are needed to rule out a slip of the clock,
# and they have to lie within this factor of each other. Turns are taken until those of the heuristic's do, so often at
# most before the product is left to the next process.
CLEAN = 4
STEADY = 1.1
ATTEMPTS = 5
# Another schedule is chosen where the slowest of its clean turns is below this share of the heuristic's fastest.
# benchmarks/tuning.py.
BETTER = 0.95
# Relative error of the dtypes' roundings.
EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


class Busy(Exception):
    """The machine had too much else to do for times to mean something."""


class Unfit(Exception):
    """A product that cannot be set up by itself as its windows have it; the text says why."""


def slowest(taken: list[float]) -> float:
    """The slowest of the clean turns: what a schedule's time is taken for."""
    return sorted(taken)[CLEAN - 1]


def steady(taken: list[float]) -> bool:
    """Whether there are clean turns."""
    return slowest(taken) <= STEADY * min(taken)


def choice(times: Mapping[Tile, list[float]], heuristic: Tile) -> Tile:
    """The fastest schedule that is surely faster than the heuristic's, else that."""
    better = [t for t, taken in times.items() if steady(taken) and slowest(taken) < BETTER * min(times[heuristic])]
    return min(better, key=lambda tile: slowest(times[tile]), default=heuristic)


def measured(b: Bench, product: Product) -> tuple[dict[Tile, list[float]], Tile]:
    """Seconds of each schedule that gives the heuristic's numbers, in turns; and the heuristic's schedule.

    Raises `Unfit` where the product cannot be set up by itself, `Busy` where times say nothing.
    """
    try:
        runs, heuristic = right(b, product)
        first = {tile: min(execute.seconds_once(b, run, 1) for _ in range(2)) for tile, run in runs.items()}
        best = min(first.values())
        runs = {t: run for t, run in runs.items() if t == heuristic or first[t] <= HOPELESS * best}
        repeat = max(1, math.ceil(TURN_S / max(best, 1e-7)))
        times: dict[Tile, list[float]] = {tile: [] for tile in runs}
        for turn in range(TURNS * ATTEMPTS):
            if turn and turn % TURNS == 0 and steady(times[heuristic]):
                break
            for tile, run in runs.items():
                times[tile].append(execute.seconds_once(b, run, repeat))
        if not steady(times[heuristic]):
            raise Busy
        return times, heuristic
    finally:
        b.clean_up()


def right(b: Bench, product: Product) -> tuple[dict[Tile, Callable[[], None]], Tile]:
    """The schedules whose results are the heuristic's, ready to run, that one first; and it."""
    heuristic, *others = product.rivals(b.caps)
    graph, arrays = set_up(product)
    mems = {slot: b.upload(array) for slot, array in arrays.items()}
    sizes = {slot: array.nbytes for slot, array in arrays.items()}

    def result(run: Callable[[], None]) -> np.ndarray:
        b.put(mems[2], arrays[2])
        run()
        b.device.synchronize(b.queue)
        return execute.from_memory(b.get(mems[2], sizes[2]), product.dtype).astype(np.float64)

    runs: dict[Tile, Callable[[], None]] = {}
    expected = None
    for tile in (heuristic, *others):
        try:
            run = execute.Runner(b, graph, mems, sizes, tiles=functools.partial(_only, product, tile)).run
            found = result(run)
        except DriverError as error:
            if expected is None:
                raise
            log.warning("a schedule of %s is not used, the driver refused it: %s: %s", product, tile, error)
            continue
        expected = found if expected is None else expected
        if not agrees(found, expected, product):
            log.warning("a schedule of %s is not used, its numbers are wrong: %s", product, tile)
            continue
        runs[tile] = run
    return runs, heuristic


def _only(product: Product, tile: Tile, asked: Product) -> Tile:
    if asked != product:
        raise Unfit(f"by itself it is {asked}")
    return tile


def set_up(product: Product) -> tuple[Graph, dict[int, np.ndarray]]:
    """The product by itself, and the memory of its slots: factors in 0 and 1, the result, which holds nothing, in 2."""
    graph, rng = Graph(), np.random.default_rng(0)
    arrays: dict[int, np.ndarray] = {}
    batch = (product.batch,) if product.batch > 1 else ()

    def factor(slot: int, of: Factor, rows: int, columns: int) -> Arr:
        matrix = {1: (columns, 1), 0: (1, rows), None: (2 * columns, 2)}[of.contiguous]
        shape, apart = (*batch, rows, columns), rows * columns * (2 if of.contiguous is None else 1)
        strides = (*((apart if of.batched else 0,) if batch else ()), *matrix)
        count = apart * (product.batch if of.batched else 1)
        floats = BY_NAME[of.dtype].kind == "f"
        values = rng.standard_normal(count) if floats else rng.integers(0, 4, count)
        arrays[slot] = execute.to_memory(values.astype(numerics.numpy_dtype(of.dtype)), of.dtype)
        loaded = emit("load", (), shape, of.dtype, slot=slot, sizes=shape, strides=strides, offset=0)
        return map_("neg", loaded) if of.prologue else loaded

    with building(graph):
        out = matmul(factor(0, product.a, product.m, product.k), factor(1, product.b, product.k, product.n))
        out = map_("neg", out) if product.epilogue else out
        strides = tuple(math.prod(out.shape[d + 1 :]) for d in range(len(out.shape)))
        graph.add_multi("store", (out.v,), [], slot=2, sizes=out.shape, strides=strides, offset=0)
    # Bits that are no number, so that an element that is not written does not pass for right.
    arrays[2] = np.full(math.prod(out.shape) * BY_NAME[product.dtype].bytes, 0xFF, np.uint8)
    return graph, arrays


def agrees(result: np.ndarray, expected: np.ndarray, product: Product) -> bool:
    """Whether results differ by roundings in another order only: k sums of float32 or wider, then the result's own."""
    error = EPS.get(product.dtype, 0.0)
    allowed: Any = (error + 8 * min(error, EPS["f32"]) * math.sqrt(product.k)) * abs(expected).max()
    return bool(abs(result - expected).max() <= allowed)  # False where there is a NaN
