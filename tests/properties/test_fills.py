"""Fills of fresh memory, many in a row, are a window of their own: a first step makes an optimizer's state."""

import itertools
import random

import pytest
import torch
import torch.nn as nn

from lazy_backend import _C
from lazy_backend.compiler import capabilities

LENGTHS = (1, 8, 64, 512)


@pytest.fixture(autouse=True)
def windowed(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")
    torch.lazy.synchronize()
    with torch.lazy.window(512):
        yield


def training(device, optimizer):
    """Yields a training step's loss, for a model of 20 parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(10))).to(device)
    made = optimizer(model.parameters())
    x = torch.linspace(-1, 1, 24).reshape(4, 6).to(device)
    while True:
        made.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        made.step()
        yield loss.item()


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_second_step_compiles_nothing(device, name):
    steps = training(device, OPTIMIZERS[name])
    got = [next(steps)]
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    got += itertools.islice(steps, 3)
    torch.lazy.synchronize()
    assert torch.lazy.stats()["plans_compiled"] == 0
    want = list(itertools.islice(training("cpu", OPTIMIZERS[name]), 4))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-6)  # a gradient near 0 moves a weight as a large one does


@pytest.mark.parametrize(("fills", "windows"), [(_C.FILLS_APART - 1, 1), (_C.FILLS_APART, 2)])
@pytest.mark.parametrize("make", [torch.zeros_like, lambda x: torch.full_like(x, 2.5)], ids=["zeros", "full"])
def test_so_many_fills_are_a_window_of_their_own(device, fills, windows, make):
    x = torch.arange(5.0, device=device)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    y = x * 2
    made = [make(x) for _ in range(fills)]
    y = y + 1
    torch.lazy.synchronize()
    assert torch.lazy.stats()["windows"] == windows
    for t in made:
        torch.testing.assert_close(t.cpu(), make(x.cpu()))
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]


def test_a_window_of_fills_is_made_by_the_host_once_then_by_a_kernel(device):
    shapes = [(3, n) for n in range(40, 40 + 2 * _C.FILLS_APART)]
    seen = []
    for _ in range(3):
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        made = [torch.full(shape, 1.5, device=device) for shape in shapes]
        torch.lazy.synchronize()
        stats = torch.lazy.stats()
        seen.append((stats["kernels_built"] > 0, stats["kernels_launched"] > 0))
        assert all((t == 1.5).all().item() for t in made)
    if capabilities(0).host_visible:
        assert seen[0] == (False, False)
    assert seen[2] == (False, True)


def test_zeros_that_the_host_makes_are_zeros_whatever_the_memory_held(device):
    """more than a parallel loop of the host's has, of several dtypes, laid out otherwise, in part, and none"""
    dirty = [torch.full((400, 400), 7.0, device=device) for _ in range(2 * _C.FILLS_APART)]
    torch.lazy.synchronize()
    del dirty
    makers = [
        lambda n: torch.zeros(300, n, device=device),
        lambda n: torch.zeros(200, n, dtype=torch.float64, device=device),
        lambda n: torch.zeros(200, n, dtype=torch.bool, device=device),
        lambda n: torch.empty(2, n, 20, 30, device=device, memory_format=torch.channels_last).zero_(),
        lambda n: torch.empty(200, n, device=device)[3:190].zero_(),
        lambda n: torch.empty(200, n, device=device)[:, 3:90].zero_(),
        lambda n: torch.zeros(0, n, device=device),
    ]
    torch.lazy.reset_stats()
    made = [make(200 + i) for i in range(_C.FILLS_APART) for make in makers]
    torch.lazy.synchronize()
    if capabilities(0).host_visible:
        assert torch.lazy.stats()["kernels_launched"] == 0
    assert all(not t.cpu().any() for t in made)


def fills_and_others(device, seed):
    """A random program of fills of fresh and of used memory, whole and in part, and of ops upon them."""
    draw = random.Random(seed)
    kept = [torch.arange(6.0, device=device)]
    for _ in range(60):
        match draw.randrange(8):
            case 0:
                kept += [torch.zeros(6, device=device) for _ in range(draw.choice((3, 16, 40)))]
            case 1:
                kept += [torch.full((6,), float(n), device=device) for n in range(draw.choice((2, 17)))]
            case 2:
                draw.choice(kept).fill_(draw.randrange(9))
            case 3:
                draw.choice(kept)[draw.randrange(3) : draw.randrange(3, 6)].zero_()
            case 4:  # partly filled before anything else is known of it
                base = torch.empty(12, device=device)
                for start in range(0, 12, 6):
                    base[start : start + 6].fill_(start)
                kept.append(base[3:9])
            case 5:
                kept.append(draw.choice(kept) + draw.choice(kept) / 2)
            case 6:
                draw.choice(kept).add_(draw.choice(kept))
            case 7:  # dead before the window ends
                del kept[1 + draw.randrange(len(kept)) :]
    return [t.tolist() for t in kept]


@pytest.mark.parametrize("seed", range(6))
def test_results_do_not_depend_on_what_is_apart(device, seed):
    expected = fills_and_others("cpu", seed)
    for length in LENGTHS:
        with torch.lazy.window(length):
            assert fills_and_others(device, seed) == expected


def test_fills_in_a_captured_graph_are_replayed(device):
    x = torch.arange(4.0, device=device)
    out = torch.zeros(4, device=device)
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        sums = [torch.zeros(4, device=device) for _ in range(2 * _C.FILLS_APART)]
        for n, t in enumerate(sums):
            t += x * n
        out.copy_(torch.stack(sums).sum(0))
    for replay in range(1, 4):
        graph.replay()
        n = 2 * _C.FILLS_APART
        want = (torch.arange(4.0) + replay) * (n * (n - 1) // 2)
        torch.testing.assert_close(out.cpu(), want, rtol=0, atol=0)
