"""Attention against float64 NumPy."""

import numpy as np
import pytest

from codegen.composites import FORWARD, kept
from codegen.kernels.attention import (
    AttentionSpec,
    attention,
    claims,
    claims_rows,
    key_blocks,
    most_queries,
    query_block,
)
from codegen.kernels.attention_backward import Gradients, attention_backward
from codegen.kernels.attention_backward_local import attention_backward_local
from codegen.kernels.attention_rows import attention_rows
from ops_core.ir import Graph
from ops_core.sizes import Tape, tracing
from tests.codegen.kernels.contract import Launcher, dense
from tests.codegen.kernels.test_matmul import CPU, GPU
from tests.codegen.run_plan import capabilities

AVX2 = capabilities(vector_bytes=32)  # 16 registers: tiles of three vectors
LOCAL = capabilities(is_cpu=False, vector_bytes=16, max_work_group_size=256, local_memory_bytes=48 << 10)


def inputs(batch, heads, queries, keys, depth, value_depth, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (queries, depth), (keys, depth), (keys, value_depth)
    return [rng.standard_normal((batch, heads, *s), dtype=np.float32) for s in shapes]


def softmax_scores(q, k, scale, causal, bias):
    """Weights and logsumexp in float64; rows that see nothing are 0."""
    s = scale * q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)
    if bias is not None:
        s = np.where(bias, s, -np.inf) if bias.dtype == bool else s + bias
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total == 0, 0, e / total), (np.log(total) + np.where(np.isinf(top), 0, top))[..., 0]


