"""Runs PyTorch on the driver under test, in a process of its own: the driver is chosen before torch's device opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from lazy_backend.porting.bench import CheckFailed


def python(driver: str, *arguments: str, seconds: float) -> str:
    """Standard output of `python ARGUMENTS` with LAZY_DRIVER set. Raises `CheckFailed` with its last words."""
    env = {**os.environ, "LAZY_DRIVER": driver}
    try:
        done = subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"no answer within {seconds:.0f} s") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise CheckFailed(f"exit code {done.returncode}: {words[-1] if words else 'no words'}")
    return done.stdout


def result(driver: str, module: str, *arguments: str, seconds: float) -> dict[str, Any]:
    """The JSON that `python -m MODULE` prints as its last line."""
    return json.loads(python(driver, "-m", module, *arguments, seconds=seconds).splitlines()[-1])
