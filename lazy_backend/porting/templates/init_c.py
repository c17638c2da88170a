"""Announces __NAME__: driver.c is compiled once, against lazy_driver.h alone."""

from pathlib import Path

from lazy_backend.driver.cc import shared_library


def driver():
    """Entry point: the path of the driver's shared library."""
    return shared_library(Path(__file__).with_name("driver.c").read_text(), "-O2")
