"""Direct calls of the composite overloads: aliases, scalar and ``out=`` faces that no module of PyTorch's calls.

Arguments come from a table, else from the first sample that fits the schema of the database entry with the overload's
name or alias. A face without a source of its own takes the arguments of its functional twin.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as databases
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from ops_core import routes
from ops_core.lowering.schema import Argument, Op

from .case import DTYPES, Case, Unit
from .composite_inputs import ABOUT_THE_DEVICE, COMPOSITES, FIRST_RESULT, ON_CPU
from .device_programs import PROGRAMS
from .group_inputs import INPUTS, Call, Draw, Inputs
from .groups import TOLERANCE, call_overload
from .operators import FOREACH, samples_of

CLASSES = ("implicit", "explicit")
TABLE: dict[str, Inputs] = INPUTS | COMPOSITES
# Nearly every face fits one of an entry's first samples; the later ones are larger and stranger.
SAMPLES_TRIED = 60


def units() -> Iterator[Unit]:
    """Yield a unit for every composite overload that has a source of arguments."""
    for op in routes.overloads():
        if routes.class_of(op) not in CLASSES:
            continue
        dtype = "float32" if op.name in PROGRAMS or _table_name(op) else _first_dtype(_entries().get(_stem(op)))
        if dtype is not None:
            yield Unit(f"composites/{op.name}:{dtype}", DTYPES[dtype], partial(_cases, op, DTYPES[dtype]))


def _table_name(op: Op) -> str | None:
    """The overload whose row of the table serves ``op``: itself or its functional twin."""
    names = (op.name, *([op.twin.name] if op.twin is not None else []))
    return next((name for name in names if name in TABLE), None)


def _first_dtype(info: OpInfo | None) -> str | None:
    if info is None:
        return None
    return next((name for name, kind in DTYPES.items() if info.supports_dtype(kind, "cpu")), None)


def _stem(op: Op) -> str:
    return op.base.rstrip("_")


@cache
def _entries() -> dict[str, OpInfo]:
    """The database entry of every ATen name and alias."""
    found: dict[str, OpInfo] = {}
    foreach = [op for kind in FOREACH for op in getattr(databases, f"foreach_{kind}_op_db")]
    for info in (*databases.op_db, *foreach):
        for name in (info.aten_name, info.name, *(alias.name for alias in info.aliases)):
            found.setdefault(name.removeprefix("nn.functional.").replace(".", "_"), info)
    return found


def _cases(op: Op, dtype: torch.dtype, samples: int, variants: frozenset[str]) -> Iterator[Case]:
    if "forward" not in variants:
        return
    if op.name in PROGRAMS:
        yield Case("forward", 0, PROGRAMS[op.name], tolerance=TOLERANCE, calls=op.name)
        return
    name = _table_name(op)
    call = _with_out(op, TABLE[name](Draw())) if name else _fitting(op, dtype)
    if call is None:
        raise LookupError(f"no sample fits the schema of {op.name}")
    run = partial(call_overload, op.func, call, on_cpu=ON_CPU.get(op.name))
    yield Case("forward", 0, run, partial(_settled, op.name), TOLERANCE, calls=op.name)


def _settled(name: str, outputs: Any) -> Any:
    if name in ABOUT_THE_DEVICE:
        return str(type(outputs[0]))
    return outputs[0][0] if name in FIRST_RESULT else outputs


def _fitting(op: Op, dtype: torch.dtype) -> Call | None:
    """The arguments of the first sample that the overload takes on the CPU."""
    for sample in samples_of(_entries()[_stem(op)], dtype)[:SAMPLES_TRIED]:
        try:
            call = _with_out(op, _arguments(op, sample))
            call_overload(op.func, call, "cpu")
        except (RuntimeError, TypeError, ValueError, IndexError):  # of another face
            continue
        return call
    return None


def _arguments(op: Op, sample: SampleInput) -> Call:
    """The sample's arguments by the schema's names, a number for a tensor and the reverse where it asks for that."""
    schema = op.func._schema.arguments
    positional = [a.name for a in schema if not a.kwarg_only]
    values = (sample.input, *sample.args)
    if len(values) > len(positional):
        raise TypeError("too many arguments")
    given = dict(zip(positional, values, strict=False)) | sample.kwargs
    kinds = {argument.name: argument for argument in op.arguments}
    given = {name: _converted(kinds[name], value) if name in kinds else value for name, value in given.items()}
    wanted = {a.name for a in schema if a.kwarg_only and not a.has_default_value() and not a.is_out}
    return Call(**dict.fromkeys(wanted - given.keys()), **given)


def _converted(argument: Argument, value: Any) -> Any:
    if argument.kind == "scalar" and isinstance(value, torch.Tensor):
        return value.flatten()[0].item()
    if argument.kind == "tensor" and isinstance(value, int | float):
        return torch.tensor(value)
    return value


def _with_out(op: Op, made: tuple[Any, ...]) -> Call:
    """The call with an ``out=`` of zeros for each result of the functional twin, where it lacks them."""
    kwargs = made.kwargs if isinstance(made, Call) else {}
    if op.twin is not None and op.out_names and not kwargs.keys() & set(op.out_names):
        results = call_overload(op.twin.func, Call(*made, **kwargs), "cpu")[0]
        results = results if isinstance(results, tuple) else (results,)
        kwargs = kwargs | {name: torch.zeros_like(r) for name, r in zip(op.out_names, results, strict=True)}
    return Call(*made, **kwargs)
