"""A level 3 driver's library: asked what it has, checked like core ops, and used where it was measured to be faster."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lazy_backend import entries
from lazy_backend.driver import adapter, cc
from lazy_backend.driver.native import NativeDriver
from lazy_backend.porting import worker
from lazy_backend.porting.bench import Bench
from lazy_backend.porting.execute import graph_of
from lazy_backend.porting.new import Language, scaffold
from lazy_backend.porting.stages import STAGES, checks_of

from . import library_chip
from .test_guide import BLOCKS, LIBRARY, fill

ROOT = Path(__file__).parents[2]
MANNERS = {"fast": True, "slow": False, "dense only": False, "failing": False}
SGEMM = """/* [core_op] */
static void vendor_sgemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t ra, int64_t ca, const float *b,
                         int64_t rb, int64_t cb, float *c, int64_t rc, int64_t cc) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a[i * ra + l * ca] * b[l * rb + j * cb];
      c[i * rc + j * cc] = sum;
    }
}
"""
SCRIPT = """
import json, torch
torch.manual_seed(0)
a, b = torch.randn(300, 260), torch.randn(200, 260)
def program(device):
    x, w = a.to(device), b.to(device)
    y = torch.nn.functional.gelu(x @ w.T + 1.0)   # w.T is a view: the library gets it with its strides
    return (y[:2, :2] @ y[:2, :2]).cpu(), y.cpu() # too small to be worth a call
for got, want in zip(program("lazy"), program("cpu")):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
stats = torch.lazy.stats()
print(json.dumps([stats["extern_calls"], stats["host_ops"]]))
"""


def bench_of(manner):
    made = type("Chip", (library_chip.LibraryChip,), {"manner": manner})
    driver = type("Driver", (library_chip.LibraryDriver,), {"device_class": made})
    bench = Bench("library_chip")
    bench.__dict__["driver"] = NativeDriver(adapter.table(driver(library_chip.driver().settings)))
    return bench


def product(n, dtype="f32"):
    graph = graph_of("matmul", [((n, n), dtype), ((n, n), dtype)], [((n, n), dtype)], {})
    return next(node for node in graph.nodes if node.op == "matmul")


@pytest.mark.parametrize("manner", MANNERS)
def test_the_entry_wins_where_it_takes_the_operands_and_is_faster(manner, monkeypatch):
    bench = bench_of(manner)
    monkeypatch.setattr(entries, "_bench", lambda device: bench)
    entries._measured.cache_clear()
    assert entries.own(0) == {"matmul"} and entries.wins(0, product(128)) == MANNERS[manner]
    assert not bench._mems, "what the race took is given back"
    entries._measured.cache_clear()


def test_the_guides_entry_computes_what_the_reference_does(tmp_path):
    """The skeleton of level 3 with the guide's sections in it, that of the library too."""
    path = scaffold("mychip", 3, Language.c, tmp_path) / "mychip" / "driver.c"
    for block in (*BLOCKS, SGEMM + LIBRARY.removeprefix("/* [core_op] */\n")):
        fill(path, block)
    path.write_text(path.read_text().replace("p.level = 2;", "p.level = 3;"))
    bench = Bench(str(cc.shared_library(path.read_text(), "-O2")))
    assert bench.entries == {"matmul"}
    (check,) = (c for c in checks_of(STAGES[4]) if c.name == "matmul")
    found = worker.run_check(bench, check)
    assert found["status"] == "pass" and "2 of them also through the library's entry" in found["text"], found


def test_drivers_without_a_library_have_no_entries():
    assert all(not Bench(name).entries for name in ("hostc", "simgpu", "simnpu"))


@pytest.mark.parametrize("manner, status, words", [
    ("fast", "pass", "18 of them also through the library's entry"),
    ("stride blind", "fail", "the library's entry: .*strided inputs"),
])  # fmt: skip
def test_stage_4_checks_the_entry_as_it_checks_a_core_op(manner, status, words):
    (check,) = (c for c in checks_of(STAGES[4]) if c.name == "matmul")
    found = worker.run_check(bench_of(manner), check)
    assert found["status"] == status, found
    assert re.search(words, found["text"]), found


@pytest.mark.parametrize("manner, words", [("fast", "matmul: .* ms, generated"), ("dense only", "matmul: refused")])
def test_stage_8_shows_both_times(manner, words):
    (check,) = (c for c in checks_of(STAGES[8]) if c.name == "library_entries")
    found = worker.run_check(bench_of(manner), check)
    assert found["status"] == "pass" and re.search(words, found["text"]), found


@pytest.mark.parametrize("manner, calls", [("fast", 1), ("slow", 0), ("dense only", 0)])
def test_a_script_gets_the_library_where_it_wins_and_the_same_numbers(tmp_path, manner, calls):
    info = tmp_path / "library_chip-0.1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: library_chip\nVersion: 0.1\n")
    point = "[lazy_backend.drivers]\nlibrary_chip = tests.porting.library_chip:driver\n"
    info.joinpath("entry_points.txt").write_text(point)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "LAZY_DRIVER": "library_chip"}
    env |= {"LIBRARY_CHIP": manner, "LAZY_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [calls, 0]
