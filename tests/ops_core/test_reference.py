"""The NumPy references against torch: they are the oracle, so they must be exact."""

import itertools

import numpy as np
import pytest
import torch

from ops_core import numerics, reference
from ops_core.scalars import BY_NAME

NAN = float("nan")


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_counts_nan_as_largest(descending):
    x = torch.tensor([[2.0, NAN, 1.0, 2.0, -1.0, NAN]])
    want = x.sort(dim=1, descending=descending, stable=True)
    for start, count in ((0, 6), (0, 2), (3, 1), (2, 0)):
        attrs = {"dim": 1, "descending": descending, "start": start, "count": count}
        values, order = reference.sort(attrs, x.numpy())
        np.testing.assert_array_equal(values, want.values.narrow(1, start, count).numpy())
        np.testing.assert_array_equal(order, want.indices.narrow(1, start, count).numpy())


def test_cummax_takes_the_last_of_equals_and_keeps_nan():
    x = torch.tensor([1.0, 3.0, 3.0, 2.0, NAN, 5.0, NAN])
    values, at = reference.cummax({"dim": 0}, x.numpy())
    want = x.cummax(0)
    np.testing.assert_array_equal(values, want.values.numpy())
    np.testing.assert_array_equal(at, want.indices.numpy())


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "transposed", "groups"),
    itertools.product([1, 2], [0, 1, 2], [1, 2], [False, True], [1, 2]),
)
def test_convolution_is_torchs(stride, padding, dilation, transposed, groups):
    x, w = torch.randn(2, 4, 9, 8), torch.randn(4, 4 // groups, 3, 2)
    output_padding = 1 if transposed and stride > 1 else 0
    geometry = [[stride] * 2, [padding] * 2, [dilation] * 2, transposed, [output_padding] * 2, groups]
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    got = reference.convolution(dict(zip(names, geometry, strict=True)), x.numpy(), w.numpy())
    want = torch.ops.aten.convolution(x, w, None, *geometry)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_philox_gives_the_published_vectors():
    """Random123's known answers for Philox4x32-10: zero counter and key."""
    got = reference.philox(0, np.zeros(1, np.uint64))
    np.testing.assert_array_equal(got, [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]])


def test_random_bits_do_not_depend_on_where_an_op_starts():
    def bits(n, offset):
        return reference.rand_bits({"shape": (n,)}, np.int64(7), np.int64(offset))

    np.testing.assert_array_equal(bits(40, 3)[4:12], bits(8, 4))


@pytest.mark.parametrize("name", ["erf", "erfc", "erf_inv", "lgamma", "digamma"])
def test_transcendental_references_are_exact_to_double_rounding(name):
    x = (
        torch.linspace(-0.999, 0.999, 2001, dtype=torch.float64)
        if name == "erf_inv"
        else torch.linspace(-5, 9, 4001).double()
    )
    torch_name = {"erf_inv": "erfinv"}.get(name, name)
    want = getattr(torch, torch_name)(x).numpy()
    np.testing.assert_allclose(BY_NAME[name].reference(x.numpy()), want, rtol=1e-12, atol=1e-13)


def test_integer_division_truncates_and_never_traps():
    a, b = np.array([7, -7, 7, 5], np.int32), np.array([2, 2, -2, 0], np.int32)
    np.testing.assert_array_equal(BY_NAME["div"].reference(a, b)[:3], [3, -3, -3])


def test_bfloat16_rounds_to_nearest_even():
    x = torch.randn(1000) * 100
    np.testing.assert_array_equal(numerics.cast(x.numpy(), "bf16"), x.bfloat16().float().numpy())
