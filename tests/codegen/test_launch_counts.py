"""How many kernels a graph becomes: one launch each unless the test says why not. Results are compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ops_core.array import Arr, cat, full, map_, matmul, positions, rand_bits, stack, where
from tests.codegen.case import Case, build

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(low, high, shape)


def softmax(x: Arr) -> Arr:
    e = map_("exp", x - x.amax(-1, True))
    return e / e.sum(-1, True)


def normalised(x: Arr, dims: int | list[int]) -> tuple[Arr, Arr, Arr]:
    mean = x.mean(dims, True)
    centred = x - mean
    scale = map_("rsqrt", (centred * centred).mean(dims, True) + 1e-5)
    return centred * scale, mean, scale


def gelu(c: Case) -> None:
    x = c.input(floats(1000, 33))
    c.output(0.5 * x * (1 + map_("tanh", 0.79788456 * (x + 0.044715 * x * x * x))))


def bias(c: Case) -> None:
    c.output(c.input(floats(64, 10)) + c.input(floats(10)))


def several_outputs(c: Case) -> None:
    x = c.input(floats(100, 7))
    c.output(map_("exp", x))
    c.output((x * 2).transpose(0, 1) + 1)


def transposed_read(c: Case) -> None:
    c.output(c.input(floats(100, 70)).transpose(0, 1) * 2 + c.input(floats(70, 100)))


def chained_views(c: Case) -> None:
    x = c.input(floats(6, 8, 10))
    c.output(map_("tanh", x.slice(1, 2, 8, 2).permute(2, 0, 1).reshape(10, 18).flip(0)))


def concatenation(c: Case) -> None:
    x, y = c.input(floats(6, 8)), c.input(floats(6, 5))
    c.output(cat([x, y * 2, x], 1) + 1)


def stacking(c: Case) -> None:
    x, y = c.input(floats(6, 8)), c.input(floats(6, 8))
    c.output(stack([x, y], 0))


def padding(c: Case) -> None:
    c.output(c.input(floats(6, 8)).pad([1, 2], [0, 3], 1.5) * 2)


def causal_mask(c: Case) -> None:
    x = c.input(floats(33, 33))
    c.output(where(positions((33, 33), 0) >= positions((33, 33), 1), x, -1e9))


def embedding(c: Case) -> None:
    c.output(c.input(floats(50, 37)).take(c.input(integers(0, 50, 9, 4)), 0) * 2)


def run_time_scalar(c: Case) -> None:
    c.output(c.input(floats(50, 37)) * c.param(0.3).to("f32").expand(50, 37))


def dropout(c: Case) -> None:
    bits = rand_bits((50, 37), c.param(1234567890123, "i64"), c.param(77, "i64"))
    x = c.input(floats(50, 37))
    c.output(where(bits < full((50, 37), 1 << 31, "u32"), x * 2, 0.0))


def in_place(c: Case) -> None:
    slot = c.slot(floats(100, 10))
    c.store(map_("tanh", c.view(slot, (100, 10))) + 1, slot)


def column_sum(c: Case) -> None:
    c.output((c.input(floats(300, 65)) * 2).sum(0))


def row_sum(c: Case) -> None:
    c.output(map_("exp", c.input(floats(65, 300))).sum(1))


def softmax_rows(c: Case) -> None:
    c.output(softmax(c.input(floats(64, 1000))))


def log_softmax(c: Case) -> None:
    x = c.input(floats(64, 100))
    shifted = x - x.amax(1, True)
    c.output(shifted - map_("log", map_("exp", shifted).sum(1, True)))


def softmax_backward(c: Case) -> None:
    y, g = c.input(floats(64, 100)), c.input(floats(64, 100))
    c.output(y * (g - (g * y).sum(1, True)))


def layer_norm(c: Case) -> None:
    y, mean, scale = normalised(c.input(floats(64, 768)), 1)
    c.output(y * c.input(floats(768)) + c.input(floats(768)))
    c.output(mean)
    c.output(scale)


def layer_norm_backward_rows(c: Case) -> None:
    x, g, w = c.input(floats(64, 96)), c.input(floats(64, 96)), c.input(floats(96))
    y, scaled = (x - c.input(floats(64, 1))) * c.input(floats(64, 1)), g * w
    c.output(scaled - scaled.mean(1, True) - y * (scaled * y).mean(1, True))


def layer_norm_backward_columns(c: Case) -> None:
    g, y = c.input(floats(64, 96)), c.input(floats(64, 96))
    c.output((g * y).sum(0))
    c.output(g.sum(0))


def batch_norm(c: Case) -> None:
    c.output(normalised(c.input(floats(8, 5, 6, 7)), [0, 2, 3])[0])


def argmax_with_value(c: Case) -> None:
    x = c.input(floats(50, 37))
    c.output(x.arg("argmax", 1))
    c.output(x.amax(1))


def embedding_and_norm(c: Case) -> None:
    x = c.input(floats(50, 64)).take(c.input(integers(0, 50, 4, 9)), 0) + c.input(floats(9, 64))
    c.output(normalised(x, 2)[0])
    c.output(x)


def linear_gelu_residual(c: Case) -> None:
    x, w, b, r = (c.input(floats(*s)) for s in ((64, 96), (128, 96), (128,), (64, 128)))
    c.output(map_("tanh", matmul(x, w.transpose(0, 1)) + b) + r)


def batch_times_matrix(c: Case) -> None:
    c.output(matmul(c.input(floats(4, 16, 32)), c.input(floats(32, 48))))


def scatter_in_place(c: Case) -> None:
    slot = c.slot(floats(50, 64))
    x, rows = c.view(slot, (50, 64)), c.input(integers(0, 50, 30))
    c.store(x.index_put((rows,), c.input(floats(30, 64)), "add"), slot)


def running_sum(c: Case) -> None:
    c.output(c.input(floats(5, 33, 32)).scan("cumsum", 1) * 2)


def complex_product(c: Case) -> None:
    """Both parts of numbers that lie as pairs, in memory and in the result, here with one in front."""
    pairs = [c.slot(floats(64, 50, 2)) for _ in range(2)]
    (a, ai), (b, bi) = ([c.view(slot, (64, 50), (100, 2), part) for part in range(2)] for slot in pairs)
    out = c.slot(np.zeros(64 * 50 * 2 + 2, np.float32))
    c.store(a * b - ai * bi, out, (100, 2), 2)
    c.store(a * bi + ai * b, out, (100, 2), 3)


@pytest.mark.parametrize(
    "write",
    [complex_product, gelu, bias, several_outputs, transposed_read, chained_views, concatenation, stacking, padding,
     causal_mask, embedding, run_time_scalar, dropout, in_place, column_sum, row_sum, softmax_rows, log_softmax,
     softmax_backward, layer_norm, layer_norm_backward_rows, layer_norm_backward_columns, batch_norm, argmax_with_value,
     embedding_and_norm, linear_gelu_residual, batch_times_matrix, scatter_in_place, running_sum],
)  # fmt: skip
def test_one_launch(write: Callable[[Case], None]) -> None:
    build(write).check(launches=1)


def test_a_wide_sum_takes_two_stages() -> None:
    def mean_of_squares(c: Case) -> None:
        x = c.input(floats(1000, 999))
        c.output((x * x).mean())

    build(mean_of_squares).check(launches=2)


def crossed(c: Case, overwritten: bool) -> None:
    """Products of a sample's features with one another, which are looked up."""
    numbers = [c.input(integers(0, 50, 16)) for _ in range(3)]
    slot = c.slot(floats(50, 32))
    tables = [c.view(slot, (50, 32)), *(c.input(floats(50, 32)) for _ in numbers[1:])]
    rows = [t.gather(0, n.reshape(16, 1).expand(16, 32)) for t, n in zip(tables, numbers, strict=True)]
    x = stack([c.input(floats(16, 32)), *rows], 1)
    if overwritten:
        c.store(tables[0] * 0.5, slot)
    c.output(matmul(x, x.transpose(1, 2)))


