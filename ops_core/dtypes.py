"""The dtype table: one row a dtype, read by tracer, compiler, simulator, reports and tests.

`mlir` is the element type inside `linalg` bodies (bool is i1 there, i8 in memory);
`code` is the number in `lazy_driver.h`. Complex tensors never reach the core graph:
lowering splits them into real and imaginary parts.
"""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """A row: the names of a dtype here, in torch, numpy and MLIR, its bytes, its number and what kind it is."""

    name: str
    torch: str
    numpy: str
    mlir: str
    bytes: int
    code: int
    kind: str  # "b"ool, "u"nsigned, "i"nteger, "f"loat


TABLE = (
    DType("bool", "bool", "bool", "i1", 1, 0, "b"),
    DType("u8", "uint8", "uint8", "i8", 1, 1, "u"),
    DType("i8", "int8", "int8", "i8", 1, 2, "i"),
    DType("i16", "int16", "int16", "i16", 2, 3, "i"),
    DType("i32", "int32", "int32", "i32", 4, 4, "i"),
    DType("i64", "int64", "int64", "i64", 8, 5, "i"),
    DType("f16", "float16", "float16", "f16", 2, 6, "f"),
    DType("bf16", "bfloat16", "float32", "bf16", 2, 7, "f"),
    DType("f32", "float32", "float32", "f32", 4, 8, "f"),
    DType("f64", "float64", "float64", "f64", 8, 9, "f"),
    DType("u16", "uint16", "uint16", "i16", 2, 10, "u"),
    DType("u32", "uint32", "uint32", "i32", 4, 11, "u"),
    DType("u64", "uint64", "uint64", "i64", 8, 12, "u"),
)
BY_NAME = {d.name: d for d in TABLE}
BY_TORCH = {d.torch: d for d in TABLE}
