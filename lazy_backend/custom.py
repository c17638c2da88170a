"""Kernels of the user's own: OpenCL C as a torch op that is recorded and run in windows like any other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Sizes = int | tuple[int, ...]


class Custom(NamedTuple):
    """One kernel. `work(*arguments)` gives its work items; run-time scalars are None there, tensors are on "meta".

    parameters: their types in C; empty for memory.
    """

    source: str
    function: str
    parameters: tuple[str, ...]
    work: Callable[..., Sizes]
    group: tuple[int, int, int]


KERNELS: dict[str, Custom] = {}  # by the op's name as it is recorded: "mylib.scale.default"
C_TYPES = {"Tensor": "", "float": "float", "int": "int", "bool": "int"}


def kernel(
    name: str,
    schema: str,
    source: str,
    *,
    shape: Callable[..., Any],
    work: Callable[..., Sizes],
    group: tuple[int, int, int] = (0, 0, 0),
) -> Callable[..., Any]:
    """Registers OpenCL C as the torch op `name` ("mylib::scale") and returns it.

    `schema`: "(Tensor x, float a) -> Tensor"; arguments are Tensor, float, int and bool, results fresh tensors.
    `source`: has a kernel called as the op ("scale"), whose parameters are the arguments, then the results: a pointer
    to the first element of a contiguous tensor, float, int, int.
    `shape(*arguments)`: empty results; `work(*arguments)`: work items, up to three numbers; `group`: of a work-group,
    or zeros where the driver chooses. A gradient is added with `torch.library.register_autograd(name, ...)`.
    """
    namespace, function = name.split("::")
    torch.library.define(name, schema)
    torch.library.register_fake(name, shape)
    parsed = torch._C.parse_schema(name + schema)
    parameters = tuple(C_TYPES.get(str(value.type), "") for value in [*parsed.arguments, *parsed.returns])
    KERNELS[f"{namespace}.{function}.default"] = Custom(source, function, parameters, work, group)
    op = getattr(getattr(torch.ops, namespace), function)

    def on_host(*arguments: Any) -> None:
        """Where a call ends that cannot be recorded: with the shape function's error, if it has one."""
        shape(*arguments)
        raise NotImplementedError(f"{name} is a kernel for a lazy device; it has none for the CPU, or failed to build")

    torch.library.impl(name, "cpu", on_host)

    def call(*arguments: Any) -> Any:
        """The op, on tensors made contiguous first."""
        return op(*(_from_the_start(a) if isinstance(a, torch.Tensor) else a for a in arguments))

    call.__name__, call.__doc__ = function, f"{name}{schema}"
    return call


def _from_the_start(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.storage_offset() else tensor


def by_number(custom: Custom) -> Custom:
    """A kernel that is given addresses as numbers, as generated ones are, and calls the user's with pointers."""
    name = f"{custom.function}_by_number"
    declared = re.search(rf"\b{custom.function}\s*\(([^)]*)\)", custom.source)
    texts = declared[1].split(",") if declared else []
    spaces = ["__constant" if "constant" in text else "__global" for text in texts]
    spaces += ["__global"] * len(custom.parameters)  # what a macro hides
    takes = ", ".join(f"{type or 'ulong'} a{i}" for i, type in enumerate(custom.parameters))
    gives = ", ".join(f"a{i}" if type else f"({spaces[i]} void *)a{i}" for i, type in enumerate(custom.parameters))
    caller = f"\n__kernel void {name}({takes})\n{{\n    {custom.function}({gives});\n}}\n"
    return custom._replace(source=custom.source + caller, function=name)


def launch(node: Any, custom: Custom, handle: int, addresses: bool) -> tuple:
    """The plan's step for a recorded call. Raises ValueError for an argument that a kernel cannot take."""
    args = [_argument(value, node.op, addresses) for value in [*node.args, *node.outs]]
    size = custom.work(*(_on_meta(value) for value in node.args))
    work = (*(size if isinstance(size, tuple) else (size,)), 1, 1)[:3]
    return ("launch", handle, work, custom.group, args)


def _argument(value: Any, op: str, addresses: bool) -> tuple:
    match value:
        case ("tensor", slot, _, sizes, strides, offset):
            if offset or tuple(strides) != torch.empty(sizes, device="meta").stride():
                raise ValueError(
                    f"{op} was given a tensor that is not contiguous; call what lazy_backend.kernel returned"
                )
            return ("slot", slot, "address" if addresses else "")
        case ("scalar", index, _):
            return ("scalar", index, "f32")
        case bool() | int():
            return ("bytes", int(value), "i32")
        case float():
            return ("bytes", value, "f32")
    raise ValueError(f"{op} cannot take {value!r}")


def _on_meta(value: Any) -> Any:
    match value:
        case ("tensor", _, _, sizes, _, _):
            return torch.empty(sizes, device="meta")
        case tuple():
            return None
    return value
