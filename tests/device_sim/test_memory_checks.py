"""What a simulated device notices about memory."""

import ctypes as ct
import re
import subprocess
import sys

import numpy as np
import pytest

from lazy_backend.driver.errors import InvalidArgument, LaunchFailed, MemoryFault, OutOfMemory

from .kernels import Chip, device

LAUNCH = r" \[.*kernels.py:\d+ in launch\]"  # a finding names the Python line


def test_a_kernel_computes():
    chip = Chip()
    chip.launch()
    assert (chip.get(chip.b) == 2 * chip.x).all() and chip.d.findings == []


@pytest.mark.parametrize(
    "kernel, words",
    [
        ("overrun", rf"kernel overrun{LAUNCH} touched memory after allocation 2 \(4096 bytes\)"),
        ("underrun", rf"kernel underrun{LAUNCH} (touched memory|wrote) before allocation 2"),
        ("wild", rf"kernel wild{LAUNCH} touched memory address 0x10, which is no device memory"),
    ],
)
def test_an_access_outside_an_allocation_names_kernel_and_allocation(kernel, words):
    chip = Chip()
    chip.launch(kernel)
    with pytest.raises(MemoryFault, match=words):
        chip.d.synchronize(chip.q)
    chip.launch()
    assert (chip.get(chip.b) == 2 * chip.x).all(), "the device is usable after a fault"


def test_an_overrun_by_less_than_the_alignment_is_seen_too():
    chip = Chip(n=1000)
    chip.launch("overrun", local=8)
    with pytest.raises(MemoryFault, match=rf"kernel overrun{LAUNCH} wrote after allocation 2"):
        chip.d.synchronize(chip.q)


def test_use_after_free_and_double_free():
    chip = Chip()
    chip.d.free(chip.b)
    with pytest.raises(
        MemoryFault, match=r"free \[.*test_memory_checks.py:\d+ in .*\]: allocation 2 \(4096 bytes\) has been freed"
    ):
        chip.d.free(chip.b)
    with pytest.raises(MemoryFault, match=rf"kernel scale{LAUNCH}: allocation 2 .* has been freed"):
        chip.launch()
    with pytest.raises(MemoryFault, match=r"copy to the host \[.*in get\]: allocation 2 .* has been freed"):
        chip.get(chip.b)


def test_freeing_what_a_queued_command_needs_is_refused():
    chip = Chip()
    chip.launch()
    with pytest.raises(
        MemoryFault, match=r"allocation 1 .* is freed while the queued command scale \[.*\] still uses it"
    ):
        chip.d.free(chip.a)


def test_another_devices_memory_is_refused():
    chip, other = Chip(), device()
    with pytest.raises(MemoryFault, match="belongs to another device"):
        other.free(chip.a)


def test_uninitialised_reads_are_found():
    chip = Chip()
    assert np.isnan(chip.get(chip.b)).all(), "fresh memory is NaN"
    (finding,) = chip.d.findings
    assert re.fullmatch(
        r"copy to the host \[.*in get\] reads uninitialised bytes of allocation 2 \(4096 bytes\)", finding
    )
    chip.a = chip.d.alloc(4096)
    chip.launch()
    chip.d.synchronize(chip.q)
    assert re.fullmatch(
        rf"kernel scale{LAUNCH} reads allocation 3 \(4096 bytes\), which was never written", chip.d.findings[1]
    )


def test_leaks_are_found_at_close():
    chip = Chip()
    chip.d.close()
    assert chip.d.findings == ["2 allocations leak at close: allocation 1 (4096 bytes), allocation 2 (4096 bytes)"]


def test_capacity():
    small = device(memory_mib=1, scratchpad_kib=16)
    kept = small.alloc(1 << 20)
    with pytest.raises(OutOfMemory, match="1 bytes asked for, 1048576 of 1048576 in use"):
        small.alloc(1)
    small.free(kept)
    small.alloc(1 << 20)


def test_overlapping_device_copies_are_refused():
    chip = Chip()
    with pytest.raises(InvalidArgument, match="overlap"):
        chip.d.copy_d2d(chip.q, chip.a, 4, chip.a, 0, 64)


def test_geometry_is_checked():
    chip = Chip(n=1000)
    with pytest.raises(LaunchFailed, match="no multiple"):
        chip.launch()


def test_a_buffer_argument_begins_where_the_chip_says():
    chip = Chip()
    with pytest.raises(InvalidArgument, match=r"byte 4 of allocation 1 .* is no multiple of 64"):
        chip.launch(at=4)


def test_commands_run_no_earlier_than_they_must():
    chip = Chip()
    chip.put(chip.a, blocking=False)
    chip.x[:] = 7
    assert (chip.get(chip.a) == 7).all(), "a host that reuses memory before the copy has run must see it here"


def test_a_host_touch_of_a_handle_faults():
    script = (
        "import ctypes\nfrom device_sim import simgpu\nfrom lazy_backend.driver import discovery\n"
        "d = discovery.from_factory('s', simgpu.driver).open().open(0)\n"
        "ctypes.c_int.from_address(d.alloc(64).value).value\n"
    )
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL).returncode == -11
    assert ct.sizeof(ct.c_void_p) == 8
