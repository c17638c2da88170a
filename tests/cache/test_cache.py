"""The persistent cache: a second process finds plans and kernels; damage, eviction and company do no harm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lazy_backend import _C, cache, compiler
from tests.archive.test_archive import ROOT, run


@pytest.fixture(autouse=True)
def on_the_device(device):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder with what the small case needs, and what the run that filled it printed."""
    folder = tmp_path_factory.mktemp("cache")
    out, error = run("small", folder)
    assert out and out["stats"]["kernels_built"] > 0, error
    return folder, out


def test_a_second_process_needs_no_compiler(filled):
    folder, first = filled
    out, error = run("small", folder, ARCHIVE_NO_COMPILER="1", LAZY_COMPILE="never")
    assert out, error
    assert out["result"] == first["result"] and out["compilers"] == []
    assert out["stats"]["plans_compiled"] == out["stats"]["kernels_built"] == 0


def test_damage_and_eviction_are_mended(filled, tmp_path):
    folder, first = filled
    entries = sorted((folder / "kernels").iterdir())
    kernels, plans, programs = ([p for p in entries if p.suffix == kind] for kind in (".kernel", ".plan", ".program"))
    assert kernels and plans
    target = tmp_path / "kernels"
    target.mkdir()
    for number, path in enumerate([*kernels, *plans, *programs]):
        content = bytearray(path.read_bytes())
        if number % 3 == 1:
            content[len(content) // 2] ^= 1
        if number % 3 != 2:
            (target / path.name).write_bytes(content)
    out, error = run("small", tmp_path)
    assert out and out["result"] == first["result"], error
    assert error.count("dropped a damaged cache entry") >= 1
    again, error = run("small", tmp_path, LAZY_COMPILE="never")
    assert again and "damaged" not in error, error


def test_many_processes_fill_one_cache(tmp_path):
    command = [sys.executable, "-m", "tests.archive.app", "small"]
    settings = os.environ | {"PYTHONPATH": str(ROOT), "LAZY_CACHE_DIR": str(tmp_path)}
    running = [subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    results = {process.communicate(timeout=300)[0].partition('"stats"')[0] for process in running}
    assert len(results) == 1 and [p.returncode for p in running] == [0, 0, 0]
    assert {p.suffix for p in (tmp_path / "kernels").iterdir()} == {".kernel", ".plan", ".run"}


def test_kernels_that_were_built_together_are_one_entry_that_others_name(own):
    cache.store_program(["a.kernel", "b.kernel"], bytes(1000))
    cache.store_program(["c.kernel"], bytes(500))
    [program] = own.glob("*.program")
    assert len(list(own.iterdir())) == 4 and max(path.stat().st_size for path in own.glob("*.kernel")) < 600
    for _ in range(2):
        assert [cache.load(f"{name}.kernel") for name in "abc"] == [bytes(1000), bytes(1000), bytes(500)]
    content = program.read_bytes()
    program.write_bytes(content[:-1])
    assert cache.load("a.kernel") is cache.load("b.kernel") is None and not program.exists()
    assert [path.name for path in own.iterdir()] == ["c.kernel"]  # others would be named for ever
    cache.store_program(["a.kernel", "b.kernel"], bytes(1000))
    assert program.read_bytes() == content and cache.load("b.kernel") == bytes(1000)


def test_a_program_names_no_other(own):
    """Anyone can write an entry: one that names itself is a binary like another, which the driver refuses."""
    cache.store_program(["a.kernel", "b.kernel"], b"binary")
    [program] = own.glob("*.program")
    cache.store(program.name, cache._MEMBER + bytes.fromhex(program.stem))
    assert cache.load("a.kernel") == cache._MEMBER + bytes.fromhex(program.stem)


def test_an_entry_that_names_another_kernel_s_program_is_built_again(own, monkeypatch):
    def built():
        _C.forget_plans(0)
        monkeypatch.setattr(compiler, "_kernels", {})
        torch.lazy.reset_stats()
        assert torch.arange(6.0, device="lazy").sinh().sum().item() == pytest.approx(116.313, abs=0.01)
        return torch.lazy.stats()["kernels_built"]

    torch.lazy.synchronize()
    first = built()
    entries = list(own.glob("*.kernel"))
    assert first == len(entries) > 0 and built() == 0
    cache.store_program(["x.kernel", "y.kernel"], b"no binary")
    for entry in [*entries, *own.glob("*.plan")]:
        cache.store(entry.name, (own / "x.kernel").read_bytes()[32:])
    assert built() == first and built() == 0


def test_the_least_recently_used_entries_go_first(own):
    for number in range(4):
        cache.store(f"{number}.kernel", bytes(1000))
        os.utime(own / f"{number}.kernel", (number, number))
    assert cache.load("0.kernel") == bytes(1000)  # used now
    assert cache.prune(2500) == 2
    assert [path.name for _, _, path in cache.entries()] == ["3.kernel", "0.kernel"]


def test_a_folder_that_cannot_be_written_turns_the_cache_off(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAZY_CACHE_DIR", str(tmp_path / "file"))
    cache.folder.cache_clear()
    try:
        cache.store("x.kernel", b"1")
        assert cache.load("x.kernel") is None
        assert torch.arange(5, device="lazy").cosh().sum().item() == pytest.approx(43.68, abs=0.01)
    finally:
        cache.folder.cache_clear()


def test_names_depend_on_what_decides_the_content():
    device = _C.device_properties(0)
    names = {cache.kernel_name("a", device), cache.kernel_name("b", device), cache.kernel_name("a", device[:-1] + b"x")}
    assert len(names) == 3 and all(Path(n).suffix in cache.KINDS for n in names)
