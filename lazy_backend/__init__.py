"""A PyTorch device that records eager ops in a sliding window, fuses them, and runs them as generated kernels.

`import torch` finds this package through the `torch.backends` entry point; `x.to("lazy")` is all a script does.
Nothing here imports MLIR or a driver before the first kernel is needed.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from typing import Any

__all__ = ["causes", "explain", "kernel", "precompile", "report"]

# Imported when they are asked for.
_HOMES = {
    "causes": "lazy_backend.reports.explain",
    "explain": "lazy_backend.reports.explain",
    "kernel": "lazy_backend.custom",
    "precompile": "lazy_backend.archive",
    "report": "lazy_backend.reports.explain",
}


# Composites that make a tensor and then look at its memory: the host's. Recorded before there is any tensor.
_FACTORIES = ("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")


def _autoload() -> None:
    """Called by `import torch`: registers the device. Must stay cheap (under 100 ms)."""
    from lazy_backend import _C, config, logs, torch_lazy
    from ops_core.untraced import untraced

    logs.configure()
    torch_lazy.install()
    _C.add_library_folders(_library_folders())
    _C.register_ops()
    _C.register_graphs()
    _C.record_overloads([name.removeprefix("aten.").removesuffix(".default") for name in _FACTORIES])
    for name in _FACTORIES:
        _C.mark_host(name)
    _C.set_window(int(config.WINDOW.get()))
    _C.set_fallback(str(config.FALLBACK.get()))
    atexit.register(_C.stop)
    _C.set_compile_callback(untraced(_compile))  # a read in a frame that Dynamo watches ends here


def _library_folders() -> list[str]:
    """The folders whose lines are not the user's: torch's, and those of this package and its siblings."""
    import torch

    root = os.path.dirname(__path__[0])
    ours = [os.path.join(root, name) for name in ("lazy_backend", "ops_core", "codegen")]
    return [folder + os.sep for folder in (os.path.dirname(torch.__file__), *ours)]


def _compile(window: dict) -> dict:
    """The executor's way to the archive and the cache, or to the compiler, which is imported when it is needed."""
    from lazy_backend import _C, archive, background, builders, config, kernels, plans
    from lazy_backend.reports import explain, profile
    from lazy_backend.uncollected import uncollected

    if archive.recording is None and not profile.active:  # they name kernels by their handles at the end
        kernels.make_room(window["device"])
    if archive.recording is None and explain.captured is None:
        if rung := background.rung(window):
            return rung
        if "lazy_backend.compiler" in sys.modules and (plan := sys.modules["lazy_backend.compiler"].foretold(window)):
            return plan
        plan = archive.plan(window) or (None if profile.active else plans.remembered(window))
        if plan:
            for _ in range(background.built(window)):
                _C.count_built()
            return plan
        if not profile.active and (rung := background.filled(window)):
            return rung
    if config.COMPILE.get() == "sync":
        builders.expect(window["structure"], len(window["nodes"]), window["device"])
    with uncollected(lasting=True):
        from lazy_backend import compiler

    return compiler.compile_window(window)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lazy_backend' has no attribute {name!r}")
