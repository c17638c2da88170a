"""A process that builds programs with the driver's compiler, as it is seen from the script's, and what it does.

The first is started; others can be forked from it, when its compiler is loaded: that takes 13 ms of processor time in
place of 250 (Python 60, OpenCL's devices 30, the device 20, the compiler 130). First step of examples/gpt.py with an
empty cache: 1.65 -> 1.58 s.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from typing import IO, Any

from lazy_backend import pipes
from lazy_backend.driver import abi, discovery

log = logging.getLogger("lazy_backend.compile")

# Seconds without a program after which a process ends. The first stays longer: who types the next line, or reads a
# batch of another kind, should not wait for its start. It has some 90 MB of its own.
IDLE_S = 20.0
IDLE_FIRST_S = 300.0
# Seconds after which a compiler is taken to build a program for ever, as Intel's did when it was asked to unroll a loop
# of 20,000: a hundred times what kernels take, since the machine may be busy.
LONGEST_S = 180.0
# The same for the first program of a process that was forked: a driver may have threads, which it then lacks. A fresh
# process gets the program next. The longest of examples/ takes 0.3.
LONGEST_FORKED_S = 20.0
# The first program of a process takes longer, since it loads the compiler: built before any is asked for, by language.
_FIRST = {"opencl": b"__kernel void first(__global float *a) { a[get_global_id(0)] += 1.0f; }"}
# Keeps Intel's compiler from looking for work-items to put side by side into vectors. It looks at kernels that forbid
# it too: examples/gpt.py's programs took 2.7 s of processor time to build, 2.5 where each kernel forbids it, 2.2 where
# the process does as well (Zen 4).
_WHOLE = {"CL_CONFIG_CPU_VECTORIZER_MODE": "1"}


class Unstarted(RuntimeError):
    """The process ended before it had opened the driver."""


class Ended(RuntimeError):
    """The script has ended: nothing is built any more."""


class Died(RuntimeError):
    """A program on which the driver's compiler ended two processes, or did not end itself."""


