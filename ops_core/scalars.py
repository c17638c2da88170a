"""The scalar catalogue: every function `map` may apply, with its NumPy reference.

Dtype rules: all operands share one dtype and the result has it too, except where `result` says otherwise.
float16 and bfloat16 operands are computed in float32 and rounded once to the result's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ScalarFn:
    """One scalar function. `arity` operands; `dtypes` lists operand kinds ("f"loat, "i"nteger, "b"ool);
    `result`: "same" as the operands, "bool", "to" (an attribute), "second" operand's, or "frexp" (same, i32)."""

    name: str
    arity: int
    dtypes: str
    reference: Callable[..., Any]
    doc: str
    result: str = "same"


def _each(fn: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A reference from a scalar libm function; poles give +inf as C's libm does."""

    def safe(x: float) -> float:
        try:
            return fn(x)
        except (ValueError, OverflowError):
            return math.nan if math.isnan(x) or (x == -math.inf and fn is not math.lgamma) else math.inf

    ufunc = np.frompyfunc(safe, 1, 1)
    return lambda x: np.asarray(ufunc(x.astype(np.float64)), dtype=x.dtype)


_erf, _erfc, _lgamma = _each(math.erf), _each(math.erfc), _each(math.lgamma)


def _erf_inv(x: np.ndarray) -> np.ndarray:
    """Giles' single-precision polynomial, then two Newton steps in float64 on erfc, which keeps the tails exact."""
    y = np.abs(x.astype(np.float64))
    w = -np.log((1 - y) * (1 + y))
    near, far = w - 2.5, np.sqrt(np.maximum(w, 5)) - 3
    p = np.polyval([2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941], near)  # fmt: skip
    q = np.polyval([-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682], far)  # fmt: skip
    r = np.where(w < 5, p, q) * y
    for _ in range(2):
        r = r + (_erfc(r) - (1 - y)) * (math.sqrt(math.pi) / 2) * np.exp(r * r)
    r = np.where(y == 1, np.inf, np.where(y > 1, np.nan, r))
    return np.copysign(r, x).astype(x.dtype)


def _digamma(x: np.ndarray) -> np.ndarray:
    """Reflection below 0, recurrence up to 6, then the asymptotic series; poles: -inf at 0, nan at -1, -2, ..."""
    z = x.astype(np.float64)
    reflected = z < 0
    t = np.where(reflected, 1 - z, z)
    result = np.zeros_like(t)
    for _ in range(10):
        low = t < 10
        result = result - np.where(low, 1 / t, 0)
        t = np.where(low, t + 1, t)
    s = 1 / (t * t)
    tail = np.polyval([8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3,
                       -4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3,
                       8.33333333333333333333e-2, 0.0], s)  # fmt: skip
    result = result + np.log(t) - 0.5 / t - tail
    fraction = z - np.trunc(z)
    result = np.where(reflected, result - math.pi / np.tan(math.pi * fraction), result)
    result = np.where(reflected & (fraction == 0), np.nan, result)
    return np.where(z == 0, np.copysign(np.inf, -z), result).astype(x.dtype)


def _div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = np.where((a < 0) == (b < 0), a // safe, -(-a // safe)).astype(a.dtype)
    return np.where(b == 0, 0, quotient).astype(a.dtype)


def _modulo(fn: Callable) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "f":
            return fn(a, b)
        return np.where(b == 0, 0, fn(a, np.where(b == 0, 1, b).astype(b.dtype))).astype(a.dtype)

    return reference


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.power(a, b)
    result = np.power(a, np.maximum(b, 0).astype(b.dtype))
    odd = (b & 1).astype(bool)
    negative = np.where(a == 1, 1, np.where(a.astype(np.int64) == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, negative, result).astype(a.dtype)


def _sign(x: np.ndarray) -> np.ndarray:
    return ((x > 0).astype(np.int8) - (x < 0).astype(np.int8)).astype(x.dtype)


def _frexp(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mantissa, exponent = np.frexp(x)
    return mantissa, exponent.astype(np.int32)


def _identity(x: np.ndarray) -> np.ndarray:
    return x


def _shift(fn: Callable) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda a, b: fn(a, b).astype(a.dtype)


_F, _N, _I, _ALL = "f", "fi", "ib", "fib"

TABLE = (
    ScalarFn("add", 2, _N, np.add, "a + b; integers wrap"),
    ScalarFn("sub", 2, _N, np.subtract, "a - b; integers wrap"),
    ScalarFn("mul", 2, _N, np.multiply, "a * b; integers wrap"),
    ScalarFn("div", 2, _N, _div, "a / b; integers truncate toward zero; a / 0 is unspecified for integers"),
    ScalarFn("neg", 1, _N, np.negative, "-a"),
    ScalarFn("abs", 1, _N, np.abs, "|a|; the smallest integer stays itself"),
    ScalarFn("sign", 1, _N, _sign, "-1, 0 or 1; 0 for nan"),
    ScalarFn("reciprocal", 1, _F, np.reciprocal, "1 / a"),
    ScalarFn("sqrt", 1, _F, np.sqrt, "square root, correctly rounded"),
    ScalarFn("rsqrt", 1, _F, lambda a: (1 / np.sqrt(a)).astype(a.dtype), "1 / sqrt(a)"),
    ScalarFn("pow", 2, _N, _pow, "a ** b as C's pow; integers wrap, a negative exponent truncates"),
    ScalarFn("exp", 1, _F, np.exp, "e ** a"),
    ScalarFn("exp2", 1, _F, np.exp2, "2 ** a"),
    ScalarFn("expm1", 1, _F, np.expm1, "e ** a - 1"),
    ScalarFn("log", 1, _F, np.log, "natural logarithm"),
    ScalarFn("log2", 1, _F, np.log2, "base-2 logarithm"),
    ScalarFn("log10", 1, _F, np.log10, "base-10 logarithm"),
    ScalarFn("log1p", 1, _F, np.log1p, "log(1 + a)"),
    ScalarFn("sin", 1, _F, np.sin, "sine"),
    ScalarFn("cos", 1, _F, np.cos, "cosine"),
    ScalarFn("tan", 1, _F, np.tan, "tangent"),
    ScalarFn("asin", 1, _F, np.arcsin, "inverse sine"),
    ScalarFn("acos", 1, _F, np.arccos, "inverse cosine"),
    ScalarFn("atan", 1, _F, np.arctan, "inverse tangent"),
    ScalarFn("atan2", 2, _F, np.arctan2, "angle of the point (b, a)"),
    ScalarFn("sinh", 1, _F, np.sinh, "hyperbolic sine"),
    ScalarFn("cosh", 1, _F, np.cosh, "hyperbolic cosine"),
    ScalarFn("tanh", 1, _F, np.tanh, "hyperbolic tangent"),
    ScalarFn("asinh", 1, _F, np.arcsinh, "inverse hyperbolic sine"),
    ScalarFn("acosh", 1, _F, np.arccosh, "inverse hyperbolic cosine"),
    ScalarFn("atanh", 1, _F, np.arctanh, "inverse hyperbolic tangent"),
    ScalarFn("erf", 1, _F, _erf, "error function"),
    ScalarFn("erfc", 1, _F, _erfc, "1 - erf(a) without cancellation"),
    ScalarFn("erf_inv", 1, _F, _erf_inv, "inverse of erf"),
    ScalarFn("lgamma", 1, _F, _lgamma, "log |gamma(a)|"),
    ScalarFn("digamma", 1, _F, _digamma, "derivative of log gamma"),
    ScalarFn("floor", 1, _F, np.floor, "round down"),
    ScalarFn("ceil", 1, _F, np.ceil, "round up"),
    ScalarFn("trunc", 1, _F, np.trunc, "round toward zero"),
    ScalarFn("round", 1, _F, np.rint, "round to nearest, ties to even"),
    ScalarFn("fmod", 2, _N, _modulo(np.fmod), "a - trunc(a / b) * b, sign of a"),
    ScalarFn("remainder", 2, _N, _modulo(np.remainder), "a - floor(a / b) * b, sign of b"),
    ScalarFn("maximum", 2, _ALL, np.maximum, "larger operand; nan if either is nan"),
    ScalarFn("minimum", 2, _ALL, np.minimum, "smaller operand; nan if either is nan"),
    ScalarFn("eq", 2, _ALL, np.equal, "a == b", "bool"),
    ScalarFn("ne", 2, _ALL, np.not_equal, "a != b", "bool"),
    ScalarFn("lt", 2, _N, np.less, "a < b", "bool"),
    ScalarFn("le", 2, _N, np.less_equal, "a <= b", "bool"),
    ScalarFn("gt", 2, _N, np.greater, "a > b", "bool"),
    ScalarFn("ge", 2, _N, np.greater_equal, "a >= b", "bool"),
    ScalarFn("where", 3, _ALL, np.where, "b where a (bool) else c", "second"),
    ScalarFn("and", 2, _I, np.bitwise_and, "bitwise and"),
    ScalarFn("or", 2, _I, np.bitwise_or, "bitwise or"),
    ScalarFn("xor", 2, _I, np.bitwise_xor, "bitwise exclusive or"),
    ScalarFn("not", 1, _I, np.invert, "bitwise complement; logical not for bool"),
    ScalarFn("shl", 2, "i", _shift(np.left_shift), "a << b for 0 <= b < bits"),
    ScalarFn("shr", 2, "i", _shift(np.right_shift), "a >> b for 0 <= b < bits, arithmetic for signed a"),
    ScalarFn("convert", 1, _ALL, _identity, "cast: to bool is a != 0, float to integer truncates", "to"),
    ScalarFn("bitcast", 1, "fi", _identity, "the same bits as a dtype of the same width", "to"),
    ScalarFn("nextafter", 2, _F, np.nextafter, "next representable value from a toward b"),
    ScalarFn("frexp", 1, _F, _frexp, "mantissa in [0.5, 1) and exponent", "frexp"),
)
BY_NAME = {fn.name: fn for fn in TABLE}
