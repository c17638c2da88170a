"""Programs are built by processes of their own, and by the script's where these cannot; a crash ends no script."""

import functools
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from codegen.printer import print_source
from codegen.source import Source
from lazy_backend import _C, builder, builders, compiler, kernels
from lazy_backend.driver import discovery

NOTHING = b"__kernel void nothing(__global float *a) { a[0] = %d.0f; }"
# A builder whose compiler dies of programs that have a certain text in them, or never ends, and notes each in a file.
DIES = """
import ctypes, os, time
from lazy_backend import builder
from lazy_backend.driver.native import NativeDevice

load = NativeDevice.program_load

def program_load(self, source, is_binary, options):
    if {text!r} in source:
        with open({noted!r}, "a") as file:
            print(os.getpid(), file=file)
        {death}
    return load(self, source, is_binary, options)

NativeDevice.program_load = program_load
builder.main(60)
"""


@pytest.fixture
def fresh(device, own, monkeypatch):
    """An empty cache, no program remembered, and no process but those that the test makes."""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    torch.lazy.synchronize()
    monkeypatch.setattr(builders, "_unknown", set())
    monkeypatch.setattr(kernels, "_fatal", {})


@pytest.fixture
def helpers(fresh, monkeypatch):
    """Two processes, whatever the machine has. What they gave is in `given`."""
    made = [builders.Builder() for _ in range(2)]
    monkeypatch.setattr(builders, "_builders", made)
    given, asked = [], []

    def build(*args, build):
        asked.append(args)
        given.append(build(*args))
        return given[-1]

    for helper in made:
        monkeypatch.setattr(helper, "build", functools.partial(build, build=helper.build))
        helper.given, helper.asked = given, asked
    yield made
    for helper in made:
        helper.end()


@pytest.fixture
def isolated(helpers):
    """The same, where the script's process builds nothing."""
    if discovery.selected() not in builders.ISOLATED:
        pytest.skip("this driver's compiler is no part of the process")
    return helpers


@pytest.fixture
def here(monkeypatch):
    """The programs that the script's process was given from source."""
    found = []
    build = _C.build_program

    def noted(device, text, is_binary, options):
        if not is_binary:
            found.append(text)
        return build(device, text, is_binary, options)

    monkeypatch.setattr(_C, "build_program", noted)
    return found


def program(device, n):
    """Several kernels in one window."""
    x = torch.arange(1.0, 1.0 + 6 * n, device=device).reshape(6, n) / 8
    return [x.sum(0), x.T @ x, x.softmax(1), x.sort(1).values, (x * 3).sin().cumsum(0)]


def built(device, n):
    """How many kernels the program took, whose results are checked."""
    torch.lazy.reset_stats()
    with torch.lazy.window(200):
        found = [t.cpu() for t in program(device, n)]
    for result, expected in zip(found, program("cpu", n), strict=True):
        torch.testing.assert_close(result, expected)
    return torch.lazy.stats()["kernels_built"]


def building(device=0):
    """Programs of the device under test."""
    load = lambda numbers, text, is_binary: _C.build_program(device, text, is_binary, "")  # noqa: E731
    return builders.Building(device, _C.device_properties(device), load)


def alone(text):
    """A source that is built as a program of its own."""
    return Source("", (), text.decode())


def ask(sources):
    programs = building()
    for source in sources:
        programs.ask(alone(source))
    return programs.finish()


def test_programs_are_shared_and_each_is_counted_once(device, helpers, monkeypatch):
    asked = []
    ask = builders.Building.ask
    monkeypatch.setattr(builders.Building, "ask", lambda self, source: asked.append(source) or ask(self, source))
    assert built(device, 11) == len(asked) == len(set(asked)) >= builders.FEWEST
    given = helpers[0].given
    assert given and all(isinstance(answer, bytes) for answer in given) and len(given) <= len(asked)


def test_the_script_builds_nothing(device, isolated, here):
    assert built(device, 13) >= builders.FEWEST and isolated[0].given
    before = len(isolated[0].given)
    torch.lazy.reset_stats()
    assert (torch.arange(5.0, device=device) * 13).exp2().sum().item() > 0  # few kernels, not the fewest
    assert torch.lazy.stats()["kernels_built"] > 0 and len(isolated[0].given) > before
    assert here == []


def test_a_process_that_does_not_start_costs_nothing_but_time(device, helpers, here):
    for helper in helpers:
        helper.command = ["/bin/false"]
    assert built(device, 17) == len(here) >= builders.FEWEST
    assert helpers[0].given == [] and any(helper.useless for helper in helpers)


@pytest.mark.timeout(60)
def test_a_process_that_cannot_be_asked_leaves_its_programs_to_the_script(device, isolated, here, monkeypatch, caplog):
    """Nobody waits for a thread that fails, whatever it fails of."""

    def fails(*args):
        raise ValueError("read of closed file")

    for helper in isolated:
        monkeypatch.setattr(helper, "build", fails)
    with caplog.at_level(logging.ERROR, "lazy_backend.compile"):
        made = ask([NOTHING % i for i in range(5)])
    assert all(isinstance(program, int) for program in made) and len(here) == 5
    assert "could not be asked" in caplog.text


