"""Complex tensors as pairs of real ones. Linear and structural ops apply to both parts; the rest are formulas."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

import torch

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering import indexing, reduction  # noqa: F401  (their rules are shared here)
from ops_core.lowering.complex_math import (
    acos,
    acosh,
    asin,
    asinh,
    atanh,
    cexp,
    clog,
    clog1p,
    cosh,
    csqrt,
    divide,
    expm1,
    minus_i,
    modulus,
    multiply,
    one_minus,
    one_plus,
    reciprocal,
    scale,
    sgn,
    sinh,
    tanh,
    times_i,
)
from ops_core.lowering.contraction import product
from ops_core.lowering.movement import convert
from ops_core.lowering.promote import COMPLEX_PARTS, TO_TORCH, opmath, result_type
from ops_core.lowering.registry import COMPLEX_RULES, RULES, Complex, NotLowerable, call_rule, rule


def complex_rule(*names: str) -> Any:
    """A rule for calls with a complex operand."""
    return rule(*names, table=COMPLEX_RULES)


def pair(x: Any, part: str) -> Complex:
    """Anything numeric as a complex pair of dtype `part`."""
    if isinstance(x, Complex):
        return Complex(x.re.to(part), x.im.to(part))
    if isinstance(x, Arr):
        return Complex(x.to(part), A.full(x.shape, 0, part))
    z = complex(x)
    return Complex(A.full((), z.real, part), A.full((), z.imag, part))


def real(x: Any) -> Arr:
    """The real part."""
    return x.re if isinstance(x, Complex) else x


def imag(x: Any) -> Arr:
    """The imaginary part; zeros for a real array."""
    return x.im if isinstance(x, Complex) else A.full(x.shape, 0, x.dtype)


def _part(value: Any, part: int) -> Any:
    """One part of every complex operand. A real array or number beside them stands for both."""
    if isinstance(value, Complex):
        return (value.re, value.im)[part]
    if isinstance(value, complex):
        return value.imag if part else value.real
    return [_part(v, part) for v in value] if isinstance(value, (list, tuple)) else value


# both parts alone: structure, and linear maps with real coefficients
_PARTWISE = frozenset({
    "clone", "contiguous", "cat", "stack", "flip", "roll", "repeat", "tril", "triu", "gather", "index_select", "take",
    "index", "_unsafe_index", "slice_backward", "select_backward", "diagonal_backward", "diag_embed", "neg",
    "embedding", "constant_pad_nd", "_neg_view_copy", "diagonal_scatter", "select_scatter", "slice_scatter",
    "as_strided_scatter", "masked_scatter", "cumsum", "index_copy", "scatter", "scatter_add", "put", "positive",
    "index_put", "_index_put_impl", "_unsafe_index_put", "index_add", "masked_scatter_backward", "index_fill",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "nansum",
})  # fmt: skip


def _partwise(key: str) -> None:
    @complex_rule(key)
    def apply(**bound: Any) -> Any:
        common = _widen(bound)
        outs = [call_rule(RULES[key], {k: _part(v, part) for k, v in common.items()}) for part in (0, 1)]
        if isinstance(outs[0], (list, tuple)):
            return [Complex(a, b) for a, b in zip(*outs, strict=False)]
        return Complex(*outs)


_VALUES = frozenset({"self", "src", "source", "values", "value", "grad_output", "tensors", "dtype", "fill"})


def _widen(bound: dict[str, Any]) -> dict[str, Any]:
    """Value operands as complex pairs when one of them is; the dtype argument as that of a part."""

    def parts(v: Any) -> list[str]:
        return [x.dtype for x in (v if isinstance(v, list) else [v]) if isinstance(x, Complex)]

    found = [p for v in bound.values() for p in parts(v)]
    if not found:
        found = [COMPLEX_PARTS[bound["dtype"]]]

    def widen(v: Any) -> Any:
        if isinstance(v, list):
            return [widen(x) for x in v]
        if isinstance(v, torch.dtype):
            return TO_TORCH[COMPLEX_PARTS[v]] if v.is_complex else v
        return pair(v, found[0]) if isinstance(v, (Arr, bool, int, float, complex)) else v

    def numeric(name: str, v: Any) -> bool:
        return name in _VALUES and v is not None and not (name == "value" and isinstance(v, list))

    return {k: widen(v) if numeric(k, v) else v for k, v in bound.items()}


for _key in list(RULES):
    if _key.split(".")[1] in _PARTWISE:
        _partwise(_key)


def binary(*names: str) -> Any:
    """A formula on two complex pairs in their arithmetic dtype."""

    def register(formula: Any) -> Any:
        @complex_rule(*names)
        def apply(self: Any, other: Any, alpha: Any = 1) -> Any:
            part = COMPLEX_PARTS[result_type([self, other])]
            a, b = pair(self, opmath(part)), pair(other, opmath(part))
            if not (isinstance(alpha, (int, float)) and alpha == 1):
                scale = pair(alpha, opmath(part))
                b = multiply(b, scale) if formula is not _rsub else b
                a = multiply(a, scale) if formula is _rsub else a
            return _round(formula(a, b), part)

        return formula

    return register


def _round(x: Any, part: str) -> Any:
    return Complex(x.re.to(part), x.im.to(part)) if isinstance(x, Complex) else x


@binary("add")
def _add(a: Complex, b: Complex) -> Complex:
    return Complex(a.re + b.re, a.im + b.im)


@binary("sub")
def _sub(a: Complex, b: Complex) -> Complex:
    return Complex(a.re - b.re, a.im - b.im)


@binary("rsub")
def _rsub(a: Complex, b: Complex) -> Complex:
    return Complex(b.re - a.re, b.im - a.im)


binary("mul")(multiply)
binary("div.Tensor", "div.Scalar", "true_divide")(divide)


@complex_rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(self, other, rounding_mode):
    if rounding_mode is not None:
        raise NotLowerable("rounded division of complex numbers")
    return COMPLEX_RULES["aten.div.Tensor"](self=self, other=other)


@binary("eq")
def _eq(a: Complex, b: Complex) -> Arr:
    return a.re.eq(b.re) & a.im.eq(b.im)


@binary("ne")
def _ne(a: Complex, b: Complex) -> Arr:
    return a.re.ne(b.re) | a.im.ne(b.im)


_UNARY = {
    "exp": cexp, "log": clog, "sqrt": csqrt, "sinh": sinh, "cosh": cosh, "tanh": tanh, "asinh": asinh, "acosh": acosh,
    "atanh": atanh, "asin": asin, "acos": acos, "reciprocal": reciprocal,
    "sin": lambda x: minus_i(sinh(times_i(x))),
    "cos": lambda x: cosh(times_i(x)),
    "tan": lambda x: minus_i(tanh(times_i(x))),
    "atan": lambda x: minus_i(atanh(times_i(x))),
    "exp2": lambda x: cexp(scale(x, math.log(2))),
    "expm1": expm1,
    "log2": lambda x: scale(clog(x), 1 / math.log(2)),
    "log10": lambda x: scale(clog(x), 1 / math.log(10)),
    "log1p": clog1p,
    "rsqrt": lambda x: reciprocal(csqrt(x)),
    "sigmoid": lambda x: reciprocal(one_plus(cexp(scale(x, -1.0)))),
    "square": lambda x: multiply(x, x),
    "silu": lambda x: divide(x, one_plus(cexp(scale(x, -1.0)))),
    "sgn": sgn,
    "sign": sgn,
    "conj_physical": lambda x: Complex(x.re, -x.im),
    "_conj_physical": lambda x: Complex(x.re, -x.im),
    "_conj_copy": lambda x: Complex(x.re, -x.im),
}  # fmt: skip


def _declare(name: str, formula: Any) -> None:
    @complex_rule(name)
    def apply(self: Complex) -> Complex:
        return _round(formula(pair(self, opmath(self.dtype))), self.dtype)


for _name, _formula in _UNARY.items():
    _declare(_name, _formula)


@complex_rule("abs")
def _abs(self):
    return modulus(pair(self, opmath(self.dtype))).to(self.dtype)


@complex_rule("angle")
def _angle(self):
    return A.map_("atan2", self.im.to(opmath(self.dtype)), self.re.to(opmath(self.dtype))).to(self.dtype)


@complex_rule("isnan")
def _isnan(self):
    return self.re.ne(self.re) | self.im.ne(self.im)


@complex_rule("isinf")
def _isinf(self):
    return A.map_("abs", self.re).eq(math.inf) | A.map_("abs", self.im).eq(math.inf)


@complex_rule("isfinite")
def _isfinite(self):
    return (A.map_("abs", self.re) < math.inf) & (A.map_("abs", self.im) < math.inf)


@rule("complex")
def _complex(real, imag):
    re, im = A.broadcast(real, imag)
    return Complex(re, im)


@rule("polar")
def _polar(abs, angle):
    return Complex(*A.broadcast(abs * A.map_("cos", angle), abs * A.map_("sin", angle)))


@rule("view_as_real_copy")
def _view_as_real_copy(self):
    return A.stack([self.re, self.im], -1)


@rule("view_as_complex_copy")
def _view_as_complex_copy(self):
    return Complex(self.select(-1, 0), self.select(-1, 1))


@complex_rule("_to_copy")
def _to_copy(self, dtype=None):
    return self if dtype is None else convert(self, dtype)


# real rules that take complex operands as they are
_SHARED = (
    "copy", "_copy_from", "fill", "full_like", "ones_like", "new_ones", "new_full", "new_zeros", "full",
    "zeros_like", "empty_like", "zeros", "ones", "empty", "scalar_tensor", "zero", "new_empty", "empty_strided",
    "new_empty_strided", "eye", "logical_not", "logical_and", "logical_or", "logical_xor", "complex",
)  # fmt: skip
for _name in _SHARED:
    COMPLEX_RULES[f"aten.{_name}"] = RULES[f"aten.{_name}"]


def _declare_logical(name: str) -> None:
    @complex_rule(name)
    def apply(self: Complex, dim: Any = None, keepdim: bool = False) -> Any:
        return call_rule(RULES[f"aten.{name}"], {"self": self.re.ne(0) | self.im.ne(0), "dim": dim, "keepdim": keepdim})


for _name in ("any", "all"):
    _declare_logical(_name)


@complex_rule("where.self")
def _where(condition, self, other):
    part = COMPLEX_PARTS[result_type([self, other])]
    a, b = pair(self, part), pair(other, part)
    c = condition.to("bool")
    return Complex(where(c, a.re, b.re), where(c, a.im, b.im))


@complex_rule("masked_fill")
def _masked_fill(self, mask, value):
    v = pair(value, self.dtype)
    return Complex(where(mask, v.re, self.re), where(mask, v.im, self.im))


def _in_parts(dtype: torch.dtype | None, x: Any) -> Complex:
    part = COMPLEX_PARTS[dtype] if dtype is not None and dtype.is_complex else x.dtype
    return pair(x, part)


@complex_rule("sum")
def _sum(self, dim=None, keepdim=False, dtype=None):
    x = _in_parts(dtype, self)
    return Complex(x.re.sum(dim, keepdim), x.im.sum(dim, keepdim))


@complex_rule("mean")
def _mean(self, dim=None, keepdim=False, dtype=None):
    x = _in_parts(dtype, self)
    return Complex(x.re.mean(dim, keepdim), x.im.mean(dim, keepdim))


@complex_rule("var")
def _var(self, dim=None, unbiased=None, correction=None, keepdim=False):
    parts = [call_rule(RULES["aten.var"], {"self": p, "dim": dim, "unbiased": unbiased, "correction": correction,
                                           "keepdim": keepdim}) for p in (self.re, self.im)]  # fmt: skip
    return parts[0] + parts[1]


@complex_rule("std")
def _std(self, dim=None, unbiased=None, correction=None, keepdim=False):
    return A.map_("sqrt", _var(self, dim, unbiased, correction, keepdim))


@complex_rule("prod")
def _prod(self, dim=None, keepdim=False, dtype=None):
    """A product tree: pairs of slices multiplied until one is left."""
    x = _in_parts(dtype, self)
    if dim is None:
        x, d, keep = Complex(x.re.reshape(-1), x.im.reshape(-1)), 0, False
    else:
        d, keep = x.re.dim(dim), keepdim
    if x.ndim == 0:
        return x
    n = x.shape[d]
    if n == 0:
        return Complex(x.re.reduce("prod", d, keep), x.im.sum(d, keep))
    while n > 1:
        half = n // 2
        a = Complex(x.re.slice(d, 0, half), x.im.slice(d, 0, half))
        b = Complex(x.re.slice(d, half, 2 * half), x.im.slice(d, half, 2 * half))
        p = multiply(a, b)
        if n % 2:
            p = Complex(A.cat([p.re, x.re.slice(d, n - 1)], d), A.cat([p.im, x.im.slice(d, n - 1)], d))
        x, n = p, half + n % 2
    return x if keep else Complex(x.re.squeeze(d), x.im.squeeze(d))


@complex_rule("cumprod")
def _cumprod(self, dim, dtype=None):
    """Hillis and Steele's scan over complex multiplication."""
    x = _in_parts(dtype, self)
    if x.ndim == 0:
        return x
    d = x.re.dim(dim)
    step, n = 1, x.shape[d]
    while step < n:
        shifted = [A.cat([A.full((*x.shape[:d], step, *x.shape[d + 1 :]), v, x.dtype), p.slice(d, 0, n - step)], d)
                   for p, v in ((x.re, 1.0), (x.im, 0.0))]  # fmt: skip
        x = multiply(x, Complex(*shifted))
        step *= 2
    return x


