"""The GPT and the CNN demo train on every chip of the tree with eager CPU's losses, nothing sent to the host."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "run_chips.py"
STEPS = 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chip", ["opencl", "hostc", "simgpu", "simnpu"])
def test_the_demos_train_to_the_cpus_losses(chip):
    command = [sys.executable, str(SCRIPT), chip, "--steps", str(STEPS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    assert done.returncode == 0 and {row["demo"] for row in rows} == {"gpt", "cnn"}
    for row in rows:
        assert len(row["losses"]) == STEPS and row["losses"][-1] < row["losses"][0]
        assert row["gap"] <= 1e-4 and row["host_ops"] == 0, row
