"""The host's C compiler: builds a driver (or a simulated chip's kernel) from C source, once per text."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .errors import BuildFailed

INCLUDE = Path(__file__).parent  # where lazy_driver.h lies


def cache_folder() -> Path:
    """LAZY_CACHE_DIR, else the user's cache folder for this package."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lazy_backend"
    return Path(os.environ.get("LAZY_CACHE_DIR") or default)


def compiler() -> str:
    """CC, else cc, gcc or clang. Raises `BuildFailed` where there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise BuildFailed("no C compiler: set CC, or install gcc or clang")


def shared_library(source: str, *flags: str) -> Path:
    """The shared library of a C text, cached or freshly built. Raises `BuildFailed` with the compiler's words."""
    command = [compiler(), "-std=gnu11", "-shared", "-fPIC", *flags, f"-I{INCLUDE}"]
    header = (INCLUDE / "lazy_driver.h").read_text()
    digest = hashlib.sha256("\0".join([*command, header, source]).encode()).hexdigest()[:24]
    path = cache_folder() / "cc" / f"{digest}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        text, built = Path(folder) / "source.c", Path(folder) / "built.so"
        text.write_text(source)
        done = subprocess.run([*command, str(text), "-o", str(built), "-lm"], capture_output=True, text=True)
        if done.returncode:
            raise BuildFailed(done.stderr)
        built.replace(path)  # whole or not at all: another process may build the same text
    return path
