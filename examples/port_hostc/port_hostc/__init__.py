"""Announces hostc: `hostc.c` is compiled once, against lazy_driver.h alone."""

from pathlib import Path

from lazy_backend.driver.cc import shared_library

SOURCE = Path(__file__).with_name("hostc.c")


def driver() -> Path:
    """Entry point of the group `lazy_backend.drivers`: the path of the driver's shared library."""
    return shared_library(SOURCE.read_text(), "-O2", "-Wall", "-Wextra", "-Werror")
