"""Dtypes as NumPy sees them. bfloat16 lives in float32 arrays whose values are representable in bfloat16."""

from __future__ import annotations

import numpy as np

from ops_core import dtypes


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype that holds a dtype's values."""
    return np.dtype(dtypes.BY_NAME[name].numpy)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even; nan stays nan."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32)).reshape(np.shape(x))


def cast(x: np.ndarray, name: str) -> np.ndarray:
    """`x` as dtype `name`, rounded as the device rounds."""
    with np.errstate(all="ignore"):
        if name == "bf16":
            return round_bf16(np.asarray(x).astype(np.float32))
        return np.asarray(x).astype(numpy_dtype(name))


def bitcast(x: np.ndarray, source: str, target: str) -> np.ndarray:
    """The bits of `x` (dtype `source`) read as `target` of the same width."""
    raw = np.array(x, order="C")
    if source == "bf16":
        raw = (raw.view(np.uint32) >> 16).astype(np.uint16)
    if target == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(numpy_dtype(target))


def promote_half(x: np.ndarray) -> np.ndarray:
    """float16 as float32: the arithmetic of half types."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
