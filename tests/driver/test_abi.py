"""The ctypes mirror is lazy_driver.h: same structs, same entries, same order."""

import ctypes as ct
import re
from pathlib import Path

import pytest

from lazy_backend.driver import abi, cc

HEADER = (cc.INCLUDE / "lazy_driver.h").read_text()


def test_entries_are_those_of_the_header_in_order():
    table = HEADER[HEADER.index("typedef struct lazy_driver_api") :]
    assert re.findall(r"\(\*(\w+)\)\(", table[: table.index("} lazy_driver_api")]) == list(abi.ENTRIES)


@pytest.mark.parametrize("name, minimum", [("MAJOR", 1), ("MINOR", 0)])
def test_version_is_the_headers(name, minimum):
    assert int(re.search(rf"LAZY_DRIVER_{name} (\d+)u", HEADER)[1]) == getattr(abi, name) >= minimum


@pytest.mark.parametrize(
    "c_name, mirror",
    [
        ("lazy_properties", abi.Properties),
        ("lazy_arg", abi.Arg),
        ("lazy_tensor", abi.Tensor),
        ("lazy_driver_api", abi.DriverApi),
    ],
)
def test_structs_have_the_compilers_layout(c_name, mirror):
    offsets = "\n".join(f"  n[{i}] = offsetof({c_name}, {f[0]});" for i, f in enumerate(mirror._fields_))
    source = f"""
        #include <stddef.h>
        #include "lazy_driver.h"
        uint64_t layout(uint64_t *n) {{ {offsets} return sizeof({c_name}); }}"""
    layout = ct.CDLL(str(cc.shared_library(source))).layout
    found = (ct.c_uint64 * len(mirror._fields_))()
    assert layout(found) == ct.sizeof(mirror)
    assert list(found) == [getattr(mirror, f[0]).offset for f in mirror._fields_]


def test_header_is_plain_c_without_torch_or_python():
    assert re.findall(r"#include <(.*)>", HEADER) == ["stdint.h"]
    assert not re.search(r"torch/|Python\.h", HEADER)
    cc.shared_library('#include "lazy_driver.h"\n', "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")


def test_header_lies_where_the_package_says():
    assert Path(cc.INCLUDE, "lazy_driver.h").exists()
