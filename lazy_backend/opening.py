"""What happens once, when the first tensor reaches the device: the driver opens, the op tables go to the recorder."""

from __future__ import annotations

import warnings

import torch

from lazy_backend import _C, archive
from lazy_backend.driver import discovery

# _to_copy asks for another device's tensor too, which is no node of a window. linear would have linear_backward for its
# gradient, for which DTensor has no rule; its parts fuse as well. clone is how conjugate and negative views are
# resolved: its copy_ looks at their bits.
_NOT_RECORDED = frozenset({"aten._to_copy.default", "aten._to_copy.out", "aten.linear.default", "aten.clone.default"})
# The host's: windows that torch serves through kernels outside the dispatcher, and what makes quantized tensors, which
# the device then refuses.
_ON_HOST = (
    "aten.kaiser_window.default",
    "aten.kaiser_window.periodic",
    "aten.kaiser_window.beta",
    "aten.quantize_per_channel.default",
    "aten.quantize_per_tensor.default",
    "aten.quantize_per_tensor_dynamic.default",
)
# The Meta kernels live as long as their library.
_kept: list[torch.library.Library] = []


# Ops whose output's shape lies in the data: Python kernels that read one count and do the rest on the device.
_library = torch.library.Library("aten", "IMPL")


def open_device() -> None:
    """Opens the selected driver and tells the recorder which composites of torch it keeps whole; archives, if any."""
    archive.open_from_environment()
    discovery.open_selected()
    archive.record_from_environment()
    from ops_core.data_dependent import KERNELS, UNMASKED
    from ops_core.lowering import record_list
    from ops_core.lowering.dispatch import STATIC_SCALARS
    from ops_core.shapes import register, register_fake

    _kept.append(register())
    register_fake()
    names = ["aten.mode.values", *_ON_HOST, *UNMASKED, *(name for name in record_list() if name not in _NOT_RECORDED)]
    _C.record_overloads([name.removeprefix("aten.").removesuffix(".default") for name in names])
    for name in _ON_HOST:
        _C.mark_host(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch remarks on what is replaced: the recorder has some of them
        for name, function in KERNELS.items():
            _library.impl(name.removesuffix(".default"), function, "PrivateUse1", allow_override=True)
    for base, arguments in STATIC_SCALARS.items():
        for name in (base, base + "_"):
            for overload in getattr(torch.ops.aten, name).overloads() if hasattr(torch.ops.aten, name) else ():
                _C.mark_static_scalars(f"aten.{name}.{overload}", sorted(arguments))
