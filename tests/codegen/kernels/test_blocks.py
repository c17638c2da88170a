"""Pieces of contraction kernels alone."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.builder import Builder
from codegen.kernels.blocks import LOOPED_ROUNDS, transpose
from tests.codegen.run_kernel import PLACES, run


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
