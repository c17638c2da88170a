"""Runs workloads on engines that take turns: a round is a short block of steps on each, so that a noisy machine is
noisy for all of them alike. Medians over the rounds."""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import IO

from .engines import ENGINES
from .floor import Floor

# Long enough to hide the clock and one synchronize. Short, since a machine that is shared is slow for half a second or
# for minutes: of two engines in one round both are then, and medians are of many rounds.
BLOCK_SECONDS = 0.1
# What takes turns beside engines: what a step cannot do without (`benchmarks.floor`).
FLOOR = "floor"


class WorkerFailed(RuntimeError):
    """A worker process ended before it answered; the text is the end of its stderr."""


@dataclass
class Measured:
    """One workload on one engine. Times in seconds; counts are per step."""

    workload: str
    engine: str
    step_s: float = float("nan")
    spread: float = float("nan")  # (upper - lower quartile) / median
    rounds_s: list[float] = field(default_factory=list)  # of each round
    first_step_s: float = float("nan")
    warm_s: float = float("nan")  # to the end of the first step that is within 10 % of the median
    counts: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def summarise(self, warm: dict, blocks: list[dict]) -> None:
        """Medians of its turns."""
        times = [block["step_s"] for block in blocks]
        self.step_s, self.rounds_s = statistics.median(times), times
        if len(times) > 1:
            lower, _, upper = statistics.quantiles(times, n=4)
            self.spread = (upper - lower) / self.step_s
        starts = [warm["made_s"], *warm["ends_s"]]
        self.first_step_s = starts[1] - starts[0]
        steady = (end for begin, end in pairwise(starts) if end - begin <= self.step_s / 0.9)
        self.warm_s = next(steady, float("nan")) - starts[0]
        self.counts = {k: statistics.median(b[k] for b in blocks) for k in blocks[0] if k != "step_s"}


class Worker:
    """A process that runs steps of one workload on one engine, or measures their floor."""

    def __init__(self, command: list[str], environment: dict[str, str], errors: IO[bytes]) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | environment,
        )

    def answer(self) -> dict:
        """The next line that the process writes. Raises WorkerFailed at its end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise WorkerFailed(self._errors.read().decode(errors="replace").strip()[-2000:])
        return json.loads(line)

    def run(self, steps: int) -> dict:
        """Runs `steps` steps: seconds and counts per step."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why
        return self.answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def working(workload: str, engine: str) -> Iterator[Worker]:
    """A worker with caches of its own, empty at the start."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as errors:
        cold = {"TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor", "LAZY_CACHE_DIR": f"{scratch}/lazy"}
        if engine == FLOOR:
            worker = Worker(["benchmarks.floor", workload], ENGINES["pooled"].environment, errors)
        else:
            worker = Worker(["benchmarks.worker", workload, engine], cold | ENGINES[engine].environment, errors)
        try:
            yield worker
        finally:
            worker.close()


def measure(workload: str, engines: list[str], rounds: int) -> Iterator[Measured | Floor | None]:
    """Yields None after each unit of progress (len(engines) * (rounds + 1) of them), then a result per engine.

    FLOOR among the engines takes its turns as they do: a floor that is measured in another minute is another machine's.
    """
    results = {engine: Floor(workload) if engine == FLOOR else Measured(workload, engine) for engine in engines}
    warm: dict[str, dict] = {}
    blocks: dict[str, list[dict]] = {engine: [] for engine in engines}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for engine in engines:  # one after another: a warm-up is timed alone
            workers[engine] = stack.enter_context(working(workload, engine))
            try:
                warm[engine] = workers[engine].answer()
            except WorkerFailed as failure:
                results[engine].error = str(failure)
                del workers[engine]
            yield None
        for turns in orders(engines, rounds):
            for engine in turns:
                if engine in workers:
                    try:
                        blocks[engine].append(workers[engine].run(block_length(warm[engine])))
                    except WorkerFailed as failure:
                        results[engine].error = str(failure)
                        del workers[engine]
                yield None
    for engine in workers:
        results[engine].summarise(warm[engine], blocks[engine])
    yield from results.values()


def orders(engines: list[str], rounds: int) -> Iterator[list[str]]:
    """In each round the engines in another order, the same in each run.

    What follows one engine always has its caches, and its threads that still spin: `softmax` in windows of one op,
    which came after lazy's turn, seemed 12 % faster than lazy, whose turn was after torch.compile's (the same kernel).
    """
    shuffled = random.Random(0)
    for _ in range(rounds):
        yield shuffled.sample(engines, len(engines))


def block_length(warm: dict) -> int:
    """Steps in a block, by the last warm-up step's time. A floor knows its own."""
    ends = warm.get("ends_s")
    if not ends:
        return 1
    last = ends[-1] - ends[-2] if len(ends) > 1 else ends[-1] - warm["made_s"]
    return max(1, min(1000, round(BLOCK_SECONDS / last)))


def to_json(results: list[Measured] | list[Floor]) -> list[dict]:
    """Plain data, for a file."""
    return [asdict(result) for result in results]
