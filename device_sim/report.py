"""What the virtual clock saw: numbers as JSON, a timeline for Perfetto, and one HTML page with charts."""

from __future__ import annotations

import html
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .chip import Chip
from .clock import Clock, Span
from .device import SimDevice

_WIDTH, _HEIGHT, _MARGIN = 900, 260, 46
_COLOURS = {"compute": "#1565c0", "memory": "#2e7d32", "link": "#ef6c00", "latency": "#c62828"}


def summary(
    chip: Chip, clock: Clock, findings: Sequence[str] = (), places: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Predicted microseconds and where they go; JSON-able. places: what each kernel computes, and for which lines.

    utilisation: parts of the whole time in which compute units, memory and links were at their limit.
    """
    total = clock.now
    kernels = [s for s in clock.spans if s.step.kind == "kernel"]
    copies = [s for s in clock.spans if s.step.kind != "kernel"]
    busy = sum(s.end - s.start for s in kernels)
    latency = chip.launch_us * len(kernels)
    exposed = sum(s.exposed for s in kernels)
    flops = sum(sum(s.step.work.flops.values()) for s in kernels)
    moved = sum(s.step.work.bytes for s in kernels)
    return {
        "chip": chip.name,
        "total_us": total,
        "kernel_us": busy,
        "copy_us": sum(s.end - s.start for s in copies),
        "host_wait_us": clock.host_waited,
        "setup_us": clock.setup,
        "kernels": len(kernels),
        "copies": len(copies),
        "copied_bytes": sum(s.step.amount for s in copies),
        "launch_exposed_us": exposed,
        "launch_hidden_us": max(0.0, latency - exposed),
        "copy_overlapped_us": _overlap(kernels, copies),
        "gflops": flops / total / 1e3 if total else 0.0,
        "gbs": moved / total / 1e3 if total else 0.0,
        "utilisation": {
            "device": busy / total if total else 0.0,
            **{
                limit: sum(s.end - s.start for s in clock.spans if s.limit == limit) / total if total else 0.0
                for limit in ("compute", "memory", "link")
            },
        },
        "peak_memory_bytes": max(used for _, used in clock.memory),
        "by_kernel": _by_kernel(kernels, places or {}),
        "findings": list(findings),
    }


def _by_kernel(kernels: Sequence[Span], places: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a kernel, the costliest first."""
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in kernels:
        groups[span.step.name].append(span)
    rows = []
    for name, spans in groups.items():
        time = sum(s.end - s.start for s in spans)
        flops = sum(sum(s.step.work.flops.values()) for s in spans)
        moved = sum(s.step.work.bytes for s in spans)
        rows.append(
            {
                "kernel": name,
                "origin": places.get(name, ""),
                "launches": len(spans),
                "us": time,
                "flops": flops,
                "bytes": moved,
                "gflops": flops / time / 1e3 if time else 0.0,
                "gbs": moved / time / 1e3 if time else 0.0,
                "limit": max(spans, key=lambda s: s.end - s.start).limit,
            }
        )
    return sorted(rows, key=lambda row: -row["us"])


def _overlap(kernels: Sequence[Span], copies: Sequence[Span]) -> float:
    """Copy time during which some kernel ran."""
    total, i = 0.0, 0
    ordered = sorted(kernels, key=lambda s: s.start)
    for copy in sorted(copies, key=lambda s: s.start):
        while i < len(ordered) and ordered[i].end <= copy.start:
            i += 1
        j = i
        while j < len(ordered) and ordered[j].start < copy.end:
            total += max(0.0, min(copy.end, ordered[j].end) - max(copy.start, ordered[j].start))
            j += 1
    return total


def perfetto(clocks: Sequence[Clock]) -> dict[str, Any]:
    """The timeline in Chrome's trace format, which Perfetto opens. One process a device, one track a queue."""
    events: list[dict[str, Any]] = []
    for device, clock in enumerate(clocks):
        events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": f"lazy:{device}"}})
        for span in clock.spans:
            args = {"limit": span.limit, "bytes": span.step.work.bytes or span.step.amount, **span.step.work.flops}
            events.append(
                {
                    "ph": "X",
                    "pid": device,
                    "tid": span.step.queue,
                    "name": span.step.name or span.step.kind,
                    "cat": span.step.kind,
                    "ts": span.start,
                    "dur": span.end - span.start,
                    "args": args,
                }
            )
        events += [
            {"ph": "C", "pid": device, "name": "memory", "ts": at, "args": {"bytes": used}} for at, used in clock.memory
        ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _head(title: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>'
        f"body{{font:15px system-ui;margin:2em;max-width:{_WIDTH}px}}td,th{{padding:2px 12px;text-align:left}}"
        f"</style></head><body>"
    )


def _svg(body: str, label: str, height: int = _HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(label)}">'
        f"<title>{html.escape(label)}</title>{body}</svg>"
    )


def _box(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}" height="{height:.2f}" fill="{colour}">'
        f"<title>{html.escape(title)}</title></rect>"
    )


