"""Memory."""

import gc

import pytest
import torch

from tests.integration.process import run_python

MEGABYTE = 1 << 20


def test_allocated_and_peak():
    """memory_allocated and max_memory_allocated follow tensors; reset_peak_memory_stats restarts the peak."""
    gc.collect()
    base = torch.lazy.memory_allocated()
    x = torch.ones(MEGABYTE, device="lazy")
    assert torch.lazy.memory_allocated() - base >= 4 * MEGABYTE
    del x
    assert torch.lazy.memory_allocated() == base
    assert torch.lazy.max_memory_allocated() - base >= 4 * MEGABYTE
    torch.lazy.reset_peak_memory_stats()
    assert torch.lazy.max_memory_allocated() == base


def test_what_dies_within_a_window_is_used_again_there():
    """A tensor that nobody sees any more leaves its memory to what the same window makes after its last use."""
    x = torch.ones(4 * MEGABYTE).to("lazy")
    torch.lazy.synchronize()
    torch.lazy.reset_peak_memory_stats()
    base = torch.lazy.memory_allocated()
    total = x.sum()
    del x
    y = total.repeat(4 * MEGABYTE)
    torch.lazy.synchronize()
    assert torch.lazy.max_memory_allocated() - base <= MEGABYTE
    assert y[0].item() == 4 * MEGABYTE


def test_an_intermediate_leaves_its_memory_to_a_later_result():
    """What a window makes and uses up within itself holds memory between its first use and its last only."""
    a, b = torch.ones(1024, 64).to("lazy"), torch.ones(64, 1024).to("lazy")
    torch.lazy.synchronize()
    torch.lazy.reset_peak_memory_stats()
    base = torch.lazy.memory_allocated()
    y = (a @ b).sum().repeat(MEGABYTE)
    torch.lazy.synchronize()
    assert torch.lazy.max_memory_allocated() - base < 6 * MEGABYTE, "the product and the result have 4 MiB each"
    assert y[7].item() == 64 * MEGABYTE


def test_reserved_and_empty_cache():
    """Freed memory is kept, and given back by empty_cache."""
    x = torch.ones(64 * MEGABYTE, device="lazy")
    torch.lazy.synchronize()
    del x
    kept = torch.lazy.memory_reserved()
    torch.lazy.empty_cache()
    assert torch.lazy.memory_reserved() <= kept - 256 * MEGABYTE
    assert torch.lazy.max_memory_reserved() >= kept


def test_stats_and_summary():
    """memory_stats has torch.cuda's names; memory_summary is text; accumulated counts can be reset."""
    stats = torch.lazy.memory_stats()
    assert {"allocated_bytes.all.peak", "reserved_bytes.small_pool.current", "num_ooms"} <= stats.keys()
    assert "peak" in torch.lazy.memory_summary()
    torch.lazy.reset_accumulated_memory_stats()
    assert torch.lazy.memory_stats()["allocation.all.freed"] == 0


def test_accelerator_memory():
    """torch.accelerator.memory gives the same numbers."""
    x = torch.ones(MEGABYTE, device="lazy")
    assert torch.accelerator.memory.memory_allocated() == torch.lazy.memory_allocated() > 0
    assert torch.accelerator.memory.max_memory_reserved() == torch.lazy.max_memory_reserved()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total == torch.lazy.mem_get_info()[1]
    torch.accelerator.memory.reset_peak_memory_stats()
    torch.accelerator.memory.empty_cache()
    del x


def test_out_of_memory_is_raised_and_survived():
    """Out of memory raises torch.OutOfMemoryError at the next read and leaves the device usable."""
    torch.lazy.empty_cache()
    torch.lazy.set_memory_limit(torch.lazy.memory_reserved() + 64 * MEGABYTE)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(256 * MEGABYTE, device="lazy").cpu()
        assert torch.ones(10, device="lazy").sum().item() == 10
    finally:
        torch.lazy.set_memory_limit(0)
    assert torch.lazy.memory_stats()["num_ooms"] >= 1


