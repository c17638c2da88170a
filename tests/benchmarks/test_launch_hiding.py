"""Launch hiding in virtual time: what the benchmark computes, and that windows leave while more is recorded."""

import pytest

from benchmarks.launch_hiding import CHIP, LAUNCH_US, OPS, SETTING, of_windows, overlapped, traced
from device_sim import chip as chips
from device_sim.clock import Step, Work
from lazy_backend import config

CHIP_20_US = chips.with_settings(chips.load(CHIP), [SETTING, "submit_us=1", "gap_us=2"])


def kernel(us: float) -> Step:
    return Step("kernel", "k", work=Work(bytes=us * 1e3 * CHIP_20_US.cache_gbs, groups=CHIP_20_US.compute_units))


def test_a_window_starts_when_it_is_recorded_and_its_launches_have_arrived():
    times = overlapped(CHIP_20_US, [[kernel(1)], [kernel(1), kernel(1)]], [50, 100], op_us=2)
    assert times.host == 200 and times.device == pytest.approx(3 * 1 + 2 * 2)
    assert times.wall == pytest.approx(200 + 1 + LAUNCH_US + 1 + 2 + 1), "the second launch is there by then"
    assert times.ratio == pytest.approx(225 / 200)


def test_the_last_windows_of_a_trace():
    flush, a, b = Step("flush"), kernel(1), kernel(2)
    assert of_windows([a, flush, Step("wait"), a, b, flush, b, flush], 2) == [[a, b], [b]]


def test_a_script_hides_its_launches_behind_its_recording():
    """The chip works while more is recorded, whatever an op costs the host (if more than a launch costs to submit)."""
    trace, found = traced(8)
    ready = found["ready"]
    assert len(ready) >= 3 and ready == sorted(ready) and ready[-1] == OPS
    submitted = of_windows(trace, len(ready))
    assert all(any(step.kind == "kernel" for step in window) for window in submitted), "each window is computed"
    for op_us in (1.0, 2.0, 20.0):
        times = overlapped(chips.with_settings(chips.load(CHIP), [SETTING]), submitted, ready, op_us)
        assert max(times.host, times.device) <= times.wall < times.host + times.device


@pytest.mark.parametrize("size", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_a_script_of_short_turns_takes_as_long_as_the_longest_of_recording_submitting_and_device(size):
    """Within 10 %, whichever is the longest: the first window leaves early, and little is left to do after the last."""
    if config.WINDOW.get() != config.WINDOW.default:
        pytest.skip("windows of one length leave when they are full")
    trace, found = traced(size)
    submitted = of_windows(trace, len(found["ready"]))
    chip = chips.with_settings(chips.load(CHIP), [SETTING])
    submitting = chip.submit_us * sum(step.kind == "kernel" for window in submitted for step in window)
    for op_us in (0.2, 0.7, 1.0, 1.4, 3.0, 10.0):
        times = overlapped(chip, submitted, found["ready"], op_us)
        assert times.wall <= 1.10 * max(times.host, times.device, submitting), f"{op_us} us an op: {times}"
