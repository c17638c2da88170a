"""Cases of PyTorch's operator databases: ``op_db`` and the foreach databases."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as databases
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from .case import BACKWARD_DTYPES, DTYPES, SEED, Case, Tolerance, Unit, spread
from .place import place, tensors_of


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# The databases fix a seed around random ops, which would hide from the judge that they are random.
_SEEDED = databases.wrapper_set_seed
databases.wrapper_set_seed = _unseeded  # type: ignore[attr-defined]

FOREACH = ("unary", "binary", "pointwise", "reduce", "other")
# Ops whose values nobody defines: only shape and dtype are judged.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# Their results or arguments are sparse: nothing that a dense device answers for.
SPARSE = {"sparse.sampled_addmm", "sparse.mm", "to_sparse"}
# Their tensor arguments after the first say where, and must lie on the CPU whatever the device.
HOST_ARGUMENTS = {"tensor_split"}
# Unstable index results: the position of `dim` among the arguments and what it is when left out. Ties may be broken
# either way.
TIES = {
    "sort": (0, -1),
    "argsort": (0, -1),
    "topk": (1, -1),
    "kthvalue": (1, -1),
    "mode": (0, -1),
    "median": (0, None),
    "nanmedian": (0, None),
}


def units() -> Iterator[Unit]:
    """Yield a unit for every operator and dtype that the CPU supports."""
    foreach = [op for kind in FOREACH for op in getattr(databases, f"foreach_{kind}_op_db")]
    for family, ops in (("ops", databases.op_db), ("foreach", foreach)):
        for op in (op for op in ops if op.name not in SPARSE):
            for name, dtype in DTYPES.items():
                if op.supports_dtype(dtype, "cpu"):
                    yield Unit(f"{family}/{op.full_name}:{name}", dtype, partial(_cases, op, dtype))


def _cases(op: OpInfo, dtype: torch.dtype, samples: int, variants: frozenset[str]) -> Iterator[Case]:
    tolerance = _override(op, dtype)
    chosen = spread(samples_of(op, dtype, requires_grad=False), samples)
    for index, sample in chosen:
        make = partial(Case, index=index, settle=_settler(op, sample), tolerance=tolerance)
        if op.get_op() is not None and "forward" in variants:
            yield make("forward", run=partial(_forward, op, sample))
        if op.get_op() is not None and "noncontiguous" in variants and tensors_of([sample.input, sample.args]):
            yield make("noncontiguous", run=partial(_forward, op, sample.noncontiguous()))
        if op.get_inplace() is not None and "inplace" in variants and not sample.broadcasts_input:
            yield make("inplace", run=partial(_inplace, op, sample))
        if op.supports_out and "out" in variants:
            yield make("out", run=partial(_out, op, sample))
    if "backward" in variants and dtype in BACKWARD_DTYPES and dtype in op.supported_backward_dtypes("cpu"):
        for index, sample in spread(samples_of(op, dtype, requires_grad=True), samples):
            if tensors_of([sample.input, sample.args, sample.kwargs], lambda t: t.requires_grad):
                yield Case("backward", index, partial(_backward, op, sample), tolerance=tolerance)
    if "error" in variants and dtype is torch.float32 and op.error_inputs_func is not None:
        torch.manual_seed(SEED)
        for index, item in spread(list(op.error_inputs("cpu")), samples):
            yield Case("error", index, partial(_error, op, item), raises=(item.error_type, item.error_regex))


def samples_of(op: OpInfo, dtype: torch.dtype, requires_grad: bool = False) -> list[SampleInput]:
    """Return the samples of an entry on the CPU, the same ones each time."""
    torch.manual_seed(SEED)
    return list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def _call(op: Callable[..., Any], sample: SampleInput, device: str, **extra: Any) -> Any:
    """Call ``op``; a factory makes its result on ``device``."""
    kwargs = dict(sample.kwargs) | extra
    if "device" in kwargs:
        kwargs["device"] = device
    if tensors_of([sample.input, sample.args, kwargs]):
        return op(sample.input, *sample.args, **kwargs)
    with torch.device(device):
        return op(sample.input, *sample.args, **kwargs)


def _placed(op: OpInfo, sample: SampleInput, device: str, wide: bool) -> SampleInput:
    moved, args, kwargs = place([sample.input, sample.args, sample.kwargs], device, wide)
    if op.name in HOST_ARGUMENTS:
        args, kwargs = sample.args, sample.kwargs
    return SampleInput(moved, args=args, kwargs=kwargs, output_process_fn_grad=sample.output_process_fn_grad)


def _forward(op: OpInfo, sample: SampleInput, device: str, wide: bool = False) -> Any:
    placed = _placed(op, sample, device, wide)
    return placed.output_process_fn_grad(_call(op.get_op(), placed, device))


def _inplace(op: OpInfo, sample: SampleInput, device: str, wide: bool = False) -> Any:
    placed = _placed(op, sample, device, wide)
    return _call(op.get_inplace(), placed, device), placed.input


def _out(op: OpInfo, sample: SampleInput, device: str, wide: bool = False) -> Any:
    """Write into an ``out=`` of the right shape with its innermost dimension strided by two.

    The CPU's is contiguous, because some of its kernels write a strided one wrongly.
    """
    expected = _call(op.get_op(), _placed(op, sample, "cpu", wide), "cpu")
    single = isinstance(expected, torch.Tensor)
    results = (expected,) if single else tuple(expected)
    if device == "cpu":
        outs = tuple(torch.zeros(t.shape, dtype=t.dtype) for t in results)
    else:
        outs = tuple(torch.zeros((*t.shape, 2), dtype=t.dtype, device=device)[..., 0] for t in results)
    _call(op.get_op(), _placed(op, sample, device, wide), device, out=outs[0] if single else outs)
    return outs


def _backward(op: OpInfo, sample: SampleInput, device: str, wide: bool = False) -> Any:
    """Return the gradients of all inputs for fixed random output gradients."""
    placed = _placed(op, sample, device, wide)
    wants = tensors_of([placed.input, placed.args, placed.kwargs], lambda t: t.requires_grad)
    wrapper = _unseeded if op.gradcheck_wrapper is _SEEDED else op.gradcheck_wrapper
    function = partial(wrapper, op.get_op())
    outputs = placed.output_process_fn_grad(_call(function, placed, device))
    outputs = tensors_of(outputs, lambda t: t.requires_grad)
    if not outputs:
        return []
    generator = torch.Generator().manual_seed(SEED)
    grads = [torch.randn(o.shape, dtype=torch.float64, generator=generator).to(o.dtype).to(o.device) for o in outputs]
    return torch.autograd.grad(outputs, wants, grads, allow_unused=True)


def _error(op: OpInfo, item: ErrorInput, device: str, wide: bool = False) -> Any:
    placed = _placed(op, item.sample_input, device, wide)
    return _call(op.get_op(), placed, device)


def _override(op: OpInfo, dtype: torch.dtype) -> Tolerance | None:
    """Return the widest tolerance that PyTorch's own tests give this op and dtype."""
    found: list[Tolerance] = []
    for decorate in op.decorators:
        for decorator in getattr(decorate, "decorators", [decorate]):
            value = getattr(decorator, "d", {}).get(dtype)
            if isinstance(decorator, toleranceOverride) and value is not None:
                found.append(Tolerance(value.atol, value.rtol))
            elif isinstance(decorator, precisionOverride) and value is not None:
                found.append(Tolerance(value, 0.0))
    return Tolerance(max(t.atol for t in found), max(t.rtol for t in found)) if found else None


def _settler(op: OpInfo, sample: SampleInput) -> Callable[[Any], Any]:
    if op.name in UNDEFINED:
        return partial(torch.utils._pytree.tree_map, torch.zeros_like)
    if op.name not in TIES or sample.kwargs.get("stable"):
        return lambda outputs: outputs
    position, default = TIES[op.name]
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else default)
    return partial(_picked, sample.input.detach(), dim)


def _picked(source: torch.Tensor, dim: int | None, outputs: Any) -> Any:
    """Replace index results by the values of ``source`` that they pick along ``dim``."""
    if not isinstance(dim, int) or isinstance(dim, bool) or source.dim() == 0:
        return outputs

    def pick(result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or result.dtype is not torch.int64:
            return result
        index = result if result.dim() == source.dim() else result.unsqueeze(dim)
        return source.gather(dim, index)

    if isinstance(outputs, torch.Tensor):  # argsort
        return pick(outputs)
    *values, indices = outputs
    return *values, pick(indices)
