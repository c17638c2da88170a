"""The results of a run: one JSON line a unit, appended as it ends, so that a run can be resumed and shards joined."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STATUSES = ("pass", "loose", "differ", "raise", "timeout", "crash", "skip")
GOOD = ("pass", "loose")
BAD = ("differ", "raise", "timeout", "crash")
FAILURES_KEPT = 5


@dataclass
class CaseResult:
    """What one case gave.

    Attributes:
        status: one of ``STATUSES``; ``loose`` is right by the wider of PyTorch's tolerances.
        host_ops: CPU fallbacks of the device while the case ran, by overload.
        overloads: overloads that reached the device, and implicit composites on the way.
        blame: the first overload that raised or differed, where it could be told.
    """

    variant: str
    index: int
    status: str
    message: str = ""
    host_ops: dict[str, int] = field(default_factory=dict)
    overloads: list[str] = field(default_factory=list)
    blame: str | None = None


@dataclass
class UnitResult:
    """The cases of one unit, summed up.

    Attributes:
        settings: what was asked for; a result is reused only for the same settings.
        counts: variant -> status -> number of cases.
        on_host: variant -> number of cases in which an op fell back to the CPU.
        verified: overload -> variant -> number of passing cases that ran it.
        blamed: overload -> status -> number of cases.
        failures: the first few of every variant, with their messages.
        skips: reason -> number of cases.
    """

    unit: str
    settings: str
    seconds: float = 0.0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    on_host: dict[str, int] = field(default_factory=dict)
    host_ops: dict[str, int] = field(default_factory=dict)
    verified: dict[str, dict[str, int]] = field(default_factory=dict)
    blamed: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    def add(self, case: CaseResult) -> None:
        """Count a case."""
        statuses = self.counts.setdefault(case.variant, {})
        statuses[case.status] = statuses.get(case.status, 0) + 1
        if case.host_ops:
            self.on_host[case.variant] = self.on_host.get(case.variant, 0) + 1
            self.host_ops = dict(Counter(self.host_ops) + Counter(case.host_ops))
        if case.status in GOOD:
            for name in case.overloads:
                by_variant = self.verified.setdefault(name, {})
                by_variant[case.variant] = by_variant.get(case.variant, 0) + 1
        elif case.status == "skip":
            self.skips[case.message] = self.skips.get(case.message, 0) + 1
        else:
            self._fail(case)

    def _fail(self, case: CaseResult) -> None:
        if case.blame:
            by_status = self.blamed.setdefault(case.blame, {})
            by_status[case.status] = by_status.get(case.status, 0) + 1
        if sum(failure["variant"] == case.variant for failure in self.failures) < FAILURES_KEPT:
            kept = ("variant", "index", "status", "message", "blame")
            self.failures.append({name: getattr(case, name) for name in kept})

    def total(self, statuses: tuple[str, ...], variant: str | None = None) -> int:
        """Return the number of cases with one of ``statuses``, of one variant or of all."""
        groups = self.counts.values() if variant is None else [self.counts.get(variant, {})]
        return sum(group.get(status, 0) for group in groups for status in statuses)


class ResultFile:
    """A file of JSON lines; the last line of a unit counts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, UnitResult]:
        """Return the results by unit name; a torn last line is dropped."""
        results: dict[str, UnitResult] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    result = UnitResult(**json.loads(line))
                except ValueError:
                    continue
                results[result.unit] = result
        return results

    def append(self, result: UnitResult) -> None:
        """Add one unit's result."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
