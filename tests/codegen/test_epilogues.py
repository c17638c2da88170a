"""What follows a product in its kernel: lines of memory are asked for before they are needed, functions take turns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ops_core.array import Arr, map_, matmul
from tests.codegen.case import Case, build, from_device, to_device
from tests.codegen.run_plan import run_plan
from tests.codegen.test_kept_rows import GPU, ONE_VECTOR
from tests.codegen.test_launch_counts import floats

LARGE = (640, 64, 1024)  # a result of 2.5 MiB, more than the cache of `capabilities`


def product(c: Case, m: int, k: int, n: int) -> Arr:
    return matmul(c.input(floats(m, k)), c.input(floats(k, n)))


def asked(mlir: str) -> list[str]:
    """The buffer of each request for a line in a kernel's text."""
    return re.findall(r"memref\.prefetch (%\w+)\[", mlir)


def only_kernel(write: Any, **caps: Any) -> str:
    (kernel,) = build(write).check(**caps).kernels
    return kernel.mlir


def test_lines_that_a_large_result_is_written_to_are_asked_for_before_the_terms_are_multiplied() -> None:
    mlir = only_kernel(lambda c: c.output(product(c, *LARGE)))
    assert len(asked(mlir)) == 5, "a row of 64 numbers may begin in the middle of a line"
    assert len(set(asked(mlir))) == 1
    assert mlir.rindex("memref.prefetch") < mlir.index("math.fma")


def test_so_are_those_that_an_epilogue_reads_but_not_what_all_rows_share() -> None:
    def write(c: Case) -> None:
        m, _, n = LARGE
        c.output(product(c, *LARGE) * c.input(floats(m, n)) + c.input(floats(n)) + c.input(floats(m, 1)))

    mlir = only_kernel(write)
    assert len(asked(mlir)) == 10
    assert len(set(asked(mlir))) == 2


def test_a_matrix_that_is_added_to_is_asked_for_once() -> None:
    def write(c: Case) -> None:
        m, _, n = LARGE
        slot = c.slot(floats(m, n))
        c.store(c.view(slot, (m, n)) + product(c, *LARGE), slot)

    assert len(asked(only_kernel(write))) == 5


def test_columns_that_lie_contiguous_are_asked_for_too() -> None:
    assert len(asked(only_kernel(lambda c: c.output(product(c, *LARGE).transpose(0, 1))))) == 5


@pytest.mark.parametrize(("sizes", "caps"), [((128, 64, 256), {}), (LARGE, GPU)], ids=["in a cache", "gpu"])
def test_small_results_and_gpus_ask_for_nothing(sizes: tuple[int, int, int], caps: dict[str, Any]) -> None:
    assert not asked(only_kernel(lambda c: c.output(product(c, *sizes)), **caps))


@pytest.mark.parametrize("sizes", [(641, 7, 1000), (3, 5, 300_000), (100_003, 9, 3), (70_001, 33, 5), (1030, 40, 700)])
def test_ragged_tiles(sizes: tuple[int, int, int]) -> None:
    m, _, n = sizes
    build(lambda c: c.output(product(c, *sizes) + c.input(floats(m, n)))).check()


@pytest.mark.parametrize("depth", [32, 5000])
def test_nothing_is_held_in_registers_over_the_end_of_a_sum_where_functions_follow(depth: int) -> None:
    """whose constants would be, and the sums on the stack; in blocks of terms too"""
    releases = re.compile(r"llvm.inline_asm .*~{registers}")

    def write(c: Case) -> None:
        x = product(c, 100, depth, 64) * (1 / depth)
        c.output(map_("sin", x))
        c.output(map_("cos", x))

    kernel = build(write).check().kernels[0]
    (place,) = [found.start() for found in releases.finditer(kernel.mlir)]
    assert kernel.mlir.rindex("fastmath<contract>") < place < kernel.mlir.rindex("math.fma"), "sums, then functions"
    assert kernel.source.count(" RELEASE;\n") == 1
    plain = only_kernel(lambda c: c.output(product(c, 100, depth, 64) + 1.0))
    assert not releases.search(plain)


def test_functions_take_turns() -> None:
    def write(c: Case) -> None:
        c.output(map_("tanh", product(c, 128, 64, 256)))

    assert "math.tanh" not in only_kernel(write), "all are written out, side by side"
    assert only_kernel(write, **ONE_VECTOR).count("math.tanh") == 1
    assert only_kernel(write, **GPU).count("math.tanh") > 0


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fn", ["tanh", "erf", "exp"])
@pytest.mark.parametrize("sizes", [(16, 8, 64), (37, 5, 90), (130, 20, 48), (9, 3, 200)])
def test_the_bits_are_those_of_one_vector_at_a_time(sizes: tuple[int, int, int], fn: str, dtype: str) -> None:
    m, k, n = sizes
    a, b = floats(m, k), floats(k, n)

    def write(c: Case) -> None:
        c.output(map_(fn, matmul(c.input(a).to(dtype), c.input(b).to(dtype))))

    results = []
    for caps in ({}, ONE_VECTOR):
        case = build(write)
        memory = {slot: to_device(held, case.dtypes[slot]) for slot, held in case.memory.items()}
        results.append(from_device(run_plan(case.plan(**caps), memory, [])[max(memory)], dtype))
    np.testing.assert_array_equal(*results)
