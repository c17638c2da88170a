"""Streams and events."""

import pytest
import torch


def chain(x: torch.Tensor, steps: int = 50) -> torch.Tensor:
    for _ in range(steps):
        x = x * 1.0001 + 0.5
    return x


def test_event_orders_and_completes():
    """An event is done once the work before it is, and synchronize waits for it."""
    event = torch.lazy.Event()
    assert event.query() and isinstance(event, torch.lazy.Event) and isinstance(event, torch.Event)
    y = chain(torch.ones(1 << 16, device="lazy"))
    event.record()
    event.synchronize()
    assert event.query()
    assert y[0].item() > 1


def test_elapsed_time():
    """Two timed events give milliseconds on the device's clock, more for more work."""

    def cost(rows: int) -> float:
        start, end = torch.lazy.Event(enable_timing=True), torch.lazy.Event(enable_timing=True)
        x = torch.ones(rows, 1024, device="lazy")
        start.record()
        y = chain(x, 5)
        end.record()  # while y is alive: what nobody can see is not computed
        end.synchronize()
        assert y.shape == x.shape
        return start.elapsed_time(end)

    cost(8), cost(8192)  # compiled
    assert 0 < cost(8) < cost(8192)


def test_elapsed_time_needs_completed_events():
    """elapsed_time of an event that was never recorded raises."""
    start, end = torch.lazy.Event(enable_timing=True), torch.lazy.Event(enable_timing=True)
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        start.elapsed_time(end)


def test_an_event_is_timed_however_long_ago_it_was_recorded():
    """An event keeps its time for as long as it is held, however many come after it."""
    start, end = torch.Event("lazy", enable_timing=True), torch.Event("lazy", enable_timing=True)
    torch.ones(1, device="lazy").cpu()
    start.record()
    for _ in range(20_000):
        end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0


def test_stream_context():
    """Streams: current, default, context manager, torch.accelerator's view of them."""
    stream = torch.lazy.Stream()
    before = torch.lazy.current_stream()
    assert before == torch.lazy.default_stream() and stream != before
    with torch.lazy.stream(stream):
        assert torch.lazy.current_stream() == stream == torch.accelerator.current_stream()
        with torch.lazy.stream(None):
            assert torch.lazy.current_stream() == stream
    assert torch.lazy.current_stream() == before
    torch.lazy.set_stream(stream)
    assert torch.lazy.current_stream() == stream
    torch.lazy.set_stream(before)


def test_streams_order_work():
    """Work recorded on another stream after wait_stream or wait_event sees what came before."""
    x = torch.zeros(1000, device="lazy")
    stream, event = torch.lazy.Stream(), torch.lazy.Event()
    x += 1
    event.record()
    with stream:
        stream.wait_event(event)
        x *= 3
        stream.wait_stream(torch.lazy.current_stream())
    stream.synchronize()
    assert stream.query()
    assert x.eq(3).all().item()


def test_record_stream():
    """`Tensor.record_stream` is accepted: memory is reused in the order of the one queue."""
    x = torch.ones(10, device="lazy")
    x.record_stream(torch.lazy.Stream())
    del x
    assert torch.zeros(10, device="lazy").sum().item() == 0
