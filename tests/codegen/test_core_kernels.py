"""Every core op against its NumPy reference, over dtypes and awkward shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from codegen.kernels.order import CUT_FROM
from ops_core import numerics
from ops_core.array import Arr, cat, cummax, emit, frexp, full, full_like, map_, matmul, rand_bits, searchsorted
from ops_core.dtypes import BY_NAME
from tests.codegen.case import Case, build

RANDOM = np.random.default_rng(0)


GPU = {"is_cpu": False, "vector_bytes": 16, "subgroup_size": 32, "max_work_group_size": 256}


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(low, high, shape)


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "logcumsumexp"])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 33, 32), (9, 11, 196), (3, 4, 5)])
def test_scan(op: str, dim: int, shape: tuple[int, ...]) -> None:
    build(lambda c: [c.output(c.input(floats(*shape)).scan(op, dim))]).check()


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "logcumsumexp"])
def test_a_work_item_walks_down_many_columns(op: str) -> None:
    """of a CPU: lines of memory one by one come slowly. 25 vectors of four of each of 64 rows, 16 of them together"""

    def write(c: Case) -> None:
        c.output(c.input(floats(64, 6, 100)).scan(op, 1))

    plan = build(write).check(compute_units=2, vector_bytes=64)
    assert plan.launches[0].global_size == (64, 1, 1), "all 25 vectors are fewer than 512 elements"
    wide = build(lambda c: [c.output(c.input(floats(3, 5, 9000)).scan(op, 1))]).check(compute_units=2, vector_bytes=64)
    assert wide.launches[0].global_size[0] == 3 * -(-1125 // 64), "512 elements: 64 vectors of eight"


def test_cummax_keeps_the_last_position() -> None:
    def write(c: Case) -> None:
        for result in cummax(c.input(integers(0, 9, 40, 7)), 0):
            c.output(result)

    build(write).check(exact=True)


@pytest.mark.parametrize("shape, dim", [((12,), 0), ((5, 33), 1), ((1000, 3), 0), ((7000,), 0), ((1,), 0)])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(shape: tuple[int, ...], dim: int, descending: bool) -> None:
    def write(c: Case) -> None:
        for result in c.input(integers(0, 50, *shape)).sort(dim, descending):
            c.output(result)

    build(write).check(exact=True)


def test_sort_puts_nan_last() -> None:
    data = floats(100)
    data[::7] = np.nan

    def write(c: Case) -> None:
        c.output(c.input(data).sort(0)[1])
        c.output(c.input(data).sort(0, True)[1])

    build(write).check(exact=True)


@pytest.mark.parametrize("compute_units", [2, 6])
@pytest.mark.parametrize(("rows", "length"), [(1001, 7), (97, 5), (200, 1), (31, 300), (3, 7)])
def test_short_rows_share_work_items(rows: int, length: int, compute_units: int) -> None:
    """of a CPU: a row of a few elements is walked in less time than an item takes to start"""
    data, most = integers(0, 9, rows, length), rows // (8 * compute_units)

    def write(c: Case) -> None:
        x = c.input(data)
        c.output(x.scan("cumsum", 1))
        if length <= 16:  # one block of an insertion sort
            c.output(x.sort(1, True)[0])

    plan = build(write).check(exact=True, compute_units=compute_units)
    each = [max(1, min(256 // elements, most)) for elements in (length, 16)]
    assert [launch.global_size[0] for launch in plan.launches] == [-(-rows // n) for n in each][: len(plan.launches)]
    build(write).check(exact=True, **GPU)


@pytest.mark.parametrize(
    ("planes", "rows", "columns"),
    [(64, 100, 58), (64, 100, 16), (5, 33, 17), (3, 7, 300), (640, 2, 31), (1, 1, 700)],
)
def test_rows_shorter_than_a_run_share_work_items(planes: int, rows: int, columns: int) -> None:
    """of a CPU: parts of longer rows, with what is left of them behind the last vector"""
    data = floats(planes, rows, columns + 2)

    def write(c: Case) -> None:
        x = c.view(c.slot(data), (planes, rows, columns), (rows * (columns + 2), columns + 2, 1), 1)
        c.output(x * 2)

    for vector_bytes in (16, 64):
        plan = build(write).check(exact=True, vector_bytes=vector_bytes, compute_units=2)
        assert len(plan.launches) == 1
        if rows * planes > 64:
            vectors = -(-columns // (vector_bytes // 4))
            each = min(32 // vectors, rows)
            assert plan.launches[0].global_size[0] <= planes * -(-rows // each) + 63, "a group's items are whole"
    build(write).check(exact=True, **GPU)


def ordered(dtype: str, *shape: int) -> np.ndarray:
    """Values in which ties are frequent, with both zeros, infinities and NaN, or the ends of an integer's range."""
    if dtype == "bool":
        return RANDOM.integers(0, 2, shape).astype(bool)
    if dtype in ("f16", "bf16", "f32", "f64"):
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
        data = np.where(RANDOM.random(shape) < 0.2, RANDOM.choice(special, shape), RANDOM.integers(-9, 9, shape) / 4)
        return data.astype(numerics.numpy_dtype(dtype))
    ends = np.iinfo(numerics.numpy_dtype(dtype))
    few, all_ = RANDOM.integers(0, 9, shape), RANDOM.integers(ends.min, ends.max, shape, ends.dtype, True)
    return np.where(RANDOM.random(shape) < 0.5, few.astype(ends.dtype), all_)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_are_sorted_in_all_dtypes(dtype: str, descending: bool) -> None:
    def write(c: Case) -> None:
        for n in (1, 3, 10, 16, 17, 150):
            for result in c.input(ordered(dtype, 30, n), dtype).sort(1, descending):
                c.output(result)

    for vector_bytes in (16, 64):
        build(write).check(exact=True, vector_bytes=vector_bytes)


