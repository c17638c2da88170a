"""LAZY_LOG, causes of compiles, `lazy_backend.report()`, the cache's commands, the table of variables."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lazy_backend
from lazy_backend import cache, cli, config, identity, logs
from lazy_backend.reports import compiles

ROOT = Path(__file__).parents[2]
T = ["tensor", 0, 6, [2, 3], [3, 1], 0]


def test_variables_are_documented_from_their_table():
    assert config.markdown() in (ROOT / "docs" / "environment.md").read_text()
    used = {s.name for s in config.TABLE}
    assert {"LAZY_ARCHIVE", "LAZY_RECORD", "LAZY_LOG", "LAZY_COMPILE"} <= used and len(used) == len(config.TABLE)


def test_lazy_log_names_parts():
    assert logs.levels("compile,+cache,-lowering") == {
        "lazy_backend.compile": logging.INFO,
        "lazy_backend.cache": logging.DEBUG,
        "lazy_backend.lowering": logging.ERROR,
    }
    every = {f"lazy_backend.{part}": logging.INFO for part in logs.PARTS}
    assert logs.levels("-lowering,all") == every | {"lazy_backend.lowering": logging.ERROR}
    with pytest.raises(ValueError, match="no part 'kompile'; there are all, compile"):
        logs.levels("kompile")


@pytest.mark.parametrize("asked", ["compile", "all"])
def test_a_log_is_printed_once(asked, tmp_path):
    """Torch resets the loggers that it knows at the end of its import, and has a handler of its own for them."""
    script = "import torch; (torch.ones(3, device='lazy') + 1).cpu()"
    env = os.environ | {"LAZY_LOG": asked, "LAZY_CACHE_DIR": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stderr
    assert told.count("no window was known (at <string>:1 in <module>)") == 1


def described(*nodes, slots=((24, True, True), (24, True, False))):
    return identity.Description([list(node) for node in nodes], [list(slot) for slot in slots], [])


def relu(sizes=(2, 3), slot=0, dtype=6):
    return ["aten.relu.default", [["tensor", slot, dtype, list(sizes), [3, 1], 0]], [["tensor", 1, *T[2:]]], None]


@pytest.mark.parametrize(
    ("kind", "window", "text"),
    [
        ("ops", described(["aten.sin.default", [T], [T], None]), "op 0 is aten.sin.default"),
        ("ops", described(relu(), relu()), "after 1 equal ops it goes on with aten.relu.default"),
        ("sizes", described(relu(sizes=(4, 3))), "argument 'self' (sizes (4, 3), known (2, 3)) of op 0"),
        ("dtypes", described(relu(dtype=7)), "dtype 7, known 6"),
        ("dataflow", described(relu(slot=1)), "tensor 1 of the window, known 0"),
        ("liveness", described(relu(), slots=((24, False, True), (24, True, False))), "is not in use any more"),
        ("sizes", described(relu(), slots=((48, True, True), (24, True, False))), "has 48 bytes of storage, known 24"),
        ("order", described(relu())._replace(ordered=True), "torch.use_deterministic_algorithms is on"),
    ],
)
def test_a_difference_is_named(kind, window, text):
    different = identity.difference(window, identity.nearest(window, [described(relu())]))
    assert different.kind == kind and kind in identity.KINDS and text in different.text


def test_the_nearest_window_has_most_ops_in_common():
    sin = described(["aten.sin.default", [T], [T], None])
    like = described(relu(sizes=(5, 3)))
    assert identity.nearest(described(relu()), [sin, like]) is like


def test_compiles_have_a_cause_and_a_line(device, caplog):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    with caplog.at_level(logging.INFO, "lazy_backend.compile"):
        for n in (31, 37):
            torch.erfc(torch.ones(n, device="lazy") * 7).sum().item()
    by_cause = torch.lazy.stats()["compiles_by_cause"]
    assert sum(by_cause.values()) == 2 and by_cause["sizes"] == 1
    assert "sizes (37), known (31)" in caplog.text and "test_reports.py" in caplog.text
    assert "test_reports.py" in compiles.causes["sizes"].line
    report = lazy_backend.report()
    assert "compiles, by what was not as in the nearest known window" in report and "sizes (37), known (31)" in report
    assert "first at" in report and "test_reports.py" in report.partition("reads")[2]


def test_cache_commands(own, tmp_path):
    runner = CliRunner()
    names = [cache.kernel_name(text, b"") for text in "abc"]
    for name in names:
        cache.store(name, name.encode())
    cache.store(cache.plan_name(b"", b""), b"plan")
    cache.store(cache.choice_name("a", b""), b"choice")
    found = json.loads(runner.invoke(cli.app, ["cache", "info", "--json"]).stdout)
    assert found["entries"] == {".kernel": 3, ".plan": 1, ".choice": 1, ".run": 0, ".program": 0}
    assert found["folder"] == str(own)
    assert "5 entries in" in runner.invoke(cli.app, ["cache", "export", str(tmp_path / "all")]).stdout
    assert "5 entries removed" in runner.invoke(cli.app, ["cache", "clear"]).stdout
    assert cache.entries() == []
    assert "5 entries imported" in runner.invoke(cli.app, ["cache", "import", str(tmp_path / "all")]).stdout
    assert [cache.load(name) for name in names] == [name.encode() for name in names]
    shown = runner.invoke(cli.app, ["cache", "info"]).stdout
    assert all(kind in shown for kind in ("kernels", "plans", "choices"))


def test_a_damaged_export_imports_nothing(own, tmp_path):
    cache.store("ab" * 32 + ".kernel", b"1")
    runner = CliRunner()
    runner.invoke(cli.app, ["cache", "export", str(tmp_path / "all")])
    runner.invoke(cli.app, ["cache", "clear"])
    content = bytearray((tmp_path / "all").read_bytes())
    content[-1] ^= 1
    (tmp_path / "all").write_bytes(content)
    done = runner.invoke(cli.app, ["cache", "import", str(tmp_path / "all")])
    assert done.exit_code == 1 and cache.entries() == []
    assert os.listdir(own) == []