def test_an_operand_of_parts_is_put_together_once_for_both_sides() -> None:
    plan = build(lambda c: crossed(c, False)).check(launches=2)
    assert plan.temps and len(plan.temps) == 1


def test_and_before_the_parts_are_overwritten() -> None:
    build(lambda c: crossed(c, True)).check(launches=3)


def test_a_row_reads_an_operand_of_parts_where_it_lies() -> None:
    """A cache that grew by a token: each of its elements is one term."""

    def write(c: Case) -> None:
        keys = cat([c.input(floats(2, 20, 16)), c.input(floats(2, 1, 16))], 1)
        c.output(matmul(c.input(floats(2, 1, 16)), keys.transpose(1, 2)))

    build(write).check(launches=1)


def test_a_table_of_angles_is_computed_once_for_all_rows() -> None:
    def write(c: Case) -> None:
        angles = c.input(floats(64))
        x = c.input(floats(32, 64))
        c.output(x * map_("cos", angles).expand(32, 64) + x.flip(1) * map_("sin", angles).expand(32, 64))

    build(write).check(launches=2)


def test_a_table_that_is_looked_up_is_computed_once() -> None:
    """Mean rows of 16 cells: each of 1000 rows would look up a sum and a count."""

    def write(c: Case) -> None:
        rows, cell = c.input(floats(1000, 2)), c.input(integers(0, 16, 1000))
        sums = c.input(np.zeros((16, 2), np.float32)).index_put([cell], rows, "add")
        counts = c.input(np.ones(16, np.float32)).scatter(0, cell, c.input(np.ones(1000, np.float32)), "add")
        c.output(rows + (sums / counts.reshape(16, 1).expand(16, 2)).take(cell))

    *_, last = build(write).check().launches
    assert len(last.args) == 4, "rows, cells, means, result"