def contract(a: Any, b: Any, bilinear: Any) -> Complex:
    """A bilinear product of complex operands from real ones."""
    re = bilinear(real(a), real(b)) - bilinear(imag(a), imag(b))
    return Complex(re, bilinear(real(a), imag(b)) + bilinear(imag(a), real(b)))


def _same_part(*xs: Any) -> list[Complex]:
    part = COMPLEX_PARTS[result_type(xs)]
    return [pair(x, part) for x in xs]


@complex_rule("mm", "bmm")
def _mm(self, mat2):
    return contract(self, mat2, product)


def _combined(self: Any, out: Complex, beta: Any, alpha: Any) -> Complex:
    out = multiply(out, pair(alpha, out.dtype))
    if not isinstance(beta, Arr) and beta == 0:
        return out
    factor = pair(beta, out.dtype)
    base, counts = multiply(pair(self, out.dtype), factor), factor.re.ne(0) | factor.im.ne(0)
    return Complex(out.re + where(counts, base.re, 0), out.im + where(counts, base.im, 0))


@complex_rule("addmm", "baddbmm")
def _addmm(self, mat1=None, mat2=None, batch1=None, batch2=None, beta=1, alpha=1):
    a, b = (mat1, mat2) if mat1 is not None else (batch1, batch2)
    return _combined(self, contract(a, b, product), beta, alpha)


