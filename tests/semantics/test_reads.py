"""A read of what the host has waited for since it was written is no cut; any other ends a step of the script."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def windowed(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")
    with torch.lazy.window(512):
        yield


def known(device):
    x = torch.arange(12.0).view(3, 4).to(device) * 1
    torch.lazy.synchronize()
    return x


READS = {
    "a number": lambda x: x[1, 2].item(),
    "a list": lambda x: x.tolist(),
    "a copy": lambda x: x.cpu(),
    "a dtype": lambda x: x.to("cpu", torch.float64),
    "a condition": lambda x: bool(x[2, 3]),
}


@pytest.mark.parametrize("read", READS)
def test_what_is_known_is_read_without_a_cut(device, read):
    x = known(device)
    torch.lazy.reset_stats()
    y = x * 2
    for _ in range(3):
        READS[read](x)
        y = y + x
    assert torch.lazy.stats()["windows"] == 0
    assert torch.lazy.stats()["reads"] == 3
    assert torch.equal(y.cpu(), torch.arange(12.0).view(3, 4) * 5)
    assert torch.lazy.stats()["windows"] == 1


@pytest.mark.parametrize("write", ["in place", "through a view", "by a list", "by indices", "by an upload", "out="])
def test_what_the_window_writes_is_computed_first(device, write):
    def step(where):
        x = torch.arange(12.0).view(3, 4).to(where) * 1
        x.sum().item()
        y = x + 1
        if write == "in place":
            x.mul_(y)
        elif write == "through a view":
            x.view(-1)[3:7].add_(y.flatten()[:4])
        elif write == "by a list":
            torch._foreach_mul_([x, y], 3.0)
        elif write == "by indices":
            x[torch.tensor([0, 2], device=where), 1] = y[0, :2]
        elif write == "by an upload":
            x[1].copy_(torch.full((4,), 7.0))
        else:
            torch.add(y, y, out=x)
        return [x[1].tolist(), x.cpu(), y[0, 0].item(), x[0, 1].item()]

    got, want = step(device), step("cpu")
    assert torch.equal(got.pop(1), want.pop(1))
    assert got == want


def test_an_index_of_one_number_is_no_cut(device):
    """torch reads such an index: a loop over drawn positions is one window."""
    x, at = torch.randn(9, 4), torch.tensor([3, 1, 8])
    there, there_at = x.to(device), at.to(device)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    total = sum(there[i] * there[i, 0] for i in there_at)
    assert torch.lazy.stats()["windows"] == 0
    torch.testing.assert_close(total.cpu(), sum(x[i] * x[i, 0] for i in at))


def test_what_nobody_has_waited_for_ends_the_window(device):
    """As a loss that is read after its backward pass was recorded: windows end where steps do."""
    x = known(device)
    with torch.lazy.window(1):
        loss = x.sum()  # handed over at once
    rest = x * 2
    torch.lazy.reset_stats()
    assert loss.item() == 66
    assert torch.lazy.stats()["windows"] == 1
    rest = rest + x
    assert loss.item() == 66
    assert torch.lazy.stats()["windows"] == 1
    assert rest[2, 3].item() == 33
    assert torch.lazy.stats()["windows"] == 2


def test_an_upload_is_known_from_the_first_read_on(device):
    x = known(device)
    y = x + 1
    lengths = torch.tensor([2, 3]).to(device)
    torch.lazy.reset_stats()
    for length in lengths:
        y = y + x[: length.item()].sum()
    assert torch.lazy.stats()["windows"] == 1
    assert y[0, 0].item() == 1 + 28 + 66


def test_what_an_earlier_window_writes_is_waited_for(device):
    """Whether it still runs or not."""
    x = torch.randn(300, 300)
    there = x.to(device)
    product = there @ there @ there
    with torch.lazy.window(1):
        product = product @ there  # hands over all so far
    after = product * 2
    torch.testing.assert_close(product.cpu(), x @ x @ x @ x, rtol=1e-3, atol=1e-1)
    torch.testing.assert_close(after.cpu(), (x @ x @ x @ x) * 2, rtol=1e-3, atol=1e-1)


def test_the_host_s_view_shows_all_that_was_recorded(device):
    from lazy_backend import _C
    from lazy_backend.compiler import capabilities

    if not capabilities(0).host_visible:
        pytest.skip("memory that the host does not see")
    x = known(device)
    y = x + 1
    view = _C.host_view(x)
    assert torch.equal(view, torch.arange(12.0).view(3, 4))
    x.add_(y)
    assert torch.equal(_C.host_view(x), torch.arange(12.0).view(3, 4) * 2 + 1)
    assert torch.equal(view, torch.arange(12.0).view(3, 4) * 2 + 1)
