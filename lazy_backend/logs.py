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
    "sized": "windows that get no plan for sizes that vary: why",
}
_LEVELS = {"+": logging.DEBUG, "-": logging.ERROR, "": logging.INFO}


def levels(text: str) -> dict[str, int]:
    """The level of each logger that LAZY_LOG names: "compile,+cache", or "all,-lowering". Raises ValueError."""
    chosen, every = {}, None
    for word in filter(None, (part.strip() for part in text.split(","))):
        sign = word[0] if word[0] in _LEVELS else ""
        part = word[len(sign) :]
        if part == "all":
            every = _LEVELS[sign]
        elif part in PARTS:
            chosen[part] = _LEVELS[sign]
        else:
            raise ValueError(f"LAZY_LOG={text!r}: no part {part!r}; there are all, {', '.join(PARTS)}")
    chosen = ({} if every is None else dict.fromkeys(PARTS, every)) | chosen
    return {f"lazy_backend.{part}": level for part, level in chosen.items()}


def configure() -> None:
    """Sets the levels that LAZY_LOG asks for, with a handler to stderr. Raises ValueError for a part that is none."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    for name, level in levels(str(config.LOG.get())).items():
        # The parts' own: torch resets "lazy_backend", whose parent's handler would print the line once more.
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(level)
