"""The coverage report: every overload has a class and a route, and what no test ran is untested."""

from lazy_backend.conformance.results import CaseResult, UnitResult
from lazy_backend.reports import coverage, coverage_html, coverage_text, evidence
from ops_core import routes


def archive(*cases: CaseResult) -> evidence.Archive:
    result = UnitResult("ops/add:float32", "settings")
    for case in cases:
        result.add(case)
    return evidence.gather({result.unit: result})


def state(name: str, *cases: CaseResult) -> str:
    rows = coverage.overloads(archive(*cases))
    return next(group.state for group in coverage.groups(rows) if group.name == name)


ADD = "aten.add.Tensor"
PASSED = CaseResult("forward", 0, "pass", overloads=[ADD])


def test_without_evidence_all_547_groups_are_untested():
    report = coverage.report(evidence.Archive())
    assert report["denominator"] == report["untested"] == 547
    assert report["device"] == report["host"] == report["wrong"] == report["missing"] == 0
    assert len(report["core_ops"]) <= 32 and len(report["scalar_functions"]) <= 64
    assert sum(report["routes"].values()) == len(report["overloads"])


def test_a_group_is_native_when_a_passing_case_ran_a_face_of_it_without_a_fallback():
    assert state(ADD, PASSED) == "native"
    assert state("aten.sub.Tensor", PASSED) == "untested"


def test_a_fallback_counts_even_where_other_cases_stayed_on_the_device():
    hosted = CaseResult("inplace", 0, "pass", host_ops={"aten.add_.Tensor": 1}, overloads=["aten.add_.Tensor"])
    assert state(ADD, PASSED, hosted) == "fallback"


def test_the_worst_case_decides():
    assert state(ADD, PASSED, CaseResult("forward", 1, "raise", "no", blame=ADD)) == "missing"
    assert state(ADD, PASSED, CaseResult("forward", 1, "differ", "off", blame=ADD)) == "wrong"


def test_evidence_survives_its_file(tmp_path):
    made = archive(PASSED)
    evidence.save(made, tmp_path / "evidence.json")
    assert evidence.load(tmp_path / "evidence.json") == made


def test_a_fallback_is_listed_with_its_reason():
    hosted = CaseResult("forward", 0, "pass", host_ops={"aten.igamma.default": 1}, overloads=["aten.igamma.default"])
    assert routes.HOST["igamma"] in coverage_text.markdown(coverage.report(archive(hosted)))


def test_the_pages_name_every_group_that_is_open_and_every_overload():
    report = coverage.report(archive(CaseResult("forward", 1, "differ", "off by one", blame=ADD)))
    assert "off by one" in coverage_text.markdown(report)
    page = coverage_html.page(report)
    assert all(f'"{overload["name"]}"' in page for overload in report["overloads"])
