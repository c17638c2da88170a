"""Products against float64 NumPy: every schedule, odd sizes, all transposes, prologue, epilogue, all dtypes."""

from itertools import product

import numpy as np
import pytest

from codegen.kernels.matmul import PACK_DEPTH, SHALLOW_DEPTH, MatmulSpec, Tile, candidates, matmul, rivals
from codegen.printer import print_source
from ops_core.sizes import Tape, tracing
from tests.codegen.kernels.contract import MEMORY, Launcher, operand, output, register, to_memory
from tests.codegen.run_plan import capabilities

CPU = capabilities(local_memory_bytes=256 << 10)
GPU = capabilities(is_cpu=False, vector_bytes=4, max_work_group_size=256, local_memory_bytes=32 << 10, compute_units=8)
SHAPES = [
    (1, 1, 1, 1), (1, 7, 33, 100), (1, 100, 7, 33), (1, 33, 100, 7), (2, 64, 64, 64), (1, 5, 200, 16), (1, 129, 97, 50),
    (3, 17, 10, 23), (1, 1, 300, 64),
    (1, 300, 1, 64), (4, 3, 3, 700), (1, 24, 24, 3000),
    (1, 40, 1000, 20), (2, 2, 4133, 30), (1, 1, 4133, 600),
    (1, 9, 130, 301), (1, 70, 90, 2301), (1, 1030, 70, 2051),
]  # fmt: skip


def operands(layout, batch, m, n, k, dtype, seed=0):
    """A and B in memory (t: transposed), what they hold as float64, and their element strides."""
    rng = np.random.default_rng(seed)
    values = []
    for letter, (rows, columns) in zip(layout, ((m, k), (k, n)), strict=True):
        shape = (batch, columns, rows) if letter == "t" else (batch, rows, columns)
        held = rng.integers(-8, 9, shape).astype(np.float64)
        strides = (rows * columns, 1, rows) if letter == "t" else (rows * columns, columns, 1)
        values.append((to_memory(held, dtype), held.swapaxes(1, 2) if letter == "t" else held, strides))
    return values


def run(
    shape, layout="nn", dtype="f32", caps=CPU, tile=None, prologue=None, epilogue=None, column_major=False, again=False
):
    """The product on the device and the exact one."""
    batch, m, n, k = shape
    (a, exact_a, sa), (b, exact_b, sb) = operands(layout, batch, m, n, k, dtype)
    acc = register(dtype)
    so = (m * n, 1, m) if column_major else (m * n, n, 1)
    spec = MatmulSpec(
        batch, m, n, k, operand(dtype, sa, prologue), operand(dtype, sb, prologue),
        output(acc, so, epilogue)._replace(again=again), acc,
    )  # fmt: skip
    out = np.empty(batch * m * n, MEMORY[acc])
    launcher = Launcher(matmul("product", spec, caps, tile), {"a": [a], "b": [b], "out": [out]})
    launcher.run()
    got = launcher.read("out", np.empty((batch, n, m) if column_major else (batch, m, n), MEMORY[acc]))
    return (got.swapaxes(1, 2) if column_major else got), exact_a, exact_b


