"""`python -m benchmarks.memory`: peak memory of tensors on six scripts, eager CPU and lazy, and growth over many steps.

Eager's peak is PyTorch's CPU allocator's, whose every allocation and release its profiler reports. Lazy's is its own
allocator's, plus what the script holds on the CPU after its steps: its data lies there in both runs. Each script runs
in a process of its own. Growth is what the allocator holds and what the process has resident at the end, less the same
after a tenth of the steps.
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
from typing import Annotated

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


def held(device: str) -> tuple[int, int]:
    """Bytes of live tensors on lazy (0 elsewhere), and resident bytes of the process."""
    gc.collect()
    if device == "cpu":
        return 0, resident()
    torch.lazy.synchronize()
    return torch.lazy.memory_allocated(), resident()


class Over(Exception):
    """The steps are done: what a script does after them is not measured."""


def measure(name: str, device: str, steps: int) -> dict[str, int]:
    """Runs a script's steps in this process: its peak where they are few, its growth where they are many."""
    run = SCRIPTS[name]()
    found: dict[str, int] = {}
    early = (0, 0)
    end = 0

    def report(step: int, value: Tensor) -> None:
        nonlocal early, end
        if step % 10 == 0 or steps <= STEPS:
            value.sum().item()
        if step == steps // 10:
            early = held(device)
        if step == steps - 1:
            late = held(device)
            found["allocator_growth"], found["resident_growth"] = late[0] - early[0], late[1] - early[1]
            end = time.time_ns()
            raise Over

    def until_over() -> int:
        with suppress(Over):
            run(device, steps, report)
        return end

    if steps > STEPS:
        until_over()
        return found
    peak, last = cpu_memory(until_over)
    found["peak"] = peak if device == "cpu" else torch.lazy.max_memory_allocated() + last
    return found


def apart(name: str, device: str, steps: int) -> dict[str, int]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--one", name, "--device", device, "--steps", str(steps)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main(
    scripts: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(SCRIPTS)}")] = ",".join(SCRIPTS),
    steps: Annotated[int, typer.Option(help="of the run for growth; 0: none")] = 1000,
    one: Annotated[str, typer.Option(hidden=True)] = "",
    device: Annotated[str, typer.Option(hidden=True)] = "lazy",
) -> None:
    """Prints a Markdown table."""
    if one:
        print(json.dumps(measure(one, device, steps)))
        return
    print("| script | eager peak MB | lazy peak MB | lazy / eager | allocator growth KB | process growth KB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in scripts.split(","):
        eager, lazy = (apart(name, of, STEPS)["peak"] for of in ("cpu", "lazy"))
        row = f"| {name} | {eager / 1e6:.2f} | {lazy / 1e6:.2f} | {lazy / eager:.3f} |"
        grown = apart(name, "lazy", steps) if steps else {}
        print(row, *(f"{grown[of] / 1e3:.0f} |" if steps else "- |" for of in ("allocator_growth", "resident_growth")))


if __name__ == "__main__":
    typer.run(main)
