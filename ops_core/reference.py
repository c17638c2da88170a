"""NumPy references of the structural core ops: `fn(attrs, *inputs) -> array | tuple of arrays`.

They are the oracle of the compiler's tests and the whole compute library of a level 1 port, so they say exactly
what an op means. Attributes are those of `ops_core.table`; `shape` and `dtype` of the output are passed in attrs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

from ops_core.numerics import numpy_dtype, promote_half

Attrs = dict[str, Any]


def full(attrs: Attrs) -> np.ndarray:
    """One number everywhere."""
    return np.full(attrs["shape"], attrs["value"], numpy_dtype(attrs["dtype"]))


def iota(attrs: Attrs) -> np.ndarray:
    """0, 1, ..., n - 1."""
    return np.arange(attrs["shape"][0], dtype=numpy_dtype(attrs["dtype"]))


def expand(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """NumPy broadcasting."""
    return np.broadcast_to(x, attrs["shape"])


def permute(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Dimensions reordered."""
    return x.transpose(attrs["dims"])


def reshape(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """The same elements in row-major order."""
    return x.reshape(attrs["shape"])


def slice_(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """x[start + i * step] a dimension."""
    picks = (
        start + step * np.arange(size)
        for start, size, step in zip(attrs["start"], attrs["size"], attrs["step"], strict=False)
    )
    return x[np.ix_(*picks)] if x.ndim else x


def pad(attrs: Attrs, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Values around x."""
    out = np.full(attrs["shape"], value, x.dtype)
    out[tuple(slice(low, low + n) for low, n in zip(attrs["low"], x.shape, strict=False))] = x
    return out


def cat(attrs: Attrs, *xs: np.ndarray) -> np.ndarray:
    """Concatenation."""
    return np.concatenate(xs, attrs["dim"])


def _mesh(index: np.ndarray, dim: int) -> tuple[np.ndarray, ...]:
    """Index arrays that address `index.shape` positions, with `index` itself along `dim`."""
    mesh = list(np.meshgrid(*(np.arange(n) for n in index.shape), indexing="ij", sparse=True))
    mesh[dim] = index
    return tuple(mesh)


def gather(attrs: Attrs, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """torch.gather."""
    return x[_mesh(index, attrs["dim"])]


def index(attrs: Attrs, x: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    """x[i0, i1, ...] on the leading dimensions."""
    return x[indices]


_COMBINE = {"add": np.add, "mul": np.multiply, "amax": np.maximum, "amin": np.minimum}


def _combine(reduce: str, x: np.ndarray, where: tuple[np.ndarray, ...], values: np.ndarray) -> np.ndarray:
    out = promote_half(x).copy()
    if reduce == "set":
        out[where] = values
    elif out.dtype == np.bool_:
        (np.logical_or if reduce in ("add", "amax") else np.logical_and).at(out, where, values)
    else:
        _COMBINE[reduce].at(out, where, values.astype(out.dtype))
    return out.astype(x.dtype)


def index_put(attrs: Attrs, x: np.ndarray, values: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    """x[i0, ...] set to or increased by values."""
    return _combine(attrs["reduce"], x, indices, values)


def scatter(attrs: Attrs, x: np.ndarray, index: np.ndarray, src: np.ndarray) -> np.ndarray:
    """torch.scatter_reduce including self."""
    return _combine(attrs["reduce"], x, _mesh(index, attrs["dim"]), src)


def sum_(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Sum over dims; halves in float32."""
    return promote_half(x).sum(attrs["dims"], dtype=promote_half(x).dtype)


def prod(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Product over dims; halves in float32."""
    return promote_half(x).prod(attrs["dims"], dtype=promote_half(x).dtype)


def amax(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Largest; nan wins."""
    return x.max(attrs["dims"])


def amin(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Smallest; nan wins."""
    return x.min(attrs["dims"])


def argmax(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """First position of the largest."""
    return x.argmax(attrs["dims"][0])


def argmin(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """First position of the smallest."""
    return x.argmin(attrs["dims"][0])


def cumsum(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Running sum."""
    return promote_half(x).cumsum(attrs["dim"], dtype=promote_half(x).dtype)


def cumprod(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Running product."""
    return promote_half(x).cumprod(attrs["dim"], dtype=promote_half(x).dtype)


def cummax(attrs: Attrs, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Running maximum and its last position."""
    dim = attrs["dim"]
    values = np.maximum.accumulate(x, dim)
    taken = (x == values) | (np.isnan(x) if x.dtype.kind == "f" else False)
    at = np.expand_dims(np.arange(x.shape[dim]), tuple(d for d in range(x.ndim) if d != dim))
    return values, np.maximum.accumulate(np.where(taken, at, 0), dim)


def logcumsumexp(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Log of the running sum of exp."""
    return np.logaddexp.accumulate(promote_half(x), attrs["dim"])


def matmul(attrs: Attrs, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Batched matrix product; halves in float32."""
    return np.matmul(promote_half(a), promote_half(b))


def _spatial(slices: Iterable[slice]) -> tuple[Any, ...]:
    """An index of the last dimensions."""
    return (..., *slices)


def convolution(attrs: Attrs, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Cross-correlation, or its adjoint when transposed."""
    x, w = promote_half(x), promote_half(w)
    rank, groups = x.ndim - 2, attrs["groups"]
    stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
    if attrs["transposed"]:
        # the adjoint: insert zeros between inputs, then correlate with the flipped kernel
        sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
        spread = np.zeros((*x.shape[:2], *sizes), x.dtype)
        spread[_spatial(slice(None, None, s) for s in stride)] = x
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, w.shape[2:], padding, strict=True)]
        edges = [(r, r + o) for r, o in zip(reach, attrs["output_padding"], strict=True)]
        cut = (slice(max(0, -lo), n - max(0, -hi)) for (lo, hi), n in zip(edges, sizes, strict=True))
        x = np.pad(spread[_spatial(cut)], [(0, 0), (0, 0), *((max(0, lo), max(0, hi)) for lo, hi in edges)])
        w = w[_spatial([slice(None, None, -1)] * rank)]
        w = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2).reshape(-1, w.shape[0] // groups, *w.shape[2:])
        stride = (1,) * rank
    else:
        x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    span = tuple(d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=False))
    windows = np.lib.stride_tricks.sliding_window_view(x, span, tuple(range(2, x.ndim)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in stride))]
    windows = windows[_spatial(slice(None, None, d) for d in dilation)]
    n, _, *out = windows.shape[: 2 + rank]
    columns = np.moveaxis(windows.reshape(n, groups, -1, *windows.shape[2:]), 2, 2 + rank)
    columns = columns.reshape(n, groups, int(np.prod(out)), -1)
    result = np.matmul(w.reshape(groups, -1, columns.shape[-1]), columns.swapaxes(-1, -2))
    return result.reshape(n, -1, *out)


def sort(attrs: Attrs, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some places of the order. Stable; nan counts as largest."""
    dim = attrs["dim"]
    if attrs["descending"]:  # reverse, sort, reverse: stable, nan first
        order = x.shape[dim] - 1 - np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
    else:
        order = np.argsort(x, dim, kind="stable")
    order = order.take(range(attrs["start"], attrs["start"] + attrs["count"]), dim)
    return np.take_along_axis(x, order, dim), order


def searchsorted(attrs: Attrs, table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Insertion points, row by row."""
    side: Literal["left", "right"] = "right" if attrs["right"] else "left"
    if table.ndim == 1:
        return np.searchsorted(table, values, side)
    flat = table.reshape(-1, table.shape[-1]), values.reshape(-1, values.shape[-1])
    rows = [np.searchsorted(t, v, side) for t, v in zip(*flat, strict=True)]
    return np.array(rows, np.int64).reshape(values.shape)


def nonzero(attrs: Attrs, x: np.ndarray) -> np.ndarray:
    """Positions of the first non-zeros, then -1."""
    found = np.argwhere(x)[: attrs["size"]]
    out = np.full((attrs["size"], x.ndim), -1, np.int64)
    out[: len(found)] = found
    return out


def philox(seed: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10: uint64 counters [n] -> uint32 [n, 4]; the key is the 64-bit seed."""
    low = np.uint64(0xFFFFFFFF)
    c = [counters & low, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]), p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]), p0 & low]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, -1).astype(np.uint32)


def rand_bits(attrs: Attrs, seed: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Lane i % 4 of counter offset + i // 4."""
    count = int(np.prod(attrs["shape"]))
    counters = np.arange((count + 3) // 4, dtype=np.uint64) + np.uint64(int(offset) & 0xFFFFFFFFFFFFFFFF)
    return philox(int(seed), counters).reshape(-1)[:count].reshape(attrs["shape"])


REFERENCES: dict[str, Callable[..., Any]] = {
    "full": full, "iota": iota, "expand": expand, "permute": permute, "reshape": reshape, "slice": slice_,
    "pad": pad, "cat": cat, "gather": gather, "index": index, "index_put": index_put, "scatter": scatter,
    "sum": sum_, "prod": prod, "amax": amax, "amin": amin, "argmax": argmax, "argmin": argmin,
    "cumsum": cumsum, "cumprod": cumprod, "cummax": cummax, "logcumsumexp": logcumsumexp,
    "matmul": matmul, "convolution": convolution, "sort": sort, "searchsorted": searchsorted, "nonzero": nonzero,
    "rand_bits": rand_bits,
}  # fmt: skip
