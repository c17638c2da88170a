"""Scans, sorting, selection and search."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import required
from ops_core.lowering.promote import default_float, name_of, opmath, result_type
from ops_core.lowering.reduction import sum_dtype
from ops_core.lowering.registry import rule


def _scan(op: str, x: Arr, dim: int, result: str) -> Arr:
    x = x.to(result)
    return x if x.ndim == 0 or x.numel == 0 else x.to(opmath(result)).scan(op, dim).to(result)


@rule("cumsum")
def _cumsum(self, dim, dtype=None):
    return _scan("cumsum", self, dim, sum_dtype(self, dtype))


@rule("cumprod")
def _cumprod(self, dim, dtype=None):
    return _scan("cumprod", self, dim, sum_dtype(self, dtype))


@rule("_logcumsumexp", "logcumsumexp")
def _logcumsumexp(self, dim):
    return _scan("logcumsumexp", self, dim, self.dtype)


@rule("cummax")
def _cummax(self, dim):
    if self.ndim == 0 or self.numel == 0:
        return self, A.full(self.shape, 0, "i64")
    return A.cummax(self, dim)


def reverse(x: Arr) -> Arr:
    """An order-reversing map that is its own inverse: -x, or the complement of integers and bool."""
    return -x if x.is_float else ~x


@rule("cummin")
def _cummin(self, dim):
    values, at = _cummax(reverse(self), dim)
    return reverse(values), at


def sorted_(x: Arr, dim: int, descending: bool, stable: bool = True) -> tuple[Arr, ...]:
    """(values, positions); 0-dim and empty arrays included."""
    if x.ndim == 0 or x.numel == 0:
        return x, A.full(x.shape, 0, "i64")
    return x.sort(dim, descending, stable)


@rule("sort")
def _sort(self, dim=-1, descending=False, stable=True):
    return sorted_(self, dim, descending, bool(stable))


@rule("argsort")
def _argsort(self, dim=-1, descending=False, stable=True):
    return sorted_(self, dim, descending, bool(stable))[1]


@rule("topk")
def _topk(self, k, dim=-1, largest=True, sorted=True):
    if self.ndim == 0:
        return (self, A.full((), 0, "i64")) if k else (A.full((0,), 0, self.dtype), A.full((0,), 0, "i64"))
    if self.numel and k:
        return self.sort(dim, largest, count=k)
    d = self.dim(dim)
    shape = (*self.shape[:d], k, *self.shape[d + 1 :])
    return A.full(shape, 0, self.dtype), A.full(shape, 0, "i64")


def _pick(x: Arr, dim: int, rank: Any, keepdim: bool) -> tuple[Arr, Arr]:
    """(value, position) at place `rank` (number or array with the reduced dim of size 1) of the sorted order."""
    if x.ndim == 0:
        return x, A.full((), 0, "i64")
    d = x.dim(dim)
    if isinstance(rank, Arr):
        values, at = x.sort(d)
        value, place = values.gather(d, rank), at.gather(d, rank)
    else:
        value, place = x.sort(d, start=rank, count=1)
    return (value, place) if keepdim else (value.squeeze(d), place.squeeze(d))


@rule("kthvalue")
def _kthvalue(self, k, dim=-1, keepdim=False):
    return _pick(self, dim, k - 1, keepdim)


def _nan_count(x: Arr, dim: int) -> Arr:
    return x.ne(x).to("i64").sum(dim, True)


@rule("median.dim")
def _median_dim(self, dim, keepdim=False):
    if self.ndim == 0:
        return self, A.full((), 0, "i64")
    d = self.dim(dim)
    value, place = _pick(self, d, (self.shape[d] - 1) // 2, keepdim)
    if not self.is_float:
        return value, place
    at = self.arg("argmax", d, True)  # the first NaN, if there is one
    top = self.gather(d, at)
    at, top = (at, top) if keepdim else (at.squeeze(d), top.squeeze(d))
    return where(top.ne(top), top, value), where(top.ne(top), at, place)


@rule("nanmedian.dim")
def _nanmedian_dim(self, dim, keepdim=False):
    if self.ndim == 0 or not self.is_float:
        return _median_dim(self, dim, keepdim)
    n = self.shape[self.dim(dim)]
    real = -_nan_count(self, dim) + n
    return _pick(self, dim, A.map_("maximum", (real - 1) / 2, 0), keepdim)


def _flat(x: Arr, median: Any) -> Arr:
    if x.numel == 0:
        return A.full((), math.nan if x.is_float else 0, x.dtype)
    return median(x.reshape(-1), 0)[0]


@rule("median.default")
def _median(self):
    return _flat(self, _median_dim)


@rule("nanmedian.default")
def _nanmedian(self):
    return _flat(self, _nanmedian_dim)


@rule("mode")
def _mode(self, dim=-1, keepdim=False):
    """The most frequent value (the smallest of equals) and its last position."""
    if self.ndim == 0:
        return self, A.full((), 0, "i64")
    d = self.dim(dim)
    n = self.shape[d]
    values, at = self.sort(d)
    i = A.positions(self.shape, d)
    previous = A.cat([values.slice(d, 0, 1), values.slice(d, 0, n - 1)], d)
    start, _ = A.cummax(where((i > 0) & values.ne(previous), i, 0), d)  # where the run of each value begins
    best = (i - start).arg("argmax", d, True)
    value, place = values.gather(d, best), at.gather(d, best)
    return (value, place) if keepdim else (value.squeeze(d), place.squeeze(d))


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None):
    table = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter.to("i64"))
    return _search(table, self, out_int32, right or side == "right")


def _search(table: Arr, values: Any, out_int32: bool, right: bool) -> Arr:
    dtype = name_of(result_type([table.reshape(1, *table.shape), values]))
    values = values.to(dtype) if isinstance(values, Arr) else A.full((), values, dtype)
    shape = values.shape
    values = values.reshape(1) if values.ndim == 0 else values
    found = (
        A.full(values.shape, 0, "i64")
        if table.numel == 0 or values.numel == 0
        else A.searchsorted(table.to(dtype), values, right)
    )
    return found.reshape(*shape).to("i32" if out_int32 else "i64")


@rule("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(self, boundaries, out_int32=False, right=False):
    return _search(boundaries, self, out_int32, right)


@rule("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def _isin(elements=None, test_elements=None, assume_unique=False, invert=False, element=None, test_element=None):
    from ops_core.lowering.promote import cast

    x, tests = (elements if element is None else element), (test_elements if test_element is None else test_element)
    dtype = name_of(result_type([x, tests]))
    x = cast(x, dtype) if isinstance(x, Arr) else A.full((), x, dtype)
    tests = cast(tests, dtype) if isinstance(tests, Arr) else A.full((), tests, dtype)
    if tests.numel == 0:
        return A.full(x.shape, invert, "bool")
    if tests.numel <= COMPARE_AT_MOST:
        found = x.unsqueeze(-1).eq(tests.reshape(*(1,) * x.ndim, -1)).any(-1)
    else:
        table = tests.reshape(-1).sort(0)[0]
        at = A.map_("minimum", A.searchsorted(table, x.reshape(-1), False), table.numel - 1)
        found = table.take(at).reshape(*x.shape).eq(x)
    return ~found if invert else found


# below this many test elements comparing with all of them is one fused kernel; above, sort and search
COMPARE_AT_MOST = 64


@rule("nonzero_static")
def _nonzero_static(self, size, fill_value=-1):
    if self.ndim == 0 or self.numel == 0 or size == 0:
        rows = A.full((size, self.ndim), -1, "i64")
        return rows
    rows = A.emit("nonzero", (self,), (size, self.ndim), "i64", size=size)
    count = self.to("bool").to("i64").sum()
    return where(A.positions((size, 1), 0) < count, rows, fill_value)


def linear_bins(x: Arr, low: Arr, high: Arr, bins: int) -> Arr:
    """The bin of each value of [low, high] in `bins` equal ones, the last one closed; `bins` for the others."""
    width = high - low
    at = ((x - low) * float(bins) / width).to("i64")
    at = A.map_("minimum", at, bins - 1)
    return where((x >= low) & (x <= high), A.map_("maximum", at, 0), bins)


@rule("histc")
def _histc(self, bins=100, min=0, max=0):
    x = self if self.is_float else self.to(default_float())  # eager bins halves in their own precision
    flat = x.reshape(-1)
    low, high = (v.to(x.dtype) if isinstance(v, Arr) else A.full((), v, x.dtype) for v in (min, max))
    if flat.numel:
        same = low.eq(high)
        low, high = where(same, flat.amin(), low), where(same, flat.amax(), high)
    required(A.map_("abs", high - low) < math.inf, "histogram")
    point = low.eq(high)
    low, high = where(point, low - 1.0, low), where(point, high + 1.0, high)
    counts = A.full((bins + 1,), 0, x.dtype)
    if flat.numel:
        counts = counts.index_put([linear_bins(flat, low, high, bins)], A.full(flat.shape, 1, x.dtype), "add")
    return counts.slice(0, 0, bins).to(self.dtype)
