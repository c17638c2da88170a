"""A plug-in is built once: it loads in hosts of its major version, older and newer, and is refused by others in words.

The hosts here are two builds of csrc/driver.cpp, against today's header and against what a later one would be.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from port_hostc import SOURCE

from lazy_backend.driver import abi, cc

CSRC = Path(__file__).parents[2] / "lazy_backend" / "csrc"
TODAY = (cc.INCLUDE / "lazy_driver.h").read_text()


def header(major=abi.MAJOR, minor=abi.MINOR, grown=False):
    """lazy_driver.h of another version; grown: with one entry and one property more at the end."""
    text = TODAY
    for name, number in (("MAJOR", major), ("MINOR", minor)):
        old = next(line for line in text.splitlines() if line.startswith(f"#define LAZY_DRIVER_{name} "))
        text = text.replace(old, f"#define LAZY_DRIVER_{name} {number}u")
    if grown:
        text = text.replace("} lazy_properties;", "  uint32_t later;\n} lazy_properties;")
        text = text.replace("} lazy_driver_api;", "  lazy_status (*later)(lazy_device device);\n} lazy_driver_api;")
        text = text.replace("#define LAZY_DRIVER_H\n", "#define LAZY_DRIVER_H\n#define LAZY_HAS_LATER\n")
    return text


HEADERS = {
    "today": header(),
    "later minor": header(minor=abi.MINOR + 1, grown=True),
    "next major": header(major=abi.MAJOR + 1),
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """A host program for each header."""
    built = {}
    for name, text in HEADERS.items():
        root = tmp_path_factory.mktemp("host")
        (root / "driver").mkdir()
        (root / "csrc").mkdir()
        (root / "driver" / "lazy_driver.h").write_text(text)
        for file in ("driver.h", "driver.cpp"):
            shutil.copy(CSRC / file, root / "csrc")
        sources = [Path(__file__).with_name("host_program.cpp"), root / "csrc" / "driver.cpp"]
        command = ["g++", "-std=c++20", "-O0", "-I", root, *sources, "-o", root / "host", "-ldl"]
        subprocess.run(list(map(str, command)), check=True)
        built[name] = root / "host"
    return built


@pytest.fixture(scope="module")
def plug_ins():
    """The worked port's source, built once against each header."""
    source = SOURCE.read_text()
    return {
        name: cc.shared_library(source.replace('#include "lazy_driver.h"', text), "-O1")
        for name, text in HEADERS.items()
    }


def run(host, plug_in):
    return subprocess.run([host, plug_in], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("plug_in", ["today", "later minor"])
@pytest.mark.parametrize("host", ["today", "later minor"])
def test_one_build_of_a_plug_in_serves_hosts_of_both_minor_versions(hosts, plug_ins, host, plug_in):
    said = run(hosts[host], plug_ins[plug_in])
    minor = abi.MINOR + (host == "later minor")
    assert said == f"host {abi.MAJOR}.{minor}: level 2, bytes agree, later entries absent"


@pytest.mark.parametrize("host, plug_in", [("today", "next major"), ("next major", "today")])
def test_another_major_version_is_refused_with_a_text_that_names_it(hosts, plug_ins, host, plug_in):
    said = run(hosts[host], plug_ins[plug_in])
    served = abi.MAJOR + (host == "next major")
    assert said == f"refused: the driver does not serve contract version {served}.{abi.MINOR}"


def test_a_table_of_another_major_version_that_answers_all_the_same_is_refused(hosts):
    careless = TODAY.replace("#define LAZY_DRIVER_MAJOR 1u", "#define LAZY_DRIVER_MAJOR 2u")
    source = SOURCE.read_text().replace('#include "lazy_driver.h"', careless)
    source = source.replace("return host_major == LAZY_DRIVER_MAJOR ? &api : NULL;", "(void)host_major; return &api;")
    said = run(hosts["today"], cc.shared_library(source, "-O1"))
    assert said == "refused: the driver was built for contract version 2, this host serves version 1"
