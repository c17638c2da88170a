"""docs/porting.md followed to the letter: its code is hostc's, and a skeleton filled with it trains."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from port_hostc import SOURCE
from typer.testing import CliRunner

from device_sim import faults
from lazy_backend.cli import COMMANDS, app
from lazy_backend.driver import cc
from lazy_backend.porting import show
from lazy_backend.porting.check import Report, Result, run
from lazy_backend.porting.new import Language, scaffold
from lazy_backend.porting.stages import STAGES, checks_of

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/porting.md").read_text()
SECTION = re.compile(r"/\* \[(\w+)\] \*/\n.*?/\* \[\1\] \*/\n", re.S)
PORT, _, LATER = GUIDE.partition("## Level 1")  # the worked port, and what it does without
BLOCKS = re.findall(r"```c\n(.*?)```", PORT, re.S)
(LIBRARY,) = re.findall(r"```c\n(.*?)```", LATER, re.S)


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


def fill(path, block):
    """Put a block of the guide in the place of the file's section of that name."""
    name = SECTION.match(block)[1]
    section = rf"/\* \[{name}\] \*/\n.*?/\* \[{name}\] \*/\n"
    text, count = re.subn(section, lambda _: block, path.read_text(), flags=re.S)
    assert count == 1, f"the skeleton has no section {name}"
    path.write_text(text)


def filled(tmp_path):
    """The skeleton with every section of the guide put in its place; the driver's library."""
    root = scaffold("mychip", 2, Language.c, tmp_path)
    path = root / "mychip" / "driver.c"
    for block in BLOCKS:
        fill(path, block)
    return cc.shared_library(path.read_text(), "-O2")


def test_a_skeleton_filled_by_the_guide_passes_the_first_stages(tmp_path):
    assert sum(len(lines_of(block)) for block in BLOCKS) <= 400
    report = run(str(filled(tmp_path)), [0, 1, 2], tmp_path / "report.json", fresh=True)
    assert report.level == 2 and [r for r in report.results if r.status != "pass"] == []
    assert report.next_step == "run stage 3, programs and launches"


def scratch_environment(folder):
    """An environment of its own for pip, which sees this one's packages; the variables to run in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {folder}/bin/python -m pip "$@"\n')
    pip.chmod(0o755)
    packages = sysconfig.get_paths()["purelib"]
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{packages}"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_guide_followed_to_the_letter(tmp_path):
    """Every block in its order, up to the first chapter that is not the worked port's: shell is run, C is filled in."""
    env, printed = scratch_environment(tmp_path / "env"), []
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    written = 0
    for language, block in re.findall(r"```(sh|c)\n(.*?)```", PORT, re.S):
        if language == "c":
            fill(tmp_path / "mychip" / "mychip" / "driver.c", block)
            written += len(lines_of(block))
            continue
        for command in block.splitlines():
            done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
            printed.append((command, done.returncode, done.stdout + done.stderr))
    stubs = {"python -m lazy_backend port check mychip": 1}  # the skeleton: a list of what is to be written
    assert [(c, code) for c, code, _ in printed] == [(c, stubs.get(c, 0)) for c, _, _ in printed], printed
    output = {command: text for command, _, text in printed}
    assert "write alloc_memory" in output["python -m lazy_backend port check mychip"]
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed[-1][2])]
    assert written <= 400 and len(losses) >= 2 and losses[-1] < losses[0] - 0.5, "the demo trains"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "command", [c for block in re.findall(r"```sh\n(.*?)```", LATER, re.S) for c in block.splitlines()]
)
def test_the_simulators_commands_predict(tmp_path, command):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = command.replace("python ", f"{sys.executable} ", 1)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "us predicted" in done.stdout, done.stdout + done.stderr
    values = re.findall(r"--sweep (\w+)=([\d,]+)", command)
    wanted = [f"{key}={value}" for key, listed in values for value in listed.split(",")]
    assert re.findall(r"^ +(\w+=\d+) +[\d,]+ us  #+$", done.stdout, re.M) == wanted
    assert all((tmp_path / path).exists() for path in re.findall(r"out/sim/\S+\.\w+", done.stdout))


def test_the_guides_fault_plan_is_one():
    (plan,) = re.findall(r"```toml\n(.*?)```", LATER, re.S)
    assert faults.Plan([faults.Fault(**entry) for entry in tomllib.loads(plan)["fault"]]).faults


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