def test_out_of_memory_says_what_lives():
    """The error of out of memory has the numbers, the line that wanted more, and the largest tensors by their line."""
    torch.lazy.empty_cache()
    held = [torch.ones(4 * MEGABYTE, device="lazy") for _ in range(2)]
    small = torch.ones(MEGABYTE, device="lazy")
    torch.lazy.synchronize()
    torch.lazy.set_memory_limit(torch.lazy.memory_reserved() + 8 * MEGABYTE)
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            (torch.ones(64 * MEGABYTE, device="lazy") + 1).cpu()
    finally:
        torch.lazy.set_memory_limit(0)
    text = str(caught.value)
    assert "tried to allocate 268435456 bytes (256 MiB)" in text and "MiB allocated" in text and "limit" in text
    wanted, _, largest = text.partition("\nThe largest of what lives on the device, by the line that made it:\n")
    assert f"wanted by {__file__}" in wanted
    first, second = (line for line in largest.splitlines() if __file__ in line)
    assert "32.00 MiB in    2" in first and "4.00 MiB in    1" in second
    assert len(held) == 2 and small.is_lazy


def test_snapshot_names_the_lines():
    """memory_snapshot() lists what lives by the Python line that made it, the largest first; so does memory_summary."""
    x = torch.ones(3 * MEGABYTE, device="lazy")
    y = x + 1
    torch.lazy.synchronize()
    mine = [e for e in torch.lazy.memory_snapshot() if "test_snapshot_names_the_lines" in e["line"]]
    assert [(e["bytes"], e["tensors"]) for e in mine] == [(12 * MEGABYTE, 1)] * 2
    sizes = [e["bytes"] for e in torch.lazy.memory_snapshot()]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == torch.lazy.memory_allocated()
    assert mine[0]["line"] in torch.lazy.memory_summary()
    del x, y
    assert not [e for e in torch.lazy.memory_snapshot() if "test_snapshot_names_the_lines" in e["line"]]


def test_memory_fraction_is_checked():
    """set_per_process_memory_fraction refuses what is no fraction."""
    with pytest.raises(ValueError, match="fraction"):
        torch.lazy.set_per_process_memory_fraction(1.5)


def test_pinned_memory():
    """pin_memory, is_pinned and non-blocking copies from and to pinned memory."""
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned() and not torch.ones(3).is_pinned()
    device = pinned.to("lazy", non_blocking=True)
    result = torch.empty(1000, pin_memory=True)
    result.copy_(device * 2, non_blocking=True)
    torch.lazy.synchronize()
    assert torch.equal(result, torch.arange(1000.0) * 2)


def test_a_non_blocking_copy_that_can_be_read_at_once_waits(device):
    """x.to("cpu", non_blocking=True) gives numbers, not what its memory held before: nothing would say when to look."""
    x = torch.arange(50000.0).to(device)
    for i in range(20):
        assert torch.equal((x * i).to("cpu", torch.float64, non_blocking=True), torch.arange(50000.0).double() * i)


def test_non_blocking_copies_overlap():
    """While the device is busy, non-blocking copies from and to pinned memory return, and run in order afterwards."""
    program = """
import threading, torch
from device_sim.simgpu import SimGpu
go, launch = threading.Event(), SimGpu.launch
def held(self, *arguments):
    go.wait(60)
    return launch(self, *arguments)
source, result, event = torch.arange(1000.0).pin_memory(), torch.zeros(1000).pin_memory(), torch.Event("lazy")
x = torch.ones(1000, device="lazy")
torch.lazy.synchronize()
SimGpu.launch = held
y = x * 3 + source.to("lazy", non_blocking=True)
result.copy_(y, non_blocking=True)
event.record()
assert not event.query() and not torch.lazy.current_stream().query()
assert result.count_nonzero().item() == 0
go.set()
event.synchronize()
assert event.query() and torch.equal(result, torch.arange(1000.0) + 3)
"""
    run_python(program, {"LAZY_DRIVER": "simgpu"})


def test_pinned_memory_may_be_freed_early():
    """A pinned tensor that is dropped right after a non-blocking copy is not reused before the copy has run."""
    copies = [torch.full((4096,), float(i)).pin_memory().to("lazy", non_blocking=True) for i in range(50)]
    assert [copy[7].item() for copy in copies] == [float(i) for i in range(50)]
    torch.lazy.empty_host_cache()


def test_data_loader_pins():
    """DataLoader(pin_memory=True) gives pinned batches."""
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True):
        assert batch.is_pinned() and batch.to("lazy", non_blocking=True).sum().item() == batch.sum().item()
