"""Planned faults strike at the planned call, are errors at the next wait, and leave a usable or a lost device."""

import time

import numpy as np
import pytest

from device_sim import faults
from device_sim.faults import BadPlan, Fault
from lazy_backend.driver.errors import BuildFailed, DeviceLost, LaunchFailed, MemoryFault, OutOfMemory, TimedOut

from .kernels import Chip, device


def usable(chip):
    chip.put(chip.a)
    chip.launch()
    return (chip.get(chip.b) == 2 * chip.x).all()


def test_out_of_memory_at_the_nth_allocation():
    d = device(Fault("out_of_memory", at=3))
    d.alloc(64), d.alloc(64)
    with pytest.raises(OutOfMemory, match="planned fault: allocation 3"):
        d.alloc(64)
    d.alloc(64)


def test_failing_compiler():
    chip = Chip(Fault("build_failed", at=1))
    with pytest.raises(BuildFailed, match="planned fault"):
        chip.launch()
    assert usable(chip)


def test_slow_compiler():
    chip = Chip(Fault("slow_build", at=1, seconds=0.2))
    began = time.monotonic()
    chip.launch()
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    "kind, error, words",
    [
        ("launch_failed", LaunchFailed, r"kernel scale \[.*\] failed"),
        ("hang", TimedOut, r"kernel scale \[.*\] ran for 1 s and was stopped"),
    ],
)
def test_a_failed_or_hung_kernel_is_an_error_at_the_next_wait(kind, error, words):
    chip = Chip(Fault(kind, at=2))
    chip.launch(factor=3.0)
    chip.launch()
    with pytest.raises(error, match=words):
        chip.get(chip.b)
    assert usable(chip)


def test_commands_behind_a_failure_do_not_run_and_their_events_fail():
    chip = Chip(Fault("launch_failed", at=2))
    chip.launch(factor=3.0)
    before = chip.d.event_record(chip.q)
    chip.launch()
    chip.launch(factor=5.0)
    behind = chip.d.event_record(chip.q)
    chip.d.event_wait(before)
    for ask in (chip.d.event_wait, chip.d.event_query):
        with pytest.raises(LaunchFailed):
            ask(behind)
    with pytest.raises(LaunchFailed):
        chip.d.synchronize(chip.q)
    assert (chip.get(chip.b) == 3 * chip.x).all(), "only what was queued before the failure has run"


def test_a_lost_device_stays_lost():
    chip = Chip(Fault("device_lost", at=1))
    chip.launch()
    for attempt in (
        lambda: chip.d.synchronize(chip.q),
        chip.launch,
        lambda: chip.d.alloc(64),
        lambda: chip.get(chip.a),
    ):
        with pytest.raises(DeviceLost, match="the device was lost in kernel scale"):
            attempt()


def test_a_damaged_copy_is_noticed():
    chip = Chip(Fault("corrupt_copy", at=2))
    with pytest.raises(MemoryFault, match="checksum does not match"):
        chip.get(chip.a)
    assert usable(chip)


def test_a_flipped_bit_is_not_noticed_by_the_device():
    chip = Chip(Fault("flip_bits", at=1))
    assert (chip.get(chip.a).view(np.uint32) != chip.x.view(np.uint32)).sum() == 1


def test_a_flipped_bit_of_a_copy_to_the_host_is_the_hosts_alone():
    chip = Chip(Fault("flip_bits", at=2))
    assert (chip.get(chip.a).view(np.uint32) != chip.x.view(np.uint32)).sum() == 1
    assert (chip.get(chip.a) == chip.x).all(), "the device's memory is as it was"


def test_queues_that_live_side_by_side_have_numbers_of_their_own():
    chip = device()
    first, second = chip.queue_create(), chip.queue_create()
    chip.queue_destroy(first)
    assert chip.queue_create().number != second.number


def test_faults_can_be_aimed_at_kernels_and_repeat():
    plan = faults.Plan([Fault("launch_failed", every=2, kernel="soft.*")])
    assert [bool(plan.strike("kernel", name)) for name in ("softmax", "add", "softmax", "softmax", "softmax")] == [
        False, False, True, False, True,
    ]  # fmt: skip


def test_plans_are_read_from_toml_and_checked(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('[[fault]]\nkind = "hang"\nat = 4\n')
    assert faults.load(str(path)).faults == [Fault("hang", at=4)]
    wrong = {
        'kind = "melts"\nat = 1': "unknown fault",
        'kind = "hang"': "say at = n",
        'kind = "hang"\nat = "third"': "count calls from 1",
        'kind = "hang"\nevery = -1': "count calls from 1",
        'kind = "hang"\nat = 1\nkernel = "soft("': "no regular expression",
        'kind = "slow_build"\nat = 1\nseconds = -3': "is no time",
        "x = 1": "x",
    }
    for text, reason in wrong.items():
        path.write_text(f"[[fault]]\n{text}\n")
        with pytest.raises(BadPlan, match=reason):
            faults.load(str(path))
    path.write_text('[[faults]]\nkind = "hang"\nat = 4\n')
    with pytest.raises(BadPlan, match=r"made of \[\[fault\]\] tables, not of faults"):
        faults.load(str(path))
