"""Every pair of dtypes, and a dtype beside every kind of number, in place and not: taken or refused as eager does."""

import pytest
import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
]  # fmt: skip
NUMBERS = [True, 2, 2.5, 1j]
BINARY = [
    "add", "sub", "mul", "div", "pow", "fmod", "remainder", "atan2", "hypot", "copysign", "floor_divide",
    "logical_and", "logical_or", "eq", "lt", "gt", "ne", "bitwise_and", "bitwise_or", "bitwise_left_shift", "gcd",
    "lcm", "nextafter", "xlogy", "float_power", "clamp_min", "clamp_max", "maximum",
]  # fmt: skip
UNARY = [
    "abs", "neg", "sign", "floor", "ceil", "trunc", "round", "frac", "exp", "log", "sin", "sqrt", "rsqrt",
    "sigmoid", "tanh", "erf", "reciprocal", "square", "relu", "logit", "lgamma", "digamma", "erfinv", "sinc",
    "exp2", "expm1", "log1p", "logical_not", "bitwise_not", "isnan", "positive",
]  # fmt: skip
# The device has them; eager's CPU does not.
TAKEN = {(fn, torch.float16, 1j) for fn in ("div", "pow")}
pytestmark = pytest.mark.slow


def values(dtype, device):
    return (torch.randn(5, generator=torch.Generator().manual_seed(0)) * 3).to(dtype).to(device)


def called(name, x, *operands):
    return (getattr(x, name, None) or getattr(torch, name))(*([] if hasattr(x, name) else [x]), *operands)


def outcome(device, name, dtype, *others):
    operands = [values(o, device) if isinstance(o, torch.dtype) else o for o in others]
    try:
        return called(name, values(dtype, device), *operands).cpu()
    except (RuntimeError, TypeError, AttributeError) as error:
        return type(error)


def agree(device, name, dtype, *others):
    want, got = outcome("cpu", name, dtype, *others), outcome(device, name, dtype, *others)
    if (name, dtype, *others) in TAKEN or (isinstance(want, type) and want is got):
        return True
    if isinstance(want, type) or isinstance(got, type):
        return False
    same = [t.to(torch.complex128) for t in (got, want)]
    return got.dtype == want.dtype and torch.allclose(*same, rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize("face", ["", "_"])
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(device, name, face):
    pairs = [(dtype, other) for dtype in DTYPES for other in (*DTYPES, *NUMBERS)]
    assert [pair for pair in pairs if not agree(device, name + face, *pair)] == []


@pytest.mark.parametrize("face", ["", "_"])
@pytest.mark.parametrize("name", UNARY)
def test_one_operand(device, name, face):
    assert [dtype for dtype in DTYPES if not agree(device, name + face, dtype)] == []
