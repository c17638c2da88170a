"""Languages that the printer writes: one `Language` each, found by name."""

from __future__ import annotations

from importlib import import_module

from codegen.dialects.base import HALVES, Language, Type, combination

__all__ = ["HALVES", "Language", "Type", "combination", "language"]

_MODULES = {"opencl": "codegen.dialects.opencl", "c": "codegen.dialects.c", "cuda": "codegen.dialects.cuda"}


def language(name: str) -> Language:
    """The language called name. Raises KeyError for a name that is not in the table."""
    result: Language = import_module(_MODULES[name]).LANGUAGE
    return result
