"""Nothing grows with the number of steps: device memory, plans, op records, Python objects."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.memory import Report, growth, stepped


def trained(device: str) -> Iterator[Tensor]:
    """Fresh data uploaded, dropout, an optimizer with state, gradients let go."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        x, y = torch.randn(8, 16).to(device), torch.randint(4, (8,)).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss


@torch.no_grad()
def inferred(device: str) -> Iterator[Tensor]:
    """Attention and a state that the step before left."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device).eval()
    state = torch.randn(2, 5, 16).to(device)
    while True:
        state = layer(state)
        yield state


@torch.no_grad()
def in_place(device: str) -> Iterator[Tensor]:
    """Views of one grid, written where they lie."""
    grid = torch.rand(16, 16).to(device)
    inner = grid[1:-1, 1:-1]
    while True:
        inner += 0.1 * (grid[2:, 1:-1] + grid[:-2, 1:-1] - 2 * inner)
        grid[0] = grid[1]
        yield grid.mean()


@pytest.mark.parametrize("script", [trained, inferred, in_place])
def test_three_hundred_steps_hold_what_a_hundred_held(script, device):
    if device == "cpu":
        pytest.skip("eager's memory is not ours")

    def run(device: str, steps: int, report: Report) -> None:
        for step, value in enumerate(script(device)):
            report(step, value)  # raises after the last

    early, late = growth(run, 100, 300)
    assert early.allocated > 0 and early.plans > 0 and early.ops > 0
    assert late._replace(resident=0, objects=0) == early._replace(resident=0, objects=0)
    assert late.objects <= early.objects + 1, "`early` is one more; of a compile, some go later"


def test_what_a_script_keeps_is_seen(device):
    """The measure can fail: a script that keeps a tensor of each step grows by it."""
    if device == "cpu":
        pytest.skip("eager's memory is not ours")
    kept = []

    def run(device: str, steps: int, report: Report) -> None:
        for step in range(steps):
            kept.append(torch.ones(256, device=device) * step)
            report(step, kept[-1])

    early, late = growth(run, 20, 110)
    assert late.allocated - early.allocated == 90 * 1024


def test_a_script_is_left_after_its_last_step():
    steps = []

    def run(device: str, steps: int, report: Report) -> None:
        for step in range(steps):
            report(step, torch.zeros(()))
        raise AssertionError("what a script does after its steps is not measured")

    stepped(run, "cpu", 3, lambda step, value: steps.append(step))
    assert steps == [0, 1, 2]
