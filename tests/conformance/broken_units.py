"""A database of cases whose outcome on any device is known: the runner must tell each apart."""

import os
import time
from collections.abc import Iterator
from functools import partial

import torch

from lazy_backend.conformance.case import Case, Unit

RAISES = (RuntimeError, "said so")


def on(device: str, wide: bool = False, *, act: str) -> object:
    """Run one behaviour; the misbehaving ones only do so under the device's name `meta`, the device under test."""
    x = torch.ones(3)
    if device == "cpu":
        if act in ("error", "error missed"):
            raise RuntimeError("said so")
        return x
    acts = {
        "pass": lambda: x,
        "loose": lambda: x + 5e-4,
        "differ": lambda: x + 1,
        "shape": lambda: x[:2],
        "dtype": lambda: x.double(),
        "nan": lambda: x * float("nan"),
        "raise": lambda: torch.ones(2) + torch.ones(3),
        "crash": lambda: os._exit(9),
        "timeout": lambda: time.sleep(60),
        "error": lambda: (_ for _ in ()).throw(RuntimeError("yes, said so")),
        "error missed": lambda: x,
    }
    torch.empty(1, device=device)  # something reaches the device
    return acts[act]()


ACTS = (
    "pass",
    "loose",
    "differ",
    "shape",
    "dtype",
    "nan",
    "raise",
    "crash",
    "pass",
    "timeout",
    "error",
    "error missed",
)


def cases(samples: int, variants: frozenset[str]) -> Iterator[Case]:
    for index, act in enumerate(ACTS):
        yield Case("forward", index, partial(on, act=act), raises=RAISES if act.startswith("error") else None)


def units() -> Iterator[Unit]:
    yield Unit("broken/one:float32", torch.float32, cases)
    yield Unit("broken/two:float32", torch.float32, cases)
