"""What a chip says about itself: `lazy_properties` with defaults filled in and contradictions refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

LANGUAGES = ("opencl", "c", "cuda")

# What a zero ("unknown") means. A callable reads the fields filled before it. The defaults are cautious:
# a chip that says nothing runs, a chip that says more runs faster.
DEFAULTS: dict[str, Any] = {
    "compute_units": 1,
    "max_work_group_size": lambda c: 1 if c.language == "c" else 256,
    "max_local_size": lambda c: (c.max_work_group_size,) * 3,
    "vector_bytes": lambda c: 16 if c.is_cpu else 4,
    "global_memory_bytes": 1 << 30,
    "max_alloc_bytes": lambda c: c.global_memory_bytes,
    "cache_bytes": 1 << 20,
    "mem_alignment": 64,
    "max_kernel_args": 64,
    "max_arg_bytes": lambda c: 8 * c.max_kernel_args,
    # AVX-512 and SVE-512 have 32 vector registers, AVX2 and SSE 16.
    "max_private_bytes": lambda c: (32 if c.vector_bytes >= 64 else 16) * c.vector_bytes if c.is_cpu else 1020,
    "launch_us": 5.0,
    "bandwidth_gbs": lambda c: min(20.0 * c.compute_units, 200.0) if c.is_cpu else 200.0,
    "peak_gflops_f32": lambda c: c.compute_units * c.vector_bytes / 4 * 2 * (2.0 if c.is_cpu else 64.0),
}


class BadCapabilities(ValueError):
    """A capability contradicts another or the contract; the text says which and why."""


@dataclass(frozen=True)
class Capabilities:
    """The fields of `lazy_properties` (see `lazy_driver.h` for their meaning and units)."""

    level: int = 2
    name: str = ""
    vendor: str = ""
    driver_version: str = ""
    language: str = ""
    is_cpu: bool = False
    compute_units: int = 0
    max_work_group_size: int = 0
    max_local_size: tuple[int, int, int] = (0, 0, 0)
    subgroup_size: int = 0
    vector_bytes: int = 0
    local_memory_bytes: int = 0
    global_memory_bytes: int = 0
    max_alloc_bytes: int = 0
    cache_bytes: int = 0
    mem_alignment: int = 0
    max_kernel_args: int = 0
    max_arg_bytes: int = 0
    max_private_bytes: int = 0
    host_visible: bool = False
    has_f16: bool = False
    has_bf16: bool = False
    has_f64: bool = False
    has_i64_atomics: bool = False
    has_f32_atomics: bool = False
    launch_us: float = 0.0
    bandwidth_gbs: float = 0.0
    peak_gflops_f32: float = 0.0
    address_args: bool = False

    def complete(self) -> Capabilities:
        """Self with every unknown replaced by its default. Raises `BadCapabilities` on a contradiction."""
        filled = self
        for name, default in DEFAULTS.items():
            value = getattr(filled, name)
            if value == 0 or value == (0, 0, 0):
                filled = replace(filled, **{name: default(filled) if callable(default) else default})
        for holds, reason in RULES:
            if not holds(filled):
                known = {field.name: getattr(filled, field.name) for field in fields(filled)}
                raise BadCapabilities(f"{filled.name or 'the device'}: {reason.format(**known)}")
        return filled


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


# What must hold once defaults are in, and what is wrong if it does not.
RULES: tuple[tuple[Callable[[Capabilities], bool], str], ...] = (
    (lambda c: c.level in (1, 2, 3), "level is {level}; it must be 1 (core ops), 2 (kernels) or 3 (tuned)"),
    (lambda c: c.level > 1 or not c.language, "level 1 compiles no kernels, yet language is {language!r}"),
    (lambda c: c.level == 1 or c.language in LANGUAGES, f"language is {{language!r}}; it must be one of {LANGUAGES}"),
    (
        lambda c: c.max_alloc_bytes <= c.global_memory_bytes,
        "max_alloc_bytes {max_alloc_bytes} is more than global_memory_bytes {global_memory_bytes}",
    ),
    (
        lambda c: c.local_memory_bytes <= c.global_memory_bytes,
        "local_memory_bytes {local_memory_bytes} is more than global_memory_bytes {global_memory_bytes}",
    ),
    (lambda c: _power_of_two(c.mem_alignment), "mem_alignment {mem_alignment} is not a power of two"),
    (lambda c: _power_of_two(c.vector_bytes), "vector_bytes {vector_bytes} is not a power of two"),
    (
        lambda c: c.subgroup_size <= c.max_work_group_size,
        "subgroup_size {subgroup_size} is more than max_work_group_size {max_work_group_size}",
    ),
    (
        lambda c: c.max_arg_bytes >= 8 * min(c.max_kernel_args, 8),
        "max_arg_bytes {max_arg_bytes} does not hold 8 pointers",
    ),
    (lambda c: c.max_kernel_args >= 8, "max_kernel_args {max_kernel_args}: kernels need at least 8"),
    (
        lambda c: all(math.isfinite(x) and x > 0 for x in (c.launch_us, c.bandwidth_gbs, c.peak_gflops_f32)),
        "launch_us {launch_us}, bandwidth_gbs {bandwidth_gbs} and peak_gflops_f32 {peak_gflops_f32} "
        "must be positive numbers",
    ),
)
