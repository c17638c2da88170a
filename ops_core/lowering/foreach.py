"""`_foreach_*`: the single-tensor rule once a tensor."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

from typing import Any

from ops_core.lowering.registry import RULES, call_rule, rule

_UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "max", "neg", "reciprocal", "round", "rsqrt", "sigmoid",
    "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "zero", "clone",
]  # fmt: skip
# base -> what the operands beside `self` are called in the single-tensor rule
_BINARY = {"add": "other", "sub": "other", "mul": "other", "div": "other", "maximum": "other", "minimum": "other",
           "clamp_max": "max", "clamp_min": "min", "pow": "exponent", "addcdiv": "value", "addcmul": "value",
           "lerp": "weight", "copy": "src", "norm": "ord"}  # fmt: skip
_TARGET = {"max": "max.default", "round": "round.default", "ceil": "ceil.default", "floor": "floor.default",
           "trunc": "trunc.default", "maximum": "clamp_min", "minimum": "clamp_max", "div": "div.Tensor",
           "norm": "linalg_vector_norm"}  # fmt: skip
_OPERAND = frozenset({"other", "scalar", "scalars", "exponent", "value", "weight", "weights", "src", "ord"})


def _one(base: str, own: dict[str, Any]) -> Any:
    """The single-tensor rule on one tensor's arguments."""
    target = _TARGET.get(base, base)
    if base in ("maximum", "minimum"):
        own = {"self": own["self"], "max" if base == "minimum" else "min": own["other"]}
    return call_rule(RULES.get(f"aten.{target}") or RULES[f"aten.{target}.default"], own)


def _declare(base: str) -> None:
    @rule(f"_foreach_{base}")
    def each(**bound: Any) -> list[Any]:
        own_name = next(iter(bound))  # `self`, but for pow(Scalar self, Tensor[] exponent)
        lists = {n: v for n, v in bound.items() if isinstance(v, (list, tuple))}
        count = len(next(iter(lists.values())))
        out = []
        for i in range(count):
            own = {}
            for name, value in bound.items():
                item = value[i] if name in lists else value
                name = "end" if name == "tensors1" else name
                renamed = _BINARY[base] if name in _OPERAND and name != own_name and base in _BINARY else name
                own[renamed] = item
            out.append(_one(base, own))
        return out


for _base in (*_UNARY, *_BINARY):
    _declare(_base)
