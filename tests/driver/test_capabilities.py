"""Capabilities: unknowns get cautious defaults, contradictions are refused with their reason."""

import dataclasses

import pytest

from lazy_backend.driver import abi
from lazy_backend.driver.capabilities import BadCapabilities, Capabilities


def test_a_chip_that_says_nothing_but_its_language_runs():
    caps = Capabilities(language="opencl").complete()
    unknown = {"subgroup_size", "local_memory_bytes"}  # zero is an answer for these
    numbers = [f.name for f in dataclasses.fields(caps) if f.type in ("int", "float") and f.name not in unknown]
    assert all(getattr(caps, name) > 0 for name in numbers)


def test_what_the_chip_says_is_kept():
    caps = Capabilities(language="c", is_cpu=True, compute_units=7, vector_bytes=64, launch_us=0.5).complete()
    assert (caps.compute_units, caps.vector_bytes, caps.launch_us) == (7, 64, 0.5)


@pytest.mark.parametrize(
    "said, reason",
    [
        ({"level": 4, "language": "c"}, "level is 4"),
        ({"level": 1, "language": "c"}, "compiles no kernels"),
        ({"level": 2}, "language is ''"),
        ({"language": "fortran"}, "'fortran'"),
        ({"language": "c", "global_memory_bytes": 100, "max_alloc_bytes": 200}, "max_alloc_bytes 200 is more"),
        ({"language": "c", "global_memory_bytes": 100, "local_memory_bytes": 200}, "local_memory_bytes 200 is more"),
        ({"language": "c", "mem_alignment": 48}, "mem_alignment 48 is not a power of two"),
        ({"language": "c", "vector_bytes": 20}, "vector_bytes 20 is not a power of two"),
        ({"language": "c", "max_work_group_size": 16, "subgroup_size": 32}, "subgroup_size 32 is more"),
        ({"language": "c", "max_kernel_args": 4}, "need at least 8"),
        ({"language": "c", "max_arg_bytes": 16}, "does not hold 8 pointers"),
        ({"language": "c", "bandwidth_gbs": float("nan")}, "must be positive"),
        ({"language": "c", "launch_us": -1.0}, "must be positive"),
    ],
)
def test_contradictions_are_refused_with_the_reason(said, reason):
    with pytest.raises(BadCapabilities, match=reason):
        Capabilities(name="chip", **said).complete()


def test_properties_cross_the_c_struct_unchanged():
    caps = Capabilities(
        level=3, name="chip", vendor="v", language="opencl", is_cpu=True, max_local_size=(4, 5, 6),
        global_memory_bytes=1 << 40, has_f16=True, launch_us=2.5,
    )  # fmt: skip
    assert abi.unpack(abi.Properties.from_buffer_copy(bytes(abi.pack(caps)))) == caps


def test_a_name_too_long_for_the_struct_is_cut():
    assert abi.unpack(abi.pack(Capabilities(name="x" * 500))).name == "x" * 127
