"""A conformance report for people: terminal text, and one HTML page with a chart of the stages."""

from __future__ import annotations

import html
from typing import Any

from lazy_backend.porting.check import STATUSES, Report
from lazy_backend.porting.stages import STAGES

_COLOURS = {"pass": "#2e7d32", "fail": "#c62828", "missing": "#ef8f00", "left": "#cfd8dc"}
_WIDTH = 420  # of a stage's bar, pixels


def summary(report: Report) -> dict[str, Any]:
    """driver, device, level, passed, next, and counts and results by stage; JSON-able."""
    return {
        "driver": report.driver,
        "device": report.device,
        "level": report.level,
        "passed": report.passed,
        "next": report.next_step,
        "stages": [
            {
                "stage": stage.number,
                "title": stage.title,
                "claimed": stage in report.claimed,
                **{status: len(report.of(stage.number, status)) for status in STATUSES},
                "results": [vars(r) for r in report.of(stage.number)],
            }
            for stage in STAGES
        ],
    }


def text(report: Report) -> str:
    """A line a stage, the checks that did not pass, and what to do next."""
    lines = [f"{report.driver}: {report.device or 'no device'}, level {report.level or 'unknown'}"]
    for stage in STAGES:
        counts = {status: len(report.of(stage.number, status)) for status in STATUSES}
        if stage not in report.claimed:
            state = "not claimed by this level"
        elif not any(counts.values()):
            state = "not run"
        else:
            state = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        lines.append(f"  stage {stage.number}  {stage.title:<42} {state}")
        lines += [
            f"      {r.status}: {r.title}\n          {r.text.splitlines()[0] if r.text else ''}"
            for r in report.of(stage.number)
            if r.status != "pass"
        ]
    lines.append(f"next: {report.next_step}")
    return "\n".join(lines)


def page(report: Report) -> str:
    """The HTML page."""
    rows, details = [], []
    for stage in STAGES:
        results = report.of(stage.number)
        bar = "".join(
            f'<span style="background:{_COLOURS[status]};width:{_WIDTH * len(found) / len(results):.0f}px"></span>'
            for status in STATUSES
            if (found := report.of(stage.number, status))
        )
        state = f'<span style="background:{_COLOURS["left"]};width:{_WIDTH}px"></span>'
        passed = len(report.of(stage.number, "pass"))
        count = f"{passed} of {len(results)}" if results else "not run" if stage in report.claimed else "not claimed"
        rows.append(f"<tr><td>{stage.number}<td>{html.escape(stage.title)}<td class=bar>{bar or state}<td>{count}")
        details += [
            f"<tr><td>{stage.number}<td style='color:{_COLOURS[r.status]}'>{r.status}<td>{html.escape(r.title)}"
            f"<td><pre>{html.escape(r.text)}</pre><td>{r.seconds:.2f} s"
            for r in results
        ]
    verdict = "passes every stage that its level claims" if report.passed else f"next: {report.next_step}"
    return _PAGE.format(
        title=html.escape(f"{report.driver}: {report.device}, level {report.level}"),
        verdict=html.escape(verdict),
        rows="\n".join(rows),
        details="\n".join(details),
    )


_PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px system-ui;margin:2em;max-width:75em}}td{{padding:2px 12px;vertical-align:top}}
.bar span{{display:inline-block;height:14px}}pre{{margin:0;white-space:pre-wrap}}</style>
<h1>{title}</h1><p>{verdict}</p><table>{rows}</table><h2>Checks</h2><table>{details}</table>
"""
