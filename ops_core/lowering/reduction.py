"""Reductions: sums, extrema, moments, norms."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.promote import default_float, name_of, opmath, up
from ops_core.lowering.registry import NotLowerable, rule


def sum_dtype(x: Arr, dtype: Any) -> str:
    """The result dtype of sum and prod: as asked, else i64 for integers and bool."""
    return name_of(dtype) if dtype is not None else x.dtype if x.is_float else "i64"


def _accumulate(op: str, x: Arr, dim: Any, keepdim: bool, dtype: Any) -> Arr:
    result = sum_dtype(x, dtype)
    return x.to(result).to(opmath(result)).reduce(op, dim, keepdim).to(result)


@rule("sum")
def _sum(self, dim=None, keepdim=False, dtype=None):
    return _accumulate("sum", self, dim, keepdim, dtype)


@rule("prod")
def _prod(self, dim=None, keepdim=False, dtype=None):
    return _accumulate("prod", self, dim, keepdim, dtype)


@rule("nansum")
def _nansum(self, dim=None, keepdim=False, dtype=None):
    x = where(self.ne(self), 0, self) if self.is_float else self
    return _accumulate("sum", x, dim, keepdim, dtype)


@rule("mean")
def _mean(self, dim=None, keepdim=False, dtype=None):
    result = self.dtype if dtype is None else name_of(dtype)
    return self.to(opmath(result)).mean(dim, keepdim).to(result)


@rule("amax")
def _amax(self, dim=(), keepdim=False):
    return self.amax(dim, keepdim)


@rule("amin")
def _amin(self, dim=(), keepdim=False):
    return self.amin(dim, keepdim)


@rule("aminmax")
def _aminmax(self, dim=None, keepdim=False):
    return self.amin(dim, keepdim), self.amax(dim, keepdim)


@rule("max.default")
def _max(self):
    return self.amax()


@rule("min.default")
def _min(self):
    return self.amin()


def extremum(x: Arr, op: str, dim: int, keepdim: bool) -> tuple[Arr, Arr]:
    """(amax or amin, its first position) along `dim`."""
    if x.ndim == 0:
        return x, A.full((), 0, "i64")
    at = x.arg(f"arg{op[1:]}", dim, keepdim)
    return x.reduce(op, dim, keepdim), at


@rule("max.dim")
def _max_dim(self, dim, keepdim=False):
    return extremum(self, "amax", dim, keepdim)


@rule("min.dim")
def _min_dim(self, dim, keepdim=False):
    return extremum(self, "amin", dim, keepdim)


def _arg(op: str, x: Arr, dim: int | None, keepdim: bool) -> Arr:
    if x.ndim == 0:
        return A.full((), 0, "i64")
    if dim is not None:
        return x.arg(op, dim, keepdim)
    flat = x.reshape(-1).arg(op, 0)
    return flat.reshape(*(1,) * x.ndim) if keepdim else flat


@rule("argmax")
def _argmax(self, dim=None, keepdim=False):
    return _arg("argmax", self, dim, keepdim)


@rule("argmin")
def _argmin(self, dim=None, keepdim=False):
    return _arg("argmin", self, dim, keepdim)


def _logical(op: str, x: Any, dim: Any, keepdim: bool) -> Arr:
    out = x.to("bool")
    out = out if dim == () or dim == [] else out.reduce(op, dim, keepdim)
    return out.to("u8") if x.dtype == "u8" else out


@rule("any")
def _any(self, dim=None, keepdim=False):
    return _logical("amax", self, dim, keepdim)


@rule("all")
def _all(self, dim=None, keepdim=False):
    return _logical("amin", self, dim, keepdim)


@rule("count_nonzero")
def _count_nonzero(self, dim=None):
    return self.to("bool").to("i64").sum(dim)


def variance(x: Arr, dim: Any, correction: Any, keepdim: bool) -> tuple[Arr, Arr]:
    """(variance, mean) in x's dtype, two passes; nan where the divisor is not positive and 0 / 0."""
    dims = x.dims(dim)
    count = math.prod(x.shape[d] for d in dims)
    mean = x.mean(dims if dims else None, True)
    centered = x - mean
    total = (centered * centered).sum(dims if dims else None, keepdim)
    if isinstance(correction, Arr):
        divisor: Any = A.map_("maximum", count - correction.to(x.dtype), 0.0)
    else:
        divisor = max(count - (1 if correction is None else correction), 0)
    out = total / divisor
    return out, mean if keepdim else mean.reshape(*out.shape)


def _moment_args(dim: Any, unbiased: Any, correction: Any) -> Any:
    return int(unbiased) if unbiased is not None else correction


def _var(self: Arr, dim: Any, unbiased: Any, correction: Any, keepdim: bool) -> tuple[Arr, Arr]:
    return variance(up(self), dim, _moment_args(dim, unbiased, correction), keepdim)


