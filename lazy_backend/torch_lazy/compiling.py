"""`torch.compile(model)`, whose default is Inductor: graphs of the device go to the backend "lazy" instead.

Inductor has no code generator for the device, and would raise a KeyError. Its options mean nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_inductor = torch._TorchCompileInductorWrapper.__call__


def _on_device(graph: torch.fx.GraphModule) -> bool:
    values = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(value, torch.Tensor) and value.device.type == "lazy" for value in values)


# The names of the parameters are those of what it stands in for.
def _compile(self: Any, model_: Any, inputs_: Any, *, config_patches: Any = None) -> Callable[..., Any]:
    if not _on_device(model_):
        return _inductor(self, model_, inputs_, config_patches=config_patches)
    from lazy_backend.dynamo import compile_graph

    return compile_graph(model_, inputs_)


def install() -> None:
    """Changes what torch.compile does with a graph when no backend is named."""
    torch._TorchCompileInductorWrapper.__call__ = _compile  # type: ignore[method-assign]
