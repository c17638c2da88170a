"""Stage 1: memory holds what was put there, and nothing else changes."""

from __future__ import annotations

import contextlib
import ctypes as ct

import numpy as np

from lazy_backend.driver.errors import DriverError, OutOfMemory, Unsupported
from lazy_backend.porting.bench import Bench, bytes_of, expect

from . import check

SIZES = (1, 2, 3, 7, 8, 63, 64, 65, 511, 4095, 4096, 4097, 65537, (1 << 20) + 3, 8 << 20)


@check()
def round_trip(b: Bench) -> str:
    """What is copied in comes out, for odd and even sizes."""
    for size in SIZES:
        data = bytes_of(size, size)
        got = b.get(b.upload(data), size)
        wrong = np.flatnonzero(got != data)
        cause = "the last byte alone: a size rounded down?" if wrong.tolist() == [size - 1] else "is a copy cut short?"
        expect(
            wrong.size == 0,
            f"{size} bytes: {wrong.size} differ after copy_h2d and copy_d2h, the first at {wrong[:1]}; {cause}",
        )
    return f"{len(SIZES)} sizes up to {SIZES[-1] >> 20} MiB"


@check()
def last_byte_is_there(b: Bench) -> None:
    """The last byte of an allocation is its own, and its neighbours'."""
    for size in (1, 63, 64, 65, 4096, 4097):
        mems = [b.alloc(size) for _ in range(8)]
        for i, mem in enumerate(mems):
            b.put(mem, np.full(size, i + 1, np.uint8))
        for i, mem in enumerate(mems):
            got = b.get(mem, size)
            expect(
                (got == i + 1).all(),
                f"allocations of {size} bytes overlap: number {i} holds {sorted(set(got.tolist()))}; "
                "is alloc one byte (or one element) short?",
            )


@check()
def offsets(b: Bench) -> None:
    """Copies go to the byte offset that they name."""
    size = 1 << 16
    model = np.zeros(size, np.uint8)
    mem = b.upload(model)
    for offset, count in ((0, 1), (1, 1), (63, 3), (64, 64), (4095, 2), (4096, 4097), (size - 1, 1), (size - 77, 77)):
        data = bytes_of(offset, count)
        model[offset : offset + count] = data
        b.put(mem, data, offset)
        expect(
            (b.get(mem, count, offset=offset) == data).all(), f"{count} bytes at offset {offset} read back differently"
        )
    expect((b.get(mem, size) == model).all(), "a copy with an offset changed bytes outside its range")


@check()
def device_copies(b: Bench) -> None:
    """Copies inside the device: between allocations, inside one, with offsets, of nothing."""
    data = bytes_of(1, 10000)
    src, dst = b.upload(data), b.upload(np.zeros(10000, np.uint8))
    b.device.copy_d2d(b.queue, dst, 100, src, 7, 5000)
    expected = np.zeros(10000, np.uint8)
    expected[100:5100] = data[7:5007]
    expect((b.get(dst, 10000) == expected).all(), "copy_d2d between allocations: are the offsets swapped?")
    b.device.copy_d2d(b.queue, src, 6000, src, 0, 4000)
    expect((b.get(src, 4000, offset=6000) == data[:4000]).all(), "copy_d2d inside one allocation copied other bytes")
    b.device.copy_d2d(b.queue, dst, 0, src, 0, 0)
    expect((b.get(dst, 10000) == expected).all(), "copy_d2d of 0 bytes changed something")


@check()
def empty_copies(b: Bench) -> None:
    """Copies of 0 bytes succeed, wherever they point."""
    mem = b.alloc(64)
    b.device.copy_h2d(b.queue, mem, 64, 0, 0, True)
    b.device.copy_d2h(b.queue, 0, mem, 64, 0, True)


@check()
def alignment(b: Bench) -> str:
    """Host-visible allocations are aligned as the properties say."""
    if not b.caps.host_visible:
        return "not host visible"
    for size in (1, 100, 4097, 1 << 20):
        address = b.device.host_pointer(b.alloc(size))
        expect(address % b.caps.mem_alignment == 0, f"an address {address:#x} is not aligned to {b.caps.mem_alignment}")
    return f"{b.caps.mem_alignment} bytes"


