"""The virtual clock: arithmetic that can be checked by hand, and nothing of wall time."""

import pytest

from device_sim import chip as chips
from device_sim.chip import BadChip, Chip
from device_sim.clock import Clock, Step, Work, kernel_us, replay
from device_sim.report import perfetto, summary

# 100 Gop/s, 10 GB/s: 1e5 operations or 1e4 bytes a microsecond.
PLAIN = Chip(
    name="plain", kind="gpu", peak_gflops={"f32": 100.0}, bandwidth_gbs=10.0, submit_us=1.0, launch_us=5.0, gap_us=0.0,
    copy_us=2.0, h2d_gbs=1.0, d2h_gbs=1.0, copy_engine=False,
)  # fmt: skip


def kernel(flops=0.0, nbytes=0.0, name="k"):
    return Step("kernel", name, work=Work({"f32": flops}, nbytes))


def test_a_kernel_takes_the_longer_of_compute_and_memory():
    assert kernel_us(PLAIN, Work({"f32": 1e6}, 1e4)) == (10.0, "compute")
    assert kernel_us(PLAIN, Work({"f32": 1e5}, 1e6)) == (100.0, "memory")


def test_few_groups_leave_compute_units_idle():
    wide = chips.with_settings(PLAIN, ["compute_units=4"])
    assert (
        kernel_us(wide, Work({"f32": 1e6}, 0, groups=1))[0] == 4 * kernel_us(wide, Work({"f32": 1e6}, 0, groups=4))[0]
    )


def test_what_the_cache_holds_moves_faster():
    cached = chips.with_settings(PLAIN, ["cache_kib=1000", "cache_gbs=100"])
    assert kernel_us(cached, Work({}, 1e6))[0] == 10.0
    assert kernel_us(cached, Work({}, 11_024_000))[0] == pytest.approx(10.24 + 1000)


def test_accesses_that_turn_pages_have_a_bandwidth_of_their_own():
    paged = chips.with_settings(PLAIN, ["cache_kib=1000", "cache_gbs=100", "scattered_gbs=2"])
    assert kernel_us(paged, Work({}, 1e6, scattered=4e5))[0] == pytest.approx(6.0 + 200.0)
    assert kernel_us(PLAIN, Work({}, 1e6, scattered=4e5))[0] == 100.0, "a chip that says nothing streams"


def test_operations_that_are_no_multiply_adds_are_limited_by_issue_and_divisions_come_on_top():
    chip = chips.with_settings(PLAIN, ["issue_gops=200", "special_gflops=10"])
    assert kernel_us(chip, Work({"f32": 1e6}, 0, slots=1e6)) == (10.0, "compute")
    assert kernel_us(chip, Work({"f32": 1e6}, 0, slots=4e6))[0] == 20.0
    assert kernel_us(chip, Work({"f32": 1e6, "special": 1e5}, 0, slots=4e6))[0] == 30.0
    assert kernel_us(PLAIN, Work({"f32": 1e5}, 0, slots=1e6))[0] == 20.0, "without a rate, half the peak"


def test_launch_cost_is_exposed_once_and_hidden_behind_long_kernels():
    clock = replay(PLAIN, [kernel(1e6) for _ in range(10)])
    assert clock.spans[0].exposed == 5.0 and all(s.exposed == 0.0 for s in clock.spans[1:])
    assert clock.now == 1 + 5 + 10 * 10


def test_short_kernels_run_at_the_hosts_pace():
    clock = replay(PLAIN, [kernel(1e3) for _ in range(100)])
    assert clock.now == pytest.approx(100 * 1 + 5 + 0.01)


def test_waiting_after_every_launch_exposes_all_of_it():
    clock = replay(PLAIN, [kernel(1e6), Step("wait")] * 10)
    found = summary(PLAIN, clock)
    assert found["launch_exposed_us"] == 50.0 and found["launch_hidden_us"] == 0.0
    assert clock.now == pytest.approx(10 * (1 + 5 + 10))


