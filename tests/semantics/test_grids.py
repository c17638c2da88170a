"""Turns of stencils that become one kernel: eager's numbers to the bit, whatever the window."""

import pytest
import torch

from lazy_backend import _C, compiler
from tests.semantics.test_parts import WINDOWS, wave


def nine_points(u, v):
    for _ in range(4):
        around = sum(u[a : a - 2 or None, b : b - 2 or None] for a in range(3) for b in range(3))
        u[1:-1, 1:-1] = around / 9 + v[1:-1, 1:-1]


def upwind(u, v):
    for _ in range(4):
        u[1:] -= 0.3 * (u[1:] - u[:-1])
        v[:, 2:] += u[:, :-2]
        u[:, 1:] *= v[:, :-1]


def torus(u, v):
    """Rolled along both axes: no distance bounds the rows."""
    for _ in range(3):
        around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
        u += 0.1 * (around - 4 * u) + v
    v.copy_(u * 2)


def cylinder(u, v):
    """Rolled along the rows' axis, held at the first and last row."""
    for _ in range(4):
        u[1:-1] = 0.25 * (u[2:] + u[:-2] + u[1:-1].roll(1, 1) + u[1:-1].roll(-1, 1)) + v[1:-1]


def elsewhere(u, v):
    kept = []
    for turn in range(5):
        x = u.clone()
        x[2:-2, 1:] = u[:-4, :-1] * 0.5 + u[4:, 1:] * 0.25 + v[2:-2, 1:]
        u = x
        if turn % 2:
            kept.append(u)
    v.copy_(kept[0] + kept[1])
    v += u


PROGRAMS = {p.__name__: p for p in (wave, nine_points, upwind, torus, cylinder, elsewhere)}


@pytest.fixture(autouse=True)
def plans_for_these_sizes(device):
    """Each test's windows are planned for its own sizes: plans for any size are a kernel a turn."""
    if device != "cpu":
        for index in range(_C.device_count()):
            _C.synchronize(index)
            _C.forget_plans(index)
        compiler.forget()


def run(program, where, shape, dtype=torch.float32):
    torch.manual_seed(0)
    u, v = torch.randn(shape).to(dtype).to(where), torch.randn(shape).to(dtype).to(where)
    results = []
    for _ in range(2):
        program(u, v)
        results += [u.cpu().clone(), v.cpu().clone()]
    return results


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(  # of 64 KiB and more
    "shape", [(191, 133), (600, 33), *(pytest.param(s, marks=pytest.mark.slow) for s in ((128, 160), (9, 2300)))]
)
def test_programs_give_eager_s_numbers(device, name, shape, window):
    with torch.lazy.window(window):
        for mine, eager in zip(run(PROGRAMS[name], device, shape), run(PROGRAMS[name], "cpu", shape), strict=True):
            torch.testing.assert_close(mine, eager, rtol=0, atol=0)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_grid_of_three_axes(device, window):
    def heat(u, v):
        for _ in range(4):
            inner = u[1:-1, 1:-1, 1:-1]
            around = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
            v[1:-1, 1:-1, 1:-1] = around + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * inner
            u += 0.1 * v

    with torch.lazy.window(window):
        for mine, eager in zip(run(heat, device, (60, 6, 50)), run(heat, "cpu", (60, 6, 50)), strict=True):
            torch.testing.assert_close(mine, eager, rtol=0, atol=0)


def test_four_turns_in_place_are_a_kernel_and_a_copy(device):
    if device == "cpu":
        pytest.skip("the CPU launches no kernels")
    u, v = torch.randn(150, 160).to(device), torch.zeros(150, 160).to(device)
    counts = []
    for turns in (3, 4, 6):
        with torch.lazy.window(512):
            wave(u, v, turns)
            torch.lazy.synchronize()
            torch.lazy.reset_stats()
            wave(u, v, turns)
            torch.lazy.synchronize()
            counts.append(torch.lazy.stats()["kernels_launched"])
    on_cpu = torch.lazy.get_device_properties().capabilities["is_cpu"]
    assert counts == ([2, 2, 2] if on_cpu else [3, 4, 6])
