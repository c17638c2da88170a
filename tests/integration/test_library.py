"""Convolutions of a CPU device, and products of bf16 where the host has instructions for these, run in the host's
library, as extern entries: same numbers, counted, nothing else."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lazy_backend.compiler import library

# images, channels, size, outputs, kernel, stride, padding, dilation, groups
LAYERS = {
    "many images": (8, 16, 16, 32, 3, 1, 1, 1, 1),
    "one image": (1, 32, 24, 32, 3, 1, 1, 1, 1),
    "strided: its weight gradient has more places than taps": (16, 16, 16, 32, 3, 2, 1, 1, 1),
    "a result smaller than the kernel": (32, 64, 4, 128, 3, 2, 1, 1, 1),
    "dilated": (8, 16, 20, 32, 3, 1, 2, 2, 1),
    "groups, one image": (1, 32, 40, 64, 3, 1, 1, 1, 4),
    "groups": (8, 32, 20, 64, 3, 1, 1, 1, 4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_library_computes_what_eager_does(device, name, monkeypatch):
    """Convolutions and their gradients through the host's library on a CPU device, equal to eager, no fallback"""
    # No size counts as one too many, so that each layer compiles for itself (lazy_backend/variants.py).
    monkeypatch.setattr("lazy_backend.variants.MAX_COMPILED", 1000)
    images, channels, size, outputs, kernel, stride, padding, dilation, groups = LAYERS[name]
    torch.manual_seed(0)
    x, w = torch.randn(images, channels, size, size), torch.randn(outputs, channels // groups, kernel, kernel)

    def gradients(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = F.conv2d(x, w, None, stride, padding, dilation, groups)
        (y.sin() * y).sum().backward()
        return y.detach(), x.grad, w.grad

    expected = gradients(x, w)
    before = torch.lazy.stats()
    got = [t.cpu() for t in gradients(x.to(device), w.to(device))]
    after = torch.lazy.stats()
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-3 * a.abs().max().item())
    assert after["host_ops"] == before["host_ops"]
    calls = after["extern_calls"] - before["extern_calls"]
    if library(0):
        assert calls == 3, "one for the result and one for each gradient"
    else:
        assert calls == 0


@pytest.mark.parametrize("loss", [lambda y: (y * y).sum(), torch.sum], ids=["squares", "a gradient that is one number"])
def test_results_are_written_where_they_belong(device, loss, monkeypatch):
    """A layer of a net, in halves, and its gradients: no result is copied"""
    monkeypatch.setattr("lazy_backend.variants.MAX_COMPILED", 1000)
    x, w = torch.randn(4, 64, 32, 32), torch.randn(64, 64, 3, 3)

    def gradients(x, w):
        y = F.conv2d(x, w, None, 1, 1)
        return y.detach(), *torch.autograd.grad(loss(y), (x, w))

    expected = gradients(x.requires_grad_(), w.requires_grad_())
    before = torch.lazy.stats()
    got = gradients(x.detach().to(device).requires_grad_(), w.detach().to(device).requires_grad_())
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-3 * a.abs().max().item())
    after = torch.lazy.stats()
    assert after["extern_calls"] - before["extern_calls"] == (3 if library(0) else 0)
    assert after["extern_copies"] == before["extern_copies"]


def test_results_whose_channels_lie_last_are_written_where_they_belong(device, monkeypatch):
    """A layer of a net whose images have their channels last: its result has, too, and is not copied"""
    monkeypatch.setattr("lazy_backend.variants.MAX_COMPILED", 1000)
    x, w = torch.randn(4, 64, 32, 32).to(memory_format=torch.channels_last), torch.randn(64, 64, 3, 3)
    before = torch.lazy.stats()
    y = F.conv2d(x.to(device), w.to(device), None, 1, 1)
    torch.testing.assert_close(y.cpu(), F.conv2d(x, w, None, 1, 1), rtol=1e-4, atol=1e-2)
    assert y.is_contiguous(memory_format=torch.channels_last)
    after = torch.lazy.stats()
    assert after["extern_copies"] == before["extern_copies"]


def test_an_output_padding_of_a_stride_or_more_stays_generated(agrees):
    """A transposed convolution whose output is larger than any input with that gradient"""
    x, w = torch.randn(2, 2, 4, 4, 4), torch.randn(2, 2, 4, 5, 6)

    def program(device):
        return F.conv_transpose3d(x.to(device), w.to(device), None, (3, 2, 1), (1, 2, 3), (2, 3, 1), 2, (4, 4, 4))

    agrees(program, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [1, 3], ids=["one much the smaller", "alike"])