@pytest.mark.parametrize(("units", "launches"), [(1, 1), (2, 2), (3, 3), (64, 4)])
@pytest.mark.parametrize("descending", [False, True])
def test_a_long_row_is_cut_into_a_block_for_each_unit(units: int, launches: int, descending: bool) -> None:
    """which is no shorter than pays"""

    def write(c: Case) -> None:
        for result in c.input(ordered("f32", 5 * CUT_FROM - 3)).sort(0, descending):
            c.output(result)

    made = build(write).check(exact=True, compute_units=units)
    assert len(made.launches) == launches


def test_as_many_rows_as_units_are_one_launch_and_what_is_around_is_fused() -> None:
    def write(c: Case) -> None:
        x = c.view(c.slot(ordered("f32", 3 * CUT_FROM)), (CUT_FROM * 3 // 4, 4), (4, 1))
        values, places = (x * 2.0).sort(0)
        c.output(values + 1.0)
        c.output(places * 3)

    made = build(write).check(1, exact=True, compute_units=4)
    assert len(made.launches) == 1


def test_bits_that_all_keys_share_cost_no_pass() -> None:
    """of an odd number of passes the results are where the last one put them"""

    def write(c: Case) -> None:
        for top in (1, 200, 1 << 15, 1 << 23):
            for n in (70, CUT_FROM + 9):
                for result in c.input(integers(0, top, n)).sort(0):
                    c.output(result)

    build(write).check(exact=True, compute_units=2)


PLACES = {
    "first": ((7, 100), 1, 0, 1),
    "few": ((7, 100), 1, 0, 5),
    "as many as are inserted": ((3, 500), 1, 0, 64),
    "more than are inserted": ((3, 500), 1, 0, 65),
    "all but one": ((3, 100), 1, 0, 99),
    "all": ((3, 100), 1, 0, 100),
    "one in the middle": ((5, 333), 1, 166, 1),
    "the last": ((5, 48), 1, 47, 1),
    "of columns": ((70, 3), 0, 0, 9),
    "within": ((2, 130, 5), 1, 60, 1),
    "of one row": ((20000,), 0, 0, 50),
    "some in the middle": ((3, 100), 1, 40, 20),
    "of a block": ((5, 16), 1, 3, 4),
}


@pytest.mark.parametrize("device", [{}, {"is_cpu": False, "max_work_group_size": 64}], ids=["cpu", "gpu"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.sampled
def test_some_places_of_the_order(name: str, descending: bool, device: dict[str, Any]) -> None:
    shape, dim, start, count = PLACES[name]

    def write(c: Case) -> None:
        for result in c.input(ordered("f32", *shape)).sort(dim, descending, start=start, count=count):
            c.output(result)

    made = build(write).check(exact=True, **device)
    if not device and name != "all":
        assert len(made.launches) == 1 + (name in ("more than are inserted", "all but one"))


@pytest.mark.parametrize("is_cpu", [True, False])
def test_places_are_found_where_vectors_are_shorter_than_a_key(is_cpu: bool) -> None:
    def write(c: Case) -> None:
        c.output(c.input(ordered("i64", 3, 150)).sort(1, start=75, count=1)[1])

    build(write).check(exact=True, is_cpu=is_cpu, vector_bytes=4)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.sampled
def test_places_are_selected_in_all_dtypes(dtype: str, descending: bool) -> None:
    def write(c: Case) -> None:
        x = c.input(ordered(dtype, 3, 150), dtype)
        for start, count in ((0, 5), (75, 1), (0, 70)):
            for result in x.sort(1, descending, start=start, count=count):
                c.output(result)

    build(write).check(exact=True)


def test_a_selection_is_fused_with_what_is_around() -> None:
    """also where the rows are no neighbours in memory"""

    def write(c: Case) -> None:
        x = c.view(c.slot(floats(90 * 33)), (33, 90), (1, 33))
        values, places = (x * 2.0).sort(1, True, start=0, count=7)
        c.output(values + 1.0)
        c.output(places * 3)

    build(write).check(1, exact=True)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 32, 33])
def test_searchsorted(right: bool, length: int) -> None:
    table, wanted = np.sort(integers(0, 20, 5, length), 1), integers(0, 21, 5, 9)
    build(lambda c: [c.output(searchsorted(c.input(table), c.input(wanted), right))]).check(exact=True)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_puts_what_is_no_number_last(right: bool) -> None:
    table, wanted = np.array([-1, 0, 0, 2, np.nan, np.nan], np.float32), np.array([np.nan, 2, 0, -5, 9], np.float32)
    build(lambda c: [c.output(searchsorted(c.input(table), c.input(wanted), right))]).check(exact=True)


@pytest.mark.parametrize("missing", [-3, 0, 3])
def test_nonzero_fills_with_minus_one(missing: int) -> None:
    data = integers(0, 2, 50, 70)
    size = int(np.count_nonzero(data)) + missing
    build(lambda c: [c.output(emit("nonzero", (c.input(data),), (size, 2), "i64", size=size))]).check(exact=True)


@pytest.mark.parametrize("reduce", ["set", "add"])
@pytest.mark.parametrize("width", [64, 7, 2, 24, 300, 513])
def test_index_put(reduce: str, width: int) -> None:
    rows = RANDOM.permutation(50)[:30] if reduce == "set" else integers(0, 50, 30)

    def write(c: Case) -> None:
        c.output(c.input(floats(50, width)).index_put((c.input(rows),), c.input(floats(30, width)), reduce))

    build(write).check()
    build(write).check(**GPU)


@pytest.mark.parametrize(
    ("shape", "items"),
    [((300,), 7), ((513,), 7), ((64,), 4), ((40,), 3), ((3, 100), 9), ((50, 33), 50)],
)
def test_columns_of_updated_rows_are_shared_among_work_items(shape: tuple[int, ...], items: int) -> None:
    """of a CPU of two units with vectors of 64 bytes: four parts of a row for each, and what is left of it"""
    rows, updates = integers(0, 20, 100), integers(0, 9, 100, *shape).astype(np.float32)

    def write(c: Case) -> None:
        slot = c.slot(floats(20, *shape))
        c.store(c.view(slot, (20, *shape)).index_put((c.input(rows),), c.input(updates), "add"), slot)

    plan = build(write).check(compute_units=2, vector_bytes=64)
    assert [launch.global_size for launch in plan.launches] == [(items, 1, 1)]


@pytest.mark.parametrize("reduce", ["add", "mul", "amax", "amin"])
@pytest.mark.parametrize("shape, size", [((30, 60), 50), ((3000,), 1000)])
def test_scatter(reduce: str, shape: tuple[int, ...], size: int) -> None:
    def write(c: Case) -> None:
        x = c.input(floats(size, *shape[1:]))
        c.output(x.scatter(0, c.input(integers(0, size, *shape)), c.input(floats(*shape)), reduce))

    build(write).check()


@pytest.mark.parametrize("reduce", ["add", "mul", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_many_updates_of_few_elements(reduce: str, dtype: str) -> None:
    """Work items have results of their own, which are combined: one more launch. x lies across."""
    data = floats(12, 20) if dtype == "f32" else integers(-3, 4, 12, 20)
    updates = np.abs(floats(5001)) ** 0.01 if dtype == "f32" else integers(1, 3, 5001)

    def write(c: Case) -> None:
        at = tuple(c.input(integers(0, n, 5001)) for n in (20, 12))
        slot = c.slot(data)
        made = c.view(slot, (20, 12), (1, 20)).index_put(at, c.input(updates), reduce)
        c.store(made, slot, (1, 20))

    plan = build(write).check()
    assert len(plan.launches) == 2 and max(plan.pieces) >= 2 * 240 * data.itemsize


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i64", "i32", "u8"])
@pytest.mark.parametrize("reduce", ["add", "mul", "amax", "amin"])
def test_a_gpu_makes_updates_as_they_come(reduce: str, dtype: str) -> None:
    """One work item makes one: no launch more, and in the source an update that is atomic."""
    type = BY_NAME[dtype].numpy
    data, updates = integers(0, 3, 40, 3).astype(type), integers(1, 3, 90, 3).astype(type)
    rows = np.arange(90) % 40 if reduce == "mul" else integers(0, 40, 90)  # 2 ** 3, which every dtype holds

    def write(c: Case) -> None:
        slot = c.slot(data)
        c.store(c.view(slot, (40, 3), (3, 1)).index_put((c.input(rows),), c.input(updates), reduce), slot)

    plan = build(write).check(launches=1, exact=True, **GPU)
    assert "memref.atomic_rmw" in plan.kernels[0].mlir


@pytest.mark.parametrize("dtype, updates, ordered, any_order", [
    ("f32", 1000, True, False), ("i64", 1000, True, True), ("f32", 1000, False, True), ("f32", 32, False, False),
])  # fmt: skip
def test_updates_are_made_in_order(dtype: str, updates: int, ordered: bool, any_order: bool) -> None:
    """Where the user asks for the same sums in every run, and where there are few. Sums of integers are the same."""
    data = floats(50) if dtype == "f32" else integers(0, 9, 50)

    def write(c: Case) -> None:
        slot, source = c.slot(data), floats(updates) if dtype == "f32" else integers(0, 9, updates)
        made = c.view(slot, (50,), (1,)).scatter(0, c.input(integers(0, 50, updates)), c.input(source), "add")
        if ordered:
            made.v.node.attrs["ordered"] = True
        c.store(made, slot)

    plan = build(write).check(**GPU)
    assert any("memref.atomic_rmw" in kernel.mlir for kernel in plan.kernels) == any_order


@pytest.mark.parametrize("columns", [2, 48])
def test_narrow_rows_are_not_shared_by_columns(columns: int) -> None:
    """A row of 64 bytes or more is: each work item then has lines of its own, and another launch copies x."""

    def write(c: Case) -> None:
        rows = c.input(integers(0, 30, 5000))
        c.output(c.input(floats(30, columns)).index_put((rows,), c.input(floats(5000, columns)), "add"))

    build(write).check(launches=2)


def test_random_bits_are_philox() -> None:
    def write(c: Case) -> None:
        c.output(rand_bits((50, 37), c.param(1234567890123, "i64"), c.param(77, "i64")))

    build(write).check(exact=True)


def convolve(c: Case, x: tuple[int, ...], w: tuple[int, ...], stride: int, padding: int, groups: int = 1) -> Arr:
    n = len(x) - 2
    out = [(size + 2 * padding - k) // stride + 1 for size, k in zip(x[2:], w[2:], strict=True)]
    attrs = {"stride": (stride,) * n, "padding": (padding,) * n, "dilation": (1,) * n, "transposed": False,
             "output_padding": (0,) * n, "groups": groups}  # fmt: skip
    return emit("convolution", (c.input(floats(*x)), c.input(floats(*w) * 0.1)), (x[0], w[0], *out), "f32", **attrs)


@pytest.mark.parametrize(
    "x, w, stride, padding, groups",
    [((2, 6, 9, 10), (8, 6, 3, 3), 1, 1, 1), ((2, 6, 9, 10), (8, 3, 3, 3), 2, 1, 2), ((2, 6, 30), (8, 6, 5), 2, 2, 1),
     ((2, 6, 8, 8), (8, 6, 1, 1), 1, 0, 1)],
)  # fmt: skip
def test_convolution_with_an_epilogue(
    x: tuple[int, ...], w: tuple[int, ...], stride: int, padding: int, groups: int
) -> None:
    def write(c: Case) -> None:
        y = convolve(c, x, w, stride, padding, groups)
        c.output(map_("maximum", y, full_like(y, 0.0)))

    build(write).check()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_round_at_every_op(dtype: str) -> None:
    def write(c: Case) -> None:
        x = c.input(numerics.cast(floats(50, 37), dtype), dtype)
        c.output(x * x + 1)
        c.output(x.to("f32").sum(1))

    build(write).check()


def test_sums_of_many_dims() -> None:
    def write(c: Case) -> None:
        x = c.input(floats(2, 1, 3, 2, 1, 2, 3, 1, 2))
        for dims in ((0, 3, 6), (1, 4), None):
            c.output(x.sum(dims))

    build(write).check()


def test_split_reductions_of_every_kind() -> None:
    def write(c: Case) -> None:
        x = c.input(floats(3, 100003))
        c.output(x.arg("argmax", 1))
        for op in ("amax", "amin", "sum"):
            c.output(x.reduce(op, 1))

    build(write).check()


def test_empty_tensors() -> None:
    def write(c: Case) -> None:
        x = c.input(floats(0, 5))
        for result in (x.sum(0), x + 1, x.sum(1), x.sum(), matmul(c.input(floats(3, 0)), x), x.scan("cumsum", 0)):
            c.output(result)
        c.output(cat([x, c.input(floats(2, 5))], 0))

    build(write).check(exact=True)


def test_integers_and_bits() -> None:
    def write(c: Case) -> None:
        x, y = c.input(integers(-50, 50, 33, 5)), c.input(integers(1, 9, 5))
        c.output(map_("remainder", x, y.expand(33, 5)))
        c.output(x.sum(0))
        bytes = c.input(integers(0, 255, 33, 5).astype(np.uint8))
        c.output(bytes + bytes)
        c.output(map_("shr", bytes, full((33, 5), 1, "u8")))

    build(write).check(exact=True)


def test_frexp() -> None:
    data = np.array([0.0, -0.0, 1.0, -3.5, 1e-40, np.inf, -np.inf, 1e30, 0.5], np.float32)
    build(lambda c: [c.output(part) for part in frexp(c.input(data))]).check(exact=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_batched_products(dtype: Callable[..., np.ndarray]) -> None:
    def write(c: Case) -> None:
        a, b = (integers(-9, 9, *s).astype(dtype) for s in ((6, 130, 70), (6, 70, 90)))
        c.output(matmul(c.input(a), c.input(b)))

    build(write).check(exact=True)


@pytest.mark.parametrize("caps", [{}, GPU], ids=["cpu", "gpu"])
def test_rows_and_tiles_with_the_geometry_of(caps: dict[str, int]) -> None:
    """On a GPU the lanes of a work-group share a row."""

    def write(c: Case) -> None:
        x = c.input(floats(40, 1003))
        e = map_("exp", x - x.amax(1, True))
        c.output(e / e.sum(1, True))
        c.output(x.arg("argmin", 1))
        c.output(c.input(floats(3, 64, 80)).transpose(1, 2) * 2 + c.input(floats(3, 80, 64)))

    build(write).check(**caps)


@pytest.mark.parametrize(("shape", "launches"), [((256, 512, 784), 1), ((136, 256, 256), 1), ((64, 64, 4096), 2)])
def test_few_tiles_of_a_product_have_slices_of_a_work_group(shape: tuple[int, int, int], launches: int) -> None:
    """in place of pieces of the sum and a second kernel, which very long sums have still"""
    m, n, k = shape

    def write(c: Case) -> None:
        a, b = (integers(-9, 9, *s).astype(np.float32) for s in ((m, k), (n, k)))
        bias = c.input(integers(-9, 9, n).astype(np.float32))
        c.output(map_("maximum", matmul(c.input(a), c.input(b).transpose(0, 1)) + bias, 0.0))

    caps = {"vector_bytes": 4, "local_memory_bytes": 48 << 10, "compute_units": 132}
    plan = build(write).check(launches=launches, exact=True, **GPU | caps)
    assert plan.launches[0].local_size == (8, 8, 4)


@pytest.mark.parametrize("run", [2, 6, 8])
def test_products_of_matrices_whose_rows_are_runs(run: int) -> None:
    """Vectors of a GPU's tiles stay within what lies side by side, however narrow its registers are."""

    def write(c: Case) -> None:
        runs = c.input(integers(-9, 9, 40, 4, run + 3).astype(np.float32)).slice(2, 1, run + 1)
        a, b = runs.reshape(40, 4 * run), c.input(integers(-9, 9, 4 * run, 24).astype(np.float32))
        c.output(matmul(a, b))
        c.output(matmul(b.transpose(0, 1), a.transpose(0, 1)))
        c.output(matmul(a.transpose(0, 1), c.input(integers(-9, 9, 40, 24).astype(np.float32))))

    build(write).check(exact=True, **GPU | {"vector_bytes": 4, "local_memory_bytes": 48 << 10})


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integer_power_wraps_and_takes_negative_exponents(dtype: str) -> None:
    numpy = numerics.numpy_dtype(dtype)
    low = 0 if dtype == "u8" else -4
    base, exponent = integers(low, 9, 7, 45).astype(numpy), integers(low, 70, 7, 45).astype(numpy)
    build(lambda c: [c.output(map_("pow", c.input(base), c.input(exponent)))]).check(exact=True)


@pytest.mark.parametrize("source, target", [("f16", "i16"), ("bf16", "i16"), ("i16", "f16"), ("i16", "bf16")])
def test_bits_of_halves(source: str, target: str) -> None:
    bits = integers(-(2**15), 2**15, 600).astype(np.int16)
    bits = bits[(bits & 0x7F80) != 0x7F80]  # no NaN: its payload is not kept
    data = bits if source == "i16" else numerics.bitcast(bits, "i16", source)
    write = build(
        lambda c: [c.output(emit("map", (c.input(data, source),), data.shape, target, fn="bitcast", to=target))]
    )
    write.check(exact=True)