def timeline(clock: Clock) -> str:
    """SVG: one row a queue, commands coloured by what limits them."""
    scale = (_WIDTH - _MARGIN) / (clock.now or 1)
    boxes = []
    for span in clock.spans:
        title = f"{span.step.name or span.step.kind}: {span.end - span.start:.2f} us, limited by {span.limit}"
        row = 30 + 44 * span.step.queue
        boxes.append(
            _box(_MARGIN + span.start * scale, row, (span.end - span.start) * scale, 36, _COLOURS[span.limit], title)
        )
    axis = f'<text x="{_MARGIN}" y="18">0 to {clock.now:.0f} us</text>'
    rows = 1 + max((span.step.queue for span in clock.spans), default=0)
    return _svg(axis + "".join(boxes), "timeline", 40 + 44 * rows)


def memory_chart(clock: Clock) -> str:
    """SVG: bytes in use over time."""
    peak = max(used for _, used in clock.memory) or 1
    sx, sy = (_WIDTH - _MARGIN) / (clock.now or 1), (_HEIGHT - 60) / peak
    path = " ".join(f"H{_MARGIN + at * sx:.1f} V{_HEIGHT - 20 - used * sy:.1f}" for at, used in clock.memory)
    line = f'<path d="M{_MARGIN} {_HEIGHT - 20} {path} H{_WIDTH}" fill="none" stroke="#1565c0"/>'
    return _svg(f'<text x="{_MARGIN}" y="18">peak {peak / 2**20:.1f} MiB</text>{line}', "memory over time")


def roofline(chip: Chip, rows: Sequence[dict[str, Any]]) -> str:
    """SVG: operations per second against operations per byte, both logarithmic; kernels under the chip's roof."""
    low, high = -3.0, 4.0  # powers of ten of operations per byte
    peak = math.log10(chip.peak_gflops["f32"])
    bottom = peak - 6

    def x(intensity: float) -> float:
        return _MARGIN + (min(max(intensity, low), high) - low) / (high - low) * (_WIDTH - 2 * _MARGIN)

    def y(rate: float) -> float:
        return 20 + (peak + 0.3 - max(rate, bottom)) / (peak + 0.3 - bottom) * (_HEIGHT - 50)

    ridge = peak - math.log10(chip.bandwidth_gbs)
    slope = f"M{x(low):.1f} {y(low + math.log10(chip.bandwidth_gbs)):.1f} L{x(ridge):.1f} {y(peak):.1f} H{x(high):.1f}"
    points = [
        f'<circle cx="{x(math.log10(r["flops"] / r["bytes"])):.1f}" cy="{y(math.log10(r["gflops"])):.1f}" r="5" '
        f'fill="{_COLOURS[r["limit"]]}"><title>{html.escape(r["kernel"])}: {r["gflops"]:.2f} Gop/s</title></circle>'
        for r in rows
        if r["flops"] and r["bytes"] and r["gflops"]
    ]
    text = f'<text x="{_MARGIN}" y="{_HEIGHT - 6}">operations a byte, 10^{low:.0f} to 10^{high:.0f}</text>'
    return _svg(f'<path d="{slope}" fill="none" stroke="#555"/>{"".join(points)}{text}', "roofline")


