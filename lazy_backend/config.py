"""Every environment variable of the project, in one table: read here only, documented from here."""

from __future__ import annotations

import os
from typing import NamedTuple


class Setting(NamedTuple):
    """One environment variable. `choices` empty: free text. Numbers are given as int defaults."""

    name: str
    default: str | int
    choices: tuple[str, ...]
    doc: str

    def get(self) -> str | int:
        """The value in force. Raises ValueError, naming the variable, for one that is not allowed."""
        text = os.environ.get(self.name)
        if not text:
            return self.default
        if isinstance(self.default, int):
            if not text.isdigit() or int(text) < 1:
                raise ValueError(f"{self.name}={text!r}: expected a whole number of at least 1")
            return int(text)
        if self.choices and text not in self.choices:
            raise ValueError(f"{self.name}={text!r}: expected one of {', '.join(self.choices)}")
        return text


DRIVER = Setting(
    "LAZY_DRIVER", "opencl", (), "driver to use: a name from `lazy_backend.drivers`, or a shared library's path"
)
OPENCL_PLATFORM = Setting("LAZY_OPENCL_PLATFORM", "", (), "part of the name of the OpenCL platform to prefer")
# 512: longer windows gain nothing on the suite (a training step of a small GPT is some 500 ops) and hold memory longer.
WINDOW = Setting("LAZY_WINDOW", 512, (), "most ops in a window; 1 is eager mode, one kernel per op")
COMPILE = Setting(
    "LAZY_COMPILE",
    "sync",
    ("sync", "async", "never"),
    "what a window without a plan does: wait, run op by op, or raise",
)
FALLBACK = Setting("LAZY_FALLBACK", "warn", ("warn", "error", "silent"), "what an op that must run on the CPU does")
TUNE = Setting(
    "LAZY_TUNE",
    "off",
    ("off", "on"),
    "on: schedules of products are timed in the background, the choice kept in the cache",
)
CACHE_DIR = Setting("LAZY_CACHE_DIR", "", (), "folder of the persistent kernel cache; default: the user's cache folder")
RECORD = Setting("LAZY_RECORD", "", (), "file to which the process writes all its plans and kernels when it ends")
ARCHIVE = Setting("LAZY_ARCHIVE", "", (), "such a file to take plans and kernels from instead of compiling")
PROFILE = Setting(
    "LAZY_PROFILE", "", (), "folder to which `python -m lazy_backend profile` has a process write its kernels' times"
)
LOG = Setting(
    "LAZY_LOG", "", (), "what is logged: compile, +cache (more), -lowering (errors only), all; see lazy_backend/logs.py"
)
CHECK = Setting(
    "LAZY_CHECK", "", ("memory",), "memory: no caching of device memory, so that a simulator sees each buffer's bounds"
)

# Read by the drivers themselves, which do not import this package's tables.
OPENCL_MEMORY = Setting(
    "LAZY_OPENCL_MEMORY",
    "",
    ("coarse", "addresses", "buffers"),
    "what memory is, where not the best that there is: shared with a host that does not see it, buffers of which "
    "kernels get the addresses, buffers",
)
OPENCL_AS = Setting(
    "LAZY_OPENCL_AS", "", ("gpu",), "gpu: a CPU says of itself what a GPU would, to try schedules for GPUs"
)
SIM_CHIP = Setting("LAZY_SIM_CHIP", "", (), "hardware description (TOML) of the simulated chip")
SIM_SET = Setting("LAZY_SIM_SET", "", (), "overrides of that description: launch_us=20,...")
SIM_FAULTS = Setting("LAZY_SIM_FAULTS", "", (), "fault plan (TOML) of the simulated chip")
SIM_REPORT = Setting("LAZY_SIM_REPORT", "", (), "where the simulated chip writes its report")

TABLE = (
    DRIVER, OPENCL_PLATFORM, WINDOW, COMPILE, FALLBACK, TUNE, CACHE_DIR, RECORD, ARCHIVE, PROFILE, LOG, CHECK,
    OPENCL_MEMORY, OPENCL_AS, SIM_CHIP, SIM_SET, SIM_FAULTS, SIM_REPORT,
)  # fmt: skip


def markdown() -> str:
    """The table of all variables, as docs/environment.md shows it."""
    rows = [(f"`{s.name}`", " or ".join(s.choices) or "any", str(s.default) or "(none)", s.doc) for s in TABLE]
    lines = ["| variable | values | default | what it does |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
