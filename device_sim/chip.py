"""Hardware descriptions: a TOML file says what a chip can do, and the virtual clock believes it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

CHIPS = Path(__file__).parent / "chips"
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8")


class BadChip(ValueError):
    """A description that cannot be; the text names the file's key and the reason."""


@dataclass(frozen=True)
class Chip:
    """One chip. Times in microseconds, rates in GB/s and Gop/s (10^9), sizes in MiB or KiB as named."""

    name: str
    kind: str  # "gpu", "npu" or "cpu"
    vendor: str = "simulated"
    devices: int = 1

    # compute
    compute_units: int = 1
    peak_gflops: dict[str, float] = field(default_factory=dict)  # by dtype; f32 is required
    special_gflops: float = 0.0  # division, square root, a builtin exp and the like; 0: a quarter of peak_gflops.f32
    issue_gops: float = 0.0  # operations of any kind, a fused multiply-add being one; 0: half of peak_gflops.f32
    compute_efficiency: float = 1.0  # the part of the peak that real kernels reach
    max_work_group_size: int = 256
    vector_bytes: int = 16

    # memory
    memory_mib: int = 1024
    bandwidth_gbs: float = 10.0
    bandwidth_efficiency: float = 1.0
    cache_kib: int = 0
    cache_gbs: float = 0.0  # bandwidth of what the cache holds of a kernel's data; 0: as memory
    scattered_gbs: float = 0.0  # bandwidth of accesses whose next one lies on another page; 0: as any other
    scratchpad_kib: int = 32  # work-group memory

    # link to the host
    h2d_gbs: float = 10.0
    d2h_gbs: float = 10.0
    copy_us: float = 5.0  # latency of one copy
    copy_engine: bool = True  # copies of one queue run beside kernels of another

    # commands
    submit_us: float = 1.0  # host time a command
    launch_us: float = 5.0  # from submission to the first instruction
    gap_us: float = 1.0  # between two kernels that are both waiting
    timeout_us: float = 1e6  # a kernel that runs longer is hung

    # host time of rarer calls
    alloc_us: float = 10.0
    build_us: float = 50_000.0
    load_us: float = 100.0

    @property
    def issue_rate(self) -> float:
        """Operations issued, in 10^9 a second. A peak counts a fused multiply-add as two."""
        return self.issue_gops or self.peak_gflops["f32"] / 2

    def rate(self, dtype: str) -> float:
        """Peak operations of a dtype, in 10^9 a second. A dtype that is not named computes as its wider kind."""
        if dtype == "special":
            return self.special_gflops or self.peak_gflops["f32"] / 4
        return self.peak_gflops.get(dtype) or self.peak_gflops["f32"] * (0.5 if dtype == "f64" else 1.0)


RULES: tuple[tuple[Callable[[Chip], bool], str], ...] = (
    (lambda c: c.kind in ("gpu", "npu", "cpu"), "kind must be gpu, npu or cpu"),
    (lambda c: c.devices >= 1, "devices must be at least 1"),
    (lambda c: c.compute_units >= 1, "compute_units must be at least 1"),
    (lambda c: c.peak_gflops.get("f32", 0) > 0, "peak_gflops.f32 is required and positive"),
    (lambda c: set(c.peak_gflops) <= set(DTYPES), f"peak_gflops may name {', '.join(DTYPES)}"),
    (lambda c: all(v > 0 for v in c.peak_gflops.values()), "every rate of peak_gflops must be positive"),
    (lambda c: 0 < c.compute_efficiency <= 1, "compute_efficiency is a part of 1"),
    (lambda c: 0 < c.bandwidth_efficiency <= 1, "bandwidth_efficiency is a part of 1"),
    (lambda c: c.memory_mib > 0, "memory_mib must be positive"),
    (lambda c: min(c.bandwidth_gbs, c.h2d_gbs, c.d2h_gbs) > 0, "bandwidths must be positive"),
    (lambda c: not c.cache_gbs or c.cache_gbs >= c.bandwidth_gbs, "cache_gbs is less than bandwidth_gbs"),
    (lambda c: min(c.special_gflops, c.issue_gops, c.scattered_gbs) >= 0, "rates are not negative"),
    (lambda c: c.scattered_gbs <= c.bandwidth_gbs, "scattered_gbs is more than bandwidth_gbs"),
    (lambda c: c.scratchpad_kib * 1024 <= c.memory_mib << 20, "scratchpad_kib is more than memory_mib"),
    (lambda c: c.gap_us <= c.launch_us, "gap_us, which hides launch_us, is more than launch_us"),
    (
        lambda c: min(c.copy_us, c.submit_us, c.launch_us, c.gap_us, c.alloc_us, c.build_us, c.load_us) >= 0,
        "times are not negative",
    ),
    (lambda c: c.timeout_us > 0, "timeout_us must be positive"),
)


def validate(chip: Chip) -> Chip:
    """Chip itself. Raises `BadChip` with the first rule that it breaks."""
    for holds, reason in RULES:
        if not holds(chip):
            raise BadChip(f"{chip.name}: {reason}")
    return chip


def names() -> list[str]:
    """The descriptions that come with the package."""
    return sorted(path.stem for path in CHIPS.glob("*.toml"))


def load(chip: str) -> Chip:
    """A description by name (of `names()`) or path. Raises `BadChip`."""
    path = Path(chip) if chip.endswith(".toml") else CHIPS / f"{chip}.toml"
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadChip(f"no chip {chip!r}; there are {', '.join(names())}, or give a .toml file") from None
    except tomllib.TOMLDecodeError as error:
        raise BadChip(f"{path}: {error}") from None
    for key, value in values.items():
        kind = _known(key)
        if type(value) not in _TYPES.get(kind, (dict,)):
            raise BadChip(f"{path}: {key}: {value!r} is no {kind}")
    rates = values.get("peak_gflops", {})
    if wrong := [dtype for dtype, rate in rates.items() if type(rate) not in _TYPES["float"]]:
        raise BadChip(f"{path}: peak_gflops.{wrong[0]}: {rates[wrong[0]]!r} is no float")
    if missing := {"name", "kind"} - set(values):
        raise BadChip(f"{path}: {' and '.join(sorted(missing))} must be given")
    return validate(Chip(**values))


_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
_PARSE: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "bool": lambda text: text.lower() in ("1", "true")}


def with_settings(chip: Chip, settings: Iterable[str]) -> Chip:
    """A chip with `key=value` changes, `peak_gflops.bf16=1000` among them. Raises `BadChip`."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise BadChip(f"{setting!r} is not key=value")
        base, _, dtype = key.partition(".")
        kind = _known(base)
        if bool(dtype) != (base == "peak_gflops"):
            raise BadChip(f"{key!r}: peak_gflops has a value for each dtype, the others have one")
        try:
            value = _PARSE.get(kind, float)(text)
        except ValueError:
            raise BadChip(f"{key}: {text!r} is no {kind}") from None
        change: dict[str, Any] = {base: {**chip.peak_gflops, dtype: value} if dtype else value}
        chip = replace(chip, **change)
    return validate(chip)


def _known(key: str) -> str:
    """The type of a key, as written in `Chip`."""
    types = {f.name: str(f.type) for f in fields(Chip)}
    if key not in types:
        close = difflib.get_close_matches(key, types, 1)
        raise BadChip(f"unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return types[key]
