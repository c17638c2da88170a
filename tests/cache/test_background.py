"""LAZY_COMPILE=async: a window runs at once on the rung below, and on its plan when that is ready."""

import logging
import os
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F

from lazy_backend import _C, background


@pytest.fixture(autouse=True)
def asynchronous(device, monkeypatch):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    torch.lazy.synchronize()
    monkeypatch.setenv("LAZY_COMPILE", "async")
    monkeypatch.setattr(background, "_compiler", None)


def program(device):
    x = torch.arange(-11.0, 12.0, device=device)
    y = torch.where(x > 2, x * 3, x.abs() + 0.5).clamp(max=20)
    y[3:7].add_(1)
    return (y / 3).cpu()


def until_swapped(run):
    """Runs until a run launches kernels only. Returns every result."""
    results = []
    end = time.monotonic() + 300
    while time.monotonic() < end:
        torch.lazy.reset_stats()
        results.append(run())
        stats = torch.lazy.stats()
        if stats["ops_interpreted"] == 0 and stats["kernels_launched"]:
            return results
        time.sleep(0.05)
    raise AssertionError("the plan was never ready")


def test_the_first_run_does_not_wait_and_all_runs_give_the_same_bits(device):
    torch.lazy.reset_stats()
    first = program(device)
    stats = torch.lazy.stats()
    assert stats["ops_interpreted"] > 0 and stats["kernels_built"] == stats["kernels_launched"] == 0
    assert stats["host_ops"] == 0
    results = [first, *until_swapped(lambda: program(device))]
    for result in results:
        torch.testing.assert_close(result, program("cpu"), rtol=0, atol=0)
    assert torch.lazy.stats()["plans_compiled"] == 1


def test_deterministic_algorithms_compile_at_once(device):
    """which results a run gives must not depend on when a plan is ready"""
    torch.use_deterministic_algorithms(True)
    try:
        torch.lazy.reset_stats()
        torch.arange(19.0, device=device).sinh().sum().item()
        assert torch.lazy.stats()["ops_interpreted"] == 0 and background._compiler is None
    finally:
        torch.use_deterministic_algorithms(False)


def test_random_numbers_are_those_of_the_device(device):
    """the host would draw others: such a window is compiled at once"""
    torch.manual_seed(3)
    drawn = torch.rand(17, device=device).cpu()
    _C.forget_plans(0)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(17, device=device).cpu(), drawn)


def test_what_only_kernels_compute_is_compiled_at_once_and_the_rest_waits(device):
    def program(device):
        torch.manual_seed(5)
        return torch.nn.functional.dropout(torch.arange(1.0, 30.0, device=device), 0.4).cumsum(0).cpu()

    torch.lazy.reset_stats()
    first = program(device)
    stats = torch.lazy.stats()
    assert stats["ops_interpreted"] > 0 and stats["kernels_launched"] > 0 and stats["host_ops"] == 0
    for result in until_swapped(lambda: program(device)):
        torch.testing.assert_close(result, first)


def layers(device):
    """Loss and gradients of a convolution and of attention, which are ops of devices only."""
    torch.manual_seed(2)
    image, weight = torch.randn(2, 3, 9, 8), torch.randn(3, 4, 3, 2)
    q, k, v = torch.randn(3, 2, 2, 160, 8)
    mask = torch.randn(160, 160)
    leaves = [t.to(device).requires_grad_() for t in (image, weight, q, k, v)]
    image, weight, q, k, v = leaves
    out = torch.nn.functional.conv_transpose2d(image, weight, stride=2, output_padding=1)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(device))
    (out.square().sum() + attended.square().sum()).backward()
    return [t.detach().cpu() for t in (out, attended, *(leaf.grad for leaf in leaves))]


