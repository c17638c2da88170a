"""Messages between the script's process and the processes that compile for it, as bytes of a length and a value."""

from __future__ import annotations

import marshal
import os
import struct
import sys
from pathlib import Path
from typing import IO, Any

# marshal: both ends are this package in one version of Python, and nobody else has the pipe.
_LENGTH = struct.Struct("<Q")


def send(pipe: IO[bytes], message: Any) -> None:
    """Writes plain objects (dict, list, tuple, str, bytes, numbers, None)."""
    text = marshal.dumps(message)
    pipe.write(_LENGTH.pack(len(text)) + text)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Reads what `send` wrote. Raises EOFError where the other side is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return marshal.loads(pipe.read(_LENGTH.unpack(head)[0]))


def environment(**changed: str) -> dict[str, str]:
    """The script's environment for a process that finds the same modules, this package first."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path[1:]])
    return {**os.environ, "PYTHONPATH": path, **changed}


def ends() -> tuple[IO[bytes], IO[bytes]]:
    """A started process's own two ends: requests, answers. What a driver prints goes to stderr, it is no answer."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return requests, answers