@pytest.mark.parametrize(("shape", "items"), [
    ((1, 1, 768, 256), 8), ((1, 4, 4133, 256), 9), ((8, 1, 64, 256), 8), ((1, 1, 40, 256), 5), ((1, 8, 768, 256), 192),
])  # fmt: skip
def test_work_items_make_neighbouring_tiles_of_a_single_row_of_tiles(shape, items):
    """so that B is read as a few streams: as many items as keep two units busy; each tile is an item in other rows"""
    batch, m, n, k = shape
    (_, _, sa), (_, _, sb) = operands("nt", batch, m, n, k, "f32")
    spec = MatmulSpec(batch, m, n, k, operand("f32", sa), operand("f32", sb), output("f32", (m * n, n, 1)))
    tile = next(t for t in candidates(spec, CPU) if t.schedule == "dot")
    x, y, z = matmul("product", spec, CPU, tile).steps[0].global_size
    assert x * y * z == items
    got, a, b = run(shape, "nt", tile=tile)
    assert np.array_equal(got, a @ b)


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("m", [1, 4, 5, 8])
def test_few_rows_of_a_large_matrix_that_passes_by_are_streamed(m, layout):
    """in ranges of columns; neither rows of B nor columns come out even"""
    shape = (1, m, 2053, 259)
    (_, _, sa), (_, _, sb) = operands(layout, *shape, "f32")
    spec = MatmulSpec(*shape, operand("f32", sa), operand("f32", sb), output("f32", (m * 2053, 2053, 1)))
    tile = candidates(spec, CPU)[0]
    assert tile.schedule == "stream"
    assert matmul("product", spec, CPU, tile).steps[0].global_size == (2, 1, 1)
    got, a, b = run(shape, layout, tile=tile)
    assert np.array_equal(got, a @ b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.sampled
def test_every_layout_and_size(shape, layout, caps):
    """Small integers are exact in float32 whatever the order, so equality is to the bit."""
    got, a, b = run(shape, layout, caps=caps)
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(("shape", "cache", "packs", "items"), [
    ((1, 300, 260, 250), 4 << 20, False, 4), ((1, 300, 270, 250), 512 << 10, True, 4),
    ((3, 130, 515, 251), 4 << 20, False, 6),
    ((1, 517, 257, 130), 512 << 10, False, 6), ((2, 256, 256, 256), 4 << 20, False, 4),
])  # fmt: skip
@pytest.mark.parametrize("layout", ["tn", "tt"])
def test_work_items_evaluate_their_rows_of_a_transposed_matrix(layout, shape, cache, packs, items):
    """and walk all columns with them, B being packed by each or, where it stays in the cache, read as it lies"""
    caps = capabilities(cache_bytes=cache)
    tile = candidates(bare(layout, *shape), caps)[0]._replace(evaluate=True)
    (step,) = matmul("product", bare(layout, *shape), caps, tile).steps
    x, y, z = step.global_size
    assert (x, y * z) == (1, items)
    assert (step.mlir.count("memref.alloca") == 3) == (packs or layout == "tt")
    for prologue, epilogue in ((None, None), (lambda v: v * 2.0, lambda k, b, i, j, acc, width: acc + 1.0)):
        got, a, b = run(shape, layout, caps=caps, tile=tile, prologue=prologue, epilogue=epilogue)
        np.testing.assert_array_equal(got, (a * 2) @ (b * 2) + 1 if epilogue else a @ b)


@pytest.mark.parametrize(("shape", "cache", "items"), [
    ((2, 1030, 150, 131), 256 << 10, (1, 9, 2)), ((1, 1024, 256, 19), 2 << 20, (1, 8, 1)),
    ((1, 600, 130, 64), 128 << 10, (1, 6, 1)),
    ((2, 30, 150, 131), 256 << 10, None), ((1, 1000, 256, 19), 2 << 20, None), ((1, 1024, 256, 150), 256 << 10, None),
])  # fmt: skip
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_work_items_walk_all_columns_with_rows_of_a_tall_matrix(layout, shape, cache, items):
    """Four rows and more for a column of a matrix that stays in the cache: each row is read once. Else a work item has
    a panel of columns."""
    caps = capabilities(cache_bytes=cache)
    (step,) = matmul("product", bare(layout, *shape), caps).steps
    assert step.global_size == items if items else step.global_size[0] > 1
    got, a, b = run(shape, layout, caps=caps)
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(("shape", "caps"), [
    ((1, 256, 256, 256), {"compute_units": 64}), ((1, 512, 512, 512), {"cache_bytes": 512 << 10}),
    ((1, 256, 4096, 256), {"cache_bytes": 2 << 20}), ((1, 640, 256, 256), {"compute_units": 16}),
])  # fmt: skip
def test_a_transposed_matrix_is_written_out_beforehand(shape, caps):
    """where its rows, or B, are too large for a cache, or its parts too few, or uneven, for all units"""
    steps = matmul("product", bare("tn", *shape), capabilities(**caps)).steps
    assert len(steps) == 2


@pytest.mark.parametrize(("m", "evaluated"), [(64, False), (128, True)])
def test_a_few_rows_of_a_large_transposed_matrix_are_read_as_they_lie(m, evaluated):
    """whole cache lines of them, a block of terms at a time"""
    tile = candidates(bare("tn", 1, m, 512, 2048), CPU)[0]
    assert tile.schedule == "panel" and tile.evaluate is evaluated
    got, a, b = run((1, m, 512, 2048), "tn")
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(("layout", "shape", "splits"), [
    ("tn", (1, 128, 128, 4096), 8), ("tt", (1, 90, 100, 1700), 6), ("tn", (1, 90, 100, 1000), 1),
    ("tn", (1, 512, 128, 4000), 1), ("nn", (1, 128, 128, 4096), 1), ("tn", (2, 128, 128, 4096), 1),
])  # fmt: skip
def test_deep_sums_of_large_transposed_matrices_are_made_in_pieces(layout, shape, splits):
    """so that no work item reads all of A; another kernel adds them up"""
    caps = capabilities(compute_units=2, cache_bytes=1 << 20)
    assert candidates(bare(layout, *shape), caps)[0].splits == splits
    got, a, b = run(shape, layout, caps=caps)
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32", "i64"])
@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
def test_every_dtype(dtype, caps):
    """Half types are summed in float32."""
    for layout in ("nn", "nt"):
        got, a, b = run((2, 33, 50, 40), layout, dtype, caps)
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(("shape", "schedule"), [
    ((64, 32, 128, 64), "panel"), ((64, 32, 128, 256), "dot"), ((64, 33, 128, 1024), "panel"),
    ((64, 8, 128, 32), "panel"), ((64, 8, 128, 64), "dot"), ((64, 128, 5, 24), "panel"), ((64, 2, 128, 8), "dot"),
])  # fmt: skip
def test_sums_of_few_vectors_are_no_dots(shape, schedule):
    """unless there are one or two for each row of B: adding up a sum's lanes takes longer than the sum"""
    batch, m, n, k = shape
    (_, _, sa), (_, _, sb) = operands("nt", 1, m, n, k, "f32")
    spec = MatmulSpec(batch, m, n, k, operand("f32", sa), operand("f32", sb), output("f32", (m * n, n, 1)))
    assert candidates(spec, CPU)[0].schedule == schedule


@pytest.mark.parametrize("schedule", ["panel", "dot"])
def test_every_register_tile(schedule):
    """Each tile that a tuner could pick gives the same product."""
    shapes = [(4, 4), (8, 2), (6, 2), (1, 8), (3, 4), (2, 2), (1, 1)]
    for (rows, vectors), pack, splits in product(shapes, (0, 16, 128), (1, 3)):
        tile = Tile(schedule, rows, vectors, pack, evaluate=pack > 0, splits=splits)
        got, a, b = run((2, 21, 147, 70), "nn" if schedule == "panel" else "nt", tile=tile)
        np.testing.assert_array_equal(got, a @ b, str(tile))


SLICED = [Tile("local", *shape, slices=4) for shape in ((8, 8), (8, 4), (4, 4), (2, 8))]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "shape", [(1, 64, 64, 64), (2, 100, 72, 200), (1, 33, 70, 77), (3, 130, 9, 1), (1, 9, 140, 333)]
)
@pytest.mark.sampled
def test_slices_of_a_work_group_add_up_their_sums(shape, layout):
    """with edges of rows, columns and terms, terms fewer than a stage's, and pieces of the sum beside"""
    for tile in (SLICED[0], SLICED[3], SLICED[2]._replace(splits=2)):
        got, a, b = run(shape, layout, caps=GPU, tile=tile)
        np.testing.assert_array_equal(got, a @ b, str(tile))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32", "i64"])
