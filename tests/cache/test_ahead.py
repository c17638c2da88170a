"""Kernels are loaded ahead of need: an archive's, and those that a script used the last time."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import lazy_backend
from lazy_backend import _C, ahead, archive, builders, kernels, plans
from lazy_backend.driver import discovery

ROOT = Path(__file__).parents[2]
# Prints programs loaded before the first op and after the last, kernels built, and memory reserved before and after.
SCRIPT = """
import json, threading
import torch
from lazy_backend import _C
loads = []
build = _C.build_program
_C.build_program = lambda *args: loads.append(args[2]) or build(*args)
torch.empty(1, device="lazy")
for thread in threading.enumerate():
    if thread.name == "lazy-ahead":
        thread.join()
before, reserved = len(loads), torch.lazy.memory_reserved()
x = torch.arange(12.0, device="lazy").reshape(3, 4)
values = [x.softmax(1).sum().item(), (x.T @ x).amax().item()]
stats = torch.lazy.stats()
print(json.dumps([values, before, len(loads), stats["kernels_built"], reserved, torch.lazy.memory_reserved()]))
"""


@pytest.fixture(autouse=True)
def on_the_device(device):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")


def program():
    x = torch.arange(20.0, device="lazy").reshape(4, 5)
    return [(x * 3).tanh().sum().item(), x.cumsum(1).max().item()]


@pytest.fixture
def loads(monkeypatch):
    """Every program given to the driver in this process, which keeps none of those before."""
    found = []
    monkeypatch.setattr(kernels, "_loaded", {})
    build = _C.build_program
    monkeypatch.setattr(_C, "build_program", lambda *args: found.append(args[2]) or build(*args))
    return found


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """An open archive of the program; nothing is compiled from here on."""
    with lazy_backend.precompile(tmp_path / "app.lzpack"):
        expected = program()
    torch.lazy.synchronize()
    _C.forget_plans(0)
    monkeypatch.setenv("LAZY_COMPILE", "never")
    monkeypatch.setattr(archive, "opened", archive.Archive(tmp_path / "app.lzpack"))
    return expected


def test_an_archive_s_kernels_are_loaded_before_they_are_needed(recorded, loads):
    ahead.start(archive.opened.loads(0)).join()
    loaded = len(loads)
    assert loaded == len(archive.opened._handles) > 0
    assert program() == recorded and len(loads) == loaded


def test_what_the_thread_has_not_come_to_is_loaded_where_it_is_needed(recorded, loads):
    """also while the thread loads: no kernel twice"""
    held = threading.Event()

    def slowly():
        for number, load in enumerate(archive.opened.loads(0)):
            if number == 1:
                held.wait(60)
            yield load

    thread = ahead.start(slowly())
    assert program() == recorded
    held.set()
    thread.join()
    assert len(loads) == len(archive.opened._handles)


def test_a_load_that_fails_fails_where_it_counts(recorded):
    def broken():
        raise RuntimeError("mine")

    ahead.start([broken]).join()
    assert program() == recorded


def run(script, folder):
    settings = os.environ | {"PYTHONPATH": str(ROOT), "LAZY_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, str(script)], env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_script_s_second_run_loads_what_the_first_one_used(tmp_path):
    if discovery.selected() not in ahead.DRIVERS:
        pytest.skip("this driver's kernels are loaded when they are needed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    values, before, loaded, built, reserved, memory = run(script, tmp_path)
    assert before == 0 and loaded >= built > 0 and memory >= reserved
    again, before, loaded, nothing, reserved, same = run(script, tmp_path)
    assert again == values and before == loaded == built and nothing == 0
    assert reserved == same == memory, "a run starts with the memory that the last one had"
    script.write_text(SCRIPT.replace("x = torch", "y = torch.ones(8 << 20, device='lazy')\ny[-1].item()\nx = torch"))
    *_, larger = run(script, tmp_path)
    assert larger > memory
    script.write_text(SCRIPT)
    run(script, tmp_path)
    *_, reserved, same = run(script, tmp_path)
    assert reserved == same == memory, "what a larger run had is forgotten after a smaller one"
    other = tmp_path / "other.py"
    other.write_text(SCRIPT)
    assert run(other, tmp_path)[1] == 0


def test_only_what_plans_use_is_remembered(own, monkeypatch):
    monkeypatch.setattr(
        plans, "used", {(0, f"{i}.kernel", "f"): None for i in range(ahead.MOST + 1)} | {(1, "x", "g"): None}
    )
    asked = []
    monkeypatch.setattr(plans, "cached_kernel", lambda *args: asked.append(args))
    ahead.remember("script")
    loads, _ = ahead._of_last_run("script")
    for load in loads:
        load()
    assert asked == [(0, f"{i}.kernel", "f") for i in range(ahead.MOST)]


def test_a_run_starts_with_so_much_memory_at_most(monkeypatch):
    """what an entry of the cache says of it may be anything"""
    reserved = []
    monkeypatch.setattr(_C, "reserve", lambda device, segments: reserved.append((device, segments)))
    monkeypatch.setattr(_C, "touch", lambda device: reserved.append("touched"))
    half = ahead.MOST_BYTES // 2
    for load in ahead._with_memory([], [-5, 0, 2 << 20, half, half, 1 << 62]):
        load()
    assert reserved == [(0, [2 << 20, half]), "touched"]


def test_a_new_script_has_a_process_that_builds(own, monkeypatch):
    """as soon as the driver is open: later it would take a core that the script's own start leaves"""
    if discovery.selected() not in ahead.DRIVERS:
        pytest.skip("this driver's kernels are loaded when they are needed")
    started = []
    monkeypatch.setattr(builders, "start_first", lambda: started.append(1))
    monkeypatch.setattr(ahead, "_script", lambda: "another")
    monkeypatch.setattr(ahead.atexit, "register", lambda *_: None)
    ahead.open_device()
    assert started == [1]


@pytest.mark.parametrize("text", [
    b"no JSON", b"{}", b"[1]", b"\xff", b'{"kernels": []}', b'{"kernels": [], "segments": ["x"]}',
    b'{"kernels": [[1, 2, 3]], "segments": []}', b'{"kernels": [], "segments": 5}',
])  # fmt: skip
def test_what_anyone_may_have_written_is_nothing_to_load(own, text):
    ahead.cache.store(ahead._name("script"), text)
    assert ahead._of_last_run("script") is None
