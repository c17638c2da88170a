"""The caching allocator of csrc, over hostc: reuse, splitting and merging, statistics, memory that is out."""

import ctypes as ct
import random
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from port_hostc import driver

from lazy_backend.driver import discovery

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


class Shim:
    """allocator_shim.cpp, with Python types."""

    def __init__(self, library):
        self.c = library
        for name in ("shim_use", "shim_allocate"):
            getattr(self.c, name).restype = ct.c_void_p
        for name in ("shim_bytes", "shim_place", "shim_offset"):
            getattr(self.c, name).restype, getattr(self.c, name).argtypes = ct.c_uint64, (ct.c_void_p,)
        self.c.shim_free.argtypes = (ct.c_void_p,)
        self.c.shim_allocate.argtypes = (ct.c_uint64, ct.c_char_p, ct.POINTER(ct.c_int))
        self.c.shim_set_limit.argtypes = (ct.c_uint64,)
        self.c.shim_stat.restype = ct.c_int64
        self.c.shim_segments.restype = ct.c_uint64

    def allocate(self, nbytes):
        text, status = ct.create_string_buffer(512), ct.c_int()
        block = self.c.shim_allocate(nbytes, text, ct.byref(status))
        if not block:
            raise MemoryError(status.value, text.value.decode())
        return block

    def reserve(self, *segments):
        self.c.shim_reserve((ct.c_uint64 * len(segments))(*segments), ct.c_uint64(len(segments)))

    def stat(self, name):
        return self.c.shim_stat(name.encode())

    def current(self, kind, pool="all"):
        return self.stat(f"{kind}.{pool}.current")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    csrc = [ROOT / f"lazy_backend/csrc/{name}.cpp" for name in ("driver", "allocator")]
    sources = [Path(__file__).with_name("allocator_shim.cpp"), *csrc]
    subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", *map(str, sources), "-o", str(built)], check=True)
    shim = Shim(ct.CDLL(str(built)))
    shim.c.shim_use.argtypes = (ct.c_void_p,)
    assert shim.c.shim_use(discovery.load(str(driver())).table) is None
    return shim


@pytest.fixture
def a(library):
    library.c.shim_set_limit(0)
    library.c.shim_empty_cache()
    assert library.current("allocated_bytes") == library.current("reserved_bytes") == 0
    return library


def test_sizes_are_rounded_to_512_bytes(a):
    block = a.allocate(513)
    assert a.c.shim_bytes(block) == 1024
    assert a.current("allocated_bytes") == 1024 and a.current("requested_bytes") == 513
    a.c.shim_free(block)


def test_small_requests_share_a_segment(a):
    blocks = [a.allocate(1000) for _ in range(100)]
    assert a.current("segment") == 1 and a.current("reserved_bytes") == 2 * MIB
    places = sorted(a.c.shim_place(b) for b in blocks)
    assert all(q - p >= 1024 for p, q in pairwise(places))
    for block in blocks:
        a.c.shim_free(block)


def test_freed_memory_is_handed_out_again_at_once(a):
    first = a.allocate(8 * MIB)
    place = a.c.shim_place(first)
    a.c.shim_free(first)
    second = a.allocate(8 * MIB)
    assert a.c.shim_place(second) == place and a.stat("num_device_alloc") >= 1
    assert a.current("segment") == 1
    a.c.shim_free(second)


def test_neighbours_merge_when_they_are_freed(a):
    parts = [a.allocate(5 * MIB) for _ in range(4)]
    assert a.current("segment") == 1
    for i in (1, 3, 0, 2):
        a.c.shim_free(parts[i])
    whole = a.allocate(20 * MIB)
    assert a.current("segment") == 1, "four free neighbours of 5 MiB did not become one block of 20 MiB"
    a.c.shim_free(whole)


def test_the_best_fitting_block_is_taken(a):
    big, small = a.allocate(64 * MIB), a.allocate(16 * MIB)
    place = a.c.shim_place(small)
    a.c.shim_free(big)
    a.c.shim_free(small)
    block = a.allocate(15 * MIB)
    assert a.c.shim_place(block) == place
    a.c.shim_free(block)


def test_empty_cache_gives_back_what_is_wholly_free(a):
    kept, freed = a.allocate(30 * MIB), a.allocate(40 * MIB)
    a.c.shim_free(freed)
    a.c.shim_empty_cache()
    assert a.current("reserved_bytes") == 30 * MIB
    a.c.shim_free(kept)


def test_the_limit_is_an_out_of_memory_error_that_says_so(a):
    a.c.shim_set_limit(64 * MIB)
    kept = a.allocate(40 * MIB)
    ooms = a.stat("num_ooms")
    with pytest.raises(MemoryError) as caught:
        a.allocate(50 * MIB)
    status, text = caught.value.args
    assert (
        status == 1 and "tried to allocate 52428800 bytes (50 MiB); 40 MiB allocated" in text and "limit 64 MiB" in text
    )
    assert a.stat("num_ooms") == ooms + 1
    a.c.shim_free(kept)


