"""Writes at indices that are read from memory: index_put, scatter and nonzero.

Each work item owns part of the result and applies all updates to it in order, so results are the same in every run
and need no atomics: it owns columns where rows are updated whole, else a range of the indexed dim. Where there are many
more updates than elements, `codegen.updates` has parts of them make results of their own.

A GPU's thousands of work items would walk all updates each, so there each makes one, atomically and in any order,
unless the user asks for the same sums in every run.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import Any, NamedTuple

from codegen.builder import Builder, V
from codegen.kernels.operand import Source
from codegen.kernels.rows import geometry, group_size, items, locate
from codegen.kernels.step import Step, Steps
from codegen.kernels.walk import tail
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node
from ops_core.sizes import multiple, usual

COMBINE = {"add": "add", "mul": "mul", "amax": "maximum", "amin": "minimum"}
# ... and as reductions are called.
NAMES = {"add": "sum", "mul": "prod", "amax": "amax", "amin": "amin"}
# Work items among which the updates of a device are shared, for each compute unit: owners skip what is not theirs,
# so many owners of one dim waste reads.
OWNERS_PER_UNIT = {True: 1, False: 64}
# Owners of columns within one line of a cache would take it from each other: 200,000 x 2 into 4,096 x 2, 0.5 to 4.3 ms
# with columns, as the two happened to meet; 0.2 in parts.
LINE_BYTES = 64
# Parts of rows for each of a CPU's units: a unit that begins late takes fewer. Gradients of a table of 1,000 rows from
# 20,000 of 300 floats 4.4 -> 1.2 ms (eager 1.8), from 1,000 of 513 for 100 rows 311 -> 67 us (eager 86).
PARTS_PER_UNIT = 4
# Updates up to which a GPU's work items walk them as well: some microseconds, as a launch is.
WALKED = 32
# Elements that one work item looks through, and blocks whose counts one work item adds up.
NONZERO_BLOCK, MAX_NONZERO_BLOCKS = 1024, 4096


class Target(NamedTuple):
    """The memory of the result: the argument "target" is one buffer and its offset. strides: in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    wide: bool


def index_put(name: str, node: Node, sources: list[Source], target: Target, caps: Any) -> Steps:
    """x[i0, i1, ..] = or += values, into memory that holds x."""
    _, values, *indices = sources
    rank = len(indices[0].shape)
    updates, rest = indices[0].shape, values.shape[rank:]

    def update(k: Builder, read: list[Any], at: list[V], inner: list[V], along: int | None, width: int) -> tuple:
        found = [k.cast(r(at), "index") for r in read[1:]]
        value = read[0]([*at, *inner], None if along is None else rank + along, width)
        return [*found, *inner], value

    return _apply(name, node, [values, *indices], updates, rest, len(indices), target, update, caps)


def scatter(name: str, node: Node, sources: list[Source], target: Target, caps: Any) -> Steps:
    """x[.., index[p], ..] op= src[p] along `dim`, into memory that holds x."""
    _, index, src = sources
    dim = node.attrs["dim"]
    rest = tuple(n for d, n in enumerate(index.shape) if d != dim)

    def update(k: Builder, read: list[Any], at: list[V], inner: list[V], along: int | None, width: int) -> tuple:
        here = [*inner[:dim], at[0], *inner[dim:]]
        found = k.cast(read[0](here), "index")
        return [*inner[:dim], found, *inner[dim:]], read[1](here)

    return _apply(name, node, [index, src], (index.shape[dim],), rest, None, target, update, caps)