def test_the_host_stands_in_for_ops_that_torch_has_for_devices_only(device):
    torch.lazy.reset_stats()
    found = layers(device)
    stats = torch.lazy.stats()
    assert stats["ops_interpreted"] > 0 and stats["host_ops"] == 0
    assert stats["kernels_built"] == stats["kernels_launched"] == 0
    for result, expected in zip(found, layers("cpu"), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_left_to_the_device(device, mode):
    """the CPU's kernels keep other things for backward than the device's"""

    def program(where):
        table = torch.linspace(-1, 1, 30).reshape(10, 3).to(where).requires_grad_()
        bags = torch.tensor([0, 2, 2], device=where)
        out = torch.nn.functional.embedding_bag(torch.tensor([1, 5, 4, 5, 9], device=where), table, bags, mode=mode)
        out.square().sum().backward()
        return out.detach().cpu(), table.grad.cpu()

    torch.testing.assert_close(program(device), program("cpu"))


def test_results_lie_where_the_script_was_told(device):
    """though the CPU's kernel lays its out= tensor out as its input, which is channels-last"""

    def program(where):
        x = torch.arange(1.0, 19.0, device=where).view(1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
        at = torch.arange(18, device=where).view(1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
        return torch.nn.functional.max_unpool2d(x, at, 2, output_size=(6, 6)).cpu()

    torch.lazy.reset_stats()
    torch.testing.assert_close(program(device), program("cpu"))
    assert torch.lazy.stats()["ops_interpreted"] > 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_are_reduced(device, reduction):
    """though the CPU's kernels take their out= tensor for one of the operands' size first"""

    def program(where):
        x, y = (torch.linspace(*ends, 77).to(where) for ends in ((0.1, 0.9), (0.9, 0.2)))
        losses = F.mse_loss, F.huber_loss, F.smooth_l1_loss, F.binary_cross_entropy
        return [loss(x, y, reduction=reduction).cpu() for loss in losses]

    torch.lazy.reset_stats()
    torch.testing.assert_close(program(device), program("cpu"))
    assert torch.lazy.stats()["ops_interpreted"] == 4


def test_a_compiler_that_dies_costs_the_background_only(device, monkeypatch, caplog):
    monkeypatch.setattr(background.sys, "executable", "/bin/false")
    x = torch.arange(23.0, device=device)
    with caplog.at_level(logging.WARNING, "lazy_backend.compile"):
        results = until_swapped(lambda: (x * 7).atan().sum().item())
    assert "compiler's process ended" in caplog.text
    for result in results:
        assert result == pytest.approx((torch.arange(23.0) * 7).atan().sum().item(), rel=1e-5)


def test_a_window_waits_until_it_was_in_use_for_as_long_as_its_compile_may_take(monkeypatch):
    monkeypatch.setattr(background.Compiler, "_serve", lambda self: None)
    now = [100.0]
    monkeypatch.setattr(background.time, "monotonic", lambda: now[0])
    compiler = background.Compiler()
    compiler.add("a", {"nodes": [None] * 50}, {"rung": 1})
    for now[0] in (100.0, 100 + 50 * background.PATIENCE - 0.01):
        assert compiler.ran("a") == {"rung": 1} and not compiler.waiting
    now[0] = 100 + 50 * background.PATIENCE
    assert compiler.ran("a") == {"rung": 1} and compiler.waiting == {"a"}


def test_the_hottest_window_is_next(monkeypatch):
    monkeypatch.setattr(background, "PATIENCE", 0)
    monkeypatch.setattr(background.Compiler, "_serve", lambda self: None)
    compiler = background.Compiler()
    monkeypatch.setattr(background, "_compiler", compiler)
    windows = [{"structure": name, "sizes": "1", "nodes": []} for name in "abc"]
    for window in windows:
        assert background.takes(window) and background.rung(window) is None
        background.compile_later(window, {"of": window})
    for _ in range(3):
        assert background.rung(windows[1]) == {"of": windows[1]}
    assert compiler._next()[1] is windows[1]
    compiler._finish("b/1", 2)
    assert background.rung(windows[1]) is None and not background.takes(windows[1])
    assert (background.built(windows[1]), background.built(windows[1])) == (2, 0)


def test_measurements_take_what_others_leave_and_windows_a_share(device):
    """in a process of its own: the priority is of all its threads"""
    if not hasattr(os, "SCHED_IDLE"):
        pytest.skip("the system has no idle policy")
    script = """
import os, threading, time
from lazy_backend.background import _yield_cores
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
for yes in (False, True):
    _yield_cores(yes)
    print(*{os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")})
os._exit(0)
"""
    run = subprocess.run([sys.executable, "-uc", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(os.sched_getscheduler(0)), str(os.SCHED_IDLE)], run.stderr
