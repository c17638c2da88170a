"""Profiler."""

import json

import torch
from torch.profiler import ProfilerActivity, profile


def traced(tmp_path):
    """Events and the Chrome trace of a small program."""
    x = torch.ones(256, 256, device="lazy")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as trace:
        y = (x @ x).relu().sum(dim=1)
        y.cpu()
    path = tmp_path / "trace.json"
    trace.export_chrome_trace(str(path))
    return trace.events(), json.loads(path.read_text())["traceEvents"]


def test_kernels_on_the_timeline(tmp_path):
    """torch.profiler shows windows and kernels on the device's rows, with ops and the Python line."""
    events, trace = traced(tmp_path)
    kernels = [e for e in trace if e.get("cat") == "kernel"]
    assert kernels and any("test_profiler.py" in e["name"] for e in kernels)
    assert all(e["dur"] > 0 for e in kernels)
    assert any(e["name"].startswith("window ") for e in trace if e.get("cat") == "gpu_user_annotation")
    assert {"aten::matmul", "aten::relu"} <= {e.name for e in events}
    assert any(e.device_type == torch.autograd.DeviceType.PrivateUse1 for e in events)


def test_kernels_lie_in_the_trace(tmp_path):
    """Device times are on the host's clock: every kernel lies within the profiled span."""
    _, trace = traced(tmp_path)
    host = [e for e in trace if e.get("cat") == "cpu_op"]
    first, last = min(e["ts"] for e in host), max(e["ts"] + e["dur"] for e in host)
    for kernel in (e for e in trace if e.get("cat") == "kernel"):
        assert first - 1000 <= kernel["ts"] <= last + 1000


def test_kernel_times_are_summed(tmp_path):
    """key_averages() sums the kernels' device times; the table has columns of the device's name."""
    x = torch.ones(256, 256, device="lazy")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as trace:
        for _ in range(3):
            (x @ x).cpu()
    averages = trace.key_averages()
    kernels = [e for e in averages if e.device_type == torch.autograd.DeviceType.PrivateUse1 and "mm" in e.key]
    assert sum(e.count for e in kernels) >= 3 and all(e.self_device_time_total > 0 for e in kernels)
    assert "Self LAZY" in averages.table(sort_by="self_device_time_total")


def test_autograd_profiler_times_each_op():
    """torch.autograd.profiler.profile(use_device="lazy") gives the device's time of each op."""
    x, small = torch.ones(512, 512, device="lazy"), torch.ones(2, device="lazy")
    x @ x, small + 1
    torch.lazy.synchronize()
    with torch.autograd.profiler.profile(use_device="lazy") as trace:
        y = x @ x
        z = small + 1
        y.sum().item(), z.sum().item()
    times = {e.key: e.device_time_total for e in trace.key_averages()}
    assert times["aten::mm"] > 0 and times["aten::mm"] < 60e6, times
    assert {"aten::matmul", "aten::add", "aten::sum"} <= times.keys()
