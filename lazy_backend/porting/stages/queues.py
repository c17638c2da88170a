"""Stage 2: commands run in order, and the host learns when they have run."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from lazy_backend.porting.bench import Bench, bytes_of, expect

from . import check

PATIENCE = 10.0  # seconds until an event that does not fire is called dead


@check()
def several_queues(b: Bench) -> None:
    """Queues are made and destroyed, and work beside each other."""
    queues = [b.device.queue_create() for _ in range(4)]
    mems = [b.alloc(1024) for _ in queues]
    data = [bytes_of(i, 1024) for i in range(4)]
    for queue, mem, d in zip(queues, mems, data, strict=True):
        b.device.copy_h2d(queue, mem, 0, d.ctypes.data, 1024, False)
    for queue, mem, d in zip(queues, mems, data, strict=True):
        b.device.synchronize(queue)
        expect((b.get(mem, 1024) == d).all(), "synchronize() returned before the queue's copies had run")
        b.device.queue_destroy(queue)


@check()
def commands_run_in_order(b: Bench) -> None:
    """A chain of copies on one queue gives what its order says."""
    steps = [bytes_of(i, 1 << 16) for i in range(20)]
    mems = [b.alloc(1 << 16) for _ in range(2)]
    for i, step in enumerate(steps):
        b.device.copy_h2d(b.queue, mems[0], 0, step.ctypes.data, step.nbytes, False)
        b.device.copy_d2d(b.queue, mems[1], 0, mems[0], 0, step.nbytes)
        if i % 2:
            b.device.copy_d2d(b.queue, mems[0], 0, mems[1], 0, step.nbytes)
    got = b.get(mems[1], 1 << 16)
    expect((got == steps[-1]).all(), "the last copies of a queue did not run last: a missing barrier between commands?")


@check()
def blocking_copy_waits(b: Bench) -> None:
    """After a blocking copy to the device the host memory may change."""
    mem = b.alloc(4 << 20)
    for i in range(5):
        data = bytes_of(i, 4 << 20)
        kept = data.copy()
        b.device.copy_h2d(b.queue, mem, 0, data.ctypes.data, data.nbytes, True)
        data[:] = 0
        expect(
            (b.get(mem, 4 << 20) == kept).all(),
            "a blocking copy_h2d read the host memory after it had returned: wait for the copy",
        )


@check()
def blocking_read_waits(b: Bench) -> None:
    """A blocking read sees everything that was queued before it."""
    data = bytes_of(1, 8 << 20)
    src, dst = b.alloc(8 << 20), b.alloc(8 << 20)
    for _ in range(5):
        data = data[::-1].copy()
        b.device.copy_h2d(b.queue, src, 0, data.ctypes.data, data.nbytes, False)
        b.device.copy_d2d(b.queue, dst, 0, src, 0, data.nbytes)
        expect((b.get(dst, data.nbytes) == data).all(), "a blocking copy_d2h returned before earlier commands had run")


@check(seconds=30)
def events_fire(b: Bench) -> None:
    """An event is ready once its commands have run, asked for or waited for, also on an empty queue."""
    for loaded in (False, True):
        if loaded:
            data = bytes_of(2, 1 << 20)
            b.device.copy_h2d(b.queue, b.alloc(1 << 20), 0, data.ctypes.data, data.nbytes, False)
        event = b.device.event_record(b.queue)
        if b.device.offers("flush"):
            b.device.flush(b.queue)
        deadline = time.monotonic() + PATIENCE
        while not b.device.event_query(event):
            expect(
                time.monotonic() < deadline,
                f"event_query says NOT_READY for {PATIENCE:.0f} s: the event never fires "
                f"({'after a copy' if loaded else 'on an empty queue'})",
            )
            time.sleep(0.001)
        b.device.event_wait(event)
        b.device.event_destroy(event)


@check()
def waiting_is_enough(b: Bench) -> None:
    """event_wait alone makes results visible."""
    data, out = bytes_of(3, 1 << 20), np.zeros(1 << 20, np.uint8)
    mem = b.alloc(1 << 20)
    b.device.copy_h2d(b.queue, mem, 0, data.ctypes.data, data.nbytes, False)
    b.device.copy_d2h(b.queue, out.ctypes.data, mem, 0, out.nbytes, False)
    event = b.device.event_record(b.queue)
    b.device.event_wait(event)
    expect((out == data).all(), "after event_wait the copy before the event is not done: the event fires too early")
    expect(b.device.event_query(event), "event_query says NOT_READY after event_wait has returned")
    b.device.event_destroy(event)


@check()
def events_from_other_threads(b: Bench) -> None:
    """event_query and event_wait are called from other threads while this one queues commands."""
    data = bytes_of(4, 1 << 16)
    mem = b.alloc(1 << 16)
    failures: list[BaseException] = []

    def wait(event: Any) -> None:
        try:
            b.device.event_query(event)
            b.device.event_wait(event)
        except BaseException as error:
            failures.append(error)

    threads, events = [], []
    for _ in range(50):
        b.device.copy_h2d(b.queue, mem, 0, data.ctypes.data, data.nbytes, False)
        events.append(b.device.event_record(b.queue))
        threads.append(threading.Thread(target=wait, args=(events[-1],), daemon=True))
        threads[-1].start()
    b.device.synchronize(b.queue)
    for thread in threads:
        thread.join(PATIENCE)
        expect(not thread.is_alive(), "event_wait in another thread does not return though the queue is empty")
    expect(not failures, f"a thread that waited for an event failed: {failures[:1]}")
    for event in events:
        b.device.event_destroy(event)


@check()
def event_times_grow(b: Bench) -> str:
    """Events of one queue complete at times that do not run backwards."""
    if not b.device.offers("event_time_ns"):
        return "no event_time_ns (optional)"
    times = []
    data = bytes_of(5, 1 << 18)
    mem = b.alloc(1 << 18)
    for _ in range(10):
        b.device.copy_h2d(b.queue, mem, 0, data.ctypes.data, data.nbytes, False)
        event = b.device.event_record(b.queue)
        b.device.event_wait(event)
        times.append(b.device.event_time_ns(event))
        b.device.event_destroy(event)
    expect(times == sorted(times), f"event_time_ns runs backwards: {times}")
    expect(times[-1] > times[0], f"event_time_ns stands still: {times}; it counts nanoseconds")
    return f"{(times[-1] - times[0]) / 9000:.0f} us a copy of 256 KiB"


@check(seconds=120)
def events_do_not_leak(b: Bench) -> str:
    """Thousands of events come and go."""
    for _ in range(5000):
        event = b.device.event_record(b.queue)
        b.device.event_wait(event)
        b.device.event_destroy(event)
    return "5000 events"
