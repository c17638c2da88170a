"""Programs built by several processes at once.

Drivers' compilers hold a lock of their own (Intel's: threads gain nothing), so the script's process shares a plan's
programs with others. These know the driver through the contract and nothing of torch, which takes 0.4 s to start; they
end when nothing has come for a while, and are started again by the next plan with many kernels.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from lazy_backend import pipes
from lazy_backend.driver import abi, discovery

log = logging.getLogger("lazy_backend.compile")

# A kernel takes 0.05 to 1.5 s to build and a process 0.4 s to start: with fewer programs it comes too late.
FEWEST = 4
# Beyond that memory (some 150 MB each) grows faster than first steps shrink: most plans have under 60 kernels.
MOST = 8
IDLE_S = 20.0


class Builder:
    """One process. Whoever calls `build` has it alone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, device: int, properties: bytes, source: bytes) -> bytes:
        """The driver's binary of a program; empty where this process cannot give one."""
        try:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", "from lazy_backend.builders import main; main()"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=pipes.environment(),
                )  # fmt: skip
            assert self._process.stdin and self._process.stdout
            pipes.send(self._process.stdin, (device, properties, source))
            answer: bytes = pipes.receive(self._process.stdout)
            return answer
        except (OSError, EOFError) as error:
            log.info("a builder process ended (%r); its program is built in the script's", error)
            self._process = None
            return b""

    def end(self) -> None:
        """Ends the process, whatever it builds."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


_builders = [Builder() for _ in range(min(len(os.sched_getaffinity(0)), MOST) - 1)]


@atexit.register
def _end() -> None:
    for builder in _builders:
        builder.end()


def build(device: int, properties: bytes, sources: Sequence[bytes], program: Callable[[bytes, bool], int]) -> list[int]:
    """A program of each source. `program(text, is_binary)` makes one in this process, and raises what is wrong with it.

    properties: the device's, packed, by which a process knows that its driver's device is the same.
    """
    made: dict[int, int] = {}
    binaries: dict[int, bytes] = {}
    # The largest first: a large one begun last would be waited for.
    left = deque(sorted(range(len(sources)), key=lambda i: -len(sources[i])))

    def helped_by(builder: Builder) -> None:
        while left:
            try:
                i = left.popleft()
            except IndexError:
                return
            if not (binary := builder.build(device, properties, sources[i])):
                left.append(i)
                return
            binaries[i] = binary

    threads = []
    if len(sources) >= FEWEST and discovery.opened_as_selected():
        threads = [threading.Thread(target=helped_by, args=(builder,), daemon=True) for builder in _builders]
    for thread in threads:
        thread.start()
    while left or any(thread.is_alive() for thread in threads):
        try:
            i = left.popleft()
        except IndexError:
            for thread in threads:
                thread.join()
            continue
        made[i] = program(sources[i], False)
    for i, binary in binaries.items():
        made[i] = program(binary, True)
    return [made[i] for i in range(len(sources))]


def main() -> None:
    """The process: a program after another from stdin, until it is closed or nothing comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the script's; this process ends with its pipe
    requests, answers = pipes.ends()
    driver = discovery.select().open()
    devices = {}
    while select.select([requests], [], [], IDLE_S)[0]:
        try:
            index, properties, source = pipes.receive(requests)
            if index not in devices:
                devices[index] = driver.open(index)
            device = devices[index]
            known = device.properties() == abi.unpack(abi.Properties.from_buffer_copy(properties))
            binary = device.program_binary(device.program_load(source, False, "")) if known else b""
        except EOFError:
            break
        except Exception:
            binary = b""  # the script's process meets the same, and says so
        pipes.send(answers, binary)
    os._exit(0)  # the driver's threads are not waited for
