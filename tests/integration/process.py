"""Programs in an interpreter of their own."""

import os
import subprocess
import sys


def run_python(program: str, environment: dict[str, str]) -> str:
    """The program's output, from a fresh interpreter; raises where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
