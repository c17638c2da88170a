"""Drivers are found by name, by path, and their versions are checked."""

import ctypes as ct
import subprocess
import sys

import pytest
from port_hostc import SOURCE, driver

from lazy_backend.driver import abi, cc, discovery, errors


def test_the_drivers_of_the_tree_are_announced():
    assert {"opencl", "simgpu", "simnpu", "hostc"} <= set(discovery.names())
    assert discovery.names()[0] == discovery.DEFAULT


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(errors.Unsupported, match="no driver is called 'nothing'; announced: opencl"):
        discovery.load("nothing")


def test_a_driver_is_loaded_by_its_librarys_path(monkeypatch):
    monkeypatch.setenv("LAZY_DRIVER", str(driver()))
    loaded = discovery.select()
    assert loaded.open().open(0).properties().vendor == "hostc"


def test_an_entry_point_that_gives_no_driver_is_refused_with_what_it_gave():
    with pytest.raises(errors.Unsupported, match="the entry point chip gave None: it must return a Driver"):
        discovery.from_factory("chip", lambda: None)


def test_a_library_that_is_no_driver(tmp_path):
    with pytest.raises(errors.Unsupported, match="does not load"):
        discovery.load(str(tmp_path / "none.so"))
    with pytest.raises(errors.Unsupported, match="exports no lazy_driver_get"):
        discovery.load(str(cc.shared_library("int x;")))


def built(**changes: str) -> str:
    """hostc, built against a header with other version numbers."""
    header = (cc.INCLUDE / "lazy_driver.h").read_text()
    for old, new in changes.items():
        name = f"#define LAZY_DRIVER_{old} "
        line = next(line for line in header.splitlines() if line.startswith(name))
        header = header.replace(line, f"{name}{new}")
    source = SOURCE.read_text().replace('#include "lazy_driver.h"', header)
    return str(cc.shared_library(source, "-O1"))


def test_a_driver_built_for_a_newer_minor_version_loads():
    assert discovery.load(built(MINOR="7u")).open().open(0).properties().level == 2


def test_a_driver_built_for_an_older_minor_version_loads(monkeypatch):
    class Grown(ct.Structure):  # what a later host's table would be: the same, and one entry more
        _fields_ = [*abi.DriverApi._fields_, ("later", ct.c_void_p)]

    monkeypatch.setattr("lazy_backend.driver.native.abi.DriverApi", Grown)
    opened = discovery.load(str(driver())).open()
    assert opened.api.later is None and opened.open(0).properties().level == 2


def test_a_driver_of_a_newer_major_version_is_refused_with_the_reason():
    with pytest.raises(errors.Unsupported, match="does not serve driver contract"):
        discovery.load(built(MAJOR="2u"))


def test_the_compiler_says_why_a_driver_does_not_build():
    with pytest.raises(errors.BuildFailed, match="expected"):
        cc.shared_library("int f( {")


def test_a_driver_that_was_missing_is_found_at_the_second_attempt():
    """what does not depend on it, the op tables, was told the recorder at the first"""
    code = """
import os, torch
for name in ("nothing", "hostc"):
    os.environ["LAZY_DRIVER"] = name
    try:
        print(torch.arange(5.0, device="lazy").std().item())
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "no driver is called 'nothing'" in first and float(second) == pytest.approx(2.5**0.5)
