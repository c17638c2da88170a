"""A plan's programs are built by several processes at once, and by the script's alone where the others cannot."""

import subprocess
import sys

import pytest
import torch

from lazy_backend import _C, builders

NOTHING = b"__kernel void nothing(__global float *a) { a[0] = %d.0f; }"


@pytest.fixture
def helper(device, own, monkeypatch):
    """One process beside this one, whatever the machine has, and an empty cache. What it gave is in `given`."""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    torch.lazy.synchronize()
    helper = builders.Builder()
    helper.given = []
    build = helper.build

    def noted(*args):
        helper.given.append(build(*args))
        return helper.given[-1]

    monkeypatch.setattr(helper, "build", noted)
    monkeypatch.setattr(builders, "_builders", [helper])
    yield helper
    helper.end()


def program(device, n):
    """Several kernels in one window."""
    x = torch.arange(1.0, 1.0 + 6 * n, device=device).reshape(6, n) / 8
    return [x.sum(0), x.T @ x, x.softmax(1), x.sort(1).values, (x * 3).sin().cumsum(0)]


def built(device, n):
    """How many kernels the program took, whose results are checked."""
    torch.lazy.reset_stats()
    with torch.lazy.window(200):
        found = [t.cpu() for t in program(device, n)]
    for result, expected in zip(found, program("cpu", n), strict=True):
        torch.testing.assert_close(result, expected)
    return torch.lazy.stats()["kernels_built"]


def test_programs_are_shared_and_each_is_counted_once(device, helper, monkeypatch):
    asked = []
    build = builders.build
    monkeypatch.setattr(builders, "build", lambda *args: asked.extend(args[2]) or build(*args))
    assert built(device, 11) == len(asked) == len(set(asked)) >= builders.FEWEST
    assert all(helper.given) and 0 < len(helper.given) < len(asked)


def test_a_process_that_does_not_start_costs_nothing_but_time(device, helper, monkeypatch):
    monkeypatch.setattr(builders.sys, "executable", "/bin/false")
    assert built(device, 17) >= builders.FEWEST
    assert set(helper.given) == {b""}


def test_another_device_s_programs_are_left_to_the_script(device, helper):
    assert helper.build(0, _C.device_properties(0), NOTHING % 1)
    assert helper.build(0, bytes(len(_C.device_properties(0))), NOTHING % 1) == b""


def test_a_program_that_does_not_compile_raises_the_driver_s_text(device, helper):
    sources = [NOTHING % i for i in range(builders.FEWEST)] + [b"__kernel void broken(int a) { return b; }"]
    with pytest.raises(RuntimeError, match="'b'"):
        builders.build(0, _C.device_properties(0), sources, lambda text, binary: _C.build_program(0, text, binary, ""))


def test_the_process_ends_with_its_pipe_and_when_nothing_comes():
    command = "from lazy_backend import builders; builders.IDLE_S = 0.1; builders.main()"
    silent = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert silent.wait(60) == 0
    closed = subprocess.run([sys.executable, "-c", command.replace("0.1", "600")], stdin=subprocess.DEVNULL, timeout=60)
    assert closed.returncode == 0