def page(chip: Chip, clock: Clock, found: dict[str, Any]) -> str:
    """The HTML report of one device."""
    numbers = "".join(
        f"<tr><td>{key}</td><td>{value:,.1f}</td></tr>"
        if isinstance(value, float)
        else f"<tr><td>{key}</td><td>{value:,}</td></tr>"
        for key, value in found.items()
        if isinstance(value, (int, float))
    )
    parts = ", ".join(f"{key} {value:.1%}" for key, value in found["utilisation"].items())
    kernels = "".join(
        f"<tr><td>{html.escape(r['kernel'])}</td><td>{html.escape(r['origin'])}</td><td>{r['launches']}</td>"
        f"<td>{r['us']:,.1f}</td><td>{r['gflops']:,.1f}</td><td>{r['gbs']:,.1f}</td><td>{r['limit']}</td></tr>"
        for r in found["by_kernel"]
    )
    findings = "".join(f"<li>{html.escape(text)}</li>" for text in found["findings"]) or "<li>none</li>"
    columns = "".join(f"<th>{name}</th>" for name in ("kernel", "computes", "launches", "us", "Gop/s", "GB/s", "limit"))
    return (
        f"{_head(chip.name)}<h1>{html.escape(chip.name)}: {found['total_us']:,.0f} us predicted</h1>"
        f"<p>Utilisation: {parts}</p>"
        f"<h2>Timeline</h2>{timeline(clock)}<h2>Roofline</h2>{roofline(chip, found['by_kernel'])}"
        f"<h2>Memory</h2>{memory_chart(clock)}<h2>Findings</h2><ul>{findings}</ul>"
        f"<h2>Numbers</h2><table>{numbers}</table><h2>Kernels</h2><table><tr>{columns}</tr>{kernels}</table></body></html>"
    )


def sweep_page(chip: Chip, rows: Sequence[dict[str, Any]]) -> str:
    """HTML: a bar for each setting, of kernels, exposed launches and the rest. rows: summaries with their "setting"."""
    longest = max(row["total_us"] for row in rows) or 1.0
    left, height = 170, 26
    bars = []
    for i, row in enumerate(rows):
        top, at = 30 + i * (height + 6), float(left)
        shares = {"kernels": row["kernel_us"], "exposed launches": row["launch_exposed_us"]}
        shares["the rest"] = max(0.0, row["total_us"] - sum(shares.values()))
        for (what, us), colour in zip(shares.items(), _COLOURS.values(), strict=False):
            width = us / longest * (_WIDTH - left - 90)
            bars.append(_box(at, top, width, height, colour, f"{row['setting']}: {what} {us:,.0f} us"))
            at += width
        bars.append(f'<text x="0" y="{top + 18}">{html.escape(row["setting"])}</text>')
        bars.append(f'<text x="{at + 6:.1f}" y="{top + 18}">{row["total_us"]:,.0f} us</text>')
    chart = _svg("".join(bars), "predicted time by setting", 40 + len(rows) * (height + 6))
    keys = ", ".join(
        f'<span style="color:{colour}">{what}</span>'
        for what, colour in zip(("kernels", "exposed launches", "the rest"), _COLOURS.values(), strict=False)
    )
    numbers = (
        "kernels",
        "total_us",
        "kernel_us",
        "launch_exposed_us",
        "launch_hidden_us",
        "copy_us",
        "peak_memory_bytes",
    )
    head = "".join(f"<th>{name}</th>" for name in ("setting", *numbers))
    body = "".join(
        f"<tr><td>{html.escape(row['setting'])}</td>" + "".join(f"<td>{row[n]:,.0f}</td>" for n in numbers) + "</tr>"
        for row in rows
    )
    return (
        f"{_head(f'{chip.name}: what if')}<h1>{html.escape(chip.name)}: what if</h1>{chart}<p>{keys}</p>"
        f"<table><tr>{head}</tr>{body}</table></body></html>"
    )


def write(devices: Sequence[SimDevice], folder: Path) -> None:
    """Write report.json (a list, one entry a device), timeline.json (Perfetto), trace.json and device_N.html."""
    folder.mkdir(parents=True, exist_ok=True)
    used = [d for d in devices if d.trace]
    found = [summary(d.chip, d.clock, d.findings, d.places) for d in used]
    (folder / "report.json").write_text(json.dumps(found, indent=1))
    (folder / "timeline.json").write_text(json.dumps(perfetto([d.clock for d in used])))
    (folder / "trace.json").write_text(json.dumps([[_plain(step) for step in d.trace] for d in used]))
    for i, device in enumerate(used):
        (folder / f"device_{i}.html").write_text(page(device.chip, device.clock, found[i]))


def _plain(step: Any) -> dict[str, Any]:
    return {**vars(step), "work": vars(step.work)}
