"""A PyTorch device that records eager ops in a sliding window, fuses them, and runs them as generated kernels.

`import torch` finds this package through the `torch.backends` entry point; `x.to("lazy")` is all a script does.
Nothing here imports MLIR or a driver before the first kernel is needed.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["explain", "kernel", "precompile", "report"]


def _autoload() -> None:
    """Called by `import torch`: registers the device. Must stay cheap (under 100 ms)."""
    from lazy_backend import _C, config, logs, torch_lazy

    logs.configure()
    _reports()
    torch_lazy.install()
    _C.register_ops()
    _C.set_window(config.WINDOW.get())
    _C.set_fallback(config.FALLBACK.get())
    _C.set_compile_callback(_compile)


def _compile(window: dict) -> dict:
    """The executor's way to the archive and the cache, or to the compiler, which is imported when it is needed."""
    from lazy_backend import _C, archive, background, plans
    from lazy_backend.report import explain

    if archive.recording is None and explain.captured is None:
        if background.waits(window):
            return background.op_by_op(window, "interpret")
        plan = archive.plan(window) or plans.remembered(window)
        if plan:
            for _ in range(background.built(window)):
                _C.count_built()
            return plan
    from lazy_backend import compiler

    return compiler.compile_window(window)


def _reports() -> dict[str, Any]:
    """`explain` and `report`, bound here: `report` the function, not the package that importing it binds."""
    explaining = importlib.import_module("lazy_backend.report.explain")
    functions = {"explain": explaining.explain, "report": explaining.report}
    globals().update(functions)
    return functions


def __getattr__(name: str) -> Any:
    if name == "kernel":
        from lazy_backend import custom

        return custom.kernel
    if name == "precompile":
        from lazy_backend import archive

        return archive.precompile
    if name in __all__:
        return _reports()[name]
    raise AttributeError(f"module 'lazy_backend' has no attribute {name!r}")
