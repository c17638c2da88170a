"""docs/porting.md followed to the letter: its code is hostc's, and a skeleton filled with it trains."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from port_hostc import SOURCE

from lazy_backend.driver import cc
from lazy_backend.porting import show
from lazy_backend.porting.check import Report, Result, run
from lazy_backend.porting.new import Language, scaffold
from lazy_backend.porting.stages import STAGES

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/porting.md").read_text()
SECTION = re.compile(r"/\* \[(\w+)\] \*/\n.*?/\* \[\1\] \*/\n", re.S)
BLOCKS = re.findall(r"```c\n(.*?)```", GUIDE, re.S)


def lines_of(text):
    return [line for line in text.splitlines() if line.strip()]


def test_hostc_is_at_most_400_lines_in_all():
    files = [p for p in SOURCE.parents[1].rglob("*") if p.suffix in (".c", ".py", ".toml") and "egg" not in str(p)]
    assert len(files) == 3 and sum(len(p.read_text().splitlines()) for p in files) <= 400


def test_hostc_needs_the_header_alone():
    own = re.findall(r'#include "(.*)"', SOURCE.read_text())
    assert own == ["lazy_driver.h"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: SECTION.match(block)[1])
def test_the_guides_code_is_the_tested_files(block):
    assert block in SOURCE.read_text()


def filled(tmp_path):
    """The skeleton with every section of the guide put in its place; the driver's library."""
    root = scaffold("mychip", 2, Language.c, tmp_path)
    path = root / "mychip" / "driver.c"
    text = path.read_text()
    for block in BLOCKS:
        name = SECTION.match(block)[1]
        text, count = re.subn(
            rf"/\* \[{name}\] \*/\n.*?/\* \[{name}\] \*/\n", lambda _, block=block: block, text, flags=re.S
        )
        assert count == 1, f"the skeleton has no section {name}"
    path.write_text(text)
    return cc.shared_library(text, "-O2")


def test_a_skeleton_filled_by_the_guide_passes_the_first_stages(tmp_path):
    assert sum(len(lines_of(block)) for block in BLOCKS) <= 400
    report = run(str(filled(tmp_path)), [0, 1, 2], tmp_path / "report.json", fresh=True)
    assert report.level == 2 and [r for r in report.results if r.status != "pass"] == []
    assert report.next_step == "run stage 3, programs and launches"


@pytest.mark.slow
def test_a_skeleton_filled_by_the_guide_trains(tmp_path):
    env = {**os.environ, "LAZY_DRIVER": str(filled(tmp_path))}
    command = [sys.executable, "-m", "lazy_backend.porting.train", "transformer with AdamW"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    losses = json.loads(done.stdout.splitlines()[-1])
    assert losses["lazy"] == pytest.approx(losses["cpu"], rel=1e-4) and losses["host_ops"] == 0


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("language", list(Language))
def test_a_fresh_skeleton_passes_stage_0_and_lists_what_to_write(tmp_path, monkeypatch, language, level):
    root = scaffold("mychip", level, language, tmp_path)
    info = root / "mychip-0.1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: mychip\nVersion: 0.1\n")
    info.joinpath("entry_points.txt").write_text("[lazy_backend.drivers]\nmychip = mychip:driver\n")
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{ROOT}")
    report = run("mychip", [0, 1], tmp_path / "report.json", fresh=True)
    assert [r.name for r in report.of(0) if r.status != "pass"] == []
    assert report.level == level and {r.status for r in report.of(1)} <= {"missing", "pass"}
    assert "write alloc" in report.next_step and report.next_step.startswith("stage 1")


def test_skeletons_refuse_bad_names_and_do_not_overwrite(tmp_path):
    with pytest.raises(ValueError, match="no Python identifier"):
        scaffold("my chip", 1, Language.c, tmp_path)
    scaffold("mychip", 1, Language.c, tmp_path)
    with pytest.raises(FileExistsError):
        scaffold("mychip", 1, Language.c, tmp_path)


def report_of(*results, level=2):
    return Report("chip", level, "the chip", [Result(*r) for r in results])


def test_a_report_passes_when_every_claimed_stage_has_passed():
    everything = [(s.number, "c", "t", "pass") for s in STAGES]
    assert report_of(*everything).passed
    assert not report_of(*everything[:-1]).passed
    assert report_of(*(r for r in everything if r[0] != 3), level=1).passed, "level 1 does not claim stage 3"


def test_what_is_missing_comes_before_what_fails():
    report = report_of((1, "a", "t", "fail", "x"), (2, "b", "t", "missing", "write synchronize"))
    assert report.next_step == "stage 2, b: write synchronize"
    assert "1 fail" in show.text(report) and "write synchronize" in show.page(report)
    assert show.summary(report)["stages"][1]["fail"] == 1


def test_a_check_that_kills_its_process_fails_and_the_rest_goes_on(tmp_path):
    text = SOURCE.read_text().replace(
        "static lazy_status copy_d2d(lazy_device device,", "static lazy_status copy_d2d_(lazy_device device,"
    )
    text = text.replace(
        "/* [table] */\nstatic",
        "static lazy_status copy_d2d(lazy_device d, lazy_queue q, lazy_mem a, uint64_t i, lazy_mem b, uint64_t j,"
        " uint64_t n) { (void)copy_d2d_; return *(volatile lazy_status *)(a->bytes & 0); }\nstatic",
    )
    report = run(str(cc.shared_library(text, "-O1")), [0, 1], tmp_path / "report.json", fresh=True)
    died = [r for r in report.of(1) if r.status == "fail"]
    assert {r.name for r in died} == {"device_copies"} and "SIGSEGV" in died[0].text
    assert len(report.of(1)) > 8, "the checks behind the crash ran"


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path):
    asked = []
    for _ in range(2):
        run("hostc", [0], tmp_path / "report.json", fresh=False, told=lambda r: asked.append(r.name))
    assert len(asked) == len(set(asked)), "what has passed is not run again"
