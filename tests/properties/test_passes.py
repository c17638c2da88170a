"""Windows end where a backward pass begins and ends, in steps that take long to record for what they compute."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lazy_backend import config

WINDOWS_OF_A_STEP = 3  # forward pass, loss and its gradient; backward pass; optimizer


@pytest.fixture(autouse=True)
def windowed(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")


class Doubled(torch.autograd.Function):
    """An op whose backward pass is lines of the user's."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def trained(device, width, steps, window, doubled=False, batch=256):
    """Losses of a model's steps, each waited for, and windows and plans of the last three of them."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(3)]
    model, x = nn.Sequential(*layers).to(device), torch.randn(batch, width).to(device)
    target = torch.randint(width, (batch,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, before = [], {}
    with torch.lazy.window(window):
        for step in range(steps):
            if step == steps - 3:
                before = torch.lazy.stats()
            y = x
            for layer in layers:
                y = F.relu(layer(Doubled.apply(y) if doubled else y))
            loss = F.cross_entropy(y, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        after = torch.lazy.stats()
    return losses, {name: after[name] - before[name] for name in ("windows", "plans_compiled", "kernels_launched")}


@pytest.mark.parametrize("window", (1, 8, config.WINDOW.default))
@pytest.mark.parametrize("doubled", (False, True), ids=("layers", "functions"))
def test_a_step_is_three_windows_and_gives_what_the_cpu_gives(device, window, doubled):
    """Ops of a backward pass are those that autograd runs, whoever wrote their lines."""
    losses, made = trained(device, 256, 6, window, doubled)
    expected, _ = trained("cpu", 256, 6, window, doubled)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert made["plans_compiled"] == 0
    if window == config.WINDOW.default:
        assert made["windows"] == 3 * WINDOWS_OF_A_STEP


@pytest.mark.parametrize(("width", "batch"), ((16, 16), (1024, 2048)), ids=("little", "much"))
def test_a_step_of_little_or_of_much_memory_stays_one_window(device, width, batch):
    """It is done before a window is, or so long that recording is nothing of it."""
    _, made = trained(device, width, 6, config.WINDOW.default, batch=batch)
    assert made["windows"] == 3 and made["plans_compiled"] == 0


def test_a_backward_pass_without_contractions_is_fused_with_the_forward_pass(device):
    def step(x):
        y = (x.sin() * x.exp()).tanh().square().sum()
        (slope,) = torch.autograd.grad(y, x)
        return slope.sum()

    x = torch.randn(1024, 512).to(device).requires_grad_()
    with torch.lazy.window(config.WINDOW.default):
        step(x).item()
        before = torch.lazy.stats()
        found = step(x).item()
        after = torch.lazy.stats()
    torch.testing.assert_close(found, step(x.detach().cpu().requires_grad_()).item(), rtol=1e-4, atol=1e-2)
    assert after["windows"] - before["windows"] == 1
    assert after["kernels_launched"] - before["kernels_launched"] == 2  # partial sums, and their sum
