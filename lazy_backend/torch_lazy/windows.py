"""What the device records and runs, counted; and how long a window may grow."""

from __future__ import annotations

from typing import Any

from lazy_backend import _C, cache
from lazy_backend.reports import compiles


def stats() -> dict[str, Any]:
    """Counters since the start or `reset_stats`.

    ops recorded, windows cut, reads, plans_compiled, plans_hit, kernels_built, kernels_launched, extern_calls,
    extern_copies (results of the host's library that were written twice), host_ops (CPU fallbacks; host_ops_by_name),
    host_bytes, compile_seconds, cuts_by_cause, compiles_by_cause (the kinds of `lazy_backend.identity.KINDS`),
    cache (hits, misses and stores of this process).
    """
    by_cause = {kind: cause.count for kind, cause in compiles.causes.items()}
    return _C.stats() | {"compiles_by_cause": by_cause, "cache": dict(cache.counts)}


def reset_stats() -> None:
    """All counters start from 0."""
    _C.reset_stats()
    compiles.causes.clear()
    cache.counts.update(dict.fromkeys(cache.counts, 0))


class window:
    """`window(n)`: from now on a window has at most `n` ops (1: eager mode). As a context manager, only inside."""

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"a window has at least 1 op, not {length}")
        self._previous = _C.window()
        _C.set_window(length)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        _C.set_window(self._previous)
