"""Chains as long as a window: every op needs the one before."""

import torch


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
