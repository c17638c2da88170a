"""A worker process: runs units case by case and tells its parent before and after each, so that a death has a name."""

import importlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from lazy_backend import _C

from .case import Case, Unit, outcome
from .judge import judge
from .results import BAD, GOOD, CaseResult
from .trace import Overloads, blame, composites_of

# Modules with a function `units()`.
DATABASES = tuple(
    f"lazy_backend.conformance.{name}" for name in ("operators", "modules", "optimizers", "groups", "composites")
)
# The implicit composites are looked for where a case can run without autograd.
TRACEABLE = ("forward", "inplace", "out")
TRACED_SAMPLES = 16
# Blaming runs every op twice and reads every result; a few failures of a variant tell the cause.
BLAMED_PER_VARIANT = 2


@dataclass(frozen=True)
class Settings:
    """What a run does with each unit.

    Attributes:
        device: the device under test.
        samples: samples of each unit, spread evenly; 0 for all.
        variants: a subset of ``case.VARIANTS``.
        window: ops in a window, or None for the device's default.
        databases: the modules that the units come from.
    """

    device: str
    samples: int
    variants: frozenset[str]
    window: int | None = None
    databases: tuple[str, ...] = DATABASES

    def __str__(self) -> str:
        return (
            f"{self.device} samples={self.samples or 'all'} window={self.window or 'default'} {sorted(self.variants)}"
        )


def all_units(databases: tuple[str, ...] = DATABASES) -> Iterator[Unit]:
    """Yield the units of every database."""
    for database in databases:
        yield from importlib.import_module(database).units()


def serve(connection: Connection, settings: Settings) -> None:
    """Answer ``(unit name, first case)`` with ("begin", number, variant, index), ("case", result) and ("done",)."""
    if settings.window:
        os.environ["LAZY_WINDOW"] = str(settings.window)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if settings.device != "cpu":
        torch.zeros(1).to(settings.device)
        _C.compile_all(True)  # no unit comes again
    units = {unit.name: unit for unit in all_units(settings.databases)}
    while True:
        try:
            name, first = connection.recv()
        except EOFError:
            return
        _run(units[name], first, settings, connection)
        connection.send(("done",))


def _run(unit: Unit, first: int, settings: Settings, connection: Connection) -> None:
    connection.send(("begin", -1, "samples", 0))
    blamed: dict[str, int] = {}
    try:
        for number, case in enumerate(unit.cases(settings.samples, settings.variants)):
            if number < first:
                continue
            connection.send(("begin", number, case.variant, case.index))
            may_blame = blamed.get(case.variant, 0) < BLAMED_PER_VARIANT
            result = run_case(unit, case, settings.device, may_blame)
            blamed[case.variant] = blamed.get(case.variant, 0) + (result.status in BAD)
            connection.send(("case", result))
    except Exception as error:  # the database cannot make its inputs here
        connection.send(
            ("case", CaseResult("samples", 0, "skip", f"no samples: {type(error).__name__}: {error}"[:200]))
        )


def run_case(unit: Unit, case: Case, device: str, may_blame: bool = True) -> CaseResult:
    """Run one case on the CPU and on ``device`` and judge it."""
    overloads = Overloads(device)
    before = _host_ops()
    with overloads:
        actual = outcome(case, device)
    with Overloads("cpu"):  # some composites take another way under a mode: both sides must
        expected = outcome(case, "cpu")
    after = {} if case.raises else _host_ops()  # the words of an error come from the host
    host_ops = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    status, message = judge(case, unit.dtype, expected, actual)
    result = CaseResult(case.variant, case.index, status, message, host_ops, sorted(overloads.names))
    if status in GOOD and case.variant in TRACEABLE and case.index < TRACED_SAMPLES:
        called = {case.calls} if case.calls else set()
        result.overloads = sorted(overloads.names | composites_of(case.run) | called)
    elif status in BAD and may_blame and not case.raises:  # an error that is not raised is no op's wrong result
        result.blame = blame(case.run, device, unit.dtype)
    if status == "pass" and not overloads.names and not case.raises:
        result.status, result.message = "skip", "no op reached the device"
    return result


def _host_ops() -> dict[str, int]:
    """Return the device's count of CPU fallbacks by overload; empty where there is no such device."""
    lazy = getattr(torch, "lazy", None)
    return dict(lazy.stats()["host_ops_by_name"]) if lazy is not None and hasattr(lazy, "stats") else {}
