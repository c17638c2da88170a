"""Products over joined heads: the terms of a head are a loop of their own, without quotients in it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from codegen.plan import Plan
from ops_core.array import Arr, cat, matmul
from tests.codegen.case import Case, build

RANDOM = np.random.default_rng(0)
QUOTIENT = re.compile(r"arith\.(?:div|rem)[su]i")


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def quotients_in_products(plan: Plan) -> int:
    """How many quotients and remainders of their own number the loops take that multiply."""
    count = 0
    for kernel in plan.kernels:
        loops = [loop.partition("scf.yield")[0] for loop in kernel.mlir.split("scf.for")[1:]]
        products = [loop for loop in loops if "math.fma" in loop]
        assert products or "math.fma" not in kernel.mlir
        for loop in products:
            varying = {loop.split()[0]}
            for line in loop.splitlines()[1:]:
                result, _, value = line.partition(" = ")
                if varying & set(re.findall(r"%\w+", value)):
                    varying.add(result.strip())
                    count += QUOTIENT.search(value) is not None
    return count


def heads(c: Case, batch: int, count: int, length: int, size: int) -> Arr:
    """(batch, heads, length, size) as (batch * length, heads * size)."""
    return c.input(floats(batch, count, length, size)).permute(0, 2, 1, 3).reshape(batch * length, count * size)


@pytest.mark.parametrize("columns", [48, 64, 100, 300])
@pytest.mark.parametrize("size", [8, 12, 32])
@pytest.mark.parametrize("length", [16, 23])
def test_a_projection_behind_attention(length: int, size: int, columns: int) -> None:
    def project(c: Case) -> None:
        c.output(matmul(heads(c, 3, 5, length, size), c.input(floats(5 * size, columns))))

    assert quotients_in_products(build(project).check(launches=1)) == 0


@pytest.mark.parametrize(("count", "size"), [(4, 6), (4, 31), (3, 7)])
def test_short_and_odd_runs_have_quotients(count: int, size: int) -> None:
    def project(c: Case) -> None:
        c.output(matmul(heads(c, 2, count, 24, size), c.input(floats(count * size, 48))))

    assert quotients_in_products(build(project).check(launches=1)) > 0


def test_the_gradients_of_joined_queries_keys_and_values() -> None:
    """of the operand, over three parts of heads, and of the weight, over batches"""

    def gradients(c: Case) -> None:
        given = c.input(floats(3, 4, 4, 32, 16))
        joined = given.permute(1, 3, 0, 2, 4).reshape(4 * 32, 3 * 4 * 16)
        c.output(matmul(joined, c.input(floats(192, 64))))
        c.output(matmul(joined.permute(1, 0), c.input(floats(128, 64))))

    assert quotients_in_products(build(gradients).check(launches=2)) == 0


def test_a_prologue_and_a_bias_go_with_them() -> None:
    def project(c: Case) -> None:
        x = heads(c, 2, 4, 24, 16)
        c.output(matmul(x * c.input(floats(64)), c.input(floats(64, 48))) + c.input(floats(48)))

    assert quotients_in_products(build(project).check()) == 0


def test_heads_of_two_tensors() -> None:
    def project(c: Case) -> None:
        x = cat([heads(c, 2, 4, 24, 16), heads(c, 2, 2, 24, 16)], 1)
        c.output(matmul(x, c.input(floats(96, 48))))

    build(project).check()


@pytest.mark.parametrize("depth", [(8, 512), (40, 64), (3, 1000)])
def test_long_sums_in_blocks_and_pieces(depth: tuple[int, int]) -> None:
    count, size = depth

    def project(c: Case) -> None:
        c.output(matmul(heads(c, 1, count, 40, size), c.input(floats(count * size, 32))))

    build(project).check()


def test_a_batch_of_them() -> None:
    def project(c: Case) -> None:
        x = c.input(floats(5, 4, 24, 16)).permute(0, 2, 1, 3).reshape(5, 24, 64)
        c.output(matmul(x, c.input(floats(5, 64, 48))))

    assert quotients_in_products(build(project).check(launches=1)) == 0


@pytest.mark.parametrize(("size", "columns", "first"), [(32, 256, True), (64, 256, False), (32, 128, False)])
def test_short_runs_of_a_large_matrix_are_written_out_before_many_vectors_read_them(
    size: int, columns: int, first: bool
) -> None:
    def project(c: Case) -> None:
        c.output(matmul(heads(c, 8, 768 // size, 180, size), c.input(floats(768, columns))))

    build(project).check(launches=2 if first else 1, vector_bytes=32)
