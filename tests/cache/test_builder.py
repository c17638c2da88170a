"""A process that builds programs: its end, and processes that are forked from it, which are as good as started ones."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lazy_backend import _C, builder, builders
from lazy_backend.driver import discovery

NOTHING = b"__kernel void nothing(__global float *a) { a[0] = 7.0f; }"
# A process whose driver, once it has been forked, does what a test asks for instead of building.
FORKED = """
import os, time
from lazy_backend import builder
from lazy_backend.driver.native import NativeDevice

origin, load = os.getpid(), NativeDevice.program_load

def program_load(self, *arguments):
    if os.getpid() != origin:
        {does}
    return load(self, *arguments)

NativeDevice.program_load = program_load
builder.main(60)
"""


@pytest.fixture
def started(device):
    """Starts a process that another is forked from, and that; `does`: at its first program."""
    if device == "cpu" or discovery.selected() not in builders.ISOLATED:
        pytest.skip("this driver's compiler is no part of the process")
    made = []

    def start(does="", idle_s=builder.IDLE_S):
        origin, other = builder.Builder(forks=1), builder.Builder()
        made.extend((origin, other))
        if does:
            origin.command = [*origin.command[:2], FORKED.format(does=does)]
        origin.start()
        other.start(origin)
        return origin, other

    yield start
    for process in made:
        process.end()


def build(process):
    return process.build(0, _C.device_properties(0), NOTHING)


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def ends(pid):
    """Whether a process ends soon. One whose parent has not looked yet has ended too."""
    for _ in range(200):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_forked_process_builds_what_a_started_one_builds(started):
    origin, other = started()
    first, second = build(other), build(origin)
    assert first and type(first) is bytes and len(first) == len(second)
    assert build(other) and origin._process.pid == parent(other._process.pid) != os.getpid() == parent(
        origin._process.pid
    )


def test_as_many_are_forked_as_was_said_the_others_are_started(started):
    origin, _ = started()
    third = builder.Builder()
    third.start(origin)
    try:
        assert build(third) and parent(third._process.pid) == os.getpid() == parent(origin._process.pid)
    finally:
        third.end()


def test_one_that_builds_is_not_waited_for(started):
    started()
    third = builder.Builder(forks=1)
    third.start()
    other = builder.Builder()
    try:
        with third._building:  # as who builds with it has it
            other.start(third)
            assert build(other) and parent(other._process.pid) == os.getpid()
        other.end()
        other.start(third)
        assert build(other) and parent(other._process.pid) == third._process.pid
    finally:
        third.end()
        other.end()


def test_one_that_ends_is_forked_no_more(started):
    origin, other = started()
    build(other)
    other.end()
    assert not other.running()
    other.start(origin)
    assert build(other) and parent(other._process.pid) == os.getpid()


def test_where_the_first_ends_at_its_start_the_other_is_started(started):
    origin, other = started()
    origin.end()
    assert build(other) and parent(other._process.pid) == os.getpid() and not other.useless


def test_where_the_first_cannot_open_the_driver_the_other_tries_itself(started):
    origin, other = builder.Builder(forks=1), builder.Builder()
    origin.command = [sys.executable, "-c", "import os; os._exit(3)"]
    origin.start()
    other.start(origin)
    with pytest.raises(builder.Unstarted):
        build(origin)
    assert origin.useless and build(other)
    other.end()


def test_a_compiler_that_ends_a_forked_process_is_tried_in_a_fresh_one(started):
    _, other = started("os.abort()")
    assert build(other) and parent(other._process.pid) == os.getpid()


def test_one_that_does_not_answer_for_want_of_threads_is_replaced(started, monkeypatch):
    monkeypatch.setattr(builder, "LONGEST_FORKED_S", 1.0)
    _, other = started("time.sleep(100)")
    assert build(other) and parent(other._process.pid) == os.getpid()


def test_only_its_first_program_is_so_pressed(started, monkeypatch):
    _, other = started()
    build(other)
    monkeypatch.setattr(builder, "LONGEST_FORKED_S", 0.0)
    assert build(other) and parent(other._process.pid) != os.getpid()


def test_a_forked_process_ends_when_it_is_told_to_and_when_the_script_is_gone(started):
    for end in (builder.Builder.end, lambda other: other._process.communicate()):
        _, other = started()
        build(other)
        end(other)
        assert ends(other._process.pid) and not other.running()


def test_threads_may_ask_at_once_whether_it_runs(started):
    _, other = started()
    build(other)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: other.running(), range(4000)))
        other.end()
        assert not any(threads.map(lambda _: other.running(), range(400)))


def test_the_first_leaves_no_dead_behind(started):
    origin, other = started()
    build(other)
    pid = other._process.pid
    other.end()
    assert ends(pid)
    build(origin)
    build(origin)
    assert not os.path.exists(f"/proc/{pid}")


def test_the_process_ends_with_its_pipe_and_when_nothing_comes():
    command = "from lazy_backend import builder; builder.main({})"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    assert subprocess.Popen([sys.executable, "-c", command.format(0.1)], **pipes).wait(60) == 0
    closed = subprocess.run([sys.executable, "-c", command.format(600)], stdin=subprocess.DEVNULL, timeout=60)
    assert closed.returncode == 0


def test_a_builder_s_end_is_named():
    assert builder._ending(-signal.SIGABRT) == "SIGABRT" and builder._ending(3) == "exit status 3"
