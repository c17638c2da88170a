"""What the conformance runs have shown of each overload; committed with the code, renewed by ``coverage --update``."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lazy_backend.conformance.results import GOOD, UnitResult

PATH = Path(__file__).with_name("evidence.json")
UNITS_KEPT = 3


@dataclass
class Evidence:
    """What ran one overload.

    Attributes:
        verified: dtype -> variant -> number of passing cases that ran it.
        host: dtype -> number of times it fell back to the CPU.
        blamed: status -> number of failing cases that it is to blame for.
        units: a few of the units that ran it.
        failure: one message, where there is one.
    """

    verified: dict[str, dict[str, int]] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)
    blamed: dict[str, int] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass
class Archive:
    """The evidence by overload, where it comes from, and the runs' pass rates."""

    overloads: dict[str, Evidence] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    causes: list[dict[str, Any]] = field(default_factory=list)


def gather(results: dict[str, UnitResult]) -> Archive:
    """Sum up conformance results by overload."""
    from lazy_backend.conformance.command import causes, rates

    archive = Archive(settings=sorted({result.settings for result in results.values()}))
    archive.rates, archive.causes = rates(results), causes(results)
    for result in results.values():
        dtype = result.unit.split(":")[1]
        for name, variants in result.verified.items():
            evidence = archive.overloads.setdefault(name, Evidence())
            evidence.verified[dtype] = dict(Counter(evidence.verified.get(dtype, {})) + Counter(variants))
            if len(evidence.units) < UNITS_KEPT:
                evidence.units.append(result.unit)
        for name, count in result.host_ops.items():
            host = archive.overloads.setdefault(name, Evidence()).host
            host[dtype] = host.get(dtype, 0) + count
        for name, statuses in result.blamed.items():
            evidence = archive.overloads.setdefault(name, Evidence())
            evidence.blamed = dict(Counter(evidence.blamed) + Counter(statuses))
            evidence.failure = evidence.failure or _message(result, name)
    return archive


def _message(result: UnitResult, name: str) -> str:
    messages = (f"{result.unit}: {f['message']}" for f in result.failures if f["blame"] == name)
    return next(messages, "")


def load(path: Path = PATH) -> Archive:
    """Read the committed evidence; empty if there is none."""
    if not path.exists():
        return Archive()
    stored = json.loads(path.read_text())
    overloads = {name: Evidence(**fields) for name, fields in stored.pop("overloads").items()}
    return Archive(overloads, **stored)


def save(archive: Archive, path: Path = PATH) -> None:
    """Write the evidence, an overload a line, so that a change shows as the lines that it changes."""
    stored = asdict(archive)
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(stored.pop("overloads").items())]
    rest = json.dumps(stored)[1:-1]
    path.write_text('{"overloads": {\n' + ",\n".join(lines) + "\n},\n" + rest + "}\n")


def passing_share(rates: list[dict[str, Any]]) -> float:
    """Return the share of cases that pass among those that were judged."""
    total: Counter[str] = Counter()
    for row in rates:
        total.update({key: value for key, value in row.items() if isinstance(value, int)})
    judged = sum(total[status] for status in (*GOOD, "differ", "raise", "timeout", "crash"))
    return sum(total[status] for status in GOOD) / judged if judged else 0.0
