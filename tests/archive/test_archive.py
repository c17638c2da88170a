"""A run that was recorded runs again in a fresh process, without a compiler; what was not recorded is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lazy_backend
from lazy_backend import _C, archive, pack
from tests.archive.app import training

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def on_the_device(device):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")


def run(case, cache, **environment):
    """(parsed output or None, error text) of a case in a process of its own."""
    settings = os.environ | {"PYTHONPATH": str(ROOT), "LAZY_CACHE_DIR": str(cache)} | environment
    done = subprocess.run(
        [sys.executable, "-m", "tests.archive.app", case],
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None), done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """An archive of the training case, and what the run that wrote it printed."""
    folder = tmp_path_factory.mktemp("archive")
    path = folder / "app.lzpack"
    out, error = run("training", folder, LAZY_RECORD=str(path))
    assert out, error
    return path, out


def replay(case, path, tmp_path, **environment):
    return run(
        case, tmp_path, LAZY_ARCHIVE=str(path), LAZY_COMPILE="never", ARCHIVE_NO_COMPILER="1", **environment
    )  # fmt: skip


def test_a_recorded_run_needs_no_compiler(recorded, tmp_path):
    path, first = recorded
    out, error = replay("training", path, tmp_path)
    assert out, error
    assert out["result"] == first["result"]
    assert (out["stats"]["kernels_built"], out["stats"]["plans_compiled"], out["compilers"]) == (0, 0, [])
    for counter in ("kernels_launched", "windows", "host_ops", "extern_calls"):
        assert out["stats"][counter] == first["stats"][counter]
    assert first["stats"]["kernels_built"] > 0


def test_a_window_that_was_not_recorded_is_named_with_its_line(recorded, tmp_path):
    path, _ = recorded
    out, error = replay("other size", path, tmp_path)
    assert out is None
    assert "LAZY_COMPILE=never" in error and "sizes (6, 10), known (6, 8)" in error and "app.py:" in error, error
    out, error = replay("other op", path, tmp_path)
    assert out is None and "is aten." in error and "nearest known window has" in error, error
    assert "app.py:" in error


def test_the_window_length_of_the_recording_is_named(recorded, tmp_path):
    path, _ = recorded
    out, error = replay("training", path, tmp_path, LAZY_WINDOW="4")
    assert out is None and "this process has 4" in error, error


def test_without_never_what_is_missing_is_compiled(recorded, tmp_path):
    path, _ = recorded
    out, error = run("other size", tmp_path, LAZY_ARCHIVE=str(path), LAZY_COMPILE="sync")
    assert out and out["stats"]["kernels_built"] > 0, error


def test_ops_of_the_host_are_recorded_as_such(tmp_path):
    path = tmp_path / "app.lzpack"
    first, error = run("host op", tmp_path, LAZY_RECORD=str(path))
    assert first, error
    again, error = replay("host op", path, tmp_path)
    assert again, error
    assert again["result"] == first["result"] == [4.0]
    assert again["stats"]["host_ops"] == first["stats"]["host_ops"]


# --- inside one process -------------------------------------------------------------------------------------------


def plan_of(path, monkeypatch, program):
    """Runs `program()` with the archive at `path` and no compiler. Returns its result."""
    monkeypatch.setenv("LAZY_COMPILE", "never")
    monkeypatch.setattr(archive, "opened", archive.Archive(path))
    torch.lazy.synchronize()
    _C.forget_plans(0)
    built = torch.lazy.stats()["kernels_built"]
    result = program()
    assert torch.lazy.stats()["kernels_built"] == built
    return result


def test_precompile_records_what_was_compiled_before(tmp_path, monkeypatch):
    """also plans and kernels that the process had already"""
    first = training(steps=1)
    with lazy_backend.precompile(tmp_path / "app.lzpack"):
        assert training(steps=1) == first
    assert plan_of(tmp_path / "app.lzpack", monkeypatch, lambda: training(steps=1)) == first


def test_precompile_keeps_every_size_of_an_entry(tmp_path, monkeypatch):
    def program():
        return [(torch.arange(float(n), device="lazy") * n).sum().item() for n in (3, 5, 7, 9, 11)]

    expected = [sum(i * n for i in range(n)) for n in (3, 5, 7, 9, 11)]
    with lazy_backend.precompile(tmp_path / "app.lzpack"):
        assert program() == expected
    assert plan_of(tmp_path / "app.lzpack", monkeypatch, program) == expected


def test_a_recording_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "app.lzpack"
    path.write_text("old")
    with pytest.raises(ValueError, match="mine"), lazy_backend.precompile(path):
        raise ValueError("mine")
    assert path.read_text() == "old" and archive.recording is None
    assert [p.name for p in tmp_path.iterdir()] == ["app.lzpack"]


def test_recordings_do_not_nest(tmp_path):
    with (
        lazy_backend.precompile(tmp_path / "a"),
        pytest.raises(RuntimeError, match="under way"),
        lazy_backend.precompile(tmp_path / "b"),
    ):
        pass
    assert archive.recording is None


def test_a_driver_without_binaries_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lazy_backend.kernels.binary_of", lambda handle: (b"", "f"))
    with (
        pytest.raises(RuntimeError, match="gives no binaries"),
        lazy_backend.precompile(tmp_path / "a"),
    ):
        torch.ones(3, device="lazy").exp().sum().item()
    assert not (tmp_path / "a").exists()


def rewritten(path, target, change):
    """The archive with `change` applied to one JSON blob: its "about", or the plans."""
    old = pack.Pack(path)
    blobs = dict(old)
    change(blobs)
    pack.write(target, blobs)
    return target


def test_another_device_is_refused_or_compiled_for(recorded, tmp_path):
    def elsewhere(blobs):
        about = json.loads(blobs[archive._ABOUT])
        about["device"]["driver_version"] = "0.0.1"
        blobs[archive._ABOUT] = json.dumps(about).encode()

    path = rewritten(recorded[0], tmp_path / "other.lzpack", elsewhere)
    out, error = replay("training", path, tmp_path)
    assert out is None and "driver_version '0.0.1', here" in error, error
    out, error = run("training", tmp_path, LAZY_ARCHIVE=str(path), LAZY_COMPILE="sync")
    assert out and out["result"] == recorded[1]["result"] and "its plans are not used" in error


def test_another_torch_is_refused(recorded, tmp_path):
    def older(blobs):
        blobs[archive._ABOUT] = json.dumps(json.loads(blobs[archive._ABOUT]) | {"torch": "1.0"}).encode()

    path = rewritten(recorded[0], tmp_path / "old.lzpack", older)
    with pytest.raises(pack.BadPack, match=r"recorded with torch 1\.0"):
        archive.Archive(path)


@pytest.mark.parametrize(
    "spoil",
    {
        "kernel": lambda p: p["steps"].append(["launch", 99, [1, 1, 1], [1, 1, 1], []]),
        "argument": lambda p: p["steps"].append(["launch", 0, [1, 1, 1], [1, 1, 1], [["slot", 9999, ""]]]),
        "temp": lambda p: p["steps"].append(["launch", 0, [1, 1, 1], [1, 1, 1], [["temp", 1 << 40, ""]]]),
        "piece": lambda p: p["temps"].append([99, 0]),
        "offset": lambda p: p.update(pieces=[8], temps=[[0, 8]]),
        "node": lambda p: p["steps"].append(["host", 5000]),
        "step": lambda p: p["steps"].append(["surprise", 1]),
        "scalars": lambda p: p.update(scalars=77),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_plan_that_does_not_fit_its_window_is_refused(tmp_path, monkeypatch, spoil):
    """checksums do not help against who writes them: the executor gets no number that is out of range"""

    def program():
        return torch.ones(4, 4, device="lazy").exp().sum().item()

    with lazy_backend.precompile(tmp_path / "app.lzpack"):
        program()

    def change(blobs):
        for key, blob in blobs.items():
            if blob.startswith(b'{"pieces'):
                plan = json.loads(blob)
                spoil[1](plan)
                blobs[key] = json.dumps(plan).encode()

    path = rewritten(tmp_path / "app.lzpack", tmp_path / "bad.lzpack", change)
    with pytest.raises(RuntimeError, match=r"does not fit|cannot have|does not know"):
        plan_of(path, monkeypatch, program)
