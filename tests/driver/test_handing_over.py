"""Which thread hands a window to the driver: the one that recorded it where that takes no time, else the executor's."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time, torch
from device_sim.simgpu import SimGpu

launch, threads = SimGpu.launch, []

def watched(self, *args, **more):
    threads.append(threading.current_thread() is threading.main_thread())
    if sys.argv[1] == "slow":
        time.sleep(0.002)
        launch(self, *args, **more)

SimGpu.launch = watched
x = torch.ones(8, device="lazy")
with torch.no_grad(), torch.lazy.window(4):
    for _ in range(40):  # a window a turn, and nobody waits for one
        x.mul_(2).add_(1).mul_(0.5).sub_(0.5)
        time.sleep(0.02)  # the executor's thread is done with it
    windows = list(threads)
torch.lazy.synchronize()
print(windows[0], any(windows))
"""


@pytest.mark.parametrize("launches, by_the_script", [("quick", True), ("slow", False)])
def test_a_driver_that_takes_its_time_is_left_to_the_executors_thread(tmp_path, launches, by_the_script):
    """a kernel that runs where it is launched would hold up the script; of the first run the time is not known"""
    env = {**os.environ, "LAZY_DRIVER": "simgpu", "LAZY_CACHE_DIR": str(tmp_path), "LAZY_COMPILE": "sync"}
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), launches]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", str(by_the_script)], done.stderr