@complex_rule("addbmm")
def _addbmm(self, batch1, batch2, beta=1, alpha=1):
    out = contract(batch1, batch2, product)
    return _combined(self, Complex(out.re.sum(0), out.im.sum(0)), beta, alpha)


@complex_rule("mv")
def _mv(self, vec):
    return contract(self, vec, lambda m, v: product(m, v.unsqueeze(1)).squeeze(1))


@complex_rule("addmv")
def _addmv(self, mat, vec, beta=1, alpha=1):
    return _combined(self, _mv(mat, vec), beta, alpha)


@complex_rule("addr")
def _addr(self, vec1, vec2, beta=1, alpha=1):
    a, b = _same_part(vec1, vec2)
    out = contract(a, b, lambda x, y: x.unsqueeze(1) * y.unsqueeze(0))
    return _combined(self, out, beta, alpha)


@complex_rule("dot")
def _dot(self, tensor):
    return contract(self, tensor, lambda x, y: (x * y).sum())


@complex_rule("vdot")
def _vdot(self, other):
    return contract(Complex(self.re, -self.im), other, lambda x, y: (x * y).sum())


@complex_rule("convolution", "_convolution", "convolution_overrideable")
def _convolution(input, weight, bias, **geometry):
    plain = RULES["aten.convolution"]
    out = contract(input, weight, lambda x, w: plain(input=x, weight=w, bias=None, **geometry))
    if bias is None:
        return out
    column = (1, -1, *(1,) * (weight.ndim - 2)) if input.ndim == weight.ndim else (-1, *(1,) * (weight.ndim - 2))
    return Complex(out.re + real(bias).reshape(*column), out.im + imag(bias).reshape(*column))


