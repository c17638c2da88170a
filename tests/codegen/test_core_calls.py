"""Core op calls of a graph, run on the simulated NPU, agree with the interpreter; views cost no call."""

import json
from dataclasses import replace

import numpy as np
import pytest

from codegen import core_calls
from lazy_backend.core_steps import core_steps
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.porting.bench import Bench
from lazy_backend.porting.execute import Runner, from_memory, to_memory
from ops_core import interpret
from tests.codegen.case import Case, build

CAPS = Capabilities(level=1, name="npu").complete()


@pytest.fixture(scope="module")
def bench():
    return Bench("simnpu")


def run(bench: Bench, case: Case) -> None:
    """Run on the device, compare every slot."""
    raw = {slot: to_memory(values, case.dtypes[slot]) for slot, values in case.memory.items()}
    mems = {slot: bench.upload(data) for slot, data in raw.items()}
    Runner(bench, case.graph, mems, {slot: data.nbytes for slot, data in raw.items()}, case.params).run()
    interpret.run(case.graph, case.memory, case.params)
    for slot, want in case.memory.items():
        got = from_memory(bench.get(mems[slot], raw[slot].size, raw[slot].dtype), case.dtypes[slot])
        np.testing.assert_array_equal(got, want)
    bench.clean_up()


def calls(case: Case) -> list[str]:
    plan = core_calls.plan(case.graph, CAPS)
    return [json.loads(call.attrs).get("fn", call.op) for call in plan.calls]


X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def test_views_are_strides(bench):
    def write(c):
        x = c.input(X)
        c.output(x.permute(2, 0, 1).reshape(5, 3, 4).expand(2, 5, 3, 4))

    case = build(write)
    assert calls(case) == ["convert"]
    run(bench, case)


def test_a_reshape_that_needs_a_copy_is_a_call(bench):
    case = build(lambda c: c.output(c.input(X).permute(2, 0, 1).reshape(5, 12)))
    assert calls(case) == ["reshape", "convert"]
    run(bench, case)


def test_a_load_before_a_store_keeps_the_old_values(bench):
    def write(c):
        slot = c.slot(X)
        old = c.view(slot, (60,))
        c.store(old + 1.0, slot)
        c.output(old * 2.0)

    run(bench, build(write))


def test_a_shift_inside_a_slot_goes_through_a_copy(bench):
    def write(c):
        slot = c.slot(X)
        c.store(c.view(slot, (50,)), slot, offset=10)

    case = build(write)
    assert calls(case) == ["convert", "convert"]
    run(bench, case)


def test_run_time_scalars_are_written_before_the_first_call(bench):
    def write(c):
        c.output(c.input(X) * c.param(0.25).to("f32").expand(3, 4, 5) + c.param(3.0).to("f32").expand(3, 4, 5))

    run(bench, build(write))


def test_intermediates_share_memory_when_they_do_not_live_together():
    def write(c):
        x = c.input(np.ones(1000, np.float32))
        for _ in range(10):
            x = x + x
        c.output(x)

    plan = core_calls.plan(build(write).graph, CAPS)
    assert len(plan.temps) == 10 and sum(plan.pieces) <= 2 * 4032


def test_steps_say_where_each_tensor_lies():
    def write(c):
        slot = c.slot(X)
        c.store(c.view(slot, (4, 3), (1, 4), offset=2) * c.param(2.0).to("f32").expand(4, 3), slot, offset=20)

    plan = core_calls.plan(build(write).graph, CAPS)
    plan.calls = [replace(call, origin=0) for call in plan.calls]
    steps = core_steps(plan, ["train.py:3 in forward"], 5)
    assert steps[0][:4] == ("core", "full", "", 1) and steps[0][4][1][0] == ("scalar", 0, "f64")
    assert steps[0][4][0][0] == ("temp", 5 + plan.params[0][2], ""), "numbered after the temps of earlier segments"
    multiply = next(step for step in steps if '"mul"' in step[2])
    assert multiply[4][1] == (("slot", 0, ""), 8, 8, [4, 3], [1, 4]), "dtype code, offset in bytes, sizes, strides"
    assert json.loads(multiply[2])["line"] == "train.py:3 in forward", "a message can name the user's line"
