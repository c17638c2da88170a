"""Cases of PyTorch's module database: outputs and buffers, and all gradients, in training and in evaluation."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

from .case import DTYPES, SEED, Case, Tolerance, Unit, spread
from .place import place, tensors_of

# Composites and CPU kernels of the norms round differently where a variance is 0.
TOLERANCE = {torch.float32: Tolerance(atol=2e-4, rtol=1e-4)}
MODULE_DTYPES = ("float32", "bfloat16")


def units() -> Iterator[Unit]:
    """Yield a unit for every module class and floating point dtype."""
    for info in module_db:
        for name in MODULE_DTYPES:
            yield Unit(f"modules/{info.name}:{name}", DTYPES[name], partial(_cases, info, DTYPES[name]))


def _cases(info: ModuleInfo, dtype: torch.dtype, samples: int, variants: frozenset[str]) -> Iterator[Case]:
    inputs = [(training, item) for training in (True, False) for item in _inputs(info, dtype, training)]
    for index, (training, item) in spread(inputs, samples and samples * 2):
        make = partial(Case, index=index, tolerance=TOLERANCE.get(dtype))
        if "forward" in variants:
            yield make("forward", run=partial(_forward, info, item, training, dtype))
        if "backward" in variants:
            yield make("backward", run=partial(_backward, info, item, training, dtype))


def _inputs(info: ModuleInfo, dtype: torch.dtype, training: bool) -> list[ModuleInput]:
    torch.manual_seed(SEED)
    made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    return [item for item in made if item.forward_input is not None]


def _apply(
    info: ModuleInfo, item: ModuleInput, training: bool, dtype: torch.dtype, device: str, wide: bool
) -> tuple[torch.nn.Module, Any, Any]:
    """Build the module on the CPU from the seed, move it, and return module, forward arguments and outputs.

    wide: with the same numbers, computed in float64.
    """
    torch.manual_seed(SEED)
    constructor = item.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
    if info.is_lazy:  # its parameters come with the first call, and from the seed
        args, kwargs = place((item.forward_input.args, item.forward_input.kwargs), "cpu")
        module(*args, **kwargs)
    module = (module.double() if wide else module).to(device)
    args, kwargs = place((item.forward_input.args, item.forward_input.kwargs), device, wide)
    return module, (args, kwargs), module(*args, **kwargs)


def _forward(
    info: ModuleInfo, item: ModuleInput, training: bool, dtype: torch.dtype, device: str, wide: bool = False
) -> Any:
    module, _, outputs = _apply(info, item, training, dtype, device, wide)
    return outputs, dict(module.named_buffers())


def _backward(
    info: ModuleInfo, item: ModuleInput, training: bool, dtype: torch.dtype, device: str, wide: bool = False
) -> Any:
    module, arguments, outputs = _apply(info, item, training, dtype, device, wide)
    made = tensors_of(outputs, lambda t: t.requires_grad)
    wants = [*module.parameters(), *tensors_of(arguments, lambda t: t.requires_grad)]
    if not made or not wants:
        return []
    generator = torch.Generator().manual_seed(SEED)
    drawn = (torch.randn(o.shape, dtype=torch.float64, generator=generator).to(dtype) for o in made)
    grads = [grad.to(o.dtype).to(o.device) for grad, o in zip(drawn, made, strict=True)]
    return torch.autograd.grad(made, wants, grads, allow_unused=True)
