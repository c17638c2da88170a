"""`python -m lazy_backend profile`: the script runs as it does alone; kernels, their work and their floor."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.profiler import ProfilerActivity

from lazy_backend import _C
from lazy_backend.reports.profile_command import profile_of, show
from ops_core import dtypes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "profiling.md").read_text()
N = 1 << 16
SCRIPT = f"""
import sys, torch
import beside
x = torch.ones({N}).to("lazy")
a = torch.ones(96, 32).to("lazy")  # tiles divide it: one work item is counted for all
torch.lazy.synchronize()
torch.lazy.reset_stats()
for _ in range(3):
    y = x.exp2() * 2
    torch.lazy.synchronize()
    b = a @ a.T
    torch.lazy.synchronize()
stats = torch.lazy.stats()
print(beside.GREETING, sys.argv[1:], stats["kernels_launched"] + stats["extern_calls"])
sys.exit(3)
"""

FAILING = """
import torch
print((torch.ones(3).to("lazy") + 1).sum().item())
raise ValueError("no")
"""


def python(*arguments, cwd, **env):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **env}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env)


def profiled(*arguments, cwd, **env):
    return python("-m", "lazy_backend", "profile", *arguments, cwd=cwd, **env)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("GREETING = 'hello'\n")
    return tmp_path


def kernel_at(process, line):
    return next(k for k in process["kernels"] if f"script.py:{line} " in k["line"])


def test_kernels_with_their_work_and_lines_of_a_script_that_exits(folder):
    done = profiled("--json", "found.json", "script.py", "--top", "x", cwd=folder)
    assert done.returncode == 3 and done.stderr == ""
    said, *table = done.stdout.splitlines()
    (process,) = json.loads((folder / "found.json").read_text())["processes"]
    counted = sum(k["calls"] for k in process["kernels"] if "script.py" in k["line"])
    assert said.startswith("hello ['--top', 'x'] ") and int(said.split()[-1]) == counted
    elementwise, product = kernel_at(process, 9), kernel_at(process, 11)
    rows = [k for k in process["kernels"] if "script.py:9 " in k["line"]]
    # Alone, `exp2` writes what `mul` reads; fused, they move one tensor in and one out.
    assert sum(k["bytes"] for k in rows) == (4 if _C.window() == 1 else 2) * 4 * N * 3
    assert product["flops"] == pytest.approx(3 * 2 * 96 * 96 * 32, rel=0.1) and product["calls"] == 3
    assert elementwise["total_ms"] > 0 and elementwise["gbs"] == pytest.approx(
        elementwise["bytes"] / elementwise["total_ms"] / 1e6
    )
    assert 0 < process["busy_s"] < process["wall_s"] and process["host_share"] > 0
    assert process["bandwidth_gbs"]["value"] > 0 and process["bandwidth_gbs"]["source"] in done.stdout
    assert "mm" in "".join(table) and "script.py:11" in "".join(table) and table[-1].startswith("total: device busy ")


def test_an_error_is_pythons(folder):
    (folder / "script.py").write_text(FAILING)
    alone, beside = python("script.py", cwd=folder), profiled("--top", "1", "script.py", cwd=folder)
    assert alone.returncode == beside.returncode == 1
    assert alone.stderr == beside.stderr and "ValueError: no" in alone.stderr
    assert beside.stdout.startswith(alone.stdout) and "total: device busy" in beside.stdout


def test_a_script_that_uses_no_device(folder):
    (folder / "script.py").write_text("print('done')\n")
    done = profiled("--json", "found.json", "script.py", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "done\n") and "ran nothing on a lazy device" in done.stderr
    assert json.loads((folder / "found.json").read_text())["processes"] == []


def test_core_ops_of_a_chip_without_a_compiler(folder):
    """A level 1 chip states its peaks; a product is one call, whose operations are exact."""
    done = profiled("--json", "found.json", "script.py", cwd=folder, LAZY_DRIVER="simnpu", LAZY_SIM_CHIP="npu")
    (process,) = json.loads((folder / "found.json").read_text())["processes"]
    product = kernel_at(process, 11)
    assert product["ops"] == "library: matmul" and product["flops"] == 3 * 2 * 96 * 96 * 32 and product["calls"] == 3
    assert process["bandwidth_gbs"]["source"] == process["peak_gflops_f32"]["source"] == "stated by the driver"
    assert "measured" not in done.stdout


def test_the_pages_commands_run(tmp_path):
    script, reading = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (command,) = re.findall(r"```sh\npython (.*?)\n```", PAGE, re.S)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "read.py").write_text(reading)
    done = python(*command.split(), cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert len(re.findall(r"^\d+ \d+\.\d+$", done.stdout, re.M)) == 10, "the script's own lines"
    assert len(re.findall(r"^ +\d+ +\d+\.\d{3} +\d+\.\d ", done.stdout, re.M)) == 5 and "more kernels" in done.stdout
    read = python("read.py", cwd=tmp_path)
    assert read.returncode == 0 and re.search(r"ms, \d+% of the floor\n\d+ launches, \d+ GB/s", read.stdout)


# --- what is reckoned ---------------------------------------------------------------------------------------------


def found(stated, *launches, times):
    return {
        "driver": "d", "device": "chip", "language": "c", "stated": stated, "wall_s": 1.0, "compile_s": 0.25,
        "host_ops": 2, "texts": [], "launches": list(launches), "times": times,
    }  # fmt: skip


def call(op, line, tensors, **attrs):
    return {
        "kind": "call", "key": f"{op} {line}", "ops": op, "line": line, "op": op, "outputs": 1, "tensors": tensors,
        "attrs": json.dumps(attrs),
    }  # fmt: skip


UNKNOWN = {"kind": "unknown", "key": "", "ops": "(not numbered)", "line": ""}
F32, F64 = (dtypes.BY_NAME[name].code for name in ("f32", "f64"))
STATED = {"bandwidth_gbs": 10.0, "peak_gflops_f32": 100.0}


def nothing_measured(driver, what):
    raise AssertionError(f"{what} of {driver} was stated")


def test_the_floor_is_the_longer_of_bytes_and_operations():
    product = call("matmul", "a.py:1 in f", [(F32, [1000, 1000])] * 3)
    double = call("matmul", "a.py:2 in f", [(F64, [1000, 1000])] * 3)
    sum_ = call("map", "a.py:3 in f", [(F32, [1000])] * 3, fn="add")
    times = [[1, 2, 80_000_000], [2, 1, 80_000_000], [3, 10, 24_000]]
    profile = profile_of(found(STATED, UNKNOWN, product, double, sum_, times=times), nothing_measured)
    shares = {row.line[:6]: row.rate(row.floor_ns) for row in profile.rows}
    # 2e9 operations at 100 a ns are 20 ms; float64's, at half the rate, 40 ms. 12 kB at 10 bytes a ns are 1.2 us.
    assert shares == pytest.approx({"a.py:1": 0.5, "a.py:2": 0.5, "a.py:3": 0.5})
    rows = {row.line[:6]: row.summary() for row in profile.rows}
    assert rows["a.py:1"]["mean_us"] == 40_000 and rows["a.py:1"]["gflops"] == pytest.approx(50)
    assert rows["a.py:3"]["bytes"] == 120_000 and rows["a.py:3"]["gbs"] == pytest.approx(5)
    assert [row.calls for row in profile.rows] == [2, 1, 10], "the longest first; of two alike the first"
    assert profile.busy_s == pytest.approx(0.160024) and profile.host_share == pytest.approx(1 - 0.160024)


def test_launches_of_one_kernel_are_one_row_with_the_work_of_each():
    small, large = (call("map", "a.py:3 in f", [(F32, [n])] * 2, fn="neg") for n in (1000, 3000))
    (row,) = profile_of(found(STATED, UNKNOWN, small, large, times=[[1, 2, 1000], [2, 1, 5000]]), nothing_measured).rows
    assert (row.calls, row.ns, row.nbytes) == (3, 6000, 2 * 8000 + 24000)


def test_peaks_that_are_not_stated_are_measured_and_the_table_says_so(capsys):
    asked = []

    def measure(driver, what):
        asked.append((driver, what))
        return 42.0

    stated = {"bandwidth_gbs": 0.0, "peak_gflops_f32": 100.0}
    profile = profile_of(found(stated, UNKNOWN, times=[[0, 1, 1000]]), measure)
    assert asked == [("d", "bandwidth_gbs")] and profile.rows[0].summary()["floor_share"] is None
    show(profile, "script.py", 20, Console(width=120))
    text = " ".join(capsys.readouterr().out.split())
    assert "42.0 GB/s (measured)" in text and "100 GFLOP/s (stated by the driver)" in text
    assert "1 launches, 2 ops on the CPU, host share 100% (compiling 0.250 s)" in text


def test_rows_beyond_the_top_are_summed(capsys):
    launches = [call("map", f"a.py:{i} in f", [(F32, [1000])] * 2, fn="neg") for i in range(1, 5)]
    times = [[i, 1, 1_000_000 * i] for i in range(1, 5)]
    profile = profile_of(found(STATED, UNKNOWN, *launches, times=times), nothing_measured)
    show(profile, "script.py", 2, Console(width=120))
    out = capsys.readouterr().out
    assert "a.py:4" in out and "a.py:3" in out and "a.py:2" not in out
    assert re.search(r"2 +3\.000 +2 more kernels", out)


# --- what the executor counts ---------------------------------------------------------------------------------------


@pytest.fixture
def counting():
    torch.lazy.synchronize()
    _C.set_profiling(True)
    yield
    _C.set_profiling(False)


def counted():
    torch.lazy.synchronize()
    return sum(count for count, _ in _C.launch_times().values())


def test_launches_are_counted_however_many(counting):
    """More than are kept before the first are looked at."""
    x = torch.zeros(8, device="lazy")
    torch.lazy.reset_stats()
    for _ in range(9000):
        x += 1
        _C.cut(0)
    assert x[0].item() == 9000
    assert counted() >= torch.lazy.stats()["kernels_launched"] >= 9000


def test_torchs_profiler_beside_takes_nothing_away(counting):
    x = torch.ones(64, 64, device="lazy")
    torch.lazy.synchronize()
    before = counted()
    with torch.profiler.profile(activities=[ProfilerActivity.PrivateUse1]) as trace:
        (x @ x).relu().sum().item()
    kernels = [e for e in trace.events() if not e.name.startswith("window")]
    assert counted() - before == len(kernels) > 0


def test_nothing_is_counted_when_nobody_asks():
    torch.lazy.synchronize()
    _C.set_profiling(True)
    _C.set_profiling(False)
    (torch.ones(8, device="lazy") + 1).sum().item()
    assert counted() == 0
