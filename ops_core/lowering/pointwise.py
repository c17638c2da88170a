"""Pointwise rules. A formula sees its operands broadcast-compatible, in one arithmetic dtype (float32 for half types);
the frame around it promotes as torch does and rounds once."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import required
from ops_core.lowering.promote import HALF, TO_TORCH, cast, default_float, name_of, opmath, result_type, torch_dtype
from ops_core.lowering.registry import Complex, NotLowerable, rule

Formula = Callable[..., Arr]


def frame(
    formula: Formula, operands: tuple[str, ...], floating: bool, keep: bool, rounded: bool = False
) -> Callable[..., Any]:
    """A rule from a formula. `operands` take part in promotion; other arrays only get the arithmetic dtype;
    `floating`: integers become the default float dtype; `keep`: the result keeps the formula's dtype; `rounded`:
    numbers beside halves are rounded to the half type first, as by most of the CPU's kernels (`x == 0.1` is true where
    x was filled with 0.1); products and quotients take them as they are."""

    def lowered(**bound: Any) -> Any:
        present = [bound[n] for n in operands if bound.get(n) is not None]
        if any(isinstance(x, (Complex, complex)) for x in present):
            raise NotLowerable("complex operands")
        common = name_of(result_type(present))
        if floating and not A.is_float(common):
            common = default_float()
        shape = A.broadcast_shapes(*(x.shape for x in present if isinstance(x, Arr)))
        compute = opmath(common)
        values = {n: cast(x, compute) if isinstance(x, Arr) else x for n, x in bound.items()}
        for n in operands if compute != common else ():
            x = bound.get(n)  # integers are rounded to the half type first, but for a number in second place
            if isinstance(x, Arr) and (rounded or (not x.is_float and (x.shape or n == operands[0]))):
                values[n] = cast(cast(x, common), compute)
            elif isinstance(x, float) and rounded:
                values[n] = torch.tensor(x, dtype=TO_TORCH[common]).item()
        if not any(isinstance(values.get(n), Arr) for n in operands):
            raise NotLowerable("no array operand")
        first = operands[0]
        if first in values and not isinstance(values[first], Arr):
            values[first] = A.full((), values[first], compute)
        out = formula(**values)
        out = out if keep or out.dtype == "bool" else out.to(common)
        return out.expand(*shape)

    return lowered


def pointwise(
    *names: str,
    operands: tuple[str, ...] = ("self", "other"),
    floating: bool = False,
    keep: bool = False,
    rounded: bool = False,
):
    """Declare a formula for the functional faces of `names`."""

    def register(formula: Formula) -> Formula:
        framed = frame(formula, operands, floating, keep, rounded)
        code = formula.__code__
        takes = code.co_varnames[: code.co_argcount]

        def adapted(**bound: Any) -> Any:
            return framed(**{n: bound[n] for n in takes if n in bound})

        rule(*names)(adapted)
        return formula

    return register


def sigmoid_of(x: Arr) -> Arr:
    """1 / (1 + exp(-x))."""
    return 1.0 / (A.map_("exp", -x) + 1.0)


def tanh_of(x: Arr) -> Arr:
    """Hyperbolic tangent."""
    return A.map_("tanh", x)


# one scalar function each: name, catalogue function; integers become float
for _name, _fn in {
    "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "erf": "erf", "erfc": "erfc", "erfinv": "erf_inv", "lgamma": "lgamma", "digamma": "digamma",
    "reciprocal": "reciprocal",
}.items():  # fmt: skip
    pointwise(_name, operands=("self",), floating=True)(lambda self, _fn=_fn: A.map_(_fn, self))


@pointwise("sigmoid", operands=("self",), floating=True)
def _sigmoid(self):
    return sigmoid_of(self)


def _rounding(fn: str) -> Formula:
    return lambda self: A.map_(fn, self) if self.is_float else self


for _name in ("floor", "ceil", "trunc", "round"):
    pointwise(f"{_name}.default", operands=("self",))(_rounding(_name))


@pointwise("round.decimals", operands=("self",))
def _round_decimals(self, decimals):
    if not self.is_float:
        return self
    if decimals == 0:
        return A.map_("round", self)
    ten = 10.0 ** abs(decimals)
    return A.map_("round", self * ten) / ten if decimals > 0 else A.map_("round", self / ten) * ten


@pointwise("frac", operands=("self",))
def _frac(self):
    return self - A.map_("trunc", self)


@pointwise("abs", operands=("self",))
def _abs(self):
    return self if self.kind in "bu" else A.map_("abs", self)


@pointwise("neg", "_neg_view_copy", operands=("self",))
def _neg(self):
    return -self


@pointwise("sign", "sgn", operands=("self",))
def _sign(self):
    if self.kind == "b":
        return self
    return self.ne(0).to(self.dtype) if self.kind == "u" else A.map_("sign", self)


@pointwise("square", operands=("self",))
def _square(self):
    return self & self if self.kind == "b" else self * self


@pointwise("positive", "conj_physical", "_conj_physical", "_conj_copy", "real", operands=("self",))
def _identity(self):
    return self


@pointwise("angle", operands=("self",), floating=True)
def _angle(self):
    return where(self < 0, math.pi, where(self.ne(self), self, 0.0))


@pointwise("add", rounded=True)
def _add(self, other, alpha=1):
    if self.kind == "b":
        return self | (other if _is_one(alpha) else A.map_("and", other, alpha))
    return self + (other if _is_one(alpha) else other * alpha)


@pointwise("_add_relu")
def _add_relu(self, other, alpha=1):
    return A.map_("maximum", _add(self, other, alpha), 0)


def _is_one(alpha: Any) -> bool:
    return not isinstance(alpha, Arr) and alpha == 1


@pointwise("sub", rounded=True)
def _sub(self, other, alpha=1):
    return self - (other if _is_one(alpha) else other * alpha)


@pointwise("rsub", rounded=True)
def _rsub(self, other, alpha=1):
    return other - (self if _is_one(alpha) else self * alpha)


@pointwise("mul")
def _mul(self, other):
    return self & other if self.kind == "b" else self * other


def floor_quotient(a: Arr, b: Arr | float) -> Arr:
    """The quotient of integers rounded down, by one division: `remainder` would be a second."""
    b = b if isinstance(b, Arr) else A.full((), b, a.dtype)
    quotient = a / b
    if a.kind == "u":
        return quotient
    rest = a - quotient * b
    return where(rest.ne(0) & (rest < 0).ne(b < 0), quotient - 1, quotient)


def _floor_div(a: Arr, b: Arr | float, narrow: Callable[[Arr], Arr] = lambda x: x) -> Arr:
    if not a.is_float:
        return floor_quotient(a, b)
    # as c10::div_floor_floating: exact for representable quotients
    b = b if isinstance(b, Arr) else A.full((), b, a.dtype)
    mod = A.map_("fmod", a, b)
    div = narrow(narrow(a - mod) / b)
    div = where(mod.ne(0) & (mod < 0).ne(b < 0), narrow(div - 1.0), div)
    floored = A.map_("floor", div)
    floored = where(narrow(div - floored) > 0.5, narrow(floored + 1.0), floored)
    zero = where((a / b) < 0, -0.0, 0.0, a.dtype)
    return where(b.eq(0), a / b, where(div.ne(0), floored, zero))


@pointwise("div.Tensor", "div.Scalar", "true_divide", floating=True)
def _div(self, other):
    return self / other


@rule("floor_divide")
def _floor_divide(self, other):
    return _div_mode(self, other, "floor")


def _divides(a: Arr, b: Arr | float) -> None:
    """Of integers: raises at the next read where a tensor of divisors has a zero. Of a number the recorder knows."""
    if a.is_float or not isinstance(b, Arr):
        return
    source = b.v
    while source.node.attrs.get("fn") == "convert":
        source = source.node.inputs[0]
    if source.node.op != "param":
        required(b.ne(0), "division")


def _trunc_div(a: Arr, b: Arr | float, narrow: Callable[[Arr], Arr]) -> Arr:
    return A.map_("trunc", narrow(a / b)) if a.is_float else a / b


_DIVISIONS = {"floor": _floor_div, "trunc": _trunc_div}


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(self, other, rounding_mode):
    if rounding_mode is None:
        return frame(_div, ("self", "other"), True, False)(self=self, other=other)

    def divide(self, other):  # tensors of halves are divided as such, which decides what is rounded up or down
        by_halves = isinstance(other, Arr) and other.shape and opmath(common) != common
        narrow = (lambda x: x.to(common).to(x.dtype)) if by_halves else lambda x: x
        _divides(self, other)
        return _DIVISIONS[rounding_mode](self, other, narrow)

    if isinstance(self, Complex) or isinstance(other, Complex):
        raise NotLowerable("complex operands")
    common = name_of(result_type([self, other]))
    return frame(divide, ("self", "other"), False, False)(self=self, other=other)


@pointwise("fmod", rounded=True)
def _fmod(self, other):
    _divides(self, other)
    return A.map_("fmod", self, other)


@pointwise("remainder", rounded=True)
def _remainder(self, other):
    _divides(self, other)
    return A.map_("remainder", self, other)


for _name in ("maximum", "minimum"):
    pointwise(_name)(lambda self, other, _fn=_name: A.map_(_fn, self, other))


@pointwise("fmax")
def _fmax(self, other):
    out = A.map_("maximum", self, other)
    return where(self.ne(self), other, where(other.ne(other), self, out)) if self.is_float else out


@pointwise("fmin")
def _fmin(self, other):
    out = A.map_("minimum", self, other)
    return where(self.ne(self), other, where(other.ne(other), self, out)) if self.is_float else out


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    pointwise(_name, rounded=True)(lambda self, other, _fn=_name: A.map_(_fn, self, other))

for _name, _fn in {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}.items():

    def _logical(self, other, _fn=_fn):
        return A.map_(_fn, self.to("bool"), other.to("bool") if isinstance(other, Arr) else bool(other))

    rule(_name)(lambda self, other, _f=_logical: _f(real_part(self), real_part(other)))


def real_part(x: Any) -> Arr:
    """A condition: non-zero as bool, for real or complex operands."""
    return x.re.to("bool") | x.im.to("bool") if isinstance(x, Complex) else x


@rule("logical_not")
def _logical_not(self):
    return ~real_part(self).to("bool")


@pointwise("pow", operands=("self", "exponent"))
def _pow(self, exponent):
    if self.kind == "b":
        return self | ~exponent if isinstance(exponent, Arr) else (self if exponent else A.full_like(self, True))
    if isinstance(exponent, Arr):
        return A.map_("pow", self, exponent)
    powers = {0.5: lambda: A.map_("sqrt", self), 1: lambda: self, 2: lambda: self * self, 3: lambda: self * self * self,
              -0.5: lambda: A.map_("rsqrt", self), -1: lambda: 1.0 / self, -2: lambda: 1.0 / (self * self)}  # fmt: skip
    allowed = self.is_float or exponent in (1, 2, 3)
    return powers[exponent]() if allowed and exponent in powers else A.map_("pow", self, exponent)


@pointwise("float_power", operands=("self", "exponent"))
def _float_power(self, exponent):
    return A.map_("pow", self, exponent)


@pointwise("atan2", floating=True)
def _atan2(self, other):
    return A.map_("atan2", self, other)


@rule("nextafter")
def _nextafter(self, other):
    dtype = name_of(result_type([self, other]))
    x, y = A.broadcast(cast(self, dtype), cast(other, dtype))
    if dtype not in HALF:
        return A.map_("nextafter", x, y)
    bits = x.bitcast("i16")  # registers hold halves as f32, whose neighbours are nearer
    one = A.full((), 1, "i16")
    away = where((y > x).eq(x > 0.0), one, -1)
    from_zero = where(y > 0.0, one, -32767)
    moved = where(x.eq(0.0), from_zero, bits + away).bitcast(dtype)
    return where(x.ne(x) | y.ne(y), x + y, where(x.eq(y), y, moved))


@pointwise("hypot")
def _hypot(self, other):
    big, small = A.map_("maximum", abs_(self), abs_(other)), A.map_("minimum", abs_(self), abs_(other))
    ratio = small / where(big.eq(0) | big.eq(math.inf), 1.0, big)
    infinite = abs_(self).eq(math.inf) | abs_(other).eq(math.inf)  # wins over nan
    return where(infinite, math.inf, big * A.map_("sqrt", ratio * ratio + 1.0))


def abs_(x: Arr) -> Arr:
    """Magnitude."""
    return A.map_("abs", x)


def signbit(x: Arr) -> Arr:
    """The sign bit, also of zeros and nans."""
    if not x.is_float:
        return x < 0 if x.kind == "i" else A.full(x.shape, False, "bool")
    integer = {"f16": "i16", "bf16": "i16", "f32": "i32", "f64": "i64"}[x.dtype]
    return x.bitcast(integer) < 0


@rule("signbit")
def _signbit(self):
    return signbit(self)


@pointwise("copysign", floating=True)
def _copysign(self, other):
    magnitude = abs_(self)
    negative = signbit(other) if isinstance(other, Arr) else math.copysign(1.0, other) < 0
    if isinstance(negative, bool):
        return -magnitude if negative else magnitude
    return where(negative, -magnitude, magnitude)


@pointwise("heaviside", operands=("self", "values"))
def _heaviside(self, values):
    return where(self.eq(0), values, (self > 0).to(self.dtype))


@pointwise("xlogy", floating=True)
def _xlogy(self, other):
    return _times_log(self, other, "log")


@pointwise("special_xlog1py", floating=True)
def _xlog1py(self, other):
    return _times_log(self, other, "log1p")


def _times_log(a: Arr, b: Arr | float, fn: str) -> Arr:
    b = b if isinstance(b, Arr) else A.full((), b, a.dtype)
    return where(b.ne(b), b, where(a.eq(0), 0.0, a * A.map_(fn, b)))


@pointwise("logaddexp", floating=True)
def _logaddexp(self, other):
    return _log_add(self, other, "exp", "log1p", 1.0)


@pointwise("logaddexp2", floating=True)
def _logaddexp2(self, other):
    return _log_add(self, other, "exp2", "log1p", 1 / math.log(2))


def _log_add(a: Arr, b: Arr, exp: str, log: str, scale: float) -> Arr:
    top = A.map_("maximum", a, b)
    tail = A.map_(log, A.map_(exp, -abs_(a - b)))
    same_infinity = abs_(a).eq(math.inf) & a.eq(b)
    return where(same_infinity, a, top + (tail if scale == 1.0 else tail * scale))


@pointwise("logit", operands=("self",), floating=True)
def _logit(self, eps=None):
    x = self if eps is None else A.map_("minimum", A.map_("maximum", self, eps), 1.0 - eps)
    return A.map_("log", x / (1.0 - x))


@pointwise("sinc", operands=("self",), floating=True)
def _sinc(self):
    x = self * math.pi
    return where(x.eq(0), 1.0, A.map_("sin", x) / x)


@pointwise("deg2rad", operands=("self",), floating=True)
def _deg2rad(self):
    return self * (math.pi / 180)


@pointwise("rad2deg", operands=("self",), floating=True)
def _rad2deg(self):
    return self * (180 / math.pi)


@pointwise("addcmul", operands=("self", "tensor1", "tensor2"))
def _addcmul(self, tensor1, tensor2, value=1):
    product = tensor1 * tensor2
    return self + (product if _is_one(value) else product * value)


@pointwise("addcdiv", operands=("self", "tensor1", "tensor2"))
def _addcdiv(self, tensor1, tensor2, value=1):
    return self + (tensor1 if _is_one(value) else tensor1 * value) / tensor2


@pointwise("lerp", operands=("self", "end"))
def _lerp(self, end, weight):
    if not isinstance(weight, Arr):
        return self + (end - self) * weight if abs(weight) < 0.5 else end - (end - self) * (1.0 - weight)
    return where(abs_(weight) < 0.5, self + (end - self) * weight, end - (end - self) * (1.0 - weight))


@pointwise("clamp", "clip", operands=("self", "min", "max"))
def _clamp(self, min=None, max=None):
    low = self if min is None else A.map_("maximum", self, min)
    return low if max is None else A.map_("minimum", low, max)


@pointwise("clamp_min", operands=("self", "min"))
def _clamp_min(self, min):
    return A.map_("maximum", self, min)


@pointwise("clamp_max", operands=("self", "max"))
def _clamp_max(self, max):
    return A.map_("minimum", self, max)


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(condition, self, other):
    dtype = result_type([self, other])
    if dtype.is_complex:
        raise NotLowerable("complex where")
    name = name_of(dtype)
    a, b = (x.to(name) if isinstance(x, Arr) else A.full((), x, name) for x in (self, other))
    return where(condition.to("bool"), a, b)


@rule("masked_fill")
def _masked_fill(self, mask, value):
    filled = value.to(self.dtype) if isinstance(value, Arr) else value
    return where(mask.to("bool"), filled, self)


@rule("isnan")
def _isnan(self):
    return self.ne(self)


@rule("isinf")
def _isinf(self):
    return abs_(self).eq(math.inf) if self.is_float else A.full(self.shape, False, "bool")


@rule("isfinite")
def _isfinite(self):
    return abs_(self) < math.inf if self.is_float else A.full(self.shape, True, "bool")


@rule("isposinf")
def _isposinf(self):
    return self.eq(math.inf) if self.is_float else A.full(self.shape, False, "bool")


@rule("isneginf")
def _isneginf(self):
    return self.eq(-math.inf) if self.is_float else A.full(self.shape, False, "bool")


@pointwise("nan_to_num", operands=("self",))
def _nan_to_num(self, nan=None, posinf=None, neginf=None):
    if not self.is_float:
        return self
    return _finite(self, self.dtype, nan, posinf, neginf)


@rule("nan_to_num")
def _nan_to_num_rule(self, nan=None, posinf=None, neginf=None):
    if not self.is_float:
        return self
    return _finite(self, self.dtype, nan, posinf, neginf)


def _finite(x: Arr, dtype: str, nan: Any, posinf: Any, neginf: Any) -> Arr:
    import torch

    info = torch.finfo(torch_dtype(x))
    out = where(x.eq(math.inf), info.max if posinf is None else cast(posinf, dtype), x)
    out = where(x.eq(-math.inf), info.min if neginf is None else cast(neginf, dtype), out)
    return where(x.ne(x), 0.0 if nan is None else cast(nan, dtype), out)


@rule("frexp")
def _frexp(self):
    mantissa, exponent = A.frexp(self.to(opmath(self.dtype)))
    return mantissa.to(self.dtype), exponent


@pointwise("ldexp", floating=True)
def _ldexp(self, other):
    return self * A.map_("exp2", other)
