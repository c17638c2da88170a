"""Stage 7: long runs, many threads, errors in the middle: the device keeps its word."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from lazy_backend.driver.errors import DriverError, OutOfMemory
from lazy_backend.porting.bench import Bench, bytes_of, expect

from . import check


@check(seconds=120)
def random_traffic(b: Bench) -> str:
    """Thousands of allocations, copies and frees in random order keep every byte."""
    random = np.random.default_rng(0)
    alive: list[tuple[Any, np.ndarray]] = []
    for step in range(4000):
        if alive and random.random() < 0.45:
            mem, data = alive.pop(int(random.integers(len(alive))))
            expect((b.get(mem, data.size) == data).all(), f"after {step} commands an allocation lost its contents")
            b.free(mem)
        elif len(alive) > 1 and random.random() < 0.3:
            (src, data), (dst, old) = alive[int(random.integers(len(alive)))], alive[int(random.integers(len(alive)))]
            if src is not dst:
                count = min(data.size, old.size)
                b.device.copy_d2d(b.queue, dst, 0, src, 0, count)
                old[:count] = data[:count]
        else:
            data = bytes_of(step, int(random.integers(1, 20000)))
            alive.append((b.upload(data), data.copy()))
    for mem, data in alive:
        expect((b.get(mem, data.size) == data).all(), "an allocation lost its contents by the end")
    return "4000 commands"


@check(seconds=120)
def any_thread_may_call(b: Bench) -> None:
    """Calls come from many threads, one at a time: nothing of the device is bound to a thread."""
    lock, failures = threading.Lock(), []
    all_live = threading.Barrier(8)  # a thread that has ended may give another its number, and what belongs to it

    def work(seed: int) -> None:
        data = bytes_of(seed, 5000)
        all_live.wait()
        try:
            for _ in range(20):
                with lock:
                    mem = b.device.alloc(5000)
                    b.put(mem, data)
                with lock:
                    right = (b.get(mem, 5000) == data).all()
                    b.device.free(mem)
                if not right:
                    failures.append(f"thread {seed} read other bytes than it wrote")
        except DriverError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not failures, f"{failures[:1]}: does the driver keep a context per thread?")


@check(seconds=120)
def exhaustion_and_recovery(b: Bench) -> str:
    """Memory fills up, the next allocation fails, and after freeing everything works again."""
    piece = max(min(b.caps.max_alloc_bytes, b.caps.global_memory_bytes // 8), 1)
    mems = []
    try:
        for _ in range(12):
            mems.append(b.device.alloc(piece))  # noqa: PERF401  (it is the failing one that matters)
        full = False
    except OutOfMemory:
        full = True
    for mem in mems:
        b.device.free(mem)
    data = bytes_of(1, 100_000)
    expect((b.get(b.upload(data), data.size) == data).all(), "after running out of memory the device does not work")
    return f"{'full' if full else 'not full (the host overcommits)'} after {len(mems)} x {piece >> 20} MiB"


@check(seconds=120)
def errors_leave_the_queue_alone(b: Bench) -> None:
    """A refused call between good ones changes nothing for them."""
    data = bytes_of(2, 4096)
    mem, copy = b.alloc(4096), b.alloc(4096)
    for i in range(50):
        b.device.copy_h2d(b.queue, mem, 0, data.ctypes.data, 4096, False)
        try:
            b.device.copy_d2d(b.queue, copy, 4000 + i, mem, 0, 4096)
        except DriverError:
            b.device.copy_d2d(b.queue, copy, 0, mem, 0, 4096)
        expect((b.get(copy, 4096) == data).all(), "commands around a refused one did not run")


@check(seconds=120)
def devices_open_and_close(b: Bench) -> str:
    """Each device opens beside the others, works, and closes, many times."""
    count = b.driver.device_count()
    for i in range(10):
        device = b.driver.open(i % count)
        queue, mem = device.queue_create(), device.alloc(1000)
        data = bytes_of(i, 1000)
        got = np.zeros(1000, np.uint8)
        device.copy_h2d(queue, mem, 0, data.ctypes.data, 1000, True)
        device.copy_d2h(queue, got.ctypes.data, mem, 0, 1000, True)
        expect((got == data).all(), f"device {i % count} does not work when opened again")
        device.free(mem)
        device.queue_destroy(queue)
        device.close()
    return f"10 times over {count} devices"


@check(seconds=300)
def long_queue(b: Bench) -> str:
    """Twenty thousand commands are queued without waiting."""
    mem = b.upload(np.zeros(64, np.uint8))
    values = [bytes_of(i, 64) for i in range(16)]
    for i in range(20_000):
        b.device.copy_h2d(b.queue, mem, 0, values[i % 16].ctypes.data, 64, False)
    expect((b.get(mem, 64) == values[19_999 % 16]).all(), "the last of 20000 queued commands did not run last")
    return "20000 commands"
