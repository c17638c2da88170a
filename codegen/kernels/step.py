"""What a kernel template returns: launches in order, with named operands for arguments."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """One kernel and its launch.

    args: what the kernel's arguments are, in order of declaration. The name of an operand stands for all arguments
    that binding it declared, in their order; a number i for `Steps.temps[i]`, one buffer.
    """

    name: str
    mlir: str
    args: tuple[str | int, ...]
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]


class Steps(NamedTuple):
    """The launches of one op. temps: bytes of buffers that live during these launches only."""

    steps: list[Step]
    temps: list[int]