@complex_rule("pow")
def _pow(self, exponent):
    part = COMPLEX_PARTS[result_type([self, exponent])]
    a = pair(self, part)
    if not isinstance(exponent, (Arr, Complex)) and exponent in (2, 0.5):
        return multiply(a, a) if exponent == 2 else csqrt(a)
    if not isinstance(exponent, (Arr, Complex)) and exponent == 0:
        return Complex(A.full_like(a.re, 1), A.full_like(a.im, 0))
    b = pair(exponent, part)
    out = cexp(multiply(b, clog(a)))
    nothing = a.re.eq(0.0) & a.im.eq(0.0)
    no_power = b.re.eq(0.0) & b.im.eq(0.0)
    zero = where(no_power, 1.0, where(b.re > 0.0, 0.0, math.nan, part))
    return Complex(where(nothing, zero, out.re), where(nothing, 0.0, out.im))


@complex_rule("addcmul")
def _addcmul(self, tensor1, tensor2, value=1):
    a, b, c = _same_part(self, tensor1, tensor2)
    p = multiply(multiply(b, c), pair(value, a.dtype))
    return Complex(a.re + p.re, a.im + p.im)


@complex_rule("addcdiv")
def _addcdiv(self, tensor1, tensor2, value=1):
    a, b, c = _same_part(self, tensor1, tensor2)
    q = divide(multiply(b, pair(value, a.dtype)), c)
    return Complex(a.re + q.re, a.im + q.im)