def test_slices_of_every_dtype(dtype):
    for layout, tile in zip(("nn", "nt"), SLICED[1:], strict=False):
        got, a, b = run((2, 33, 52, 40), layout, dtype, GPU, tile)
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("tile", SLICED, ids=str)
def test_slices_store_every_element_once_with_its_place(tile):
    """a part each; rows and columns exchanged too"""

    def place(k, batch, i, j, acc, width):
        lane = k.cast(j + k.iota(width), "f32") if width > 1 else k.cast(j, "f32")
        return k.map("maximum", acc, 0.0) + k.cast(i, "f32") * 1000.0 + lane

    for shape in ((2, 70, 44, 36), (1, 61, 41, 50)):
        m, n = shape[1:3]
        place_of = np.arange(m)[:, None] * 1000.0 + np.arange(n)
        got, a, b = run(shape, caps=GPU, tile=tile, epilogue=place)
        np.testing.assert_array_equal(got, np.maximum(a @ b, 0) + place_of)
    got, a, b = run(shape, "nt", caps=GPU, tile=tile, column_major=True, prologue=lambda v: v * 2.0 + 1.0)
    np.testing.assert_array_equal(got, (a * 2 + 1) @ (b * 2 + 1))


def large_gpu(**more):
    """Like an H200."""
    known = {"is_cpu": False, "vector_bytes": 4, "max_work_group_size": 1024, "local_memory_bytes": 48 << 10}
    return capabilities(**known | {"compute_units": 132} | more)