@rule("var")
def _var_rule(self, dim=None, unbiased=None, correction=None, keepdim=False):
    return _var(self, dim, unbiased, correction, keepdim)[0].to(self.dtype)


@rule("std")
def _std(self, dim=None, unbiased=None, correction=None, keepdim=False):
    return A.map_("sqrt", _var(self, dim, unbiased, correction, keepdim)[0]).to(self.dtype)


@rule("var_mean")
def _var_mean(self, dim=None, unbiased=None, correction=None, keepdim=False):
    out, mean = _var(self, dim, unbiased, correction, keepdim)
    return out.to(self.dtype), mean.to(self.dtype)


@rule("std_mean")
def _std_mean(self, dim=None, unbiased=None, correction=None, keepdim=False):
    out, mean = _var(self, dim, unbiased, correction, keepdim)
    return A.map_("sqrt", out).to(self.dtype), mean.to(self.dtype)


def vector_norm(x: Arr, order: float, dim: Any, keepdim: bool) -> Arr:
    """The `order`-norm of magnitudes in x's dtype."""
    if order == 2:
        return A.map_("sqrt", (x * x).sum(dim, keepdim))
    x = A.map_("abs", x)
    if order == math.inf:
        return x.amax(dim, keepdim)
    if order == -math.inf:
        return x.amin(dim, keepdim)
    if order == 0:
        return x.ne(0).to(x.dtype).sum(dim, keepdim)
    if order == 1:
        return x.sum(dim, keepdim)
    return A.map_("pow", A.map_("pow", x, order).sum(dim, keepdim), 1.0 / order)


@rule("linalg_vector_norm")
def _linalg_vector_norm(self, ord=2, dim=None, keepdim=False, dtype=None):
    result = self.dtype if dtype is None else name_of(dtype)
    return vector_norm(self.to(result).to(opmath(result)), float(ord), dim, keepdim).to(result)


@rule("norm")
def _norm(self, p=2, dim=None, keepdim=False, dtype=None):
    result = self.dtype if dtype is None else name_of(dtype)
    return vector_norm(self.to(opmath(result)), 2.0 if p is None else float(p), dim, keepdim).to(result)


@rule("logsumexp")
def _logsumexp(self, dim, keepdim=False):
    x = up(self) if self.is_float else self.to(default_float())
    result = self.dtype if self.is_float else x.dtype
    if x.numel == 0:
        return A.map_("log", A.map_("exp", x).sum(dim, keepdim)).to(result)
    top = x.amax(dim, True)
    top = where(A.map_("abs", top).eq(math.inf), 0.0, top)
    total = A.map_("log", A.map_("exp", x - top).sum(dim, keepdim))
    return (total + top.reshape(*total.shape)).to(result)


def below_largest(x: Arr, dim: int) -> tuple[Arr, Arr]:
    """x - max x, and its exponentials. `softmax` tells a compiler what it may do faster (see the op table)."""
    below = x - x.reduce("amax", dim, True, softmax=True)
    return below, A.map_("exp", below, softmax=True)


def softmax(x: Arr, dim: int) -> Arr:
    """Softmax in x's dtype: one division a row, since they take as long as its exponentials (sums are at least 1)."""
    if x.ndim == 0 or x.numel == 0:
        return x / x if x.ndim == 0 else x
    _, e = below_largest(x, dim)
    return e * (1.0 / e.sum(dim, True))


def _floats(x: Arr) -> None:
    """The host says in eager's words what it has no softmax of."""
    if not x.is_float:
        raise NotLowerable("softmax of integers")


@rule("_softmax")
def _softmax(self, dim, half_to_float=False):
    _floats(self)
    return softmax(up(self), dim).to("f32" if half_to_float else self.dtype)


@rule("_safe_softmax")
def _safe_softmax(self, dim, dtype=None):
    result = self.dtype if dtype is None else name_of(dtype)
    x = self.to(result).to(opmath(result))
    return where(x.eq(-math.inf).all(dim, True), 0.0, softmax(x, dim)).to(result)


@rule("_log_softmax")
def _log_softmax(self, dim, half_to_float=False):
    _floats(self)
    x = up(self)
    below, e = below_largest(x, dim) if x.numel and x.ndim else (x, A.map_("exp", x))
    out = below - A.map_("log", e.sum(dim, True))
    return out.to("f32" if half_to_float else self.dtype)


@rule("_softmax_backward_data")
def _softmax_backward(grad_output, output, dim, input_dtype):
    grad, y = up(grad_output), up(output)
    product = grad * y
    return (product - y * product.sum(dim, True)).to(name_of(input_dtype))


@rule("_log_softmax_backward_data")
def _log_softmax_backward(grad_output, output, dim, input_dtype):
    grad = up(grad_output)
    return (grad - A.map_("exp", up(output)) * grad.sum(dim, True)).to(name_of(input_dtype))


@rule("dist")
def _dist(self, other, p=2):
    return vector_norm(up(self) - up(other), float(p), None, False).to(self.dtype)
