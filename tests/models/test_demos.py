"""The demos' steps: the same kernels every time, and no more of them than last time this was looked at."""

import importlib
from typing import NamedTuple

import pytest
import torch

from lazy_backend import config


class Step(NamedTuple):
    """Launches and library calls of a training step in steady state, on the OpenCL runtimes for CPUs."""

    kernels: int
    library_calls: int


STEPS = {"cnn": Step(47, 20), "stencil": Step(16, 0)}
EARLY, LATER = 5, 5


@pytest.mark.parametrize("name", STEPS)
def test_a_step_launches_so_many_kernels_and_compiles_nothing(name, device):
    if config.WINDOW.get() != config.WINDOW.default:
        pytest.skip("counts are of whole windows")
    stats = []

    def report(step, value):
        value.item()
        if step + 1 in (EARLY, EARLY + LATER):
            stats.append(torch.lazy.stats())

    importlib.import_module(f"examples.{name}").run(device, EARLY + LATER, report)
    before, after = stats
    delta = {
        key: after[key] - before[key] for key in ("kernels_launched", "extern_calls", "plans_compiled", "host_ops")
    }
    assert Step(delta["kernels_launched"] / LATER, delta["extern_calls"] / LATER) == STEPS[name]
    assert delta["plans_compiled"] == delta["host_ops"] == 0
