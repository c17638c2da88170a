"""Why windows were compiled: in what each differs from the nearest known one, by kind, with the first Python line."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lazy_backend import identity
from lazy_backend.identity import Description

log = logging.getLogger("lazy_backend.compile")

# Windows that a new one is compared with: the latest. A description of 512 ops takes some 500 KB.
_MAX_KNOWN = 64
_known: deque[Description] = deque(maxlen=_MAX_KNOWN)


@dataclass
class Cause:
    """How often windows were compiled for a kind of difference (`identity.KINDS`); what it was first, and where."""

    count: int = 0
    text: str = ""
    line: str = ""


causes: dict[str, Cause] = {}


def known(window: Description) -> None:
    """A window that has a plan, compiled or from the cache."""
    _known.append(window)


def note(source: Mapping[str, Any]) -> None:
    """A window (as the recorder wrote it) that is now compiled: counts and logs why."""
    window = identity.describe(source, identity.statics)
    nearest = identity.nearest(window, _known)
    if window == nearest:  # a plan for this one run, or one that was forgotten
        different = identity.Difference("again", 0, "its plan was for one run, or was forgotten")
    else:
        different = identity.difference(window, nearest)
        known(window)
    line = source["nodes"][different.node or 0][4]
    cause = causes.setdefault(different.kind, Cause(0, different.text, line))
    cause.count += 1
    log.info("a window of %d ops: %s (at %s)", len(window.nodes), different.text, line)
