"""The pages and the timeline are what browsers and Perfetto read: parsed here, and compared with the clock."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest

from device_sim import chip as chips
from device_sim.clock import Step, Work, replay
from device_sim.command import swept, swept_settings
from device_sim.report import summary, sweep_page, write

CHIP = chips.load("gpu_mid")
VOID = {"meta", "br", "img"}
TRACE = [
    Step("alloc", amount=1 << 20),
    Step("h2d", "h2d", amount=1 << 20),
    *(Step("kernel", f"k_{i % 3}<&>", i % 2, work=Work({"f32": 1e7 * (i + 1)}, 1e6, 64)) for i in range(12)),
    Step("wait"),
    Step("d2h", "d2h", amount=4096),
    Step("free", amount=1 << 20),
]


class Page(HTMLParser):
    """A page whose elements all close in order; `charts`: its SVG pictures by their label; `rows`: of its tables."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.headings = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"
        svg = {"s": "http://www.w3.org/2000/svg"}
        drawn = [ET.fromstring(part) for part in re.findall(r"<svg.*?</svg>", text, re.S)]
        self.charts = {chart.attrib["aria-label"]: (chart, svg) for chart in drawn}

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "h1":
            self.headings.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    device = SimpleNamespace(
        chip=CHIP, clock=replay(CHIP, TRACE), findings=["a <finding>"], trace=TRACE, places={"k_0<&>": "mul (a.py:3)"}
    )
    write([device], out)
    return out


def test_the_page_is_well_formed_and_holds_the_numbers(folder):
    page, found = Page((folder / "device_0.html").read_text()), json.loads((folder / "report.json").read_text())[0]
    assert page.headings == [f"gpu_mid: {found['total_us']:,.0f} us predicted"]
    shown = {row[0]: row for row in page.rows}
    assert float(shown["total_us"][1].replace(",", "")) == pytest.approx(found["total_us"], abs=0.1)
    assert {name: int(row[2]) for name, row in shown.items() if name.startswith("k_")} == {
        row["kernel"]: row["launches"] for row in found["by_kernel"]
    }
    assert shown["k_0<&>"][1] == "mul (a.py:3)"


def test_the_timeline_has_a_box_for_every_command_in_its_place(folder):
    chart, svg = Page((folder / "device_0.html").read_text()).charts["timeline"]
    clock, boxes = replay(CHIP, TRACE), chart.findall("s:rect", svg)
    assert len(boxes) == len(clock.spans) == 14
    starts = [float(box.attrib["x"]) for box in boxes]
    order = sorted(range(14), key=lambda i: clock.spans[i].start)
    assert [starts[i] for i in order] == sorted(starts)
    assert all(float(box.attrib["x"]) + float(box.attrib["width"]) <= 900.5 for box in boxes)


def test_the_roofline_has_every_kernel_under_its_roof(folder):
    page = Page((folder / "device_0.html").read_text())
    chart, svg = page.charts["roofline"]
    roof = chart.find("s:path", svg).attrib["d"]
    assert len(chart.findall("s:circle", svg)) == 3
    ceiling = float(re.search(r"L[\d.]+ ([\d.]+)", roof)[1])
    assert all(float(dot.attrib["cy"]) >= ceiling for dot in chart.findall("s:circle", svg)), "y grows downwards"
    assert "memory over time" in page.charts


def test_perfetto_gets_complete_events_in_its_own_format(folder):
    timeline = json.loads((folder / "timeline.json").read_text())
    events = timeline["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X", "C"} and len(complete) == 14
    assert all({"name", "cat", "ts", "dur", "pid", "tid", "args"} <= set(e) and e["dur"] >= 0 for e in complete)
    for queue in (0, 1):
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in complete if e["tid"] == queue)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(own)), "one at a time"
    counters = [e for e in events if e["ph"] == "C"]
    assert [e["args"]["bytes"] for e in counters] == [0, 1 << 20, 0]


def test_a_sweep_has_a_bar_for_each_setting_and_says_what_it_buys():
    rows = swept(CHIP, TRACE, swept_settings(CHIP, "launch_us=2,6,400"))
    assert rows[0]["total_us"] == rows[1]["total_us"], "hidden behind the upload and long kernels"
    assert rows[2]["total_us"] > 2 * rows[1]["total_us"] and rows[2]["launch_exposed_us"] > 300
    assert rows[1]["total_us"] == summary(CHIP, replay(CHIP, TRACE))["total_us"], "the chip's own number"
    page = Page(sweep_page(CHIP, rows))
    chart, svg = page.charts["predicted time by setting"]
    assert len(chart.findall("s:rect", svg)) == 3 * len(rows)
    assert [row[0] for row in page.rows[1:]] == ["launch_us=2", "launch_us=6", "launch_us=400"]
    faster = swept(CHIP, TRACE, swept_settings(CHIP, "peak_gflops.f32=1300,13000"))
    assert faster[0]["total_us"] > 3 * faster[1]["total_us"]
