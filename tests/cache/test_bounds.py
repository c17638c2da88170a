"""What a process keeps of its kernels is bounded: beyond a number they are forgotten, and found again in the cache."""

import gc

import pytest
import torch

from lazy_backend import compiler, kernels


def chain(x, n):
    """One kernel for each n: a pattern of two ops, by n's bits."""
    for bit in range(6):
        x = x.sin() if n >> bit & 1 else x * 1.5
    return x


def loaded():
    return sum(device == 0 for device, _, _ in kernels._programs.values())


@pytest.fixture
def few(device, monkeypatch):
    if device == "cpu" or compiler.capabilities(0).level == 1:
        pytest.skip("loads no kernels")
    torch.lazy.synchronize()
    monkeypatch.setattr(kernels, "MAX_LOADED", 8)


def test_a_script_of_ever_new_windows_keeps_few_kernels(device, few):
    data = torch.linspace(-1, 1, 1000)
    x, most = data.to(device), []
    for n in [*range(32), *range(32)]:
        torch.testing.assert_close(chain(x, n).cpu(), chain(data, n), rtol=1e-5, atol=1e-6)
        most.append(loaded())
    assert max(most) <= 8 + 6, "as many as may be, and those of one plan, which is six where a window is one op"
    assert min(most[8:]) < 8, "it was full, and emptied"


def test_a_window_that_is_forgotten_is_assembled_from_the_cache(device, few):
    x = torch.linspace(-1, 1, 777).to(device)
    for n in range(40):
        chain(x, n).cpu()
    torch.lazy.reset_stats()
    for n in range(40):
        chain(x, n).cpu()
    stats = torch.lazy.stats()
    assert stats["kernels_built"] == stats["plans_compiled"] == 0 < stats["plans_assembled"]


def test_graphs_and_sizes_that_vary_outlive_their_kernels(device, few):
    data = torch.linspace(-1, 1, 4096)
    x = data.to(device)
    graph, y = torch.accelerator.Graph(), torch.zeros(64, device=device)
    with graph:
        y += x[:64].exp()
    for n in range(1, 33):
        part = x[: 32 * n].view(n, 32)
        torch.testing.assert_close(part.softmax(-1).sum(0).cpu(), data[: 32 * n].view(n, 32).softmax(-1).sum(0))
        chain(x, n).cpu()
        graph.replay()
    torch.testing.assert_close(y.cpu(), 32 * data[:64].exp(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_a_window_is_compiled_and_the_script_s_choice_stands(device, monkeypatch, collects):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    torch.lazy.synchronize()
    seen, functionalize = [], compiler.functionalize

    def watched(*args):
        seen.append(gc.isenabled())
        return functionalize(*args)

    monkeypatch.setattr(compiler, "functionalize", watched)
    x = torch.linspace(-1, 1, 779 + collects).to(device)
    enabled = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        chain(x, 21).cpu()
        assert gc.isenabled() == collects and seen and not any(seen)
    finally:
        (gc.enable if enabled else gc.disable)()
