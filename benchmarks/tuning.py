"""What timing schedules gains over the heuristic: each product by itself, its schedules in turns on the device.

    python -m benchmarks.tuning [repeats [squares skinny batched long]]

A row a product: the heuristic's schedule and its time, the fastest one and how many times faster it is in the median of
all repeats, and what each repeat by itself would choose ("-": the heuristic's; "?": too busy to tell).
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from codegen.anchors import Factor, Product
from lazy_backend.driver import discovery
from lazy_backend.porting import schedules
from lazy_backend.porting.bench import Bench

LAYOUTS = {"n": 1, "t": 0}
SQUARES = [(layout, 1, n, n, n) for n in (256, 512, 1000, 1024, 2048) for layout in ("nn", "nt", "tn")]
SKINNY = [(layout, 1, m, n, n) for m, n in ((1, 4096), (4, 4096), (8, 4096), (32, 1024), (64, 1024), (128, 768))
          for layout in ("nn", "nt")]  # fmt: skip
BATCHED = [("nt", 48, 128, 128, 64), ("nn", 48, 128, 64, 128), ("tn", 48, 128, 64, 128), ("nn", 256, 16, 16, 16),
           ("nn", 32, 8, 256, 64), ("nt", 32, 33, 33, 80)]  # fmt: skip
LONG = [("tn", 1, 64, 64, 65536), ("tn", 1, 256, 128, 4096), ("tn", 1, 768, 768, 8192), ("nn", 1, 96, 96, 20000),
        ("nt", 1, 64, 10, 512), ("nn", 1, 4096, 64, 64), ("tn", 1, 512, 2048, 256), ("tn", 1, 100, 300, 1000),
        ]  # fmt: skip
GROUPS = {"squares": SQUARES, "skinny": SKINNY, "batched": BATCHED, "long": LONG}


def product(layout: str, batch: int, m: int, n: int, k: int) -> Product:
    """Bare float32 factors; t: it lies transposed."""
    a, b = (Factor("f32", LAYOUTS[t], batch > 1, False) for t in layout)
    return Product(batch, m, n, k, a, b, "f32", False)


def brief(tile: Any) -> str:
    """A schedule in a few letters."""
    flags = ("p" if tile.pack else "") + ("e" if tile.evaluate else "") + (f"/{tile.splits}" if tile.splits > 1 else "")
    return f"{tile.schedule} {tile.rows}x{tile.vectors}{flags}"


def main(repeats: int, *names: str) -> None:
    """Print the table of these groups, or of all."""
    b = Bench(discovery.selected())
    print("| product (layout, batch, m, n, k) | heuristic | us | fastest | gain | chosen, gain |")
    print("| --- | --- | ---: | --- | ---: | --- |")
    for name in names or GROUPS:
        for case in GROUPS[name]:
            chosen: list[str] = []
            rows: list[tuple[dict[Any, float], float]] = []
            for _ in range(repeats):
                try:
                    times, own = schedules.measured(b, product(*case))
                except schedules.Busy:
                    chosen.append("?")
                    continue
                gains = {t: schedules.slowest(times[own]) / schedules.slowest(times[t]) for t in times}
                rows.append((gains, schedules.slowest(times[own]) * 1e6))
                best = schedules.choice(times, own)
                chosen.append(f"{brief(best)} {gains[best]:.2f}" if best != own else "-")
            if not rows:
                continue
            known = set.intersection(*(set(gains) for gains, _ in rows))
            fastest = max(known, key=lambda t: median(g[t] for g, _ in rows))
            gain = median(g[fastest] for g, _ in rows)
            us = median(t for _, t in rows)
            print(f"| {' '.join(map(str, case))} | {brief(own)} | {us:.0f} | {brief(fastest)} | {gain:.2f} "
                  f"| {', '.join(chosen)} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, *sys.argv[2:])
