"""The MLIR text of parts that are independent of each other as one, in which their statements take turns.

A compiler leaves functions of several vectors that follow each other in the source as they are: those of the first,
then those of the second. A core that looks some hundred operations ahead then waits for each chain in turn.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence

NAME = re.compile(r"%[A-Za-z]*\d+")


def by_turns(parts: Sequence[Sequence[str]], indent: str) -> list[str]:
    """The lines of parts, of each a statement in turn; one that uses a value of another part waits for it."""
    rest = [deque(statements(part, indent)) for part in parts]
    defined = [{name for statement in part for name in results(statement)} for part in rest]
    waiting = set[str]().union(*defined)
    lines: list[str] = []
    while any(rest):
        for part, own in zip(rest, defined, strict=True):
            if part and not (waiting - own).intersection(NAME.findall("".join(part[0]))):
                statement = part.popleft()
                waiting.difference_update(results(statement))
                lines += statement
    return lines


def statements(lines: Sequence[str], indent: str) -> Iterator[list[str]]:
    """The lines of each statement of a block that is indented so far, with those of its regions."""
    statement: list[str] = []
    for line in lines:
        if statement and line.startswith(indent) and line[len(indent)] not in " }":
            yield statement
            statement = []
        statement.append(line)
    if statement:
        yield statement


def results(statement: Sequence[str]) -> list[str]:
    """The names that a statement defines."""
    names, equals, _ = statement[0].partition(" = ")
    return NAME.findall(names) if equals else []
