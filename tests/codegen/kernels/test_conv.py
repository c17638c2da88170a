"""Convolutions against float64 torch: forward, transposed and as a weight gradient, in 1 to 3 dims."""

import re

import numpy as np
import pytest
import torch

from codegen.kernels.conv import ConvSpec, Tensor, convolution
from tests.codegen.kernels.contract import Launcher, dense
from tests.codegen.kernels.test_matmul import CPU, GPU

F = torch.nn.functional


def tensor(shape, readonly=True, epilogue=None):
    return Tensor(dense(shape, readonly=readonly, epilogue=epilogue), tuple(shape), "f32")


def run(x, w, out_shape, caps, epilogue=None, **geometry):
    spec = ConvSpec(tensor(x.shape), tensor(w.shape), tensor(out_shape, False, epilogue), **geometry)
    buffers = {"x": [x], "w": [w], "out": [np.full(out_shape, np.nan, np.float32)]}
    launcher = Launcher(convolution("conv", spec, caps), buffers)
    launcher.run()
    return launcher.read("out", buffers["out"][0])


def integers(*shape, seed=0):
    """Small integers: their sums are exact in float32 in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


# x, w, stride, padding, dilation, groups
FORWARD = [
    ((2, 3, 9, 11), (5, 3, 3, 3), 1, 1, 1, 1),
    ((1, 16, 14, 14), (33, 16, 3, 3), 1, 1, 1, 1),
    ((2, 4, 15, 16), (6, 4, 3, 3), 2, 1, 1, 1),
    ((2, 3, 32, 32), (8, 3, 7, 7), 2, 3, 1, 1),
    ((3, 8, 7, 7), (4, 8, 1, 1), 1, 0, 1, 1),
    ((1, 8, 8, 9), (4, 8, 1, 1), 2, 0, 1, 1),
    ((2, 6, 12, 10), (6, 1, 3, 3), 1, 1, 1, 6),
    ((2, 6, 12, 10), (9, 2, 3, 2), (1, 2), (0, 1), (2, 1), 3),
    ((2, 4, 40), (5, 4, 5), 3, 2, 2, 1),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), 1, 1, 1, 1),
    ((1, 2, 7, 6, 8), (3, 2, 3, 3, 3), 2, 1, 1, 1),
    ((1, 1, 20, 20), (2, 1, 4, 4), 4, 0, 1, 1),
    ((1, 2, 16, 32), (3, 2, 3, 3), 1, 1, 1, 1),
    # whole vectors in a row of the output: numbered without padding
    ((3, 3, 5, 16), (9, 3, 3, 3), 1, 1, 1, 1),
    ((2, 4, 9, 33), (6, 2, 3, 2), 1, (1, 0), 1, 2),
    ((2, 3, 7, 35), (8, 3, 3, 5), 2, (1, 0), 1, 1),
    ((1, 2, 48), (3, 2, 1), 1, 0, 1, 1),
    ((1, 2, 3, 4, 16), (3, 2, 3, 1, 3), 1, (1, 0, 1), 1, 1),
]


def spread_out(value, rank):
    return (value,) * rank if isinstance(value, int) else value


@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("case", FORWARD, ids=str)
def test_forward(case, caps):
    x_shape, w_shape, stride, padding, dilation, groups = case
    rank = len(x_shape) - 2
    x, w = integers(*x_shape), integers(*w_shape, seed=1)
    sizes = {"stride": stride, "padding": padding, "dilation": dilation}
    geometry = {name: spread_out(value, rank) for name, value in sizes.items()}
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    exact = conv(torch.from_numpy(x), torch.from_numpy(w), groups=groups, **geometry).numpy()
    np.testing.assert_array_equal(run(x, w, exact.shape, caps, groups=groups, **geometry), exact)


# x, w [C, O / groups, ...], stride, padding, output_padding, dilation, groups
TRANSPOSED = [
    ((2, 5, 9, 8), (5, 3, 3, 3), 1, 1, 0, 1, 1),
    ((2, 5, 7, 8), (5, 3, 3, 3), 2, 1, 1, 1, 1),
    ((1, 6, 7, 8), (6, 2, 4, 4), 2, 1, 0, 1, 2),
    ((1, 4, 5, 5), (4, 3, 1, 1), 2, 0, 1, 1, 1),
    ((1, 4, 6), (4, 3, 3), 2, 2, 0, 3, 1),
    ((1, 4, 9), (4, 3, 4), 3, 1, 2, 2, 1),
    ((1, 2, 4, 5, 6), (2, 3, 3, 3, 3), 2, 1, 1, 1, 1),
    ((2, 4, 5, 6, 7), (4, 3, 3, 3, 3), 2, 0, 1, 2, 1),
    ((2, 3, 5, 16), (3, 5, 3, 3), 1, 1, 0, 1, 1),
    ((2, 3, 5, 16), (3, 5, 4, 4), 2, 1, 0, 1, 1),
]


@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed(case, caps):
    x_shape, w_shape, stride, padding, output_padding, dilation, groups = case
    rank = len(x_shape) - 2
    x, w = integers(*x_shape), integers(*w_shape, seed=1)
    conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    tensors = torch.from_numpy(x), torch.from_numpy(w)
    exact = conv(*tensors, None, stride, padding, output_padding, groups, dilation).numpy()
    geometry = {"stride": (stride,) * rank, "padding": (padding,) * rank, "dilation": (dilation,) * rank}
    np.testing.assert_array_equal(run(x, w, exact.shape, caps, transposed=True, groups=groups, **geometry), exact)


@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("case", FORWARD[:6], ids=str)
def test_weight_gradient(case, caps):
    """It is a convolution with batch and channels exchanged, whose kernel is the gradient of the output."""
    x_shape, w_shape, stride, padding, dilation, _ = case
    x = torch.from_numpy(integers(*x_shape))
    w = torch.from_numpy(integers(*w_shape, seed=1)).requires_grad_()
    y = F.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)
    grad = torch.from_numpy(integers(*y.shape, seed=2))
    y.backward(grad)
    lhs, rhs = (v.transpose(0, 1).contiguous().numpy() for v in (x, grad))
    geometry = {"stride": (dilation,) * 2, "padding": (padding,) * 2, "dilation": (stride,) * 2}
    shape = (x_shape[1], y.shape[1], *F.conv2d(torch.from_numpy(lhs), torch.from_numpy(rhs), **geometry).shape[2:])
    got = run(lhs, rhs, shape, caps, **geometry).swapaxes(0, 1)
    np.testing.assert_array_equal(got[..., : w_shape[2], : w_shape[3]], w.grad.numpy())


def test_weight_gradient_with_groups():
    """Channels of one group form the batch."""
    x, grad = integers(2, 3 * 4, 9, 9), integers(6, 4, 9, 9, seed=1)
    exact = F.conv2d(torch.from_numpy(x), torch.from_numpy(grad), padding=1, groups=3).numpy()
    got = run(x, grad, exact.shape, CPU, groups=3, stride=(1, 1), padding=(1, 1), dilation=(1, 1))
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("size", [5, 7, 12, 17])
def test_rows_shorter_than_a_vector_do_not_run_into_each_other(size, dilation):
    """The product walks one row of the gradient for each image: several may fit a vector register."""
    x, grad = integers(3, 2 * 2, (size - 1) * dilation + 3), integers(4, 2, size, seed=1)
    exact = F.conv1d(torch.from_numpy(x), torch.from_numpy(grad), dilation=dilation, groups=2).numpy()
    got = run(x, grad, exact.shape, CPU, groups=2, stride=(1,), padding=(0,), dilation=(dilation,))
    np.testing.assert_array_equal(got, exact)


def test_the_epilogue_is_applied_to_each_element():
    x, w = integers(2, 3, 9, 11), integers(5, 3, 3, 3, seed=1)
    exact = F.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()
    got = run(x, w, exact.shape, CPU, lambda v: v * 2.0 + 1.0, stride=(1, 1), padding=(1, 1), dilation=(1, 1))
    np.testing.assert_array_equal(got, exact * 2 + 1)


def test_rows_of_whole_vectors_have_no_padding_in_between():
    """32 columns are two vectors of the product, which it writes as they are; 34 with their padding would be three."""
    spec = ConvSpec(tensor((1, 3, 8, 32)), tensor((8, 3, 3, 3)), tensor((1, 8, 8, 32), False), (1, 1), (1, 1), (1, 1))
    *_, product = convolution("conv", spec, CPU).steps
    assert not re.search(r"memref\.store .*%a2", product.mlir)  # no element is written alone


@pytest.mark.parametrize("channels, size, items", [(64, 4, (1, 8, 1)), (70, 16, (6, 8, 1)), (3, 96, (3, 8, 1))])
def test_small_planes_share_a_work_item(channels, size, items):
    """a work-group for each plane of 4 x 4 takes longer than its copy; the last of 70 channels are fewer"""
    x, w = integers(8, channels, size, size), integers(5, channels, 3, 3, seed=1)
    exact = F.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()
    geometry = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    spec = ConvSpec(tensor(x.shape), tensor(w.shape), tensor(exact.shape, False), **geometry)
    assert convolution("conv", spec, CPU).steps[0].global_size == items
    np.testing.assert_array_equal(run(x, w, exact.shape, CPU, **geometry), exact)
