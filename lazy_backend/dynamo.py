"""torch.compile(backend="lazy"): Dynamo and AOTAutograd take the graph, the device takes its ops.

The traced graph (forward and backward apart, functional, at the ATen level) is run op by op into the recorder, which
cuts windows and finds plans as for eager code; so shapes may vary as they do there, and the two share every kernel.
What is gained over the eager script is the Python of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch.fx import GraphModule

from lazy_backend import torch_lazy as lazy

Compiled = Callable[..., Any]


class LazyInterface(DeviceInterface):
    """What Dynamo asks about a device while it traces: the functions of `torch.lazy`."""

    Event = torch.Event
    Stream = torch.Stream
    device = lazy.device
    current_device = staticmethod(lazy.current_device)
    set_device = staticmethod(lazy.set_device)
    device_count = staticmethod(lazy.device_count)
    is_available = staticmethod(lazy.is_available)
    synchronize = staticmethod(lazy.synchronize)
    current_stream = staticmethod(lazy.current_stream)
    set_stream = staticmethod(lazy.set_stream)
    get_device_properties = staticmethod(lazy.get_device_properties)
    memory_allocated = staticmethod(lazy.memory_allocated)
    exchange_device = staticmethod(torch._C._accelerator_exchangeDevice)  # type: ignore[assignment]
    maybe_exchange_device = staticmethod(torch._C._accelerator_maybeExchangeDevice)  # type: ignore[assignment]

    class Worker:
        """The same, for processes that compile; they have no device of their own."""

        set_device = staticmethod(lazy.set_device)
        current_device = staticmethod(lazy.current_device)
        get_device_properties = staticmethod(lazy.get_device_properties)

    @staticmethod
    def get_raw_stream(device_index: int) -> int:
        """The id of the current stream."""
        return lazy.current_stream(device_index).stream_id

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        """The chip's name: kernels are generated for it alone."""
        return lazy.get_device_name(device)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        """As `torch.lazy.is_bf16_supported`."""
        return lazy.is_bf16_supported(including_emulation)


def register() -> None:
    """Tells Dynamo about the device."""
    register_interface_for_device("lazy", LazyInterface)
    for index in range(lazy.device_count()):
        register_interface_for_device(f"lazy:{index}", LazyInterface)


def _record(graph: GraphModule, example_inputs: list[Any]) -> Compiled:
    """The graph as straight-line Python that records its ops."""
    forward = graph.forward

    def run(inputs: list[Any]) -> Any:
        """Takes its inputs out of the list, so that they may be freed while it runs."""
        arguments = list(inputs)
        inputs.clear()
        return forward(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


_compile = aot_autograd(fw_compiler=_record)


def compile_graph(graph: GraphModule, example_inputs: list[Any]) -> Compiled:
    """The backend: a Dynamo graph -> a callable."""
    return _compile(graph, example_inputs)
