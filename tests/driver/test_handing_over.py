"""Which thread hands a window to the driver: the one that recorded it where that takes no time, else the executor's."""

import os
import subprocess
import sys

import pytest
from port_hostc import SOURCE

# The worked port, which counts the launches by the script's own thread and by others, and takes its time if asked.
WATCHED = """
#include <sys/syscall.h>

int by_script, by_others;

static lazy_status launch(lazy_device device, lazy_queue queue, lazy_kernel kernel, const uint64_t global[3],
                          const uint64_t local[3], uint32_t nargs, const lazy_arg *args) {
  const int own = syscall(SYS_gettid) == getpid();
  if (SLOW) usleep(2000);
  const lazy_status status = launch_itself(device, queue, kernel, global, local, nargs, args);
  __atomic_add_fetch(own ? &by_script : &by_others, 1, __ATOMIC_SEQ_CST);
  return status;
}
"""
SCRIPT = """
import ctypes, pathlib, time, port_hostc
port_hostc.SOURCE = pathlib.Path(__file__).with_name("watched.c")
counted = ctypes.CDLL(str(port_hostc.driver()))

import torch

def launches():
    return [ctypes.c_int.in_dll(counted, name).value for name in ("by_script", "by_others")]

x = torch.ones(8, device="lazy")
with torch.no_grad(), torch.lazy.window(4):
    for turn in range(1, 41):  # a window a turn, and nobody waits for one
        x.mul_(2).add_(1).mul_(0.5).sub_(0.5)
        while sum(launches()) < turn:
            time.sleep(0.001)
        time.sleep(0.002)  # the executor's thread is done with it
    found = launches()
torch.lazy.synchronize()
print(*found)
"""


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_driver_that_takes_its_time_is_left_to_the_executors_thread(tmp_path, slow):
    """a kernel that runs where it is launched would hold up the script; of the first run the time is not known"""
    source = SOURCE.read_text().replace("static lazy_status launch(", "static lazy_status launch_itself(")
    head, section, tail = source.rpartition("/* [launch] */\n")
    watched = WATCHED.replace("SLOW", str(int(slow)))
    (tmp_path / "watched.c").write_text("#define _GNU_SOURCE\n" + head + section + watched + tail)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "LAZY_DRIVER": "hostc", "LAZY_CACHE_DIR": str(tmp_path), "LAZY_COMPILE": "sync"}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    by_script, by_others = map(int, done.stdout.split())
    assert by_script + by_others == 40, done.stderr
    assert by_script == 0 if slow else 0 < by_script < 40
