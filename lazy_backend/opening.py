"""What happens once, when the first tensor reaches the device: the driver opens, the op tables go to the recorder."""

from __future__ import annotations

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from lazy_backend import _C, ahead, archive, config
from lazy_backend.driver import discovery
from lazy_backend.uncollected import uncollected

# _to_copy asks for another device's tensor too, which is no node of a window. linear would have linear_backward for its
# gradient, for which DTensor has no rule; its parts fuse as well. clone is how conjugate and negative views are
# resolved: its copy_ looks at their bits.
_NOT_RECORDED = frozenset({"aten._to_copy.default", "aten._to_copy.out", "aten.linear.default", "aten.clone.default"})
# The host's, beside `lazy_backend._FACTORIES`: what makes quantized tensors, which the device then refuses, and
# composites that read their operands' memory as if it were the host's.
_ON_HOST = (
    "aten.quantize_per_channel.default",
    "aten.quantize_per_tensor.default",
    "aten.quantize_per_tensor_dynamic.default",
    "aten._sobol_engine_initialize_state_.default",
    "aten._sobol_engine_scramble_.default",
    "aten._sobol_engine_ff_.default",
    "aten._sobol_engine_draw.default",
    "aten._grid_sampler_2d_cpu_fallback.default",
    "aten._grid_sampler_2d_cpu_fallback_backward.default",
    "aten._reshape_from_tensor.default",
    "aten._rowwise_prune.default",
    "aten.choose_qparams_optimized.default",
    # Its graph is one for each list of lengths, as the forward pass's would be: 1 s for 20 steps, at each batch.
    "aten._ctc_loss_backward.default",
)
# The Meta kernels live as long as their library.
_kept: list[torch.library.Library] = []


# Python kernels over other device ops: what reads one count of the data, or asks for an operand's strides. Of indexing
# they have what csrc/indexing.cpp does not record at once.
_library = torch.library.Library("aten", "IMPL")
_unrecorded = torch.library.Library("lazy_backend", "IMPL")


@uncollected(lasting=True)
def open_device() -> None:
    """Opens the selected driver and tells the recorder which composites of torch it keeps whole; archives, if any.

    Raises `DriverError` saying what was tried where there is no driver.
    """
    archive.open_from_environment()
    # A driver takes as long to open as the op tables to make, outside of Python (Intel's OpenCL: 0.05 s to load, 0.02
    # for the device), and processes that build programs should start early: their first comes after 0.3 s.
    with ThreadPoolExecutor(1) as aside:
        opened = aside.submit(_open_driver)
        _tell_recorder()
        opened.result()
    if folder := config.PROFILE.get():
        from lazy_backend.reports import profile

        profile.begin(Path(str(folder)))


def _open_driver() -> None:
    discovery.open_selected()
    archive.record_from_environment()
    ahead.open_device()


@functools.cache  # once, also where a driver is found at the second attempt
def _tell_recorder() -> None:
    """Gives the op tables to the recorder, and to torch the kernels that it lacks."""
    from ops_core import data_dependent, layout_dependent, polynomials
    from ops_core.lowering import record_list
    from ops_core.lowering.dispatch import STATIC_SCALARS
    from ops_core.shapes import register, register_fake
    from ops_core.unimported import import_when_used

    import_when_used()

    _kept.append(register())
    register_fake()
    whole = (name for name in record_list() if name not in _NOT_RECORDED)
    names = ["aten.mode.values", "aten.narrow_copy.default", *_ON_HOST, *data_dependent.UNMASKED, *whole]
    _C.record_overloads([name.removeprefix("aten.").removesuffix(".default") for name in names])
    for name in _ON_HOST:
        _C.mark_host(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch remarks on what is replaced: the recorder has some of them
        kernels = data_dependent.KERNELS | layout_dependent.KERNELS | polynomials.KERNELS
        for name, function in kernels.items():
            if name in data_dependent.READ:
                _unrecorded.impl(name.split(".")[0], function, "PrivateUse1")
            else:
                _library.impl(name.removesuffix(".default"), function, "PrivateUse1", allow_override=True)
    for base, arguments in STATIC_SCALARS.items():
        for name in (base, base + "_"):
            for overload in getattr(torch.ops.aten, name).overloads() if hasattr(torch.ops.aten, name) else ():
                _C.mark_static_scalars(f"aten.{name}.{overload}", sorted(arguments))