@complex_rule("lerp")
def _lerp(self, end, weight):
    a, b = _same_part(self, end)
    w = pair(weight, a.dtype)
    p = multiply(w, Complex(b.re - a.re, b.im - a.im))
    near = modulus(w) < 0.5
    q = multiply(one_minus(w), Complex(b.re - a.re, b.im - a.im))
    return Complex(where(near, a.re + p.re, b.re - q.re), where(near, a.im + p.im, b.im - q.im))


@complex_rule("linalg_vector_norm")
def _vector_norm(self, ord=2, dim=None, keepdim=False, dtype=None):
    dtype = TO_TORCH[COMPLEX_PARTS[dtype]] if dtype is not None else None
    bound = {"self": modulus(self), "ord": ord, "dim": dim, "keepdim": keepdim, "dtype": dtype}
    return call_rule(RULES["aten.linalg_vector_norm"], bound)


@complex_rule("norm")
def _norm(self, p=2, dim=None, keepdim=False, dtype=None):
    return call_rule(RULES["aten.norm"], {"self": modulus(self), "p": p, "dim": dim, "keepdim": keepdim})


@complex_rule("count_nonzero")
def _count_nonzero(self, dim=None):
    return (self.re.ne(0) | self.im.ne(0)).to("i64").sum(dim)


@complex_rule("sigmoid_backward")
def _sigmoid_backward(grad_output, output):
    g, y = _same_part(grad_output, output)
    return multiply(g, _conj(multiply(one_minus(y), y)))


@complex_rule("tanh_backward")
def _tanh_backward(grad_output, output):
    g, y = _same_part(grad_output, output)
    return multiply(g, _conj(one_minus(multiply(y, y))))


def _conj(x: Complex) -> Complex:
    return Complex(x.re, -x.im)


@complex_rule("silu_backward")
def _silu_backward(grad_output, self):
    g, x = _same_part(grad_output, self)
    s = reciprocal(one_plus(cexp(scale(x, -1.0))))
    inner = one_plus(multiply(x, one_minus(s)))
    return multiply(g, _conj(multiply(s, inner)))


@complex_rule("nan_to_num")
def _nan_to_num(self, nan=None, posinf=None, neginf=None):
    fix = RULES["aten.nan_to_num"]
    return Complex(
        *(call_rule(fix, {"self": p, "nan": nan, "posinf": posinf, "neginf": neginf}) for p in (self.re, self.im))
    )