def test_calls_side_by_side_are_shared_among_the_threads(device, agrees, kernel, monkeypatch):
    """Two independent convolutions, and both of their gradients, beside each other: whole, or in parts"""
    monkeypatch.setattr("lazy_backend.variants.MAX_COMPILED", 1000)
    x, w, v = torch.randn(4, 64, 32, 32), torch.randn(128, 64, 3, 3), torch.randn(128, 64, kernel, kernel)

    def program(where):
        inputs = [t.to(where).requires_grad_() for t in (x, w, v)]
        long, short = F.conv2d(*inputs[:2], None, 2, 1), F.conv2d(inputs[0], inputs[2], None, 2, kernel // 2)
        ((long + short) * 1e-3).square().sum().backward()
        return long, short, *(t.grad for t in inputs)

    before = torch.lazy.stats()["extern_calls"]
    agrees(program, rtol=1e-4, atol=1e-3)
    assert torch.lazy.stats()["extern_calls"] - before == (6 if library(0) and device != "cpu" else 0)


FAST_HALVES = torch.cpu.get_capabilities().get("amx_bf16", False)


@pytest.mark.parametrize("shape", [(256, 128, 512), (300, 129, 257), (3, 100, 128, 384)], ids=str)
def test_layers_of_bf16_multiply_in_the_library_where_the_host_has_instructions_for_it(device, agrees, shape):
    """a layer with a bias, whose sum rounds once more, and both of its gradients"""
    *rows, ins, outs = shape
    x, w, b = torch.randn(*rows, ins).bfloat16(), torch.randn(outs, ins).bfloat16(), torch.randn(outs).bfloat16()

    def program(where):
        inputs = [t.to(where).requires_grad_() for t in (x, w, b)]
        y = F.linear(*inputs)
        (y.float() * 0.01).square().sum().backward()
        return y, *(t.grad for t in inputs)

    before = torch.lazy.stats()["extern_calls"]
    agrees(program, rtol=2e-2, atol=5e-2)
    calls = torch.lazy.stats()["extern_calls"] - before
    assert calls == (3 if library(0) and FAST_HALVES and device != "cpu" else 0)


def test_few_rows_of_bf16_are_not_worth_a_call(device, agrees):
    """8 rows: a generated kernel waits for no call"""
    x, w = torch.randn(8, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16()
    before = torch.lazy.stats()["extern_calls"]
    agrees(lambda where: x.to(where) @ w.to(where), rtol=2e-2, atol=1e-1)
    assert torch.lazy.stats()["extern_calls"] == before


CALLED = """
import os, torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
x, w = torch.ones(8, 32, 32, 32, device="lazy"), torch.ones(32, 32, 3, 3, device="lazy")
for _ in range(3):
    (x * 2).sum().item()
before = set(os.listdir("/proc/self/task"))
F.conv2d(x, w).sum().item()
print(torch.lazy.stats()["extern_calls"], len(set(os.listdir("/proc/self/task")) - before))
"""


def test_the_library_runs_on_the_threads_that_run_kernels(device):
    """No threads beside those that spin between kernels, where the runtime lends its own"""
    if not (library(0) and "Intel" in torch.lazy.get_device_properties().capabilities["vendor"]):
        pytest.skip("Intel's runtime lends its threads, and others' do not spin")
    done = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


class Seen(TorchDispatchMode):
    """Writes down the devices of ops that a mode is shown."""

    def __init__(self):
        super().__init__()
        self.devices = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.devices += [t.device.type for t in args if isinstance(t, torch.Tensor)]
        return func(*args, **(kwargs or {}))


def test_what_a_script_sets_for_its_own_ops_is_not_for_the_librarys(device):
    """Modes and autocast for the CPU, while the script's thread runs the window that it waits for"""
    x, w = torch.randn(8, 32, 32, 32, device=device), torch.randn(32, 32, 3, 3, device=device)
    expected = F.conv2d(x, w).cpu()
    with Seen() as seen:
        got = F.conv2d(x, w)
        torch.lazy.synchronize()
    assert seen.devices == [torch.device(device).type] * 2
    with torch.autocast("cpu", torch.bfloat16):
        again = F.conv2d(x, w)
        torch.lazy.synchronize()
    assert torch.equal(got.cpu(), expected) and torch.equal(again.cpu(), expected)


FIRST = """
import torch
from torch import nn
def layer(inputs, size, stride):
    return nn.Conv2d(inputs, 32, size, stride, size // 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()
net = nn.Sequential(*layer(3, 7, 2), nn.MaxPool2d(3, 2, 1), *layer(32, 3, 1)).to("lazy")
net(torch.randn(4, 3, 64, 64, device="lazy")).mean((2, 3)).square().sum().backward()
torch.lazy.synchronize()
"""


def test_a_first_layers_weight_gradient_is_asked_for_as_one(device):
    """Also where one operand lies with images and channels exchanged and the other was written the other way round"""
    if not library(0):
        pytest.skip("no library here")
    env = os.environ | {"ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", FIRST], env=env, capture_output=True, text=True, check=True)
    asked = [line.split(",")[7] for line in done.stdout.splitlines() if ",convolution," in line]
    assert set(asked) == {"forward_training", "backward_weights", "backward_data"}
    assert asked[-1] == "backward_weights", asked