def test_copies_of_one_queue_run_beside_kernels_of_another():
    engine = chips.with_settings(PLAIN, ["copy_engine=1"])
    steps = [kernel(1e7), Step("h2d", queue=1, amount=50_000)]
    assert summary(engine, replay(engine, steps))["copy_overlapped_us"] == 54 - 6
    assert summary(PLAIN, replay(PLAIN, steps))["copy_overlapped_us"] == 0.0


def test_memory_over_time_and_its_peak():
    clock = replay(PLAIN, [Step("alloc", amount=100), Step("alloc", amount=50), Step("free", amount=100)])
    assert [used for _, used in clock.memory] == [0, 100, 150, 50]
    assert summary(PLAIN, clock)["peak_memory_bytes"] == 150


def test_the_same_trace_gives_the_same_times():
    steps = [kernel(1e5 * i, 1e4) for i in range(50)] + [Step("wait"), Step("d2h", amount=400)]
    assert summary(PLAIN, replay(PLAIN, steps)) == summary(PLAIN, replay(PLAIN, steps))


def test_summary_says_where_the_time_goes():
    found = summary(PLAIN, replay(PLAIN, [kernel(1e6, name="a"), kernel(0, 1e6, name="b"), kernel(1e6, name="a")]))
    assert [(r["kernel"], r["launches"], r["us"], r["limit"]) for r in found["by_kernel"]] == [
        ("b", 1, 100.0, "memory"), ("a", 2, 20.0, "compute"),
    ]  # fmt: skip
    assert found["utilisation"]["device"] == pytest.approx(120 / 126)


def test_perfetto_timeline_has_every_command():
    events = perfetto([replay(PLAIN, [kernel(1e6), Step("h2d", "h2d", amount=10)])])["traceEvents"]
    first = next(e for e in events if e["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"]) == ("k", 6.0, 10.0)


@pytest.mark.parametrize("name", chips.names())
def test_descriptions_that_come_with_the_package_are_valid(name):
    assert chips.load(name).name == name


def test_there_are_four_kinds_of_chip_and_the_opencl_cpu():
    assert {"edge", "gpu_mid", "gpu_big", "npu", "opencl_cpu"} <= set(chips.names())


@pytest.mark.parametrize(
    "text, reason",
    [
        ('name = "c"\nkind = "tpu"', "kind must be"),
        ('name = "c"\nkind = "gpu"', "peak_gflops.f32 is required"),
        ('name = "c"\nkind = "gpu"\nlaunch_uss = 3', "unknown key 'launch_uss'; did you mean 'launch_us'"),
        ('name = "c"\nkind = "gpu"\ngap_us = 9\n[peak_gflops]\nf32 = 1', "gap_us, which hides launch_us, is more"),
        ('name = "c"\nkind = "gpu"\n[peak_gflops]\nf32 = 1\nf7 = 2', "peak_gflops may name"),
        ("name = ", "chip.toml"),
        ('name = "c"', "kind must be given"),
        ('name = "c"\nkind = "gpu"\ndevices = "two"', "devices: 'two' is no int"),
        ('name = "c"\nkind = "gpu"\nmemory_mib = 1.5', "memory_mib: 1.5 is no int"),
        ('name = "c"\nkind = "gpu"\npeak_gflops = 3', "peak_gflops: 3 is no dict"),
        ('name = "c"\nkind = "gpu"\n[peak_gflops]\nf32 = "much"', "peak_gflops.f32: 'much' is no float"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(tmp_path, text, reason):
    (tmp_path / "chip.toml").write_text(text)
    with pytest.raises(BadChip, match=reason):
        chips.load(str(tmp_path / "chip.toml"))


def test_settings_change_one_number():
    chip = chips.with_settings(chips.load("gpu_big"), ["launch_us=20", "peak_gflops.bf16=5e5", "copy_engine=false"])
    assert (chip.launch_us, chip.rate("bf16"), chip.copy_engine) == (20.0, 5e5, False)
    wrong = {"launch_us=fast": "'fast' is no float", "launch_us.f32=3": "one", "peak_gflops=3": "each dtype"}
    for setting, reason in wrong.items():
        with pytest.raises(BadChip, match=reason):
            chips.with_settings(chip, [setting])


def test_a_clock_starts_at_zero():
    assert Clock(PLAIN).now == 0.0
