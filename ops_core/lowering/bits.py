"""Bitwise ops, shifts and gcd."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.pointwise import abs_, pointwise

for _name, _fn in {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}.items():
    pointwise(_name, f"__{_fn}__")(lambda self, other, _fn=_fn: A.map_(_fn, self, other))


@pointwise("bitwise_not", operands=("self",))
def _bitwise_not(self):
    return ~self


def _bits(x: Arr) -> int:
    return 8 * A.dtypes.BY_NAME[x.dtype].bytes


@pointwise("bitwise_left_shift", "__lshift__")
def _left_shift(self, other):
    if self.is_float:
        return self * A.map_("exp2", other if isinstance(other, Arr) else A.full((), other, self.dtype))
    other = other if isinstance(other, Arr) else A.full((), other, self.dtype)
    inside = (other >= 0) & (other < _bits(self)) if self.kind == "i" else other < _bits(self)
    return where(inside, self << where(inside, other, 0), 0)


@pointwise("bitwise_right_shift", "__rshift__")
def _right_shift(self, other):
    if self.is_float:
        return self / A.map_("exp2", other if isinstance(other, Arr) else A.full((), other, self.dtype))
    other = other if isinstance(other, Arr) else A.full((), other, self.dtype)
    last = _bits(self) - 1
    if self.kind == "u":
        return where(other <= last, self >> A.map_("minimum", other, last), 0)
    return self >> where((other >= 0) & (other <= last), other, last)


@pointwise("gcd")
def _gcd(self, other):
    a, b = A.broadcast(abs_(self), abs_(other))
    for _ in range(int(1.5 * _bits(self))):  # Euclid's worst case: consecutive Fibonacci numbers
        a, b = where(b.eq(0), a, b), where(b.eq(0), b, A.map_("remainder", a, b))
    return a