class Builder:
    """One process. One caller of `build` has it at a time; anybody may call `start`.

    forks: how many others may be forked from it.
    """

    def __init__(self, idle_s: float = IDLE_S, forks: int = 0) -> None:
        self.command = [sys.executable, "-c", f"from lazy_backend.builder import main; main({idle_s})"]
        self._starting, self._building = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | _Forked | None = None
        self._forks, self._ahead, self._orders = forks, list[_Forked](), -1
        self._ready = self._proven = self._closed = False
        # Whether it never came to open the driver: it will not the next time.
        self.useless = False

    def start(self, origin: Builder | None = None) -> None:
        """Starts the process, if there is none, and does not wait for it. Raises OSError, and Ended after `close`.

        origin: one that it may be forked from.
        """
        with self._starting:
            if self._closed:
                raise Ended
            if not self.running():
                self._process = (origin and origin.fork()) or self._started()
                self._ready, self._proven = False, not isinstance(self._process, _Forked)

    def fork(self) -> _Forked | None:
        """A process like this one, as soon as it is ready. None where it has made as many as it may, or builds: what
        it builds may take for ever.
        """
        with self._starting:
            if not self._ahead or self._building.locked() or not self.running():
                return None
            with suppress(OSError):
                os.write(self._orders, b"\n")
                return self._ahead.pop(0)
            return None

    def build(self, device: int, properties: bytes, source: bytes) -> bytes | str | None:
        """The driver's binary of a program, what the driver says is wrong with it, or None: none of that device's.

        Raises Unstarted, Ended, and Died where the program's build ended the process, and a fresh one, or takes too
        long.
        """
        with self._building:
            try:
                return self._build((device, properties, source))
            except (Unstarted, Died, ValueError) as error:
                if self._closed:  # and its pipes, which makes a ValueError
                    raise Ended from error
                raise

    def running(self) -> bool:
        """Whether there is a process, be it at its start."""
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Ends the process, whatever it builds."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def close(self) -> None:
        """Ends the process for good: whoever waits for it gets Ended, and it is not started again."""
        with self._starting:
            self._closed = True
        self.end()

    def _started(self) -> subprocess.Popen[bytes]:
        asked = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's threads, where a driver has it, spin when they start
        if not _WHOLE.keys() & os.environ.keys():
            asked |= _WHOLE
        theirs = self._lines() if self._forks else []
        try:
            return subprocess.Popen(
                [*self.command, *map(str, theirs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=theirs,
                env=pipes.environment(**asked),
                process_group=0,  # Ctrl-C is the script's
            )  # fmt: skip
        finally:
            _close(*theirs)

    def _lines(self) -> list[int]:
        """Pipes for orders to fork, and to and from each process to come: the ends that the process gets."""
        if self._orders >= 0:
            os.close(self._orders)
        orders, self._orders = os.pipe()
        theirs, self._ahead = [orders], []
        for _ in range(self._forks):
            (requests, to_requests), (from_answers, answers) = os.pipe(), os.pipe()
            self._ahead.append(_Forked(os.fdopen(to_requests, "wb"), os.fdopen(from_answers, "rb")))
            theirs += [requests, answers]
        return theirs

    def _build(self, request: tuple[int, bytes, bytes]) -> bytes | str | None:
        ends: list[str] = []
        while len(ends) < 2:
            try:
                self.start()
                assert self._process and self._process.stdin and self._process.stdout
                if not self._ready:
                    hello = pipes.receive(self._process.stdout)
                    if isinstance(hello, str):
                        raise OSError(hello)
                    self._process.pid, self._ready = hello, True
            except (OSError, EOFError) as error:
                if isinstance(self._process, _Forked) and not self.running():
                    continue  # what it was to be forked from has ended: it is started
                self.useless = True
                raise Unstarted(f"{error!r}, exit status {self._process and self._process.wait()}") from error
            try:
                pipes.send(self._process.stdin, request)
                longest = LONGEST_S if self._proven else min(LONGEST_S, LONGEST_FORKED_S)
                if not select.select([self._process.stdout], [], [], longest)[0]:
                    self.end()
                    if not self._proven:
                        log.info("a builder process that was forked has not built its first program in %.0f s", longest)
                        continue
                    raise Died(f"no answer for {longest:.0f} s")
                answer: bytes | str | None = pipes.receive(self._process.stdout)
                self._proven = True
                return answer
            except (OSError, EOFError):
                ends.append(_ending(self._process.wait()))
                log.info("a builder process ended by %s", ends[-1])
        raise Died(" and ".join(dict.fromkeys(ends)))


class _Forked:
    """A process that another than the script's has forked, as far as it is like a Popen."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin, self.stdout, self.pid = stdin, stdout, 0

    def poll(self) -> int | None:
        """None while it runs, or is about to."""
        return 0 if self._hung_up(0) else None

    def wait(self) -> None:
        """Until it has ended. How, only the process knows that has forked it."""
        self._hung_up(None)

    def _hung_up(self, timeout: int | None) -> bool:
        watch = select.poll()  # one for each question: threads ask at once
        try:
            watch.register(self.stdout, 0)  # the end is told unasked
        except ValueError:  # closed here
            return True
        return bool(watch.poll(timeout))

    def kill(self) -> None:
        """Ends it, or has it end when it begins."""
        if self.pid and self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> None:
        """Closes the pipes."""
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):
                pipe.close()


def _ending(status: int | None) -> str:
    if status is None:
        return "an end unseen"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def main(idle_s: float) -> None:
    """The process: a program after another from stdin, until it is closed or nothing comes.

    Its arguments, if any, are the ends of pipes: for orders to fork, then two for each process to come.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the script's; this process ends with its pipe
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # without a word, where the script was killed before an answer
    orders, *numbers = [int(end) for end in sys.argv[1:]] or [-1]
    ahead = list(zip(numbers[::2], numbers[1::2], strict=True))
    requests, answers = pipes.ends()
    devices: dict[int, Any] = {}
    try:
        driver = discovery.select().open()
        if first := _FIRST.get(discovery.selected()):
            devices[0] = driver.open(0)
            devices[0].program_load(first, False, "")
    except Exception as error:
        pipes.send(answers, repr(error))
        os._exit(1)
    pipes.send(answers, os.getpid())
    forked: list[int] = []
    while ready := select.select([requests.fileno(), *([orders] if ahead else [])], [], [], idle_s)[0]:
        if orders in ready and os.read(orders, 1):
            own = ahead.pop(0)
            if child := _fork():
                forked.append(child)
                _close(*own)
            else:
                requests.close()
                answers.close()
                _close(orders, *itertools.chain(*ahead))
                requests, answers = os.fdopen(own[0], "rb"), os.fdopen(own[1], "wb")
                ahead, forked, idle_s = [], [], IDLE_S
                pipes.send(answers, os.getpid())
        elif requests.fileno() in ready:
            try:
                request = pipes.receive(requests)
            except EOFError:
                break
            pipes.send(answers, _built(driver, devices, *request))
        else:
            break  # the script is gone
        forked = [child for child in forked if not os.waitpid(child, os.WNOHANG)[0]]
    os._exit(0)  # the driver's threads are not waited for


def _fork() -> int:
    """As os.fork, without Python's warning of threads: the driver's, which wait for work that is none of a builder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)


def _built(driver: Any, devices: dict[int, Any], index: int, properties: bytes, source: bytes) -> bytes | str | None:
    """The answer to a request: as of `Builder.build`."""
    try:
        if index not in devices:
            devices[index] = driver.open(index)
        device = devices[index]
        if device.properties() != abi.unpack(abi.Properties.from_buffer_copy(properties)):
            return None
        program = device.program_load(source, False, "")
        binary: bytes = device.program_binary(program)
        device.program_destroy(program)
        return binary or None
    except Exception as error:
        return str(error)
