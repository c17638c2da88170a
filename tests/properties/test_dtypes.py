"""Random programs over ten dtypes give what eager CPU gives at every window: casts, promotion, signs and roundings."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

WINDOWS = (1, 8, 512)
FIXED = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
# A few roundings' worth, relative to the largest number in sight; integers are compared to the bit.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12}
ROWS, COLUMNS = 5, 16


def some(b: Tensor) -> Tensor:
    """What may be divided by."""
    return torch.where(b == 0, torch.ones_like(b), b)


def whole(x: Tensor) -> Tensor:
    """What every integer dtype but the smallest holds: beyond its range a cast of a float means nothing."""
    return x.double().nan_to_num(0, 0, 0).clamp(-100, 100) if x.is_floating_point() else x


ONE = ["neg", "abs", "sign", "square", "bitwise_not", "logical_not", "floor", "round", "trunc", "isnan"]
TWO = [
    "add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "lt", "ge",
    "logical_and",
]  # fmt: skip
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{
        f"to {dtype}": lambda a, b, dtype=dtype: (a if dtype.is_floating_point else whole(a)).to(dtype)
        for dtype in DTYPES
    },
    **{name: lambda a, b, name=name: getattr(torch, name)(a) for name in ONE},
    **{name: getattr(torch, name) for name in TWO},
    "add 1": lambda a, b: a + 1,
    "twice": lambda a, b: a * 2,
    "add 0.3": lambda a, b: a + 0.3,
    "taken from 3": lambda a, b: 3 - a,
    "modulo 3": lambda a, b: a % 3,
    "a third, rounded down": lambda a, b: a // 3,
    "a quarter": lambda a, b: a / 4,
    "shifted": lambda a, b: (a << 1) >> 2,
    "is 0.3": lambda a, b: a == 0.3,
    "more than 2": lambda a, b: a > 2,
    "clamp": lambda a, b: a.clamp(-3, 5),
    "remainder": lambda a, b: torch.remainder(a, some(b)),
    "fmod": lambda a, b: torch.fmod(a, some(b)),
    "rounded down": lambda a, b: torch.div(a, some(b), rounding_mode="floor"),
    "cut off": lambda a, b: torch.div(a, some(b), rounding_mode="trunc"),
    "where": lambda a, b: torch.where(b != 0, a, b),
    "joined": lambda a, b: torch.cat([a, b], -1)[:, ::2],
    "stacked": lambda a, b: torch.stack([a, b])[1],
    "cast and added": lambda a, b: (whole(a) if not b.is_floating_point() else a).to(b.dtype) + b,
    "copied": lambda a, b: a.clone().copy_(b if a.is_floating_point() else whole(b)),
    "flip": lambda a, b: a.flip(-1),
    "roll": lambda a, b: a.roll(1, -1),
    "sum": lambda a, b: a.sum(-1, keepdim=True).expand_as(a),
    "greatest": lambda a, b: a.amax(0, keepdim=True).expand_as(a),
    "least": lambda a, b: a.amin(-1, keepdim=True).expand_as(a),
    "place": lambda a, b: a.argmax(-1, keepdim=True).expand_as(a),
    "any": lambda a, b: a.any(-1, keepdim=True).expand_as(a),
    "running sum": lambda a, b: a.cumsum(-1),
    "running maximum": lambda a, b: a.cummax(-1)[0],
    "running minimum": lambda a, b: a.cummin(0)[0],
    "sorted": lambda a, b: a.sort(-1)[0],
}


class Step(NamedTuple):
    """An op on two of the values so far, counted from the last."""

    name: str
    a: int
    b: int

    def __call__(self, values: list[Tensor]) -> Tensor:
        return OPS[self.name](values[-1 - self.a % len(values)], values[-1 - self.b % len(values)])


steps = st.builds(Step, st.sampled_from(sorted(OPS)), st.integers(0, 5), st.integers(0, 5))
programs = st.lists(steps, min_size=4, max_size=14)
starts = st.lists(st.sampled_from(DTYPES), min_size=3, max_size=3)


def start(dtypes: list[torch.dtype]) -> list[Tensor]:
    generator, made = torch.Generator().manual_seed(0), []
    for dtype in dtypes:
        x = torch.randint(-320, 320, (ROWS, COLUMNS), generator=generator)
        made.append(((x % 2 == 0) if dtype == torch.bool else x / 8 if dtype.is_floating_point else x).to(dtype))
    return made


def expected(program: list[Step], dtypes: list[torch.dtype]) -> tuple[list[Step], list[Tensor]]:
    """The steps that eager takes, and all values."""
    taken, values = [], start(dtypes)
    for step in program:
        try:
            values.append(step(values))
        except (RuntimeError, NotImplementedError):  # it has no such op for the dtype
            continue
        taken.append(step)
    return taken, values


def check(device: str, program: list[Step], dtypes: list[torch.dtype]) -> None:
    if device == "cpu":
        pytest.skip("the cpu is what is compared with")
    taken, wanted = expected(program, dtypes)
    for window in WINDOWS:
        with torch.lazy.window(window):
            values = [x.to(device) for x in start(dtypes)]
            for step in taken:
                values.append(step(values))
            for n, (got, want) in enumerate(zip(values, wanted, strict=True)):
                tolerance = TOLERANCE.get(want.dtype, 0)
                finite = want.double().nan_to_num(0, 0, 0).abs().amax().item()
                where = f"window {window}, value {n} of {dtypes} and {taken}"
                torch.testing.assert_close(
                    got.cpu(), want, rtol=tolerance, atol=tolerance * max(1.0, finite), equal_nan=True,
                    msg=lambda text, where=where: f"{where}:\n{text}",
                )  # fmt: skip


@settings(FIXED, max_examples=40, phases=[Phase.generate])
@given(program=programs, dtypes=starts)
def test_some_programs_give_what_eager_gives(device, program, dtypes):
    check(device, program, dtypes)


@pytest.mark.slow
@settings(FIXED, max_examples=1500)
@given(program=programs, dtypes=starts)
def test_many_programs_give_what_eager_gives(device, program, dtypes):
    check(device, program, dtypes)
