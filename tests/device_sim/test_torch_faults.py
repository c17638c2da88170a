"""Planned faults through torch: an exception at the next read, the device usable or cleanly lost, no wrong number."""

import os
import re
import subprocess
import sys

import pytest

READS = """
import torch
for i in range(5):
    try:
        x = torch.arange(6.0).to("lazy")
        print("value", (x * 2 + 1).sum().item())
    except RuntimeError as error:
        print("error", type(error).__name__, str(error).replace(chr(10), " "))
"""
INDEXES = """
import torch
x, at = torch.arange(6.0).to("lazy"), torch.tensor([1, 5]).to("lazy")
for i in range(300):
    y = x[at]
    torch.lazy.current_stream().query()  # ends the window
print("value", y.sum().item())
for wrong in (6, 7):
    x[at], x[at + wrong - 5]
    torch.lazy.current_stream().query()  # ends the window
    x[at]
    try:
        torch.lazy.synchronize()
    except IndexError as error:
        print("error", str(error).replace(chr(10), " "))
"""
PATIENCE = 120  # seconds until a run counts as hung
BOTH, COMPILING = ("simgpu", "simnpu"), ("simgpu",)

# What is planned, on which chips, what the exception says, and whether the device is lost. An allocation is tried four
# times with less and less kept back.
FAULTS = {
    "out_of_memory": ((1, 2, 3, 4), BOTH, r"OutOfMemoryError out of memory on lazy:0: tried .*script.py:5", False),
    "build_failed": ((1,), COMPILING, r"BUILD_FAILED.*the compiler refuses", False),
    "launch_failed": ((2,), BOTH, r"LAUNCH_FAILED.* kernel .*failed", False),
    "hang": ((2,), BOTH, r"TIMEOUT.* kernel .*was stopped", False),
    "corrupt_copy": ((2,), BOTH, r"MEMORY_FAULT.*script.py:6.*the copy was damaged", False),
    "device_lost": ((2,), BOTH, r"DEVICE_LOST.*the device was lost in kernel", True),
}


def lines_of(tmp_path, chip, plan, script=READS):
    """What the script prints, a line a read."""
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "plan.toml").write_text(plan)
    env = {**os.environ, "LAZY_DRIVER": chip, "LAZY_SIM_FAULTS": str(tmp_path / "plan.toml")}
    env["LAZY_CACHE_DIR"] = str(tmp_path / "cache")  # a warm cache would spare the compiler that is to fail
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(("value", "error"))]


@pytest.mark.parametrize("kind, chip", [(kind, chip) for kind, row in FAULTS.items() for chip in row[1]])
def test_a_fault_is_an_exception_at_the_read_and_no_wrong_number(tmp_path, kind, chip):
    calls, _, words, lost = FAULTS[kind]
    lines = lines_of(tmp_path, chip, "".join(f'[[fault]]\nkind = "{kind}"\nat = {n}\n' for n in calls))
    failed = [line for line in lines if line.startswith("error")]
    assert len(lines) == 5 and set(lines) - set(failed) <= {"value 36.0"}
    assert re.search(words, failed[0]), failed
    assert len(failed) == (5 - lines.index(failed[0]) if lost else 1), "lost for good, or usable at the next try"


@pytest.mark.parametrize("chip", BOTH)
def test_a_kernels_failure_names_the_python_line(tmp_path, chip):
    lines = lines_of(tmp_path, chip, '[[fault]]\nkind = "launch_failed"\nat = 1\nkernel = "script.py:6"\n')
    assert re.search(r"error .* kernel \S+ \[.*script.py:6 in <module>.*\] failed", lines[0]), lines


def test_a_slow_compiler_is_waited_for(tmp_path):
    plan = '[[fault]]\nkind = "slow_build"\nevery = 1\nseconds = 1\n'
    assert lines_of(tmp_path, "simgpu", plan) == ["value 36.0"] * 5


def test_checks_of_many_windows_lie_where_a_buffer_may_begin(tmp_path):
    """Nobody looks at them between: 300 windows' words, each aligned as the chip asks; the right ones are told of."""
    value, *errors = lines_of(tmp_path, "simgpu", "", INDEXES)
    assert value == "value 6.0"
    assert [re.search(r"index \d+", e)[0] for e in errors] == ["index 6", "index 7"]
    assert all("script.py:9" in e for e in errors), errors
