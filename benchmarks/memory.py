"""`python -m benchmarks.memory`: peak memory of tensors on six scripts, eager CPU and lazy, and growth over many steps.

Eager's peak is PyTorch's CPU allocator's, whose every allocation and release its profiler reports. Lazy's is its own
allocator's, plus what the script holds on the CPU after its steps: its data lies there in both runs. Each script runs
in a process of its own. Growth: all that the process holds (`Held`) after a tenth of the steps, and after all of them.
"""

import gc
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.autograd.profiler import profile

from .models import Tagger
from .workloads import Step, Wrap, gpt_infer, inference, training

Report = Callable[[int, Tensor], None]
EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = 5  # the second step holds the optimizer's state and both steps' gradients; later ones are like it


Run = Callable[[str, int, Report], object]


def example(name: str) -> Run:
    """A demo script's `run`."""
    sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name).run


def repeated(make: Callable[[str, Wrap], Step]) -> Run:
    """A workload of the suite, called as a demo script is."""

    def run(device: str, steps: int, report: Report) -> None:
        step = make(device, lambda f: f)
        for number in range(steps):
            report(number, step())

    return run


def lstm_infer(device: str, wrap: Wrap) -> Step:
    model, tokens = Tagger(1000, 128, 2, 16).to(device).eval(), torch.randint(1000, (16, 48), device=device)
    return inference(lambda: model(tokens))


def mlp_adamw(device: str, wrap: Wrap) -> Step:
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    x, y = torch.randn(256, 784, device=device), torch.randint(10, (256,), device=device)
    return training(model, wrap, lambda m: F.cross_entropy(m(x), y), torch.optim.AdamW(model.parameters()))


SCRIPTS: dict[str, Callable[[], Run]] = {
    **{name: partial(example, name) for name in ("gpt", "cnn", "stencil")},
    "transformer_infer": lambda: repeated(gpt_infer),
    "lstm_infer": lambda: repeated(lstm_infer),
    "mlp_adamw": lambda: repeated(mlp_adamw),
}


def cpu_memory(run: Callable[[], int]) -> tuple[int, int]:
    """Bytes of PyTorch's CPU allocator beyond what lived before: their peak, and at the ns that `run` returns."""
    with profile(profile_memory=True) as found:
        end = run()
    assert found.kineto_results
    events = [e for e in found.kineto_results.events() if e.name() == "[memory]" and e.device_type() == DeviceType.CPU]
    held = peak = last = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
        last = held if event.start_ns() <= end else last
    return peak, last


def resident() -> int:
    """Bytes of the process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Held(NamedTuple):
    """What a process holds between two steps. plans, ops: all that were made, whether or not they are kept."""

    allocated: int  # bytes of live tensors on lazy
    reserved: int  # bytes that lazy took from its driver
    resident: int  # bytes of the process that are in memory
    plans: int
    ops: int  # operators with their operands' metadata, as the recorder knows them
    objects: int  # that Python's collector looks after

    @classmethod
    def now(cls) -> "Held":
        """Once the device has done all, and what was garbage is gone."""
        gc.collect()
        torch.lazy.synchronize()
        stats = torch.lazy.stats()
        return cls(
            torch.lazy.memory_allocated(),
            torch.lazy.memory_reserved(),
            resident(),
            stats["plans_compiled"] + stats["plans_assembled"],
            stats["meta_misses"],
            len(gc.get_objects()),
        )

    def in_kb(self) -> tuple[int, ...]:
        """The same, memory in kilobytes."""
        memory, counts = self[:3], self[3:]
        return tuple(round(nbytes / 1e3) for nbytes in memory) + counts


class Over(Exception):
    """The steps are done: what a script does after them is not measured."""


def stepped(run: Run, device: str, steps: int, each: Report) -> None:
    """Runs the steps of a script, and no more."""

    def report(step: int, value: Tensor) -> None:
        each(step, value)
        if step == steps - 1:
            raise Over

    with suppress(Over):
        run(device, steps, report)


def growth(run: Run, few: int, many: int) -> tuple[Held, Held]:
    """What is held after few steps of a script and after many. A value is read every tenth step."""
    found: list[Held] = []

    def each(step: int, value: Tensor) -> None:
        if step % 10 == 0:
            value.sum().item()
        if step + 1 in (few // 2, few, many):
            found.append(Held.now())

    stepped(run, "lazy", many, each)
    _, early, late = found  # the first look cuts windows where there was no cut before: that may be a plan more
    return early, late


def peak(run: Run, device: str) -> int:
    """Most bytes of tensors at a time over a few steps."""
    end = 0

    def each(step: int, value: Tensor) -> None:
        nonlocal end
        value.sum().item()
        if step == STEPS - 1:
            gc.collect()
            end = time.time_ns()

    def steps() -> int:
        stepped(run, device, STEPS, each)
        return end

    most, last = cpu_memory(steps)
    return most if device == "cpu" else torch.lazy.max_memory_allocated() + last


def apart(name: str, what: str) -> Any:
    """A measurement of a script in a process of its own: the peak on a device, or the growth over a number of steps."""
    command = [sys.executable, "-m", "benchmarks.memory", "--one", name, "--what", what]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main(
    scripts: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(SCRIPTS)}")] = ",".join(SCRIPTS),
    steps: Annotated[int, typer.Option(help="of the run for growth")] = 1000,
    one: Annotated[str, typer.Option(hidden=True)] = "",
    what: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Prints two Markdown tables."""
    if one:
        run = SCRIPTS[one]()
        print(json.dumps(growth(run, int(what) // 10, int(what)) if what.isdigit() else peak(run, what)))
        return
    names = scripts.split(",")
    print("| script | eager peak MB | lazy peak MB | lazy / eager |\n| --- | --- | --- | --- |")
    for name in names:
        eager, lazy = (apart(name, device) for device in ("cpu", "lazy"))
        print(f"| {name} | {eager / 1e6:.2f} | {lazy / 1e6:.2f} | {lazy / eager:.3f} |", flush=True)
    print(f"\n| held after {steps // 10} and {steps} steps | tensors KB | reserved KB | resident KB | plans ", end="")
    print("| op records | Python objects |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        early, late = (Held(*found) for found in apart(name, str(steps)))
        cells = (f"{a}, {b}" if a != b else str(a) for a, b in zip(early.in_kb(), late.in_kb(), strict=True))
        print(f"| {name} |", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    typer.run(main)
