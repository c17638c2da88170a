"""`port check`: runs the stages, each in a worker process, and keeps what they say.

A check that crashes or hangs its worker is a failure of that check; the rest of the stage goes on in a new
worker. Results are kept in a file, so a run that was cut off goes on where it was.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lazy_backend.porting.stages import STAGES, Stage

STARTUP_SECONDS = 60.0
STATUSES = ("pass", "fail", "missing")
FIRST_RESULTS = 4  # the stage whose core ops everything behind it is made of


@dataclass
class Result:
    """One check's outcome; status is one of STATUSES."""

    stage: int
    name: str
    title: str
    status: str
    text: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """All outcomes for one driver. level: as its properties say, 0 when stage 0 did not get that far.

    finished: the stages whose checks have all run; another one that has results was cut off.
    """

    driver: str
    level: int = 0
    device: str = ""
    results: list[Result] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def of(self, stage: int, status: str = "") -> list[Result]:
        """The results of a stage, of one status or all."""
        return [r for r in self.results if r.stage == stage and status in ("", r.status)]

    @property
    def claimed(self) -> list[Stage]:
        """The stages that the level claims."""
        return [s for s in STAGES if (self.level or 1) in s.levels]

    @property
    def passed(self) -> bool:
        """Whether every stage that the level claims has run and passed."""
        clean = all(r.status == "pass" for r in self.results)
        return bool(self.level) and clean and set(self.finished) >= {s.number for s in self.claimed}

    @property
    def next_step(self) -> str:
        """The first thing to do."""
        for status in ("missing", "fail"):
            for result in self.results:
                if result.status == status:
                    return f"stage {result.stage}, {result.name}: {result.text.splitlines()[0] if result.text else ''}"
        left = [s for s in self.claimed if s.number not in self.finished]
        return (
            f"run stage {left[0].number}, {left[0].title}"
            if left
            else "nothing: every stage that the level claims passes"
        )

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all: a run may be cut off here too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        written.write_text(json.dumps(asdict(self), indent=1))
        written.replace(path)

    @staticmethod
    def load(path: Path) -> Report:
        """Read what `save` wrote."""
        values = json.loads(path.read_text())
        return Report(**{**values, "results": [Result(**r) for r in values["results"]]})


class Worker:
    """A worker process on one stage; `messages()` ends when it is done, and says if it died or hung."""

    def __init__(self, driver: str, stage: int, skip: int):
        command = [sys.executable, "-m", "lazy_backend.porting.worker", driver, str(stage), str(skip)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line.rstrip()]

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the worker tells; last {"dead": why} unless it ended well."""
        deadlines: dict[str, float] = {}
        patience = STARTUP_SECONDS
        while True:
            try:
                line = self.lines.get(timeout=patience)
            except queue.Empty:
                self.process.kill()
                yield {"dead": f"no answer for {patience:.0f} s: it hangs"}
                return
            if line is None:
                break
            if not line.startswith("@"):
                continue  # a driver may print
            message = json.loads(line[1:])
            if "names" in message:
                deadlines = {name: seconds for name, _, seconds in message["names"]}
            patience = deadlines.get(message.get("begin", ""), STARTUP_SECONDS)
            yield message
        if code := self.process.wait():
            why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield {"dead": f"the process died ({why}): {self.errors[-1] if self.errors else 'no words'}"}


def run_stage(driver: str, stage: Stage, done: int, told: Callable[[Result], None]) -> dict[str, Any]:
    """Run the checks of one stage from number `done` on, whatever they do to their process.

    Returns the device's name and level, as far as it said them.
    """
    facts: dict[str, Any] = {}
    names: list[list[Any]] = []
    while True:
        current, dead = "", ""
        for message in Worker(driver, stage.number, done).messages():
            names = message.get("names", names)
            current = message.get("begin", current)
            dead = message.get("dead", "")
            facts = message.get("facts", facts)
            if "end" in message:
                told(
                    Result(
                        stage.number,
                        message["end"],
                        names[done][1],
                        *(message[k] for k in ("status", "text", "seconds")),
                    )
                )
                done, current = done + 1, ""
        if not dead:
            return facts
        if done >= len(names):  # before the first check, or after the last
            told(Result(stage.number, "process", "the process starts and ends well", "fail", dead))
            return facts
        told(Result(stage.number, names[done][0], names[done][1], "fail", dead))
        done += 1
        if done == len(names):
            return facts


def run(
    driver: str, stages: list[int], path: Path, fresh: bool, told: Callable[[Result], None] = lambda result: None
) -> Report:
    """Run stages and keep the report at `path`; a stage that passed before is not run again unless `fresh`.

    What another driver of the same file name left there is not gone on with. stages: numbers, or none for all that the
    level claims, the later ones only once a core op has passed. Stage 0 runs where the level is not known yet.
    """
    report = Report(driver) if fresh or not path.exists() else Report.load(path)
    if report.driver != driver:
        report = Report(driver)
    for stage in STAGES:
        learns_the_level = stage.number == 0 and not report.level
        wanted = not stages or stage.number in stages or learns_the_level
        too_early = not stages and stage.number > FIRST_RESULTS and not report.of(FIRST_RESULTS, "pass")
        finished = stage.number in report.finished
        passed = finished and len(report.of(stage.number)) == len(report.of(stage.number, "pass"))
        if not wanted or passed or too_early or stage not in report.claimed:
            continue
        if finished:
            report.finished.remove(stage.number)
            report.results = [r for r in report.results if r.stage != stage.number]

        def keep(result: Result) -> None:
            report.results.append(result)
            report.save(path)
            told(result)

        facts = run_stage(driver, stage, len(report.of(stage.number)), keep)
        report.device, report.level = facts.get("device", report.device), facts.get("level", report.level)
        report.finished.append(stage.number)
        report.save(path)
        if not report.level or (stage.number == 0 and report.of(0, "fail")):
            break  # nothing can be said about a device that does not open
    report.results.sort(key=lambda r: r.stage)
    return report
