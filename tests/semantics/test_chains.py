"""Chains as long as a window: every op needs the one before."""

import threading

import pytest
import torch
import torch.nn.functional as F


def test_a_window_of_in_place_updates_of_one_tensor(agrees, device):
    before = torch.lazy.stats()["host_ops"]

    def program(where):
        x = torch.zeros(8, 8).to(where)
        for step in range(1100):
            x.add_(0.5 if step % 2 else -0.25)
        return x

    agrees(program, rtol=0, atol=0)
    assert torch.lazy.stats()["host_ops"] == before


def test_a_window_of_maps(agrees):
    def program(where):
        x = torch.ones(8, 8).to(where)
        for _ in range(400):
            x = x.sin() + 0.1
        return x

    agrees(program)


@pytest.mark.parametrize("fn", [F.gelu, F.mish])
def test_a_window_of_functions_of_many_ops_on_a_thread_with_a_small_stack(fn):
    results = []

    def work():
        x, y = torch.ones(64), torch.ones(64).to("lazy")
        for _ in range(512):
            x, y = fn(x) + 0.3, fn(y) + 0.3
        results.append((y.cpu(), x))

    before = threading.stack_size(1 << 18)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    torch.testing.assert_close(*results[0], rtol=1e-5, atol=1e-4)
