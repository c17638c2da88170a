"""What a window *is*, without its lines and the values of its scalars: the same in every process.

The recorder's own hashes number strings and ops in the order in which a process meets them, so they tell windows apart
within one process only. Here a window is a `Description`, plain JSON, with a digest; two of them can be compared, which
is how a compile or a missing window is explained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from lazy_backend import _C

SCALAR_KINDS = ("f64", "i64", "bool", "c128")  # csrc/window.h, ScalarKind
_NUMBER = {"f64": float, "i64": int, "bool": bool}


# Arguments whose scalars are part of what a window is, by op: what the compiler has told the recorder since the start.
statics: dict[str, set[str]] = {}


def mark_static(op: str, names: set[str]) -> None:
    """From now on the recorder writes the scalars of these arguments as numbers."""
    statics.setdefault(op, set()).update(names)
    _C.mark_static_scalars(op, sorted(names))


class Description(NamedTuple):
    """nodes: [op, arguments, fresh outputs, (seed, offset) or None]; slots: [nbytes, alive, had data].

    `scalars`: the window's index of each run-time scalar, by the index that it has here. ordered: recorded under
    torch.use_deterministic_algorithms.
    """

    nodes: list[list[Any]]
    slots: list[list[Any]]
    scalars: list[int]
    ordered: bool = False

    def text(self) -> str:
        """As JSON: nodes and slots."""
        return json.dumps([self.nodes, self.slots], separators=(",", ":"))

    def digest(self) -> bytes:
        """32 bytes that no other window has."""
        return hashlib.sha256((self.text() + ("ordered" if self.ordered else "")).encode()).digest()


def describe(window: Mapping[str, Any], statics: Mapping[str, Iterable[str]] | None = None) -> Description:
    """The description of a window as the recorder hands it over (see lazy_backend/compiler.py).

    statics: arguments, by op, whose scalars are part of what a window is. A recorder that knows them writes them so; a
    window that it recorded before it did is described as if it had.
    """
    scalars: list[int] = []

    def walk(value: Any) -> Any:
        match value:
            case ("scalar", index, kind):
                scalars.extend(range(index, index + (2 if SCALAR_KINDS[kind] == "c128" else 1)))
                return ["scalar", len(scalars) - (2 if SCALAR_KINDS[kind] == "c128" else 1), kind]
            case tuple() | list():
                return [walk(member) for member in value]
        return value

    def fixed(value: Any) -> Any:
        match value:
            case ("scalar", index, kind) if SCALAR_KINDS[kind] in _NUMBER:
                return _NUMBER[SCALAR_KINDS[kind]](window["scalars"][index])
            case list():
                return [fixed(member) for member in value]
        return value

    nodes = []
    for op, args, outs, seed, _ in window["nodes"]:
        if names := statics and statics.get(op):
            known = set(names)
            args = [fixed(v) if a.name in known else v for a, v in zip(schema(op).arguments, args, strict=True)]
        nodes.append([op, walk(args), walk(outs), walk(seed)])
    return Description(nodes, [list(slot) for slot in window["slots"]], scalars, window["ordered"])


def parsed(text: str) -> Description:
    """The description that was written by `Description.text`. Raises ValueError for anything else."""
    nodes, slots = json.loads(text)
    return Description(nodes, slots, [])


def schema(op: str) -> torch._C.FunctionSchema:
    """The schema of "aten.add.Tensor"."""
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema


class Difference(NamedTuple):
    """The first thing in which a window is not another one. kind: see `KINDS`; node: where, or None."""

    kind: str
    node: int | None
    text: str


# What kind of change makes a window another one.
KINDS = {
    "new": "nothing like it was known",
    "ops": "the ops differ",
    "sizes": "sizes, strides or offsets differ",
    "dtypes": "dtypes differ",
    "dataflow": "an op reads or writes another tensor",
    "values": "a number that is part of the program differs",
    "liveness": "a result is still in use, or not any more",
    "order": "torch.use_deterministic_algorithms was switched on or off",
}
_FIELDS = (("dtype", "dtypes"), ("sizes", "sizes"), ("strides", "sizes"), ("offset", "sizes"))


def nearest(window: Description, known: Iterable[Description]) -> Description | None:
    """The one that has most in common with the window: ops first, then whole nodes, at the same places."""

    def likeness(other: Description) -> tuple[int, int, int]:
        pairs = list(zip(window.nodes, other.nodes, strict=False))
        return (
            sum(a[0] == b[0] for a, b in pairs),
            -abs(len(window.nodes) - len(other.nodes)),
            sum(a == b for a, b in pairs),
        )

    return max(known, key=likeness, default=None)


def difference(window: Description, other: Description | None) -> Difference:
    """In what the window is not the other one. Both must not be equal."""
    if other is None:
        return Difference("new", 0, "no window was known")
    ops, known = [n[0] for n in window.nodes], [n[0] for n in other.nodes]
    for at, (op, old) in enumerate(zip(ops, known, strict=False)):
        if op != old:
            return Difference("ops", at, f"op {at} is {op}, where the nearest known window has {old}")
    if len(ops) != len(known):
        at = min(len(ops), len(known))
        longer, rest = ("it goes on", ops[at:]) if len(ops) > at else ("the nearest known window goes on", known[at:])
        return Difference("ops", min(at, len(ops) - 1), f"after {at} equal ops {longer} with {rest[0]}")
    for at, (node, old) in enumerate(zip(window.nodes, other.nodes, strict=True)):
        if node != old:
            kind, text = _values(schema(node[0]), node, old)
            return Difference(kind, at, f"{text} of op {at}, {node[0]}")
    for slot, (here, there) in enumerate(zip(window.slots, other.slots, strict=True)):
        if here != there:
            return _slots(window, slot, here, there)
    if window.ordered != other.ordered:
        return Difference("order", 0, f"torch.use_deterministic_algorithms is {'on' if window.ordered else 'off'}")
    raise ValueError("the windows are equal")


def _values(op: torch._C.FunctionSchema, node: list[Any], old: list[Any]) -> tuple[str, str]:
    """(kind, what differs) of two calls of one op."""
    for argument, a, b in zip(op.arguments, node[1], old[1], strict=True):
        if a != b:
            kind, text = _value(a, b)
            return kind, f"argument {argument.name!r} ({text})"
    for number, (a, b) in enumerate(zip(node[2], old[2], strict=False)):
        if a != b:
            kind, text = _value(a, b)
            return kind, f"result {number} ({text})"
    return "values", "the seed or a result"


def _value(a: Any, b: Any) -> tuple[str, str]:
    match a, b:
        case ["tensor", slot, *mine], ["tensor", before, *theirs]:
            for (field, kind), x, y in zip(_FIELDS, mine, theirs, strict=True):
                if x != y:
                    return kind, f"{field} {_plain(x)}, known {_plain(y)}"
            return "dataflow", f"tensor {slot} of the window, known {before}"
        case list(), list() if len(a) == len(b) and not (a and isinstance(a[0], str)):
            return next(_value(x, y) for x, y in zip(a, b, strict=True) if x != y)
        case ["tensor", *_], _:
            return "dataflow", f"a tensor, known {_plain(b)}"
    return "values", f"{_plain(a)}, known {_plain(b)}"


def _plain(value: Any) -> str:
    match value:
        case ["scalar", _, kind]:
            return f"a run-time {SCALAR_KINDS[kind]}"
        case ["tensor", *_]:
            return "a tensor"
        case list():
            return f"({', '.join(_plain(v) for v in value)})"
    return repr(value)


def _slots(window: Description, slot: int, here: list[Any], there: list[Any]) -> Difference:
    at = next((i for i, node in enumerate(window.nodes) if slot in _touched(node)), 0)
    what = f"tensor {slot} of the window, first used by op {at}, {window.nodes[at][0]},"
    for number, (yes, no) in (
        (1, ("is still in use", "is not in use any more")),
        (2, ("holds data", "holds none yet")),
    ):
        if here[number] != there[number]:
            return Difference("liveness", at, f"{what} {yes if here[number] else no}, other than the known one")
    return Difference("sizes", at, f"{what} has {here[0]} bytes of storage, known {there[0]}")


def _touched(node: list[Any]) -> Iterator[int]:
    stack = [node[1], node[2]]
    while stack:
        match stack.pop():
            case ["tensor", slot, *_]:
                yield slot
            case list() as members:
                stack += members
