"""The one place that finds the MLIR bindings: `mlir` where importable, else the copy inside `torch_mlir`.

Nothing is imported before the first kernel is printed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Folds constants and removes what is dead or repeated. Both passes keep IEEE semantics bit by bit. There are no blocks
# to join where control is structured, and `parse` has verified what the passes are given: the 84 modules of
# examples/gpt.py take them 28 ms, 62 with both (Zen 4).
PIPELINE = "builtin.module(canonicalize{region-simplify=disabled},cse)"


@cache
def bindings() -> tuple[ModuleType, ModuleType]:
    """The modules `ir` and `passmanager`. Raises ImportError where no MLIR wheel is installed."""
    for package in ("mlir", "torch_mlir"):
        if find_spec(package) and find_spec(f"{package}.ir"):
            ir = import_module(f"{package}.ir")
            # Operations are read by name: a class for each of a dialect's takes 0.1 s to import, and time to make.
            ir._globals.dialect_search_modules = []
            return ir, import_module(f"{package}.passmanager")
    raise ImportError("no MLIR bindings: install `torch-mlir` or `mlir-python-bindings`")


@cache
def context() -> Any:
    """One context for the process: types and attributes are interned in it, dialects load once."""
    return bindings()[0].Context()


@cache
def _pipeline(pipeline: str) -> Any:
    passes = bindings()[1].PassManager.parse(pipeline, context())
    passes.enable_verifier(False)
    return passes


def parse(text: str) -> Any:
    """Parse and verify a module. Raises `MLIRError` of the bindings with the position of a mistake."""
    ir = bindings()[0]
    with context(), ir.Location.unknown():
        return ir.Module.parse(text)


def run_passes(module: Any, pipeline: str = PIPELINE) -> Any:
    """Run a pass pipeline on a module in place, and return the module."""
    _pipeline(pipeline).run(module.operation)
    return module


def canonical(text: str) -> str:
    """The text of a module after `PIPELINE`: what `print_kernel` prints from, for people to read."""
    return str(run_passes(parse(text)))