@pytest.mark.parametrize("package", ["mychip", "port_hostc"])
def test_an_editable_install_is_a_path_entry_which_the_folder_around_it_cannot_hide(tmp_path, package):
    if package == "mychip":
        root = scaffold(package, 2, Language.c, tmp_path)
    else:
        root = shutil.copytree(SOURCE.parents[1], tmp_path / package, ignore=shutil.ignore_patterns("*.egg-info"))
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as built:
        built.extractall(tmp_path / "site")
    assert [line for pth in (tmp_path / "site").glob("*.pth") for line in pth.read_text().splitlines()] == [str(root)]
    # From the folder around it, whose folder of the same name holds no package.
    code = (
        "import site, sys; site.addsitedir(sys.argv[1]); import importlib; importlib.import_module(sys.argv[2]).driver"
    )
    subprocess.run([sys.executable, "-c", code, "site", package], cwd=tmp_path, check=True)


def test_skeletons_refuse_bad_names_and_do_not_overwrite(tmp_path):
    for name in ("my chip", "class"):
        with pytest.raises(ValueError, match="no Python identifier"):
            scaffold(name, 1, Language.c, tmp_path)
    scaffold("mychip", 1, Language.c, tmp_path)
    with pytest.raises(FileExistsError):
        scaffold("mychip", 1, Language.c, tmp_path)


def report_of(*results, level=2):
    return Report("chip", level, "the chip", [Result(*r) for r in results], [r[0] for r in results])


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


class Cells(HTMLParser):
    """The table cells of a page, row by row, and the widths of its bars."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.widths = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if width := re.search(r"width:(\d+)px", dict(attrs).get("style", "")):
            self.widths.append((len(self.rows) - 1, int(width[1])))

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_the_page_shows_a_bar_for_each_stage_and_every_check_with_its_words():
    report = report_of(
        (1, "a", "memory <b>", "pass"), (1, "b", "t", "fail", "x < y"), (2, "c", "t", "missing", "write")
    )
    page = Cells(show.page(report))
    stages, checks = page.rows[: len(STAGES)], page.rows[len(STAGES) :]
    assert [row[0] for row in stages] == [str(s.number) for s in STAGES]
    assert stages[1][3] == "1 of 2" and stages[3][3] == "not run"
    assert [(row[1], row[2], row[3]) for row in checks] == [
        ("pass", "memory <b>", ""),
        ("fail", "t", "x < y"),
        ("missing", "t", "write"),
    ]
    assert all(sum(w for r, w in page.widths if r == i) == 420 for i in range(len(STAGES))), "bars are of one length"


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


def test_a_single_stage_learns_the_level_first(tmp_path):
    report = run("hostc", [3], tmp_path / "report.json", fresh=True)
    assert report.level == 2 and report.finished == [0, 3] and len(report.of(3, "pass")) == len(checks_of(STAGES[3]))


def test_results_of_another_driver_of_the_same_file_name_are_not_gone_on_with(tmp_path):
    path = tmp_path / "driver.json"
    passed = [Result(s.number, "c", "t", "pass") for s in STAGES]
    Report("/one/driver.so", 2, "one", passed, [s.number for s in STAGES]).save(path)
    assert run("/one/driver.so", [], path, fresh=False).passed
    assert not run("/two/driver.so", [], path, fresh=False).passed and Report.load(path).driver == "/two/driver.so"


@pytest.mark.parametrize("driver, words", [("nosuch", "announced: opencl"), ("/no/such.so", "cannot open shared")])
def test_a_driver_that_does_not_load_fails_stage_0_and_nothing_else_is_tried(tmp_path, driver, words):
    report = run(driver, [], tmp_path / "report.json", fresh=True)
    assert {r.stage for r in report.results} == {0} and report.of(0, "fail")[0].name == "loads"
    assert words in report.of(0, "fail")[0].text and not report.passed and words in show.text(report)


def test_the_commands_of_the_kit_are_listed_and_refuse_a_stage_that_there_is_not():
    text = CliRunner().invoke(app, ["--help"]).output
    assert all(re.search(rf"\b{name}\b +[A-Z]", text) for name in COMMANDS), text
    done = CliRunner().invoke(app, ["port", "check", "hostc", "--stage", "9"])
    assert done.exit_code == 2 and "less than or equal to 8" in done.output


def test_a_stage_that_was_cut_off_has_not_passed_and_goes_on(tmp_path):
    class CutOff(Exception):
        pass

    def told(result):
        if result.name == "last_byte_is_there":
            raise CutOff

    path = tmp_path / "report.json"
    with pytest.raises(CutOff):
        run("hostc", [0, 1], path, fresh=True, told=told)
    assert len(Report.load(path).of(1)) == 2 and Report.load(path).next_step.startswith("run stage 1")
    report, names = run("hostc", [1], path, fresh=False), [c.name for c in checks_of(STAGES[1])]
    assert [r.name for r in report.of(1)] == names and report.finished == [0, 1]
