"""Runs units over worker processes: resumable, sharded, with a deadline for each case and crashes isolated."""

import multiprocessing
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from .results import BAD, CaseResult, ResultFile, UnitResult
from .worker import Settings, serve

# The first case of a process pays for imports and for the device's first use.
STARTUP_SECONDS = 120.0


@dataclass(frozen=True)
class Shard:
    """Part ``index`` of ``count`` of the units; a unit's part depends on its name alone."""

    index: int
    count: int

    def __contains__(self, unit: str) -> bool:
        return zlib.crc32(unit.encode()) % self.count == self.index


class Worker:
    """A worker process and the unit it is busy with."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.result: UnitResult | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(theirs, self.settings), daemon=True)
        self.process.start()
        theirs.close()
        self.fresh = True
        self.busy_with: tuple[int, str, int] = (-1, "start", 0)
        self.since = time.monotonic()

    def assign(self, unit: str) -> None:
        """Begin a unit."""
        self.result = UnitResult(unit, str(self.settings))
        self.unit_began = time.monotonic()
        self._ask(0)

    def _ask(self, first: int) -> None:
        assert self.result is not None
        self.since = time.monotonic()
        self.connection.send((self.result.unit, first))

    def receive(self) -> UnitResult | None:
        """Take one message; return the unit's result when it is complete."""
        assert self.result is not None
        try:
            kind, *rest = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return self.give_up("crash", f"the worker died with exit code {self.process.exitcode}")
        self.since = time.monotonic()
        if kind == "begin":
            self.busy_with = (rest[0], rest[1], rest[2])
        elif kind == "case":
            self.fresh = False
            self.result.add(rest[0])
        else:
            self.result.seconds = round(time.monotonic() - self.unit_began, 3)
            return self.result
        return None

    def overdue(self, timeout: float) -> bool:
        """Say whether the case under way has had its time."""
        return time.monotonic() - self.since > (max(timeout, STARTUP_SECONDS) if self.fresh else timeout)

    def give_up(self, status: str, message: str) -> UnitResult | None:
        """Record the case under way as lost, go on after it in a new worker; the result, if nothing can follow."""
        assert self.result is not None
        number, variant, index = self.busy_with
        self.result.add(CaseResult(variant, index, status, message))
        hopeless = number < 0
        self.stop()
        self._start()
        if hopeless:
            return self.result
        self._ask(number + 1)
        return None

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.kill()
        self.process.join()


def run(
    units: list[str],
    settings: Settings,
    results: ResultFile,
    *,
    jobs: int = 1,
    timeout: float = 60.0,
    again: bool = False,
    progress: Callable[[UnitResult], None] = lambda _: None,
) -> dict[str, UnitResult]:
    """Run the units that ``results`` lacks for these settings and return the results of all of ``units`` by name.

    Args:
        jobs: number of worker processes.
        timeout: seconds that a case may take before its worker is replaced.
        again: run the units that failed, too.
        progress: called with each unit's result as it ends, reused ones first.
    """
    done = {name: result for name, result in results.load().items() if result.settings == str(settings)}
    if again:
        done = {name: result for name, result in done.items() if not result.total(BAD)}
    kept = {name: done[name] for name in units if name in done}
    for known in kept.values():
        progress(known)
    queue = [name for name in units if name not in kept][::-1]
    workers = [Worker(settings) for _ in range(min(jobs, len(queue)))]
    try:
        for worker in workers:
            worker.assign(queue.pop())
        busy: dict[Connection, Worker] = {worker.connection: worker for worker in workers}
        while busy:
            ready = wait(list(busy), timeout=1.0)
            finished: list[tuple[Worker, UnitResult | None]] = [(w, w.receive()) for c, w in busy.items() if c in ready]
            late = [w for c, w in busy.items() if c not in ready and w.overdue(timeout)]
            finished += [(worker, worker.give_up("timeout", f"no end after {timeout:g} s")) for worker in late]
            for worker, result in finished:
                if result is None:
                    continue
                results.append(result)
                kept[result.unit] = result
                progress(result)
                worker.result = None
                if queue:
                    worker.assign(queue.pop())
            busy = {worker.connection: worker for worker in workers if worker.result is not None}
    finally:
        for worker in workers:
            worker.stop()
    return kept
