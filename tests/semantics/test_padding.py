"""Padding with copies of what lies at the edges, and its gradient."""

import itertools

import pytest
import torch
from torch.nn import functional as F

SHAPES = {(2, 3, 7): 1, (2, 5, 6): 2, (2, 3, 4, 5, 6): 3}
SIDES = [(low, high) for low, high in itertools.product((-2, 0, 3), repeat=2) if low or high]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients(agrees, shape, sides, mode):
    """also of sides that crop, in the same call"""
    rank = SHAPES[shape]
    padding = [*sides, *[1, 2, -1, 3][: 2 * (rank - 1)]]
    x = torch.randn(shape)
    out = F.pad(x, padding, mode=mode)
    slope = torch.randn(out.shape)

    def program(device):
        leaf = x.detach().to(device).requires_grad_()
        padded = F.pad(leaf, padding, mode=mode)
        padded.backward(slope.to(device))
        return padded.detach(), leaf.grad

    agrees(program)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_dtypes(agrees, mode, dtype):
    x = torch.arange(96).reshape(2, 2, 4, 6).to(dtype)
    agrees(lambda device: F.pad(x.to(device), (2, 1, 1, 3), mode=mode))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("rank", [4, 5])
def test_channels_last(rank, mode):
    last = {4: torch.channels_last, 5: torch.channels_last_3d}[rank]
    x = torch.randn([2, 3, 4, 5, 6][:rank]).to(memory_format=last)

    def outcome(device):
        leaf = x.detach().to(device).requires_grad_()
        padded = F.pad(leaf, [1] * 2 * (rank - 2), mode=mode)
        (slope,) = torch.autograd.grad(padded, leaf, torch.ones_like(padded))
        return padded.stride(), slope.stride()

    assert outcome("lazy") == outcome("cpu")


@pytest.mark.parametrize(("mode", "kernels"), [("reflect", 2), ("replicate", 1)])
def test_places_are_not_checked(device, mode, kernels):
    """They are known. Those of reflected rows, two absolute values each, are computed beforehand."""
    x = torch.randn(2, 3, 16, 16).to(device)
    torch.lazy.synchronize()
    with torch.lazy.window(512):
        before = torch.lazy.stats()["kernels_launched"]
        F.pad(x, (1, 1, 1, 1), mode=mode).cpu()
        assert torch.lazy.stats()["kernels_launched"] - before == kernels


@pytest.mark.parametrize("padding", [(8, 0, 0, 0), (0, 0, 0, 9), (1, 1)], ids=str)
def test_too_much_is_refused_in_eagers_words(padding):
    def outcome(device):
        with pytest.raises((RuntimeError, NotImplementedError)) as error:
            torch.ops.aten.reflection_pad2d(torch.ones(1, 1, 8, 8, device=device), padding)
        return str(error.value)

    assert outcome("lazy") == outcome("cpu")