def _apply(
    name: str, node: Node, sources: list[Source], updates: tuple[int, ...], rest: tuple[int, ...],
    indexed: int | None, target: Target, update: Any, caps: Any,
) -> Steps:  # fmt: skip
    """Loop over `updates` for each point of `rest`. indexed: how many leading dims of the target the updates name, so
    that `rest` are whole rows of it; None where every point of `rest` has indices of its own."""
    bits = 64 if target.wide or any(s.program.wide for s in sources) else 32
    if not caps.is_cpu and usual(prod(updates)) > WALKED and any_order(node, target.dtype, caps):
        return _atomically(name, node, sources, updates, rest, target, update, caps)
    width = lanes(rest, target.dtype, caps) if _are_rows(indexed, rest, target, caps) else 1
    along = len(rest) - 1 if width > 1 else None
    blocks = [*rest[:-1], rest[-1] // width] if rest else []
    points, wanted = prod(blocks), caps.compute_units * OWNERS_PER_UNIT[bool(caps.is_cpu)]
    dim, reduce = node.attrs.get("dim", 0), node.attrs["reduce"]
    owners = min(target.shape[dim], -(-wanted // max(points, 1)))
    if owners == 1 and _are_rows(indexed, rest, target, caps):
        return _by_rows(name, node, sources, updates, rest, target, update, caps)
    local = group_size(caps)
    # neighbours along the last dim of the target: of a line of a cache at least, where there are so many
    beside = caps.is_cpu and indexed is None and owners == 1 and dim < len(target.shape) - 1
    line = LINE_BYTES // BY_NAME[target.dtype].bytes
    run = max(1, min(usual(points) // wanted, max(line, usual(points) // (wanted * PARTS_PER_UNIT)))) if beside else 1
    count = -(-points // run) * owners

    k = Builder(name, bits)
    read = [s.bind(k) for s in sources]
    out, offset = k.buffer(target.dtype), k.arg("index")

    def apply(at: list[V], inner: list[V], offset: V, mine: tuple[V, V] | None) -> None:
        if along is not None:
            inner[-1] = inner[-1] * width
        index, value = update(k, read, at, inner, along, width)
        for i, stride in zip(index, target.strides, strict=True):
            offset = offset + i * stride
        with k.if_((index[dim] >= mine[0]) & (index[dim] < mine[1])) if mine else nullcontext():
            combine(k, reduce, out, offset, value, target.dtype)

    with items(k, count, local) as item:
        owner, first = item // max(-(-points // run), 1), item % max(-(-points // run), 1) * run
        bounds = tuple(o * target.shape[dim] // owners for o in (owner, owner + 1)) if owners > 1 else None
        neighbours: Any = k.for_(first, k.map("minimum", first + run, points)) if run > 1 else nullcontext()
        with k.for_(0, prod(updates)) as loop, neighbours as column:
            apply(locate(loop.iv, updates), locate(column.iv if column else first, blocks), offset, bounds)
    names = tuple(f"in{i + 1}" for i in range(len(sources)))
    return Steps([Step(name, k.finish(), (*names, "target"), *geometry(count, local))], [])


def _are_rows(indexed: int | None, rest: tuple[int, ...], target: Target, caps: Any) -> bool:
    """Whether each update is of elements that lie beside each other, which a CPU makes by vectors."""
    return bool(caps.is_cpu and indexed is not None and rest and target.strides[-1] == 1)


def vector(dtype: str, caps: Any) -> int:
    """Elements of a CPU's vector; halves are computed with in 32 bits."""
    return int(caps.vector_bytes // max(4, BY_NAME[dtype].bytes)) if caps.is_cpu else 1


def lanes(rest: tuple[int, ...], dtype: str, caps: Any, whole: bool = True) -> int:
    """Elements of a row that are updated at a time. whole: a row has no others. Rows of two at once: 200,000 x 2 into
    100,000 x 2 519 -> 321 us (Zen 5)."""
    width = vector(dtype, caps) if rest else 1
    while width > 1 and ((whole and rest[-1] % width) or width > usual(rest[-1])):
        width //= 2
    return width


def _by_rows(
    name: str, node: Node, sources: list[Source], updates: tuple[int, ...], rest: tuple[int, ...], target: Target,
    update: Any, caps: Any,
) -> Steps:  # fmt: skip
    """Each of a CPU's work items makes all updates of its columns, which lie beside each other."""
    row, others, lane_count = rest[-1], rest[:-1], lanes(rest, target.dtype, caps, whole=False)
    vectors = -(-row // lane_count)
    wanted = -(-caps.compute_units * PARTS_PER_UNIT // max(1, usual(prod(others))))
    run = -(-usual(vectors) // wanted)  # of a row's vectors to an item
    shared = [*others, -(-vectors // run)]
    k = Builder(name, 64 if target.wide or any(s.program.wide for s in sources) else 32)
    read, out, origin = [s.bind(k) for s in sources], k.buffer(target.dtype), k.arg("index")

    def apply(at: list[V], inner: list[V], width: int) -> None:
        index, value = update(k, read, at, inner, len(rest) - 1 if width > 1 else None, width)
        offset = origin
        for i, stride in zip(index, target.strides, strict=True):
            offset = offset + i * stride
        combine(k, node.attrs["reduce"], out, offset, value, target.dtype)

    local = group_size(caps)
    with items(k, prod(shared), local) as item:
        *outer, part = locate(item, shared)
        start = part * (run * lane_count)
        stop = k.map("minimum", start + run * lane_count, row // lane_count * lane_count)
        with k.for_(0, prod(updates)) as loop:
            at = locate(loop.iv, updates)
            with k.for_(start, stop, lane_count) as column:
                apply(at, [*outer, column.iv], lane_count)
            if not multiple(row, lane_count):
                with k.if_(start + run * lane_count > row // lane_count * lane_count):
                    for lo, hi, fewer in tail(row, lane_count):
                        with k.for_(lo, hi, fewer) as column:
                            apply(at, [*outer, column.iv], fewer)
    names = tuple(f"in{i + 1}" for i in range(len(sources)))
    return Steps([Step(name, k.finish(), (*names, "target"), *geometry(prod(shared), local))], [])


def any_order(node: Node, dtype: str, caps: Any) -> bool:
    """Whether updates may be made as they come. ordered: under torch.use_deterministic_algorithms."""
    kind, reduce = BY_NAME[dtype].kind, node.attrs["reduce"]
    if reduce not in COMBINE or kind == "b" or (BY_NAME[dtype].bytes == 8 and not caps.has_i64_atomics):
        return False
    return kind != "f" or reduce in ("amax", "amin") or not node.attrs.get("ordered")


def _atomically(
    name: str, node: Node, sources: list[Source], updates: tuple[int, ...], rest: tuple[int, ...], target: Target,
    update: Any, caps: Any,
) -> Steps:  # fmt: skip
    """Each work item makes one update of one point of `rest`; neighbours take neighbouring points."""
    k = Builder(name, 64 if target.wide or any(s.program.wide for s in sources) else 32)
    read = [s.bind(k) for s in sources]
    out, offset = k.buffer(target.dtype), k.arg("index")
    points, local = prod(rest), group_size(caps)
    count = prod(updates) * points
    with items(k, count, local) as item:
        at, inner = locate(item // max(points, 1), updates), locate(item % max(points, 1), rest)
        index, value = update(k, read, at, inner, None, 1)
        for i, stride in zip(index, target.strides, strict=True):
            offset = offset + i * stride
        k.atomic(COMBINE[node.attrs["reduce"]], out, offset, value)
    names = tuple(f"in{i + 1}" for i in range(len(sources)))
    return Steps([Step(name, k.finish(), (*names, "target"), *geometry(count, local))], [])


def combine(k: Builder, reduce: str, out: Any, at: V, value: V, dtype: str) -> None:
    """One update of an element, or of a vector of them."""
    if reduce != "set":
        old = k.load(out, at, value.width)
        value = k.map(COMBINE[reduce], old, value)
    k.store(out, at, value)


def nonzero(name: str, node: Node, sources: list[Source], target: Target, caps: Any) -> Steps:
    """Positions of the first `size` non-zeros, then -1: count by block, add up, write."""
    (source,) = sources
    total, rank, size = prod(source.shape), len(source.shape), node.attrs["size"]
    block = max(NONZERO_BLOCK, -(-total // MAX_NONZERO_BLOCKS))
    blocks = max(1, -(-total // block))
    local = group_size(caps)

    def walk(k: Builder, item: V, read: Any, visit: Any) -> V:
        start = item * block
        stop = k.map("minimum", start + block, total)
        with k.for_(start, stop, init=[k.const(0, "index")]) as loop:
            index = locate(loop.iv, source.shape)
            hit = k.cast(read(index), "bool")
            visit(index, hit, loop.args[0])
            loop.yield_(loop.args[0] + k.select(hit, k.const(1, "index"), 0))
        return loop.results[0]

    bits = 64 if source.program.wide else 32
    k = Builder(f"{name}_count", bits)
    read, counts = source.bind(k), k.buffer("i64")
    with items(k, blocks, local) as item:
        k.store(counts, item, k.cast(walk(k, item, read, lambda *_: None), "i64"))
    steps = [Step(k.name, k.finish(), ("in0", 0), *geometry(blocks, local))]

    k = Builder(f"{name}_starts", bits)
    counts, out, offset = k.buffer("i64"), k.buffer("i64"), k.arg("index")
    with items(k, 1, 1):
        with k.for_(0, blocks, init=[k.const(0, "i64")]) as loop:
            here = k.load(counts, loop.iv)
            k.store(counts, loop.iv, loop.args[0])
            loop.yield_(loop.args[0] + here)
        found = k.map("minimum", k.cast(loop.results[0], "index"), size)
        with k.for_(found * rank, size * rank) as rest:
            k.store(out, offset + rest.iv, k.const(-1, "i64"))
    steps.append(Step(k.name, k.finish(), (0, "target"), *geometry(1, 1)))

    k = Builder(f"{name}_write", bits)
    read, counts = source.bind(k), k.buffer("i64", readonly=True)
    out, offset = k.buffer("i64"), k.arg("index")

    with items(k, blocks, local) as item:
        first = k.cast(k.load(counts, item), "index")

        def write(index: list[V], hit: V, before: V) -> None:
            with k.if_(hit & (first + before < size)):
                for d, i in enumerate(index):
                    k.store(out, offset + (first + before) * rank + d, k.cast(i, "i64"))

        walk(k, item, read, write)
    steps.append(Step(k.name, k.finish(), ("in0", 0, "target"), *geometry(blocks, local)))
    return Steps(steps, [8 * blocks])
