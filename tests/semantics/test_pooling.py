"""Poolings with windows too large to be written out tap by tap: as large as the input, larger, and sliding ones."""

import pytest
import torch
import torch.nn.functional as F

NAN, INF = float("nan"), float("inf")
AVERAGES = {
    "the whole image": ((2, 4, 28, 28), lambda x: F.avg_pool2d(x, 28)),
    "larger than its input": ((2, 4, 1, 1), lambda x: F.avg_pool2d(x, 64, ceil_mode=True)),
    "a little larger": ((2, 4, 3, 2), lambda x: F.avg_pool2d(x, 5, ceil_mode=True)),
    "windows whose first taps are in the padding": ((1, 2, 4, 4), lambda x: F.avg_pool2d(x, 4, 5, 2)),
    "padded, which does not count": (
        (2, 4, 9, 28),
        lambda x: F.avg_pool2d(x, (9, 40), (1, 40), (4, 20), count_include_pad=False),
    ),
    "the last one cut": ((2, 3, 20, 31), lambda x: F.avg_pool2d(x, (7, 9), (3, 4), (2, 1), ceil_mode=True)),
    "side by side": ((2, 3, 24, 36), lambda x: F.avg_pool2d(x, (8, 6))),
    "whole rows": ((2, 3, 24, 36), lambda x: F.avg_pool2d(x, (3, 36))),
    "covered with its padding": ((2, 3, 7, 7), lambda x: F.avg_pool2d(x, 11, padding=2)),
    "sliding": ((2, 4, 400), lambda x: F.avg_pool1d(x, 100, 1)),
    "apart": ((2, 4, 400), lambda x: F.avg_pool1d(x, 40, 70)),
    "three dimensions": ((2, 4, 4, 7, 7), lambda x: F.avg_pool3d(x, (4, 7, 7))),
}
LARGEST = {
    "the whole line": ((4, 8, 60), lambda x: F.max_pool1d(x, x.size(2), return_indices=True)),
    "sliding": ((2, 4, 200), lambda x: F.max_pool1d(x, 100, 7, return_indices=True)),
    "sliding over an image, padded": ((2, 3, 15, 14), lambda x: F.max_pool2d(x, 13, 1, 6, return_indices=True)),
    "the last one cut": ((2, 3, 20, 31), lambda x: F.max_pool2d(x, 7, 4, 3, 1, True, True)),
    "its first taps in the padding": ((1, 2, 4, 4), lambda x: F.max_pool2d(x, 4, 5, 2, return_indices=True)),
    "dilated beyond its input": ((2, 3, 5, 6), lambda x: F.max_pool2d(x, 3, 2, 1, 3, True, True)),
    "dilated": ((2, 3, 20, 31), lambda x: F.max_pool2d(x, (7, 5), 4, 2, 2, return_indices=True)),
    "three dimensions": ((2, 4, 4, 7, 7), lambda x: F.max_pool3d(x, (4, 7, 7), return_indices=True)),
}


def pooled(shape, pool, device):
    """What a pooling gives, and the gradient of its input."""
    x = torch.randn(shape).to(device).requires_grad_()
    given = pool(x)
    values, *_ = given if isinstance(given, tuple) else (given,)
    weights = torch.linspace(1, 2, values.numel()).reshape(values.shape).to(device)
    (values * weights).sum().backward()
    return given, x.grad


@pytest.mark.parametrize("name", AVERAGES)
def test_averages(agrees, name):
    agrees(lambda device: pooled(*AVERAGES[name], device), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LARGEST)
def test_largest_and_where(agrees, name):
    agrees(lambda device: pooled(*LARGEST[name], device), rtol=1e-5, atol=1e-5)


def test_nan_is_larger_than_any_number_and_of_equals_the_first_counts(agrees):
    x = torch.randn(5, 2, 40)
    x[0, 0, 3] = x[0, 0, 9] = NAN
    x[1], x[2], x[3, 0, 20] = 1.0, -INF, INF
    agrees(lambda device: F.max_pool1d(x.to(device), 40, return_indices=True))
    agrees(lambda device: F.max_pool1d(x.to(device), 33, 1, 16, return_indices=True))


def test_an_infinity_stays_in_its_windows(agrees):
    x = torch.randn(1, 1, 12, 12)
    x[0, 0, 0, 0], x[0, 0, 11, 11] = INF, -INF
    agrees(lambda device: F.avg_pool2d(x.to(device), 6), rtol=1e-5, atol=1e-5)


def test_an_average_of_the_whole_image_is_one_kernel(device):
    if device == "cpu":
        pytest.skip("the cpu builds no kernels")
    x = torch.randn(2, 3, 48, 48, device=device)
    torch.lazy.synchronize()
    before = torch.lazy.stats()
    F.avg_pool2d(x, 48).cpu()
    after = torch.lazy.stats()
    assert after["kernels_launched"] - before["kernels_launched"] == 1
    assert after["host_ops"] == before["host_ops"]
