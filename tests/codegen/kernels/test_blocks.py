"""Pieces of contraction kernels alone."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.builder import Builder
from codegen.kernels.blocks import LOOPED_ROUNDS, by_registers, transpose
from codegen.kernels.matmul import MatmulSpec, candidates
from tests.codegen.kernels.contract import operand, output
from tests.codegen.run_kernel import PLACES, run
from tests.codegen.run_plan import capabilities


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", (1, 2, 4, 8, 16))
@pytest.mark.parametrize("dtype", ("f32", "i32"))
def test_a_block_is_transposed(place: str, width: int, dtype: str) -> None:
    """By rounds that are written out, and from so many vectors on by a loop."""
    k = Builder("turned", index_bits=32)
    x, y = k.buffer(dtype, readonly=True), k.buffer(dtype)
    block = transpose(k, [k.load(x, i * width, width) for i in range(width)])
    for i, row in enumerate(block):
        k.store(y, i * width, row)
    text = k.finish()
    assert ("scf.for" in text) == (width >= LOOPED_ROUNDS)
    source = np.arange(width * width, dtype=np.float32 if dtype == "f32" else np.int32)
    got = np.zeros_like(source)
    run(place, text, (1,), None, source, got)
    assert np.array_equal(got.reshape(width, width), source.reshape(width, width).T)


@pytest.mark.parametrize(
    ("vector_bytes", "private", "registers"),
    [(64, 0, 32), (32, 0, 16), (16, 0, 16), (32, 1024, 32), (32, 1536, 32), (64, 256, 16), (32, 1 << 20, 32)],
)
def test_tiles_are_for_the_registers_that_a_device_says_it_has(vector_bytes: int, private: int, registers: int) -> None:
    """16 where it says less: every product has a tile on every device."""
    caps = capabilities(vector_bytes=vector_bytes, max_private_bytes=private)
    assert by_registers({32: 32, 16: 16}, caps) == registers
    spec = MatmulSpec(1, 64, 64, 64, operand("f32", (0, 64, 1)), operand("f32", (0, 64, 1)), output("f32", (0, 64, 1)))
    tile = candidates(spec, caps)[0]
    assert registers // 2 <= tile.rows * tile.vectors + tile.vectors < registers