def test_a_mask_is_compared_again_beside_what_it_is_of() -> None:
    """A cell is kept for the sums by cell; whether it is below 0 is not, though an earlier kernel could say so."""

    def write(c: Case) -> None:
        rows, places = c.input(floats(1000, 2)), c.input(floats(1000, 2))
        x = map_("minimum", map_("maximum", (places * 4).to("i64"), 0), 3)
        cell = x.select(1, 0) * 4 + x.select(1, 1)
        sums = c.input(np.zeros((16, 2), np.float32)).scatter(0, cell.unsqueeze(1).expand(1000, 2), rows, "add")
        c.output(rows + sums.take(where(cell < 0, cell + 16, cell)))

    assert 1000 not in [temp.nbytes for temp in build(write).check().temps]


def test_random_keys_are_drawn_before_they_are_sorted() -> None:
    """in vectors; sorts read their operands element by element"""

    def write(c: Case) -> None:
        for result in rand_bits((100,), c.param(5, "i64"), c.param(7, "i64")).sort(0):
            c.output(result)

    build(write).check(launches=2)


def test_parts_are_sorted_where_they_lie() -> None:
    def write(c: Case) -> None:
        for result in cat([c.input(floats(50)), c.input(floats(50))], 0).sort(0):
            c.output(result)

    build(write).check(launches=1)


def test_sums_along_different_dims_are_two_kernels() -> None:
    def write(c: Case) -> None:
        y = map_("tanh", c.input(floats(64, 96)))
        c.output(y.sum(0))
        c.output(y.sum(1))
        c.output(y)

    build(write).check(launches=2)


def test_attention_without_a_kernel_of_its_own_is_products_and_a_softmax() -> None:
    def write(c: Case) -> None:
        b, t, h, d = 2, 32, 4, 16
        qkv = c.input(floats(b, t, 3 * h * d))
        q, k, v = (x.reshape(b, t, h, d).permute(0, 2, 1, 3) for x in qkv.split(2, [h * d] * 3))
        y = matmul(softmax(matmul(q, k.transpose(2, 3)) * 0.25), v)
        c.output(matmul(y.permute(0, 2, 1, 3).reshape(b * t, h * d), c.input(floats(h * d, h * d))))

    build(write).check(launches=4)


def adam(c: Case, shapes: list[tuple[int, ...]]) -> None:
    """One step for each parameter, in place; run-time scalars are shared."""
    rate, beta1, beta2, epsilon = (c.param(v).to("f32") for v in (1e-3, 0.9, 0.999, 1e-8))
    for shape in shapes:
        slots = [c.slot(np.abs(floats(*shape))) for _ in range(4)]
        p, g, m, v = (c.view(s, shape) for s in slots)
        m = m * beta1.expand(*shape) + g * (1 - beta1).expand(*shape)
        v = v * beta2.expand(*shape) + g * g * (1 - beta2).expand(*shape)
        step = m / (map_("sqrt", v) + epsilon.expand(*shape))
        for slot, value in zip((slots[0], slots[2], slots[3]), (p - rate.expand(*shape) * step, m, v), strict=True):
            c.store(value, slot)


def test_adam_over_148_tensors_takes_at_most_four_launches() -> None:
    shapes = [((77,), (7, 70), (300,), (70, 3), (55, 6))[i % 5] for i in range(148)]
    plan = build(lambda c: adam(c, shapes)).check()
    assert len(plan.launches) <= 4
    assert plan.temps == []


def test_tensors_with_scalars_of_their_own_share_a_launch_too() -> None:
    def write(c: Case) -> None:
        for n in (5, 1000, 77):
            c.output(c.input(floats(n)) * c.param(float(n)).to("f32").expand(n))

    build(write).check(launches=1)
