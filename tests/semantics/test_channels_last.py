"""Convolutions and batch norms of channels-last tensors: eager's strides, which decide what `view` takes."""

import pytest
import torch
from torch.nn import functional as F


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("image_last", "weight_last"), [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.sampled
def test_strides(convolve, image_last, weight_last, size, compiled):
    """Results and gradients equal eager's, the result in eager's layout, and torch.compile knows of it."""
    torch.manual_seed(0)
    formats = {True: torch.channels_last, False: torch.contiguous_format}
    x = torch.randn(2, 4, 6, 6).to(memory_format=formats[image_last])
    w = torch.randn(4, 4, size, size).to(memory_format=formats[weight_last])

    def outcome(device):
        torch._dynamo.reset()
        inputs = [t.to(device).requires_grad_() for t in (x.detach(), w.detach())]

        def f(x, w):
            y = convolve(x, w)
            return y, y.flatten(1)  # a view or a copy

        y, flat = (torch.compile(f, backend="aot_eager") if compiled else f)(*inputs)
        (y.sin().sum() + flat.sum()).backward()
        return y.stride(), [t.detach().cpu() for t in (y, flat, *(t.grad for t in inputs))]

    (strides, expected), (got, values) = outcome("cpu"), outcome("lazy")
    assert got == strides
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)


def test_of_a_library():
    """One large enough for the host's library (2^20 multiplications) writes the same strides."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 16, 16).to(memory_format=torch.channels_last)
    w = torch.randn(32, 16, 3, 3)
    y = F.conv2d(x.to("lazy"), w.to("lazy"))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.cpu(), F.conv2d(x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rank", [4, 5])
def test_batch_norm(rank, training):
    """A network stays channels last behind it."""
    torch.manual_seed(0)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}[rank]
    x, parameters = torch.randn([2, 3, 4, 5, 6][:rank]).to(memory_format=last), [torch.rand(3) for _ in range(4)]

    def outcome(device):
        mean, var, *scale = (t.clone().to(device) for t in parameters)
        return F.batch_norm(x.to(device).requires_grad_(), mean, var, *scale, training=training).relu()

    expected, found = outcome("cpu"), outcome("lazy")
    assert found.stride() == expected.stride() and found.is_contiguous(memory_format=last)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
