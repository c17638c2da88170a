"""Random ops: the distribution they claim, by the moments of many draws from the NumPy interpreter."""

import numpy as np
import pytest
import torch

from ops_core.lowering.schema import op_named

from .checker import lower_call

N = 20_000


def draw(name, *args, **kwargs):
    call = lower_call(op_named(name), args, kwargs)
    return call.run()[call.lowered.outputs[0]].reshape(-1).astype(np.float64)


def has_moments(x, mean, variance):
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / x.size)
    assert x.var() == pytest.approx(variance, rel=0.12)


EMPTY = torch.empty(N)


@pytest.mark.parametrize(
    ("name", "args", "mean", "variance"),
    [
        ("aten.rand.default", ([N],), 0.5, 1 / 12),
        ("aten.randn.default", ([N],), 0, 1),
        ("aten.uniform_.default", (EMPTY, -3.0, 4.0), 0.5, 49 / 12),
        ("aten.normal_.default", (EMPTY, 3.0, 4.0), 3, 16),
        ("aten.exponential_.default", (EMPTY, 2.0), 0.5, 0.25),
        ("aten.geometric_.default", (EMPTY, 0.3), 1 / 0.3, 0.7 / 0.09),
        ("aten.bernoulli_.float", (EMPTY, 0.3), 0.3, 0.21),
        ("aten.bernoulli_.Tensor", (EMPTY, torch.full((N,), 0.3)), 0.3, 0.21),
        ("aten.normal.float_Tensor", (2.0, torch.full((N,), 3.0)), 2, 9),
        ("aten.random_.from", (EMPTY, -3, 4), 0, 4),
        ("aten.random_.to", (EMPTY, 7), 3, 4),
        ("aten.randint.low", (-3, 4, [N]), 0, 4),
        *[("aten.poisson.default", (torch.full((N,), rate),), rate, rate) for rate in (0.5, 9.9, 30.0, 200.0)],
        *[("aten._standard_gamma.default", (torch.full((N,), a),), a, a) for a in (0.5, 1.0, 3.0, 20.0)],
        *[("aten.binomial.default", (torch.full((N,), n), torch.full((N,), p)), n * p, n * p * (1 - p))
          for n, p in ((5.0, 0.3), (40.0, 0.5), (100.0, 0.9), (1000.0, 0.3))],
    ],
)  # fmt: skip
def test_moments(name, args, mean, variance):
    has_moments(draw(name, *args), mean, variance)


def test_a_permutation_has_every_number_once():
    assert sorted(draw("aten.randperm.default", 100)) == list(range(100))


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_draws_by_weight(replacement):
    weights = torch.tensor([0.1, 0.0, 0.2, 0.7]).expand(N, 4)
    counts = np.bincount(draw("aten.multinomial.default", weights, 1, replacement).astype(int), minlength=4) / N
    np.testing.assert_allclose(counts, [0.1, 0.0, 0.2, 0.7], atol=0.02)


def test_sampling_without_replacement_never_repeats():
    rows = draw("aten.multinomial.default", torch.rand(50, 6), 6, False).reshape(50, 6)
    assert all(sorted(row) == list(range(6)) for row in rows)


def test_uniform_numbers_never_reach_one_in_half_types():
    assert draw("aten.rand.default", [N], dtype=torch.bfloat16).max() < 1


def test_dropout_keeps_the_mean_and_drops_by_p():
    call = lower_call(op_named("aten.native_dropout.default"), (torch.ones(N), 0.25, True), {})
    values = call.run()
    out, mask = (values[v] for v in call.lowered.outputs)
    assert out.mean() == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(out != 0, mask)
