"""Runs the checks of one stage in a process of its own: `python -m lazy_backend.porting.worker DRIVER STAGE [SKIP]`.

Prints a JSON line before each check and one after, so that whoever listens knows which check a crash or a hang was.
SKIP: how many checks to leave out at the beginning.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

from lazy_backend.driver.capabilities import BadCapabilities
from lazy_backend.driver.errors import DriverError, Unsupported
from lazy_backend.porting.bench import Bench, CheckFailed, NotOffered
from lazy_backend.porting.stages import STAGES, Check, checks_of


def run_check(bench: Bench, check: Check) -> dict[str, Any]:
    """status ("pass", "fail" or "missing"), text and seconds of one check."""
    began = time.monotonic()
    failure: Exception | None = None
    try:
        status, text = "pass", check.run(bench) or ""
    except (NotOffered, Unsupported) as error:
        status, text, failure = "missing", str(error), error
    except CheckFailed as error:
        status, text, failure = "fail", str(error), error
    except Exception as error:
        status, text, failure = "fail", f"{type(error).__name__}: {error}", error
    bench.clean_up()
    del failure  # it kept the check's frames, hence the host memory that copies of a late queue still named
    return {"status": status, "text": text, "seconds": round(time.monotonic() - began, 3)}


def main(driver: str, stage: str, skip: str = "0") -> None:
    """Run and report; returns when all checks have been run."""

    def tell(**message: Any) -> None:
        print("@" + json.dumps(message), flush=True)

    checks = checks_of(STAGES[int(stage)])
    tell(names=[[c.name, c.title, c.seconds] for c in checks])
    bench = Bench(driver)
    for check in checks[int(skip) :]:
        tell(begin=check.name)
        tell(end=check.name, **run_check(bench, check))
    with contextlib.suppress(DriverError, BadCapabilities):
        tell(facts={"device": bench.caps.name, "level": bench.caps.level})


if __name__ == "__main__":
    main(*sys.argv[1:])
