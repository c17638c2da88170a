"""Cases of PyTorch's optimizer database: parameters after four steps, by every implementation an optimizer has."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

from .case import DTYPES, SEED, Case, Tolerance, Unit, spread
from .place import place

STEPS = 4
SHAPES = ((3, 4), (5, 2), (4, 4))
# What the optimizer tests of PyTorch give an implementation against the plain loop.
TOLERANCE = Tolerance(atol=5e-4, rtol=1e-4)
IMPLEMENTATIONS = ("forloop", "foreach", "fused", "capturable")


def units() -> Iterator[Unit]:
    """Yield a unit for every optimizer with dense gradients."""
    for info in optim_db:
        if not info.only_supports_sparse_grads:
            yield Unit(f"optimizers/{info.name}:float32", DTYPES["float32"], partial(_cases, info))


def _cases(info: OptimizerInfo, samples: int, variants: frozenset[str]) -> Iterator[Case]:
    if "forward" not in variants:
        return
    inputs = [item.kwargs for item in info.optim_inputs_func("cpu")]
    supported = {"forloop", *info.supported_impls} | ({"capturable"} if info.has_capturable_arg else set())
    configurations = [(kwargs, how) for kwargs in inputs for how in IMPLEMENTATIONS if how in supported]
    for index, (kwargs, how) in spread(configurations, samples and samples * len(IMPLEMENTATIONS)):
        yield Case("forward", index, partial(_train, info, kwargs, how), tolerance=TOLERANCE)


def _flags(info: OptimizerInfo, how: str, device: str) -> dict[str, bool]:
    if how == "capturable":
        return {"capturable": True} if device != "cpu" else {}
    flags = {flag: flag == how for flag in ("foreach", "fused") if flag in info.supported_impls}
    return {flag: on for flag, on in flags.items() if on or how == "forloop"}


def _train(info: OptimizerInfo, kwargs: dict[str, Any], how: str, device: str, wide: bool = False) -> Any:
    generator = torch.Generator().manual_seed(SEED)
    dtype = torch.float64 if wide else torch.float32
    draw = partial(torch.randn, generator=generator, dtype=dtype)
    parameters = [torch.nn.Parameter(draw(shape).to(device)) for shape in SHAPES]
    create = cast(Callable[..., torch.optim.Optimizer], info.optim_cls)  # torch annotates the class as an instance
    optimizer = create(parameters, **(place(kwargs, device) | _flags(info, how, device)))

    def closure() -> Any:  # the loss; torch annotates float
        optimizer.zero_grad()
        loss: Any = sum(((p - i) ** 2).sum() for i, p in enumerate(parameters))
        loss.backward()
        return loss

    for _ in range(STEPS):
        if info.step_requires_closure:
            optimizer.step(closure)
            continue
        for parameter in parameters:
            parameter.grad = draw(parameter.shape).to(device)
        optimizer.step()
    return parameters
