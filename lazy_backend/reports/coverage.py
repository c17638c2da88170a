"""Joins the route of every ATen overload with what the conformance runs have shown of it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ops_core import routes, scalars, table

from .evidence import Archive, Evidence
from .kinds import kind_of

STATES = ("native", "decomposed", "fallback", "wrong", "missing", "untested")
DEVICE_STATES = ("native", "decomposed")
COMPOSITE_STATES = ("works", "wrong", "raises", "untested")
# What a verified overload counts as, by its route.
_VERIFIED_AS = {"decomposed": "decomposed", "composite": "decomposed"}


@dataclass(frozen=True)
class Overload:
    """One ATen overload.

    Attributes:
        cls: its class in the dense denominator (``ops_core.routes.CLASSES``).
        kind: what its output's shape follows from.
        route: one of ``ops_core.routes.ROUTES``.
        group: the kernel group it is a face of, if it is one.
        state: one of ``STATES``.
    """

    name: str
    cls: str
    kind: str
    route: str
    group: str | None
    state: str
    evidence: Evidence


def state_of(route: str, evidence: Iterable[Evidence]) -> str:
    """Return the state that pieces of evidence for one thing amount to; the worst counts."""
    pieces = list(evidence)
    blamed = {status for piece in pieces for status in piece.blamed}
    if "differ" in blamed:
        return "wrong"
    if blamed:
        return "missing"
    if not any(piece.verified for piece in pieces):
        return "untested"
    if any(piece.host for piece in pieces):
        return "fallback"
    return _VERIFIED_AS.get(route, "native")


@cache
def _surface() -> tuple[tuple[str, str, str, str, str | None], ...]:
    """Name, class, kind, route and group of every overload."""
    group_of = {face.name: group.name for group in routes.kernel_groups() for face in group.faces}
    return tuple(
        (op.name, routes.class_of(op), kind_of(op.func), routes.route_of(op), group_of.get(op.name))
        for op in routes.overloads()
    )


def overloads(archive: Archive) -> list[Overload]:
    """Return a row for every overload of the running torch."""
    rows = []
    for name, cls, kind, route, group in _surface():
        evidence = archive.overloads.get(name, Evidence())
        rows.append(Overload(name, cls, kind, route, group, state_of(route, [evidence]), evidence))
    return rows


@dataclass(frozen=True)
class Group:
    """A kernel group: the functional, in-place and out= faces of one signature."""

    name: str
    kind: str
    route: str
    state: str
    faces: tuple[Overload, ...]

    @property
    def why(self) -> str:
        """A message of a failing case, where there is one; of a fallback, why the device has no way."""
        base = self.name.split(".")[1]
        reasons = [face.evidence.failure for face in self.faces]
        if self.state == "fallback":
            reasons.append((routes.HOST | routes.HOST_IN_PART).get(base, ""))
        return next(filter(None, reasons), "")


def groups(rows: list[Overload]) -> list[Group]:
    """Return the kernel groups with the state of all their faces together."""
    faces: dict[str, list[Overload]] = {}
    for row in rows:
        if row.group is not None:
            faces.setdefault(row.group, []).append(row)
    found = []
    for name, members in faces.items():
        head = next(row for row in members if row.name == name)
        state = state_of(head.route, (row.evidence for row in members))
        found.append(Group(name, head.kind, head.route, state, tuple(members)))
    return found


def composites(rows: list[Overload]) -> dict[str, int]:
    """Return how many composites of the dense denominator are in each of ``COMPOSITE_STATES``."""
    named = {"wrong": "wrong", "missing": "raises", "untested": "untested"}
    counts = Counter(named.get(row.state, "works") for row in rows if row.cls in ("implicit", "explicit"))
    return {state: counts[state] for state in COMPOSITE_STATES}


def report(archive: Archive) -> dict[str, Any]:
    """Return the whole report as JSON-able data; the headline is ``device`` of ``denominator``."""
    rows = overloads(archive)
    kernel_groups = groups(rows)
    states = Counter(group.state for group in kernel_groups)
    return {
        "torch": torch.__version__,
        "denominator": len(kernel_groups),
        "device": sum(states[state] for state in DEVICE_STATES),
        "native": states["native"],
        "decomposed": states["decomposed"],
        "host": states["fallback"],
        "wrong": states["wrong"],
        "missing": states["missing"],
        "untested": states["untested"],
        "routes": dict(Counter(row.route for row in rows).most_common()),
        "classes": dict(Counter(row.cls for row in rows).most_common()),
        "composites": composites(rows),
        "core_ops": list(table.STRUCTURAL),
        "scalar_functions": list(scalars.BY_NAME),
        "settings": archive.settings,
        "rates": archive.rates,
        "causes": archive.causes,
        "groups": [_group_json(group) for group in kernel_groups],
        "overloads": [_overload_json(row) for row in rows],
    }


def _group_json(group: Group) -> dict[str, Any]:
    faces = [face.name for face in group.faces]
    fields = ("name", "kind", "route", "state", "why")
    return {name: getattr(group, name) for name in fields} | {"faces": faces}


def _overload_json(row: Overload) -> dict[str, Any]:
    fields = ("name", "cls", "kind", "route", "group", "state")
    evidence = row.evidence
    shown = {"verified": evidence.verified, "host": evidence.host, "blamed": evidence.blamed, "units": evidence.units}
    return {name: getattr(row, name) for name in fields} | {key: value for key, value in shown.items() if value}
