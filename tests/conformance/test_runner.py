"""The runner survives whatever a case does, names it, and resumes where it stopped."""

import dataclasses

import pytest

from lazy_backend.conformance.results import ResultFile, UnitResult
from lazy_backend.conformance.runner import Shard, run
from lazy_backend.conformance.worker import Settings
from tests.conformance.broken_units import ACTS

SETTINGS = Settings("meta", 0, frozenset({"forward"}), databases=("tests.conformance.broken_units",))
TIMEOUT = 5.0
EXPECTED = {
    "pass": "pass",
    "loose": "loose",
    "differ": "differ",
    "shape": "differ",
    "dtype": "differ",
    "nan": "differ",
    "raise": "raise",
    "crash": "crash",
    "timeout": "timeout",
    "error": "pass",
    "error missed": "differ",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return ResultFile(tmp_path_factory.mktemp("results") / "results.jsonl")


@pytest.fixture(scope="module")
def first(results):
    return run(["broken/one:float32"], SETTINGS, results, timeout=TIMEOUT)["broken/one:float32"]


def test_every_outcome_is_told_apart(first):
    statuses = {failure["index"]: failure["status"] for failure in first.failures}
    for index, act in enumerate(ACTS):
        if EXPECTED[act] not in ("pass", "loose") and index in statuses:
            assert statuses[index] == EXPECTED[act]
    expected: dict[str, int] = {}
    for act in ACTS:
        expected[EXPECTED[act]] = expected.get(EXPECTED[act], 0) + 1
    assert first.counts == {"forward": expected}


def test_cases_after_a_crash_and_after_a_timeout_are_run(first):
    assert first.counts["forward"]["crash"] == first.counts["forward"]["timeout"] == 1
    assert sum(first.counts["forward"].values()) == len(ACTS)


def test_finished_units_are_not_run_again(results, first):
    seen: list[UnitResult] = []
    names = ["broken/one:float32"]
    run(names, SETTINGS, results, progress=seen.append)
    assert [unit.seconds for unit in seen] == [first.seconds]
    assert len(results.path.read_text().splitlines()) == 1


def test_units_that_failed_are_run_again_when_asked(results, first):
    name = "broken/sound:float32"
    sound = dataclasses.replace(first, unit=name, counts={"forward": {"pass": 1}}, failures=[])
    results.append(sound)
    assert run([name], SETTINGS, results, again=True)[name] == sound
    results.append(dataclasses.replace(first, unit="broken/none:float32"))
    rerun = run(["broken/none:float32"], SETTINGS, results, again=True)["broken/none:float32"]
    assert rerun.counts == {"start": {"crash": 1}}, "a unit that does not exist was not run again"


def test_other_settings_do_not_reuse_results(results, first):
    other = dataclasses.replace(SETTINGS, window=1)
    assert str(other) != str(SETTINGS) == first.settings


def test_a_torn_line_is_dropped(tmp_path, first):
    file = ResultFile(tmp_path / "torn.jsonl")
    file.append(first)
    with file.path.open("a") as stream:
        stream.write('{"unit": "half')
    assert file.load() == {first.unit: first}


def test_shards_are_disjoint_and_complete():
    names = [f"ops/op{i}:float32" for i in range(200)]
    parts = [[name for name in names if name in Shard(index, 3)] for index in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(names) and all(parts)
