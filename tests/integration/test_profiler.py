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