def bare(layout, batch, m, n, k):
    """A product of float32 that nothing goes before or after."""
    strides = [(r * c, 1, r) if t == "t" else (r * c, c, 1) for t, r, c in zip(layout, (m, k), (k, n), strict=True)]
    return MatmulSpec(batch, m, n, k, *(operand("f32", s) for s in strides), output("f32", (m * n, n, 1)))


@pytest.mark.parametrize(("layout", "shape", "chosen"), [
    ("nn", (1, 1024, 1024, 1024), Tile("local", 8, 8, slices=4)),
    ("nn", (1, 4096, 4096, 4096), Tile("local", 8, 8)),
    ("nn", (1, 512, 512, 512), Tile("local", 8, 4, slices=4)),
    ("nt", (1, 256, 512, 784), Tile("local", 4, 4, slices=4)),
    ("nt", (64, 256, 256, 32), Tile("local", 8, 8)),
    ("tn", (1, 256, 256, 4096), Tile("local", 8, 8, splits=8, slices=4)),
    ("nn", (1, 10, 10, 8), Tile("local", 1, 1)),
])  # fmt: skip
def test_what_a_large_gpu_chooses(layout, shape, chosen):
    """Slices where tiles are few, pieces of the sum where they are very few, neither where they are many."""
    assert candidates(bare(layout, *shape), large_gpu())[0] == chosen


@pytest.mark.parametrize("more", [{"max_work_group_size": 128}, {"local_memory_bytes": 4 << 10}])
def test_small_devices_have_no_slices(more):
    found = candidates(bare("nn", 1, 512, 512, 512), large_gpu(**more))
    assert {t.slices for t in found} == {1}


def test_sizes_that_vary_have_slices_too():
    """chosen for the usual ones; nothing is asked of others"""
    tape = Tape()
    rows = tape.symbol(640, 640)
    with tracing(tape):
        spec = bare("nt", 1, 640, 256, 256)._replace(m=rows)
        assert candidates(spec, large_gpu())[0].slices == 4
        source = print_source(matmul("product", spec, large_gpu()).steps[0].mlir, "opencl", True, True).program()
    assert not tape.guards
    assert "reqd_work_group_size(8, 8, 4)" in source


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_alignment_is_asked_once(layout):
    """at the start of the kernel, whose body is there twice; of the kernel that adds up pieces, too"""
    for tile in (Tile("local", 8, 8, slices=4), Tile("local", 4, 4, slices=4), Tile("local", 8, 8, splits=2)):
        for step in matmul("product", bare(layout, 1, 1024, 1024, 1024), large_gpu(), tile).steps:
            assert "& 15) == 0) " in print_source(step.mlir, "opencl", True, True).program()