@pytest.mark.timeout(60)
def test_nobody_waits_for_a_process_that_is_closed(device, isolated):
    """as at the script's end, and it is not started again"""
    for helper in isolated:
        helper.close()
    with pytest.raises(builder.Ended):
        ask([NOTHING % i for i in range(5)])
    assert not any(helper.running() for helper in isolated)


def test_a_process_whose_script_was_killed_ends_without_a_word(device):
    """no traceback on the terminal of whoever killed it"""
    ends, begins = os.pipe()
    os.close(ends)
    process = subprocess.run(
        builder.Builder(5.0).command, stdin=subprocess.DEVNULL, stdout=begins, stderr=subprocess.PIPE, check=False
    )
    os.close(begins)
    assert (process.returncode, process.stderr) == (-signal.SIGPIPE, b"")


def test_another_device_s_programs_are_left_to_the_script(device, isolated, here):
    properties = _C.device_properties(0)
    assert isolated[0].build(0, properties, NOTHING % 1)
    assert isolated[0].build(0, bytes(len(properties)), NOTHING % 1) is None
    programs = builders.Building(0, bytes(len(properties)), lambda numbers, text, is_binary: len(text) + is_binary)
    programs.ask(alone(NOTHING % 2))
    assert programs.finish() == [len(NOTHING % 2)] and builders._unknown == {0}


def test_programs_are_built_from_when_they_are_asked_for(device, isolated, here):
    programs = building()
    for i in range(builders.FEWEST):
        programs.ask(alone(NOTHING % i))
    deadline = time.monotonic() + 60
    while len(isolated[0].given) < builders.FEWEST:  # before anybody waits for them
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(isinstance(p, int) for p in programs.finish()) and here == []


def test_the_longest_program_is_begun_first(device, isolated, monkeypatch):
    monkeypatch.setattr(builders, "_builders", isolated[:1])
    short, longer, longest = (NOTHING % i + b" " * 1000 * i for i in range(3))
    programs = building()
    with isolated[0]._building:  # another caller has it
        for text in (NOTHING % 3, short, longer, longest):
            programs.ask(alone(text))
    assert all(isinstance(p, int) for p in programs.finish())
    begun = [text for _, _, text in isolated[0].asked]
    assert begun[-3:] == [longest, longer, short] or begun == [longest, longer, NOTHING % 3, short]


def ask_together(isolated, monkeypatch, *kernels):
    """What becomes of kernels that one process is asked for while it is busy."""
    monkeypatch.setattr(builders, "_builders", isolated[:1])
    programs = building()
    with isolated[0]._building:  # another caller has it
        programs.ask(alone(NOTHING % 0))
        deadline = time.monotonic() + 60
        while not isolated[0].asked:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for kernel in kernels:
            programs.ask(Source("/* of each */\n", ("void library() { }\n",), kernel.decode()))
    return programs.finish()[1:]


def named(name, number):
    return (NOTHING % number).replace(b"nothing", name.encode())


def test_kernels_that_wait_are_one_program(device, isolated, monkeypatch, here):
    names = [f"together_{i}" for i in range(6)]
    made = ask_together(isolated, monkeypatch, *(named(name, i) for i, name in enumerate(names)))
    assert len(set(made)) == 1 and here == []
    assert len({kernels.create(0, made[0], name) for name in names}) == 6
    text = isolated[0].asked[-1][2]
    assert text.count(b"of each") == text.count(b"void library()") == 1


