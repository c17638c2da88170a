"""The stages of a port, in the order in which it grows. A check is a function marked with `@check`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lazy_backend.porting.bench import Bench


class Stage(NamedTuple):
    """One stage: its module here, and the levels of port that claim it."""

    number: int
    module: str
    title: str
    levels: tuple[int, ...] = (1, 2, 3)


STAGES = (
    Stage(0, "abi", "ABI and properties"),
    Stage(1, "memory", "memory and copies"),
    Stage(2, "queues", "queues and events"),
    Stage(3, "programs", "programs and launches", (2, 3)),
    Stage(4, "core_ops", "core ops against the NumPy references"),
    Stage(5, "operators", "PyTorch's operator samples"),
    Stage(6, "models", "modules, optimizers, models"),
    Stage(7, "stress", "stress, faults, threads"),
    Stage(8, "performance", "performance against the stated peaks"),
)


@dataclass(frozen=True)
class Check:
    """One check. run(bench) returns a remark or None; it raises to fail. seconds: its deadline."""

    name: str
    title: str
    run: Callable[[Bench], str | None]
    seconds: float


def check(seconds: float = 60.0) -> Callable[[Callable[[Bench], str | None]], Check]:
    """Make a function a check; the first line of its docstring is its title."""

    def make(function: Callable[[Bench], str | None]) -> Check:
        title = (function.__doc__ or function.__name__).strip().splitlines()[0].rstrip(".")
        return Check(function.__name__, title, function, seconds)

    return make


def checks_of(stage: Stage) -> list[Check]:
    """The checks of a stage in order; a module may make more of them in `more_checks()`."""
    module = importlib.import_module(f"{__name__}.{stage.module}")
    written = [value for value in vars(module).values() if isinstance(value, Check)]
    return written + (module.more_checks() if hasattr(module, "more_checks") else [])
