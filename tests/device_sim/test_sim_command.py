"""A script on a simulated chip: predictions, what-if, faults as Python exceptions."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lazy_backend.cli import app

ROOT = Path(__file__).parents[2]
TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to("lazy")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 64).to("lazy"), torch.randint(8, (32,)).to("lazy")
for _ in range(4):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    loss.item()
"""
UNWRITTEN = """
import torch
fresh = torch.empty(1000, device="lazy")
torch.lazy.synchronize()
print((fresh * 2 + 1)[:3].cpu())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(TRAIN)
    return path


def sim(script, *options):
    command = [sys.executable, "-m", "lazy_backend", "sim", str(script), "--out", str(script.parent / "out"), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.parametrize(
    "options, words",
    [
        (("--chip", "nosuch"), "no chip 'nosuch'; there are edge, gpu_big"),
        (("--set", "launchus=3"), "did you mean 'launch_us'"),
        (("--set", "launch_us"), "is not key=value"),
        (("--sweep", "launch_us=5,fast"), "'fast' is no float"),
        (("--sweep", "launch_us"), "is not key=value"),
        (("--sweep", "window=64,0"), "a window has 1 op or more"),
        (("--faults", "missing.toml"), "missing.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_impossible_option_is_refused_in_words_before_the_script_runs(script, options, words):
    script.write_text("open(__file__ + '.ran', 'w')")
    done = CliRunner().invoke(app, ["sim", str(script), *options])
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
    assert not Path(f"{script}.ran").exists()


def test_a_script_without_a_device_is_told_so_and_one_that_fails_says_why_itself(script, capfd):
    for text, code, words in (("", 1, "used no simulated device"), ("raise SystemExit(7)", 7, "")):
        script.write_text(text)
        done = CliRunner().invoke(app, ["sim", str(script), "--out", str(script.parent / "out")])
        assert done.exit_code == code and words in done.output + capfd.readouterr().err
        assert ("used no simulated device" in done.output) == bool(words)


def test_a_script_gets_a_prediction_and_a_report(script):
    found = sim(script, "--chip", "edge", "--sweep", "launch_us=2,8,400")
    (device,) = found["devices"]
    assert device["chip"] == "edge" and device["kernels"] > 10 and device["findings"] == []
    assert 0 < device["kernel_us"] < device["total_us"] and 0 < device["utilisation"]["device"] < 1
    times = [row["total_us"] for row in found["sweep"]]
    assert times == sorted(times) and times[2] > 2 * times[0], "slower launches cost time"
    assert times[1] == pytest.approx(device["total_us"]), "a replay at the chip's own numbers is the run itself"
    out = script.parent / "out"
    assert all(name in (out / "device_0.html").read_text() for name in ("timeline", "roofline", "memory over time"))
    assert json.loads((out / "timeline.json").read_text())["traceEvents"]


@pytest.mark.parametrize("chip", ["gpu_mid", "npu"])
def test_the_same_script_gives_the_same_times(script, chip):
    reports, timelines = [], []
    for _ in range(2):
        reports.append(sim(script, "--chip", chip)["devices"])
        timelines.append((script.parent / "out" / "timeline.json").read_text())
    for report in (*reports[0], *reports[1]):
        del report["setup_us"]  # less when the host's cache is warm
    assert reports[0] == reports[1] and timelines[0] == timelines[1]


def test_a_sweep_over_windows_runs_the_script_again_and_shows_what_recording_ahead_buys(script):
    found = sim(script, "--chip", "npu", "--sweep", "window=1,512")
    one, many = found["sweep"]
    assert (one["setting"], many["setting"]) == ("window=1", "window=512")
    assert many["total_us"] < one["total_us"] and one["launch_exposed_us"] > many["launch_exposed_us"]
    assert "window=512" in (script.parent / "out" / "sweep.html").read_text()


@pytest.mark.parametrize("chip", ["gpu_mid", "npu"])
def test_a_read_of_what_was_never_written_names_the_kernel_and_the_python_line(script, chip):
    script.write_text(UNWRITTEN)
    findings = sim(script, "--chip", chip)["devices"][0]["findings"]
    assert findings and all(re.search(rf"\[.*{script.name}:5 in <module>.*\]", text) for text in findings), findings
    assert any("never written" in text for text in findings)