def test_cached_segments_are_given_back_before_giving_up(a):
    a.c.shim_set_limit(64 * MIB)
    a.c.shim_free(a.allocate(40 * MIB))
    retries = a.stat("num_alloc_retries")
    block = a.allocate(50 * MIB)
    assert a.stat("num_alloc_retries") == retries + 1 and a.current("reserved_bytes") == 50 * MIB
    a.c.shim_free(block)


def test_what_is_reserved_serves_as_if_it_had_been_freed(a):
    a.reserve(2 * MIB, 20 * MIB, 30 * MIB)
    assert a.current("segment") == 3 and a.current("reserved_bytes") == 52 * MIB
    assert a.current("reserved_bytes", "small_pool") == 2 * MIB and a.current("allocated_bytes") == 0
    blocks = [a.allocate(n) for n in (1000, 5 * MIB, 30 * MIB)]
    assert a.current("segment") == 3
    for block in blocks:
        a.c.shim_free(block)


def test_what_nothing_has_used_is_not_asked_for_again(a):
    a.reserve(2 * MIB, 20 * MIB, 30 * MIB)
    assert a.c.shim_segments() == 0
    a.c.shim_free(a.allocate(5 * MIB))
    assert a.c.shim_segments() == 1
    a.c.shim_free(a.allocate(40 * MIB))
    assert a.c.shim_segments() == 2 and a.current("segment") == 4


def test_no_more_is_reserved_than_there_is(a):
    a.c.shim_set_limit(64 * MIB)
    ooms = a.stat("num_ooms")
    a.reserve(40 * MIB, 30 * MIB, 10 * MIB)
    assert a.current("reserved_bytes") == 40 * MIB and a.stat("num_ooms") == ooms


def present(place, nbytes):
    """How many of the pages of memory the system has put there."""
    first, last = place >> 12, (place + nbytes) >> 12
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(first * 8)
        entries = pages.read((last - first) * 8)
    return sum(entries[i + 7] >> 7 for i in range(0, len(entries), 8))


def test_touched_memory_has_its_pages_and_keeps_its_contents(a):
    a.reserve(30 * MIB)
    block = a.allocate(30 * MIB)
    place = a.c.shim_place(block)
    ct.memset(place + 5 * MIB, 7, MIB)
    assert present(place, 30 * MIB) < 30 * 256
    a.c.shim_touch()
    assert present(place, 30 * MIB) == 30 * 256 and ct.string_at(place + 5 * MIB, MIB) == b"\7" * MIB
    a.c.shim_free(block)
    a.c.shim_empty_cache()
    a.c.shim_touch()  # there is none


def test_peaks_and_their_reset(a):
    a.c.shim_reset_peak()
    blocks = [a.allocate(10 * MIB) for _ in range(3)]
    for block in blocks:
        a.c.shim_free(block)
    assert a.stat("allocated_bytes.all.peak") == 30 * MIB
    a.c.shim_reset_peak()
    assert a.stat("allocated_bytes.all.peak") == 0


def test_inactive_pieces_of_split_segments_are_counted(a):
    block = a.allocate(1000)
    assert a.current("inactive_split") == 1 and a.current("inactive_split_bytes") == 2 * MIB - 1024
    a.c.shim_free(block)
    assert a.current("inactive_split") == 0, "a wholly free segment is no split piece"


def test_random_traffic_keeps_blocks_apart_and_counts_right(a):
    rng = random.Random(0)
    alive = {}
    for _ in range(3000):
        if alive and rng.random() < 0.5:
            block = rng.choice(list(alive))
            del alive[block]
            a.c.shim_free(block)
        else:
            block = a.allocate(int(2 ** rng.uniform(0, 22)))
            alive[block] = (a.c.shim_place(block), a.c.shim_bytes(block))
    spans = sorted(alive.values())
    assert all(p + n <= q for (p, n), (q, _) in pairwise(spans))
    assert a.current("allocated_bytes") == sum(n for _, n in spans) and a.current("allocation") == len(alive)
    for block in alive:
        a.c.shim_free(block)
    assert a.current("inactive_split") == 0


def test_threads_may_allocate_at_the_same_time(a):
    def work(seed):
        rng = random.Random(seed)
        for _ in range(300):
            blocks = [a.allocate(rng.randrange(1, 100_000)) for _ in range(5)]
            for block in blocks:
                a.c.shim_free(block)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert a.current("allocated_bytes") == 0


def test_checking_makes_every_block_an_allocation_of_the_driver(a, monkeypatch):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from tests.driver.test_allocator import *\n"
        "shim = Shim(ct.CDLL(sys.argv[1])); shim.c.shim_use.argtypes = (ct.c_void_p,)\n"
        "shim.c.shim_use(discovery.load(str(driver())).table)\n"
        "blocks = [shim.allocate(n) for n in (100, 1000)]\n"
        "assert [shim.c.shim_bytes(b) for b in blocks] == [100, 1000] and shim.current('segment') == 2\n"
        "shim.c.shim_free(blocks[0])\n"
        "assert shim.current('segment') == 1 and shim.current('reserved_bytes') == 1000\n"
    )
    monkeypatch.setenv("LAZY_CHECK", "memory")
    subprocess.run([sys.executable, "-c", code, a.c._name, str(ROOT)], check=True)