def test_the_prologue_is_applied_to_every_element_of_both_operands():
    for shape in ((1, 30, 200, 40), (1, 3, 40, 40)):
        got, a, b = run(shape, "nt", prologue=lambda v: v * 2.0 + 1.0)
        np.testing.assert_array_equal(got, (a * 2 + 1) @ (b * 2 + 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_epilogue_sees_every_element_once_with_its_place(shape):
    """An epilogue that adds what it finds in its own output would show an element that is stored twice."""

    def place(k, batch, i, j, acc, width):
        lane = k.cast(j + k.iota(width), "f32") if width > 1 else k.cast(j, "f32")
        return k.map("maximum", acc, 0.0) + k.cast(i, "f32") * 1000.0 + lane

    got, a, b = run(shape, epilogue=place)
    m, n = shape[1:3]
    np.testing.assert_array_equal(got, np.maximum(a @ b, 0) + np.arange(m)[:, None] * 1000.0 + np.arange(n))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_that_may_be_stored_again(shape):
    """where tiles overlap; the same bits, rows and columns exchanged too"""
    for layout, column_major in (("nn", False), ("nt", True)):
        got, a, b = run(shape, layout, column_major=column_major, again=True)
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(("again", "guards"), [(True, 0), (False, 2)])
def test_what_may_be_stored_again_is_not_guarded(again, guards):
    """rows and columns that tiles of 4 x 64 do not divide: a guard for each, and two copies of the epilogue"""
    a, b, out = operand("f32", (0, 64, 1)), operand("f32", (0, 145, 1)), output("f32", (0, 145, 1))
    spec = MatmulSpec(1, 130, 145, 64, a, b, out._replace(again=again))
    (step,) = matmul("product", spec, CPU, Tile("panel", 4, 4)).steps
    assert step.mlir.count("scf.if") == guards


def test_the_two_terms_of_a_turn_are_read_one_after_the_other():
    """read together they take registers from the sums: on Zen 5 2048 x 1024 x 256 took 3.4 ms in place of 2.3"""
    a, b, out = operand("f32", (0, 64, 1)), operand("f32", (0, 128, 1)), output("f32", (0, 128, 1))
    (step,) = matmul("product", MatmulSpec(1, 96, 128, 64, a, b, out), CPU, Tile("panel", 6, 4, PACK_DEPTH)).steps
    first, second = step.mlir[: step.mlir.index("scf.yield")].split("llvm.inline_asm")
    assert first.count("math.fma") == second.count("math.fma") == 24


def test_the_tile_for_rows_that_vary_is_none_of_one_number_of_rows():
    """16 rows are 4 tiles of 4 and 3 of 6, so that those of 4 seem better"""
    a, b, out = operand("f32", (0, 64, 1)), operand("f32", (0, 64, 1)), output("f32", (0, 64, 1))
    assert candidates(MatmulSpec(1, 16, 64, 64, a, b, out), CPU)[0] == Tile("panel", 4, 4, pack=SHALLOW_DEPTH)
    for number in (16, 205, 2048):
        tape = Tape()
        rows = tape.symbol(340, number)
        with tracing(tape):
            assert candidates(MatmulSpec(1, rows, 64, 64, a, b, out), CPU)[0] == Tile("panel", 6, 4, pack=PACK_DEPTH)


def test_an_output_that_is_contiguous_along_columns():
    got, a, b = run((2, 20, 70, 30), "nn", column_major=True)
    np.testing.assert_array_equal(got, a @ b)


def test_panels_come_out_even_on_the_units():
    """Of 1000 columns 21 panels of three vectors or 16 of four: one unit or three share the 21, two do not."""
    a, b, out = operand("f32", (0, 1000, 1)), operand("f32", (0, 1000, 1)), output("f32", (0, 1000, 1))
    spec = MatmulSpec(1, 1000, 1000, 1000, a, b, out)
    vectors = [candidates(spec, capabilities(compute_units=units))[0].vectors for units in (1, 2, 3)]
    assert vectors == [3, 4, 3]


def test_candidates_begin_with_the_heuristic():
    a, b, out = operand("f32", (0, 64, 1)), operand("f32", (0, 4096, 1)), output("f32", (0, 4096, 1))
    spec = MatmulSpec(1, 4096, 4096, 64, a, b, out)
    assert candidates(spec, CPU)[0] == Tile("panel", 6, 4, pack=PACK_DEPTH)
    assert candidates(spec._replace(m=64), CPU)[0].pack == SHALLOW_DEPTH
    assert candidates(spec._replace(m=6), CPU)[0].pack == 0
    assert [candidates(spec._replace(m=m, k=4096), CPU)[0].schedule for m in (1, 8, 9)] == ["stream", "stream", "panel"]
    assert candidates(spec._replace(m=32, n=32, k=65536), CPU)[0].splits > 1
    assert {t.schedule for t in candidates(spec, GPU)} == {"local"}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
def test_rivals_are_few_begin_with_the_heuristic_and_are_all_right(layout, caps):
    for shape in ((1, 30, 200, 1100), (1, 2, 300, 900), (2, 130, 270, 64)):
        batch, m, n, k = shape
        strides = [(r * c, 1, r) if t == "t" else (r * c, c, 1) for t, r, c in zip(layout, (m, k), (k, n), strict=True)]
        spec = MatmulSpec(batch, m, n, k, *(operand("f32", s) for s in strides), output("f32", (m * n, n, 1)))
        found = rivals(spec, caps)
        assert found[0] == candidates(spec, caps)[0] and 2 <= len(set(found)) == len(found) <= 9
        for tile in found:
            got, a, b = run(shape, layout, caps=caps, tile=tile)
            np.testing.assert_array_equal(got, a @ b, str(tile))
