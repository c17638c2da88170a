"""Operator schemas: argument kinds, and the functional twin of every in-place and out= face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class Argument:
    """One schema argument. kind: "tensor", "tensors", "scalar", "scalars" or "static"."""

    name: str
    kind: str
    type: str
    default: Any
    has_default: bool
    mutable: bool
    out: bool
    is_dtype: bool


_KINDS = {"Tensor": "tensor", "List[Tensor]": "tensors", "List[Optional[Tensor]]": "tensors", "number": "scalar",
          "float": "scalar", "List[number]": "scalars", "List[float]": "scalars"}  # fmt: skip
# c10::ScalarType by number
SCALAR_TYPES = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
                6: torch.float32, 7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128,
                11: torch.bool, 15: torch.bfloat16, 27: torch.uint16, 28: torch.uint32, 29: torch.uint64}  # fmt: skip
_OPTIONS = ("dtype", "layout", "device", "pin_memory")


class Op:
    """An overload with its schema digested. `name` as in "aten.add.Tensor"."""

    def __init__(self, func: torch._ops.OpOverload):
        self.func = func
        self.name = str(func)
        schema = func._schema
        self.base = schema.name.split("::")[1]
        self.namespace = schema.name.split("::")[0]
        self.arguments = tuple(self._argument(a) for a in schema.arguments)
        self.returns = tuple(str(r.type) for r in schema.returns)
        self.out_names = tuple(a.name for a in self.arguments if a.out)
        self.mutated = tuple(a.name for a in self.arguments if a.mutable)

    @staticmethod
    def _argument(a: Any) -> Argument:
        type_ = str(a.type)
        inner = type_[9:-1] if type_.startswith("Optional[") else type_
        mutable = a.alias_info is not None and a.alias_info.is_write
        kind = _KINDS.get(inner, "static")
        is_dtype = "ScalarType" in str(a.real_type)
        return Argument(a.name, kind, inner, a.default_value, a.has_default_value(), mutable, a.is_out, is_dtype)

    @property
    def base_name(self) -> str:
        """ "aten.add" """
        return f"{self.namespace}.{self.base}"

    @property
    def face(self) -> str:
        """ "functional", "inplace" (one mutated self, returned), "out" or "mutable"."""
        if self.out_names:
            return "out"
        if not self.mutated:
            return "functional"
        return "inplace" if self.base.endswith("_") and not self.base.endswith("__") else "mutable"

    @cached_property
    def signature(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the arguments that are neither outputs nor TensorOptions: equal for all its faces."""
        return tuple(sorted((a.name, a.type) for a in self.arguments if not a.out and a.name not in _OPTIONS))

    @cached_property
    def twin(self) -> Op | None:
        """The functional face of an in-place or out= op."""
        if self.face == "functional":
            return None
        stem = self.base.rstrip("_")
        bases = [self.base, stem, f"{stem}_functional", self.base.replace("__i", "__")]
        namespace = getattr(torch.ops, self.namespace)
        for base in bases:
            packet = getattr(namespace, base, None)
            for overload in packet.overloads() if packet else ():
                op = op_of(getattr(packet, overload))
                if op.face == "functional" and op.signature == self.signature:
                    return op
        return None

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Every argument by name, defaults filled in."""
        bound = dict(zip((a.name for a in self.arguments), args, strict=False)) | kwargs
        for a in self.arguments:
            if a.name not in bound:
                bound[a.name] = a.default
            if a.is_dtype and isinstance(bound[a.name], int):
                bound[a.name] = SCALAR_TYPES[bound[a.name]]
        return bound


@cache
def op_of(func: torch._ops.OpOverload) -> Op:
    """The digested schema of an overload."""
    return Op(func)


@cache
def op_named(name: str) -> Op:
    """The op of an overload name: "aten.add.Tensor", "aten.relu.default"."""
    namespace, base, overload = name.split(".")
    return op_of(getattr(getattr(getattr(torch.ops, namespace), base), overload))
