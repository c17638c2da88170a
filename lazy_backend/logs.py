"""One logger, "lazy_backend", with a child for each part; LAZY_LOG switches them as TORCH_LOGS does."""

from __future__ import annotations

import logging

from lazy_backend import config

# What each part tells at INFO; warnings are always shown.
PARTS = {
    "compile": "every window that is compiled: why, and at which Python line",
    "cache": "the persistent cache's folder and entries",
    "plans": "cached plans that are not used",
    "tuning": "every product whose schedules were timed: the heuristic's time, the best one's",
    "archive": "what is recorded and what does not fit",
    "kernels": "kernels that a driver does not take",
    "lowering": "ops whose lowering failed",
}
_LEVELS = {"+": logging.DEBUG, "-": logging.ERROR, "": logging.INFO}


def levels(text: str) -> dict[str, int]:
    """The level of each logger that LAZY_LOG names: "compile,+cache,-lowering", or "all". Raises ValueError."""
    chosen = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        sign = word[0] if word[0] in "+-" else ""
        part = word[len(sign) :]
        if part != "all" and part not in PARTS:
            raise ValueError(f"LAZY_LOG={text!r}: no part {part!r}; there are all, {', '.join(PARTS)}")
        chosen["lazy_backend" if part == "all" else f"lazy_backend.{part}"] = _LEVELS[sign]
    return chosen


def configure() -> None:
    """Sets the levels that LAZY_LOG asks for, with a handler to stderr. Raises ValueError for a part that is none."""
    chosen = levels(str(config.LOG.get()))
    if not chosen:
        return
    root = logging.getLogger("lazy_backend")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    root.addHandler(handler)
    root.propagate = False
    for name, level in chosen.items():
        logging.getLogger(name).setLevel(level)