@check()
def host_pointer_sees_the_same_bytes(b: Bench) -> str | None:
    """The host's address of an allocation shows what copies wrote, and the other way round."""
    if not b.caps.host_visible:
        return "not host visible"
    data = bytes_of(5, 5000)
    mem = b.upload(data)
    seen = np.ctypeslib.as_array((ct.c_uint8 * 5000).from_address(b.device.host_pointer(mem)))
    expect((seen == data).all(), "host_pointer() shows other bytes than copy_h2d wrote")
    seen[:] = data[::-1]
    expect((b.get(mem, 5000) == data[::-1]).all(), "copy_d2h does not see what the host wrote through host_pointer()")
    return None


@check()
def out_of_range_is_refused(b: Bench) -> None:
    """Copies that leave their allocation fail; the memory next to it is unharmed."""
    mems = [b.upload(np.full(4096, 7, np.uint8)) for _ in range(3)]
    data = bytes_of(9, 4096)
    for offset in (1, 4095, 1 << 20):
        for what in ("to", "from"):
            try:
                if what == "to":
                    b.put(mems[1], data, offset)
                else:
                    b.get(mems[1], 4096, offset=offset)
            except DriverError:
                continue
            expect(False, f"a copy {what} bytes {offset} to {offset + 4096} of 4096 succeeded: check ranges")
    for mem in (mems[0], mems[2]):
        expect((b.get(mem, 4096) == 7).all(), "a refused copy changed other memory")


@check()
def many_allocations(b: Bench) -> str:
    """Thousands of small allocations live side by side and keep their contents."""
    count = 2000
    mems = [b.alloc(4 * (1 + i % 97)) for i in range(count)]
    for i, mem in enumerate(mems):
        b.put(mem, np.full(1 + i % 97, i, np.int32))
    for i, mem in enumerate(mems):
        expect((b.get(mem, 1 + i % 97, np.int32) == i).all(), f"allocation {i} of {count} lost its contents")
    return f"{count} allocations"


@check()
def freed_memory_comes_back(b: Bench) -> str:
    """Allocating and freeing twice the device's memory, a piece at a time, succeeds."""
    piece = min(b.caps.max_alloc_bytes, max(b.caps.global_memory_bytes // 16, 1 << 20))
    rounds = 2 * b.caps.global_memory_bytes // piece + 1
    for i in range(rounds):
        try:
            mem = b.device.alloc(piece)
        except OutOfMemory:
            expect(False, f"out of memory after {i} allocations of {piece >> 20} MiB that were all freed: free() leaks")
        b.device.free(mem)
    return f"{rounds} x {piece >> 20} MiB"


@check()
def memory_does_not_leak(b: Bench) -> str:
    """Allocating, writing and freeing for a while does not grow the process."""
    data = np.ones(4 << 20, np.uint8)

    def cycle(count: int) -> None:
        for _ in range(count):
            mem = b.device.alloc(data.nbytes)
            b.put(mem, data)
            b.device.free(mem)

    cycle(8)
    before = _resident()
    cycle(64)
    grown = _resident() - before
    expect(
        grown < 64 << 20, f"64 cycles of alloc, copy and free of 4 MiB grew the process by {grown >> 20} MiB: a leak"
    )
    return f"{max(0, grown) >> 10} KiB"


@check()
def exhaustion_is_an_error(b: Bench) -> str:
    """Too large an allocation fails with OUT_OF_MEMORY, and the device goes on."""
    try:
        mem = b.device.alloc(1 << 60)
    except OutOfMemory:
        pass
    except Unsupported:
        raise  # alloc is still a stub
    except DriverError as error:
        expect(
            False, f"an allocation of 2^60 bytes fails with {type(error).__name__}: it must be OUT_OF_MEMORY ({error})"
        )
    else:
        with contextlib.suppress(DriverError):
            b.device.free(mem)
        expect(False, "an allocation of 2^60 bytes succeeded: does the size overflow?")
    data = bytes_of(3, 1000)
    expect((b.get(b.upload(data), 1000) == data).all(), "after a failed allocation a small one does not work")
    return "OUT_OF_MEMORY"


def _resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