def test_programs_of_several_kernels_stay_short(device, isolated, monkeypatch):
    padding = b" " * (builders.TOGETHER // 4)
    made = ask_together(isolated, monkeypatch, *(named(f"short_{i}", i) + padding for i in range(6)))
    assert len(set(made)) == 2
    assert all(len(text) < builders.TOGETHER * 1.1 for _, _, text in isolated[0].asked)


def test_the_one_that_does_not_compile_is_found(device, isolated, monkeypatch):
    broken = b"__kernel void broken(int a) { return b; }"
    good, bad, other = ask_together(isolated, monkeypatch, named("good", 1), broken, named("other", 2))
    assert isinstance(good, int) and isinstance(other, int) and isinstance(bad, RuntimeError) and "'b'" in str(bad)


def test_programs_that_nobody_needs_any_more_leave_the_processes_to_the_next_caller(device, isolated, here):
    """as after an error of the planning, and no answer to what was asked before it is taken for another's"""
    programs = building()
    for i in range(20, 24):
        programs.ask(alone(NOTHING % i))
    programs.abandon()
    before = len(isolated[0].given)
    made = ask([NOTHING % i for i in range(30, 30 + builders.FEWEST)])
    assert all(isinstance(p, int) for p in made) and len(isolated[0].given) - before == len(made)
    assert here == []


def test_a_kernel_that_cannot_be_printed_abandons_what_was_asked_for(device, isolated, monkeypatch, caplog):
    """the window runs on the host, and the next one is compiled"""
    printed = []

    def unprintable(*args):
        printed.append(args)
        if len(printed) == 2:
            raise KeyError("no such scalar")
        return print_source(*args)

    monkeypatch.setattr(compiler, "print_source", unprintable)
    with caplog.at_level(logging.ERROR, "lazy_backend.compile"):
        assert built(device, 23) == 0
    assert "no such scalar" in caplog.text and torch.lazy.stats()["host_ops"] > 0
    caplog.clear()  # a compile that fails is the point here (`no_compiler_fails`)
    assert built(device, 29) >= builders.FEWEST


def test_a_program_that_does_not_compile_gives_the_driver_s_text(device, isolated):
    *good, bad = ask([NOTHING % i for i in range(builders.FEWEST)] + [b"__kernel void broken(int a) { return b; }"])
    assert all(good) and isinstance(bad, RuntimeError) and "'b'" in str(bad)


@pytest.fixture
def dying(isolated, tmp_path):
    """Processes that die of a program with the text. Returns a function of it that gives who died."""

    def of(text, death="ctypes.string_at(0)"):
        noted = tmp_path / "noted"
        noted.touch()
        for helper in isolated:
            helper.command = [sys.executable, "-c", DIES.format(text=text, noted=str(noted), death=death)]
        return lambda: noted.read_text().split()

    return of


def test_a_program_that_kills_the_compiler_is_tried_in_two_processes_and_the_others_are_built(device, dying, here):
    died = dying(b"7.0f")
    programs = ask([NOTHING % i for i in (5, 6, 7, 8, 9)])
    assert [type(p) for p in programs] == [int, int, builders.Died, int, int] and "SIGSEGV" in str(programs[2])
    assert len(died()) == len(set(died())) == 2 and here == []


def test_the_one_that_kills_the_compiler_is_found(device, dying, isolated, monkeypatch, here):
    dying(b"7.0f")
    made = ask_together(isolated, monkeypatch, *(named(f"found_{i}", i) for i in (5, 6, 7, 8, 9)))
    assert [type(p) for p in made] == [int, int, builders.Died, int, int] and here == []


def test_a_program_that_the_compiler_does_not_finish_is_given_up_and_the_others_are_built(
    device, dying, here, monkeypatch
):
    monkeypatch.setattr(builder, "LONGEST_S", 5.0)
    tried = dying(b"7.0f", "time.sleep(100)")
    programs = ask([NOTHING % i for i in (5, 6, 7, 8, 9)])
    assert [type(p) for p in programs] == [int, int, builders.Died, int, int] and "for 5 s" in str(programs[2])
    assert len(tried()) == 1 and here == []


def test_a_window_whose_kernel_kills_the_compiler_runs_on_the_host(device, dying, here, caplog):
    """with right results; the log names the line, the kernel is not tried again, and the device goes on"""
    died = dying(b" k_")  # all of the device's own

    def steps(where):
        x = torch.arange(24.0, device=where).reshape(4, 6)
        return [((x + step).sinh() / 1e9).softmax(1).cpu() for step in range(3)]  # this line

    line = f"{os.path.basename(__file__)}:{steps.__code__.co_firstlineno + 2}"
    torch.lazy.reset_stats()
    with caplog.at_level(logging.ERROR, "lazy_backend.compile"):
        found = steps(device)
    text = caplog.text
    caplog.clear()  # a compile that fails is the point here (`no_compiler_fails`)
    for result, expected in zip(found, steps("cpu"), strict=True):
        torch.testing.assert_close(result, expected)
    assert "SIGSEGV" in text and "runs on the CPU" in text and line in text, text
    assert torch.lazy.stats()["host_ops"] > 0 and torch.lazy.stats()["kernels_built"] == 0
    tried = len(died())
    torch.lazy.reset_stats()
    steps(device)
    assert len(died()) == tried and torch.lazy.stats()["plans_assembled"] == 0 and caplog.text == ""
    for helper in builders._builders:
        helper.end()
        helper.command = builders.Builder().command
    assert built(device, 19) >= builders.FEWEST and here == []


def test_few_programs_go_to_a_process_that_runs(isolated):
    isolated[1].start()
    assert all(isinstance(p, int) for p in ask([NOTHING % 3, NOTHING % 4]))
    assert isolated[1].running() and not isolated[0].running() and len(isolated[0].given) == 2


def test_a_window_without_a_plan_starts_as_many_processes_as_it_feeds(isolated):
    builders.expect.cache_clear()
    builders.expect("few", builders.OPS_A_PROGRAM, 0)
    assert [helper.running() for helper in isolated] == [True, False]
    builders.expect("many", 2 * builders.OPS_A_PROGRAM, 0)
    assert [helper.running() for helper in isolated] == [True, True]
    isolated[1].end()
    builders.expect("many", 2 * builders.OPS_A_PROGRAM, 0)
    assert [helper.running() for helper in isolated] == [True, False]
