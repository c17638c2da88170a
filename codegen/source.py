"""The source of a kernel in parts, so that several kernels can be one program."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """What a kernel is written as: the language's header, the library functions that it calls, callees first, itself.

    header: empty for a text that is a program of its own, whatever it has in it.
    """

    header: str
    functions: tuple[str, ...]
    kernel: str

    def program(self, *others: Source) -> str:
        """The text of a program of this kernel and others, which have its header and names of their own."""
        kernels = self, *others
        functions = dict.fromkeys(function for kernel in kernels for function in kernel.functions)
        return "".join([self.header, *functions, *(kernel.kernel for kernel in kernels)])
