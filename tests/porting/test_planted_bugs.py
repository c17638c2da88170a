"""Each planted bug is found by the check that should find it, in words that name the cause; the sound chip passes."""

import re
import weakref

import numpy as np
import pytest

from lazy_backend.driver import adapter
from lazy_backend.driver.native import NativeDriver
from lazy_backend.porting import worker
from lazy_backend.porting.bench import Bench, CheckFailed
from lazy_backend.porting.stages import STAGES, Check, checks_of

from . import chips


def bench_of(device):
    bench = Bench(device.__name__)
    bench.__dict__["driver"] = NativeDriver(adapter.table(chips.driver_of(device)))
    return bench


def run(device, stage, name):
    check = next(c for c in checks_of(STAGES[stage]) if c.name == name)
    return worker.run_check(bench_of(device), check)


@pytest.mark.parametrize(
    "stage, name", [(s, c.name) for s in (1, 2, 7) for c in checks_of(STAGES[s]) if c.name != "devices_open_and_close"]
)
def test_the_correct_chip_passes(stage, name):
    assert run(chips.Flat, stage, name)["status"] == "pass"


@pytest.mark.parametrize(
    "bug, stage, name, words",
    [
        (chips.ShortAllocation, 1, "last_byte_is_there", "is alloc one byte .* short"),
        (chips.RoundedCopy, 1, "round_trip", "is a copy cut short|a size rounded down"),
        (chips.SwappedOffsets, 1, "device_copies", "are the offsets swapped"),
        (chips.NoRangeCheck, 1, "out_of_range_is_refused", "check ranges"),
        (chips.StaleContents, 1, "many_allocations", "lost its contents"),
        (chips.Leak, 1, "freed_memory_comes_back", r"free\(\) leaks"),
        (chips.WrongStatus, 1, "exhaustion_is_an_error", "must be OUT_OF_MEMORY"),
        (chips.MissingBarrier, 2, "commands_run_in_order", "a missing barrier between commands"),
        (chips.MissingBarrier, 2, "blocking_read_waits", "before earlier commands had run"),
        (chips.LateHostRead, 2, "blocking_copy_waits", "wait for the copy"),
        (chips.DeadEvent, 2, "events_fire", "the event never fires"),
        (chips.EarlyEvent, 2, "waiting_is_enough", "the event fires too early"),
        (chips.Contradiction, 0, "properties_are_sound", "max_alloc_bytes .* is more than global_memory_bytes"),
        (chips.IgnoredOffset, 3, "buffers_with_offsets", "a buffer argument with offset 64 begins at 0"),
        (chips.IgnoredResultOffset, 3, "buffers_with_offsets", "a result at offset 128 of its buffer is not there"),
        (chips.ShortScalar, 3, "every_scalar_type", "a scalar argument i64 of -4503599627382841 arrived as"),
        (chips.LateScalars, 3, "arguments_are_copied", r"arguments must be copied at launch\(\)"),
        (chips.LastRowMissing, 3, "geometry", "work-items ran not at all"),
        (chips.SilentCompiler, 3, "bad_source_is_refused", "no compiler's words: .*error 1"),
        (chips.ThreadBound, 7, "any_thread_may_call", "does the driver keep a context per thread"),
        (chips.WrongUnit, 8, "copy_bandwidth", "% of bandwidth_gbs"),
        (chips.IgnoredStrides, 4, "map add", "the right values in the wrong places: strides|strided inputs"),
        (chips.IgnoredStrides, 4, "sum", "strided inputs"),
        (chips.TruncatedRounding, 4, "map mul", "bf16 .*a rounding .*to nearest, ties to even"),
        (chips.OneRowShort, 4, "matmul", "wrong, element"),
        (chips.Flat, 4, "sum", "write core_op"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_each_bug_is_found_where_it_should_be(bug, stage, name, words, monkeypatch):
    monkeypatch.setattr("lazy_backend.porting.stages.queues.PATIENCE", 0.2)
    result = run(bug, stage, name)
    assert result["status"] == ("missing" if bug is chips.Flat else "fail"), result
    assert re.search(words, result["text"], re.S), result["text"]


def test_the_host_memory_of_a_failed_check_lives_until_its_queued_copies_have_run():
    kept = []

    class Watched(chips.Flat):
        def run(self):
            kept.append(bool(self.pending) and host() is not None)
            super().run()

    def copies_and_fails(b):
        nonlocal host
        out = np.zeros(1 << 20, np.uint8)
        host = weakref.ref(out)
        b.device.copy_d2h(b.queue, out.ctypes.data, b.alloc(out.nbytes), 0, out.nbytes, False)
        raise CheckFailed("planted")

    host = None
    result = worker.run_check(bench_of(Watched), Check("copies", "copies", copies_and_fails, 10))
    assert result["text"] == "planted" and kept[0], "the copy ran, into memory that still was the check's"
    assert host() is None, "and it is given back afterwards"
