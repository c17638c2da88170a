"""`python -m lazy_backend.porting.samples PATTERN`: PyTorch's samples of matching units on the device; prints JSON."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from lazy_backend.conformance.results import GOOD, ResultFile
from lazy_backend.conformance.runner import run
from lazy_backend.conformance.worker import Settings, all_units

SAMPLES = 2  # of each unit, spread over its list
CASE_SECONDS = 180.0  # longer is a hang, also on a simulator on a busy machine


def main(pattern: str) -> None:
    """Print units, good cases, cases on the host, and what failed."""
    names = [unit.name for unit in all_units() if re.match(pattern, unit.name)]
    settings = Settings("lazy", SAMPLES, frozenset({"forward"}), None)
    with tempfile.TemporaryDirectory() as folder:
        done = run(names, settings, ResultFile(Path(folder) / "results.jsonl"), timeout=CASE_SECONDS)
    found = {
        "units": len(done),
        "good": sum(result.total(GOOD) for result in done.values()),
        "host": sum(sum(result.on_host.values()) for result in done.values()),
        "bad": [f"{unit}: {f['message'].splitlines()[:1]}" for unit, result in done.items() for f in result.failures],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