def make_spec(q, k, v, causal, bias, **more):
    shape = (*q.shape[:2], q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    boolean = bias is not None and bias.dtype == bool
    given = None if bias is None else dense(bias.shape, "bool" if boolean else "f32")
    return AttentionSpec(
        *shape, 0.3, causal, dense(q.shape), dense(k.shape), dense(v.shape), bias=given, boolean=boolean, **more
    )


SHAPES = [
    (1, 1, 8, 8, 8, 8), (2, 3, 64, 64, 64, 64), (1, 2, 100, 100, 40, 40), (1, 2, 33, 150, 24, 80),
    (1, 2, 130, 70, 128, 16),
    (1, 1, 9, 20, 5, 7), (1, 1, 257, 257, 96, 96), (1, 1, 20, 33, 72, 72), (2, 4, 541, 30, 16, 24),
]  # fmt: skip


# Of few queries: one key, keys that fill no vector and several, rows that overlap, with and without a whole vector.
FEW = [
    (1, 1, 1, 1, 8, 8), (2, 3, 1, 77, 32, 32), (1, 2, 4, 20, 40, 24), (1, 2, 7, 5, 6, 10), (2, 2, 5, 100, 72, 5),
    (1, 1, 4, 33, 130, 130), (1, 2, 4, 16, 500, 512),
]  # fmt: skip


# Vectors that are one, two or none beside whole tiles; one that would overlap another tile's.
NARROW = [(shape, AVX2) for shape in (SHAPES[2], SHAPES[3], SHAPES[6], (1, 1, 40, 70, 28, 30))]


def name(x):
    return str(x) if isinstance(x, tuple) else f"{x.vector_bytes * 8} bits"


def forward(spec, caps):
    return (attention_rows if claims_rows(spec, caps) else attention)("attention", spec, caps)


def test_few_queries_have_a_kernel_of_their_own():
    specs = {shape: make_spec(*inputs(*shape), False, None, out=dense(shape, readonly=False)) for shape in SHAPES + FEW}
    assert [shape for shape, spec in specs.items() if claims_rows(spec, CPU)] == FEW
    assert not any(claims_rows(spec, GPU) for spec in specs.values())


@pytest.mark.parametrize("bias", [None, "float", "bool"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "caps"), [*((shape, CPU) for shape in SHAPES + FEW), *NARROW], ids=name)
@pytest.mark.sampled
def test_forward(shape, caps, causal, bias):
    q, k, v = inputs(*shape)
    rng = np.random.default_rng(1)
    scores = (*q.shape[:3], k.shape[2])
    given = None
    if bias == "float":
        given = rng.standard_normal(scores, np.float32)
    if bias == "bool":
        given = rng.random(scores) < 0.5
        given[0, 0, shape[2] // 2] = False
    out, lse = np.empty((*q.shape[:3], v.shape[3]), np.float32), np.empty(q.shape[:3], np.float32)
    written = {"out": dense(out.shape, readonly=False), "lse": dense(lse.shape, readonly=False)}
    buffers = {"q": [q], "k": [k], "v": [v], "bias": [given], "out": [out], "lse": [lse]}
    launcher = Launcher(forward(make_spec(q, k, v, causal, given, **written), caps), buffers)
    launcher.run()
    weights, exact_lse = softmax_scores(q, k, 0.3, causal, given)
    np.testing.assert_allclose(launcher.read("out", out), weights @ v, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(launcher.read("lse", lse), exact_lse, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("queries", [40, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_makes_its_row_nan_and_no_other(value, queries):
    q, k, v = inputs(1, 1, queries, 40, 16, 16)
    bias = np.zeros((1, 1, queries, 40), np.float32)
    bias[0, 0, 5, 7] = value
    out = np.empty(q.shape, np.float32)
    spec = make_spec(q, k, v, False, bias, out=dense(out.shape, readonly=False))
    launcher = Launcher(forward(spec, CPU), {"q": [q], "k": [k], "v": [v], "bias": [bias], "out": [out]})
    launcher.run()
    assert np.array_equal(np.isnan(launcher.read("out", out)).all((0, 1, 3)), np.arange(queries) == 5)


def test_keys_whose_number_varies_are_cut_in_two_ways_whatever_they_are_now():
    """into whole registers from one block of these on; what their number decides leaves no guard"""
    tape = Tape()
    with tracing(tape):
        ways = key_blocks(tape.symbol(13, 100), CPU)
    assert [keys.block for keys in ways] == [64, 32] and not tape.guards
    assert [keys.block for keys in key_blocks(13, CPU)] == [16]


def test_the_size_of_a_head_is_the_same_for_all_of_a_plan():
    """its vectors have the lanes of a known length; how many heads there are, and how long a text is, varies"""
    tape, graph = Tape(), Graph()
    with tracing(tape):
        heads, length, size = tape.symbol(4, 2), tape.symbol(40, 70), tape.symbol(64, 32)
        q, k, v = (graph.add("full", (), (1, heads, length, size), "f32", value=0.0) for _ in range(3))
        results = [((1, heads, length, size), "f32"), ((1, heads, length), "f32")]
        (node, *_) = [x.node for x in graph.add_multi(FORWARD, (q, k, v), results, scale=1.0, causal=False)]
        assert kept(graph, CPU) == {node}
        count = heads * length
    evaluate = tape.compiled([count])
    assert evaluate(2, 70, 64) == [140] and evaluate(4, 40, 32) is None


def test_work_items_take_more_queries_where_units_have_enough_of_them():
    """and no more than the queries in equal parts, by which little is computed twice"""

    def queries(*shape):
        spec = make_spec(*inputs(*shape), False, None, out=None)
        return query_block(spec, 6, most_queries(spec, CPU))

    units = CPU.compute_units
    assert queries(units, 4, 264, 8, 8, 8) == 264 and queries(units, 4, 300, 8, 8, 8) == 150
    assert queries(1, 1, 264, 8, 8, 8) == 132 and queries(units, 4, 264, 8, 160, 8) == 132


def test_decoding_and_gpus_have_other_kernels():
    q, k, v = inputs(1, 1, 1, 64, 64, 64)
    assert not claims(make_spec(q, k, v, False, None, out=None), CPU)
    q, k, v = inputs(1, 1, 64, 64, 64, 64)
    assert claims(make_spec(q, k, v, False, None, out=None), CPU)
    assert not claims(make_spec(q, k, v, False, None, out=None), GPU)


@pytest.mark.parametrize("bias", [None, "bool"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "caps"), [*((shape, caps) for shape in SHAPES for caps in (CPU, LOCAL)), *NARROW], ids=name
)
@pytest.mark.sampled
def test_backward(shape, caps, causal, bias):
    """Gradients by hand: ds = p (g v^T - sum g out)."""
    q, k, v = inputs(*shape)
    rng = np.random.default_rng(1)
    given = rng.random((*q.shape[:3], k.shape[2])) < 0.5 if bias else None
    weights, lse = softmax_scores(q, k, 0.3, causal, given)
    out = weights @ v
    grad = rng.standard_normal(out.shape)
    ds = weights * (grad @ v.astype(np.float64).swapaxes(-1, -2) - (grad * out).sum(-1, keepdims=True))
    exact = {"dq": 0.3 * ds @ k, "dk": 0.3 * ds.swapaxes(-1, -2) @ q, "dv": weights.swapaxes(-1, -2) @ grad}
    read = {"q": q, "k": k, "v": v, "bias": given}
    read |= {name: x.astype("f4") for name, x in (("grad", grad), ("out", out), ("lse", lse))}
    written = {name: np.full(x.shape, np.nan, "f4") for name, x in exact.items()}
    binds = [dense(read[n].shape) for n in ("grad", "out", "lse")]
    binds += [dense(x.shape, readonly=False) for x in written.values()]
    spec = make_spec(q, k, v, causal, given, out=None)
    template = attention_backward if caps.is_cpu else attention_backward_local
    steps = template("backward", spec, Gradients(*binds), caps)
    assert len(steps.steps) == 2
    launcher = Launcher(steps, {n: [x] for n, x in (read | written).items()})
    launcher.run()
    for name, x in exact.items():
        np.testing.assert_allclose(launcher.read(name, written[name]), x, rtol=1e-4, atol=5e-5, err_msg=name)
