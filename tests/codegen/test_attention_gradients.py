"""The gradients of a GPU's attention, in two launches, against the NumPy interpreter, which writes the scores out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from codegen.kernels.attention_backward import Gradients
from codegen.kernels.attention_backward_local import attention_backward_local
from codegen.kernels.attention_tiles import GradientCut, claims_gradients, gradient_cut
from ops_core.lowering.network import attention_backward
from ops_core.sizes import Tape, tracing
from tests.codegen.case import Case, build
from tests.codegen.kernels.contract import dense
from tests.codegen.kernels.test_attention import softmax_scores
from tests.codegen.run_plan import capabilities
from tests.codegen.test_attention_local import LOCAL, SHAPES, WAYS, Shape, floats, masks, spec
from tests.codegen.test_core_kernels import GPU


def operands(shape: Shape, causal: bool, bias: str) -> list[np.ndarray]:
    """grad, q, k, v, and the result and logsumexp of these; a bias."""
    batch, heads, queries, keys, depth, columns = shape
    q, k, v = (floats(batch, heads, *size) for size in ((queries, depth), (keys, depth), (keys, columns)))
    given = masks(bias, shape)
    weights, lse = softmax_scores(q, k, 0.3, causal, given[0] if given else None)
    return [floats(batch, heads, queries, columns), q, k, v, (weights @ v).astype("f4"), lse.astype("f4"), *given]


def written(shape: Shape, causal: bool, bias: str) -> Callable[[Case], None]:
    def write(c: Case) -> None:
        inputs = map(c.input, operands(shape, causal, bias))
        for gradient in attention_backward(*inputs, scale=0.3, causal=causal)[:3]:
            c.output(gradient)

    return write


@pytest.mark.parametrize(("causal", "bias"), WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled
def test_two_launches_do_it_all(shape: Shape, causal: bool, bias: str) -> None:
    build(written(shape, causal, bias)).check(launches=2, **LOCAL)


# (local memory, work items of a group) -> the tile of heads of 64: rows held, fewer of them, rows in pieces.
DEVICES = [
    (56 << 10, 128, (64, 32, True)), (56 << 10, 127, (32, 32, True)), (48 << 10, 256, (64, 32, False)),
    (32 << 10, 256, (64, 32, False)), (24 << 10, 256, (32, 32, False)), (48 << 10, 63, (16, 32, True)),
    (20 << 10, 256, (16, 32, False)),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("memory", "items", "tile"), DEVICES)
def test_tiles_that_a_device_has_room_for(memory: int, items: int, tile: tuple, causal: bool) -> None:
    caps = GPU | {"local_memory_bytes": memory, "max_work_group_size": items}
    found = gradient_cut(spec(1, 2, 100, 150, 64, 64), capabilities(**caps))
    assert found and (found.rows, found.others, found.held) == tile
    build(written((1, 2, 100, 150, 64, 64), causal, "float")).check(launches=2, **caps)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_makes_the_gradient_of_its_query_nan_and_no_other(value: float) -> None:
    """and those of all keys and values, which sum over the queries"""
    grad, q, k, v = (floats(1, 1, length, 16) for length in (40, 40, 70, 70))
    bias = np.zeros((1, 1, 40, 70), np.float32)
    weights, lse = softmax_scores(q, k, 0.3, False, bias)
    out, bias[0, 0, 5, 37], lse[0, 0, 5] = (weights @ v), value, value
    out[0, 0, 5] = np.nan

    def write(c: Case) -> None:
        inputs = [grad, q, k, v, out.astype("f4"), lse.astype("f4"), bias]
        for gradient in attention_backward(*map(c.input, inputs), scale=0.3, causal=False)[:3]:
            c.output(gradient)

    build(write).check(launches=2, **LOCAL)


@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_lie_side_by_side_and_keys_that_several_share(causal: bool) -> None:
    """as a projection leaves them, [batch, length, heads, depth]; results too, and a bias for all heads"""
    _, q, k, v, *_ = operands((2, 4, 70, 90, 32, 32), causal, "none")
    k, v = (np.repeat(x[:, ::2], 2, 1) for x in (k, v))
    bias = floats(1, 1, 70, 90)
    weights, lse = softmax_scores(q, k, 0.3, causal, bias)
    out = (weights @ v).astype("f4")

    def write(c: Case) -> None:
        across = [c.input(x.transpose(0, 2, 1, 3)).permute(0, 2, 1, 3) for x in (floats(2, 4, 70, 32), q, out)]
        shared = [c.input(x[:, ::2].transpose(0, 2, 1, 3)).permute(0, 2, 1, 3) for x in (k, v)]
        pairs = [x.reshape(2, 2, 1, 90, 32).expand(2, 2, 2, 90, 32).reshape(2, 4, 90, 32) for x in shared]
        given = across[0], across[1], *pairs, across[2], c.input(lse.astype("f4")), c.input(bias).expand(2, 4, 70, 90)
        for gradient, length in zip(
            attention_backward(*given, scale=0.3, causal=causal)[:3], (70, 90, 90), strict=True
        ):
            slot = c.slot(np.zeros(2 * length * 4 * 32, np.float32))
            c.store(gradient, slot, (length * 4 * 32, 32, 4 * 32, 1))

    build(write).check(launches=2, **LOCAL)


def test_the_gradient_of_a_bias_needs_the_scores() -> None:
    """which products write: more launches"""

    def write(c: Case) -> None:
        inputs = map(c.input, operands((1, 2, 64, 64, 32, 32), False, "float"))
        for gradient in attention_backward(*inputs, scale=0.3, causal=False):
            c.output(gradient)

    build(write).check(launches=7, **LOCAL)


def test_what_is_left_to_products() -> None:
    """few queries or few keys of many, by which most units idle; heads that local memory or registers do not hold"""
    big = capabilities(**LOCAL, compute_units=132)
    assert claims_gradients(spec(1, 8, 2048, 2048, 64, 64, causal=True), big)
    assert claims_gradients(spec(4, 8, 512, 512, 64, 64), big)
    assert claims_gradients(spec(2, 16, 1024, 1024, 128, 128), big)
    assert claims_gradients(spec(1, 4, 16, 64, 32, 32), big)
    for shape in ((1, 2048, 64, 64), (2048, 1, 64, 64), (64, 4096, 64, 64), (512, 512, 160, 64), (512, 512, 64, 160)):
        assert not claims_gradients(spec(1, 8, *shape), big), shape
    assert not claims_gradients(spec(1, 8, 512, 512, 64, 64), capabilities(**GPU))
    assert not claims_gradients(spec(1, 8, 512, 512, 64, 64), capabilities(local_memory_bytes=48 << 10))


def test_lengths_that_vary_leave_no_guard() -> None:
    """and what the launches and the memory between them need of them can be computed"""
    tape, caps = Tape(), capabilities(**LOCAL)
    with tracing(tape):
        batch, heads, queries, keys = (tape.symbol(n, n) for n in (2, 3, 100, 150))
        varying = spec(batch, heads, queries, keys, 64, 64, causal=True)
        assert claims_gradients(varying, caps)
        shapes = {"dq": (queries, 64), "dk": (keys, 64), "dv": (keys, 64), "grad": (queries, 64), "out": (queries, 64)}
        binds = {n: dense((batch, heads, *x), readonly=n[0] != "d") for n, x in shapes.items()}
        made = attention_backward_local(
            "backward", varying, Gradients(**binds, lse=dense((batch, heads, queries))), caps
        )
        groups = [n for step in made.steps for n in step.global_size]
    assert not tape.guards
    evaluate = tape.compiled([*groups, *made.temps])
    assert evaluate(4, 8, 65, 300) == [4 * 8 * 128, 2, 1, 4 * 8 * 128, 5, 1, 4 * 8 * 65 * 8]


def test_a_tile_takes_what_it_says() -> None:
    """of local memory, in bytes: rows of both sides, others of both, weights"""
    assert 4 * GradientCut(64, 32, 64, 32, True).local_elements == (16 + 8 + 8 + 4 + 8) << 10
    assert 4 * GradientCut(64, 32, 128, 128, False).local_elements == (8 + 16 + 16 + 8) << 10
