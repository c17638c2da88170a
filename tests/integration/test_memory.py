"""Memory."""

import gc

import pytest
import torch

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
