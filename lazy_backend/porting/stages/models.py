"""Stage 6: small models train on the device as they do on the CPU."""

from __future__ import annotations

from functools import partial

from lazy_backend.porting import torch_run
from lazy_backend.porting.bench import Bench, CheckFailed
from lazy_backend.porting.train import MODELS

from . import Check

SECONDS = 600.0
# Of the loss, relative, over all steps: float32 sums in another order drift by far less in so few steps.
TOLERANCE = 1e-4


def more_checks() -> list[Check]:
    """A check for each model of `lazy_backend.porting.train`."""
    return [Check(name, f"trains: {name}", partial(trains, name=name), SECONDS) for name in MODELS]


def trains(b: Bench, name: str) -> str:
    """Compare the losses of every step, and count what did not run on the device."""
    found = torch_run.result(b.name, "lazy_backend.porting.train", name, seconds=SECONDS - 30)
    for step, (cpu, lazy) in enumerate(zip(found["cpu"], found["lazy"], strict=True)):
        if not abs(lazy - cpu) <= TOLERANCE * abs(cpu):
            raise CheckFailed(f"{name}: after {step} steps the loss is {lazy:.6g}, on the CPU {cpu:.6g}")
    if found["lazy"][-1] >= found["lazy"][0]:
        raise CheckFailed(f"{name}: the loss does not fall: {found['lazy']}")
    return f"loss {found['lazy'][0]:.4f} to {found['lazy'][-1]:.4f}, {found['host_ops']} ops through the host"
