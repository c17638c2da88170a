"""Orthogonal polynomials of degrees that are data, against ATen's CPU kernels."""

import math

import pytest
import torch

from ops_core.polynomials import FAMILIES, KERNELS

X = torch.tensor([-2.5, -1.0, -0.3, 0.0, 0.7, 1.0, 1.8, math.inf, math.nan])


def both(name, *args, **kwargs):
    return KERNELS[f"special_{name}.default"](*args), getattr(torch.ops.aten, f"special_{name}").default(*args)


def close(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_degree_up_to_nine_and_below_zero(name, dtype):
    degrees = torch.tensor([-3, 0, 1, 2, 3, 5, 9])
    close(*both(name, X.to(dtype).unsqueeze(1), degrees))


@pytest.mark.parametrize("name", FAMILIES)
def test_fractions_of_a_degree_are_dropped_and_what_is_no_integer_counts_as_negative(name):
    close(*both(name, X[2:5].unsqueeze(1), torch.tensor([2.7, -0.5, math.nan, math.inf, 1e30])))


@pytest.mark.parametrize("name", [n for n in FAMILIES if n.startswith("hermite")])
def test_beyond_atens_limit_hermite_polynomials_are_nan(name):
    got, expected = both(name, torch.tensor(1e-3), torch.tensor([128.0, 129.0, 1000.0]))
    assert got.isnan().tolist() == expected.isnan().tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_integers_become_floats_and_nothing_stays_nothing(name):
    close(*both(name, torch.arange(-2, 3), torch.tensor(3)))
    close(*both(name, torch.zeros(0, 3), torch.tensor([1, 2, 3])))


@pytest.mark.parametrize("name", FAMILIES)
def test_either_operand_may_be_a_number(name):
    operator = getattr(torch.ops.aten, f"special_{name}")
    close(KERNELS[f"special_{name}.default"](X, 3), operator.n_scalar(X, 3))
    close(KERNELS[f"special_{name}.default"](0.3, torch.arange(5)), operator.x_scalar(0.3, torch.arange(5)))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_dtype_without_a_kernel_is_refused_in_eagers_words(name):
    with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
        KERNELS[f"special_{name}.default"](torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_out_face_writes_what_it_is_given(name):
    out = torch.empty(0)
    returned = KERNELS[f"special_{name}.out"](X, torch.tensor(4), out=out)
    assert returned is out
    close(out, both(name, X, torch.tensor(4))[1])
