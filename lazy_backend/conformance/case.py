"""What a case is, and what running it once gives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._pytree import tree_map

SEED = 1234
DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "complex64": torch.complex64,
}
HALVES = (torch.bfloat16, torch.float16)
BACKWARD_DTYPES = (torch.float32, torch.bfloat16)
VARIANTS = ("forward", "backward", "inplace", "out", "noncontiguous", "error")


class Tolerance(NamedTuple):
    """Absolute and relative slack of a comparison."""

    atol: float
    rtol: float


class Run(Protocol):
    """Runs a case's computation on fresh inputs on ``device``; ``wide`` asks for float64 throughout."""

    def __call__(self, device: str, wide: bool = False) -> Any:
        """Return the outputs."""


def _as_is(outputs: Any) -> Any:
    return outputs


@dataclass(frozen=True)
class Case:
    """One computation that must give the same on every device.

    Attributes:
        variant: one of ``VARIANTS``.
        index: the sample's number in its database entry.
        run: the computation.
        settle: maps outputs to what two right answers must agree on (the values that tied indices pick).
        tolerance: PyTorch's override for this entry and dtype, if it has one.
        raises: error type and message pattern, for the error variant.
        calls: the overload that ``run`` calls by name; what torch serves above dispatch modes is seen by nothing else.
    """

    variant: str
    index: int
    run: Run
    settle: Callable[[Any], Any] = _as_is
    tolerance: Tolerance | None = None
    raises: tuple[type[BaseException], str] | None = None
    calls: str | None = None


@dataclass(frozen=True)
class Unit:
    """One database entry at one dtype; ``cases(samples, variants)`` makes its cases, always in the same order."""

    name: str
    dtype: torch.dtype
    cases: Callable[[int, frozenset[str]], Iterator[Case]]


class Outcome(NamedTuple):
    """Outputs on the CPU, or the error."""

    value: Any = None
    error: BaseException | None = None


def outcome(case: Case, device: str, wide: bool = False) -> Outcome:
    """Run ``case`` on ``device`` from the fixed seed and bring the outputs to the CPU (a read)."""
    torch.manual_seed(SEED)
    try:
        return Outcome(value=tree_map(_to_cpu, case.run(device, wide)))
    except Exception as error:  # the error is the result: any type counts
        return Outcome(error=error)


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def spread(items: list, count: int) -> list[tuple[int, Any]]:
    """Return ``count`` numbered items spread evenly over ``items``; all of them for 0."""
    if not count or len(items) <= count:
        return list(enumerate(items))
    chosen = sorted({round(i * (len(items) - 1) / max(count - 1, 1)) for i in range(count)})
    return [(i, items[i]) for i in chosen]
