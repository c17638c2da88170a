"""Random straight-line programs with views, in-place ops and reads, as data that hypothesis can shrink."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

SIZE = 6

# Elementwise ops that every window must compute to the same bit.
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "square": torch.square,
    "plus": lambda x: x + 3,
    "times": lambda x: x * 2,
    "clamp": lambda x: x.clamp(-50, 50),
    "sign": torch.sign,
}
FLOATING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "exp": lambda x: x.clamp(-9, 9).exp(),
    "sigmoid": torch.sigmoid,
    "third": lambda x: x / 3,
    "sqrt": lambda x: x.abs().sqrt(),
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": lambda x, y: x.clamp(-99, 99) * y.clamp(-99, 99),
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y + 1),
}
# Every view of a SIZE x SIZE tensor is SIZE x SIZE again or broadcasts to it.
VIEW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.transpose(-1, -2),
    "row": lambda x: x[-1:],
    "column": lambda x: x[:, :1],
    "reversed order": lambda x: x.t().contiguous().t(),
}
INPLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add_": lambda x, y: x.add_(y[: x.shape[0], : x.shape[1]]),
    "mul_": lambda x, y: x.mul_(2),
    "neg_": lambda x, y: x.neg_(),
    "copy_": lambda x, y: x.copy_(y[: x.shape[0], : x.shape[1]]),
    "row zero_": lambda x, y: x[:1].zero_(),
    "column add_": lambda x, y: x[:, -1:].add_(1),
}
REDUCTION: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1, keepdim=True) + torch.zeros_like(x),
    "mean": lambda x: x.float().mean(0, keepdim=True).to(x.dtype) + torch.zeros_like(x),
    "amax": lambda x: x.amax(1, keepdim=True) + torch.zeros_like(x),
    "matmul": lambda x: x.clamp(-9, 9) @ x.clamp(-9, 9),
}


@dataclass(frozen=True)
class Step:
    """One statement: `kind` and `name` choose the op, `left` and `right` the operands among the live tensors."""

    kind: str
    name: str
    left: int
    right: int


KINDS = {
    "unary": UNARY,
    "floating": FLOATING,
    "binary": BINARY,
    "view": VIEW,
    "inplace": INPLACE,
    "reduction": REDUCTION,
}


def programs(*kinds: str, most: int = 40) -> st.SearchStrategy[list[Step]]:
    """Programs of up to `most` steps of the given kinds; the kind "read" reads a tensor in passing."""
    names = [(kind, name) for kind in kinds for name in KINDS.get(kind, {"read": None})]
    index = st.integers(0, 7)
    step = st.builds(lambda what, left, right: Step(*what, left, right), st.sampled_from(names), index, index)
    return st.lists(step, min_size=1, max_size=most)


def run(program: list[Step], device: str, dtype: torch.dtype, loops: int = 1) -> list[torch.Tensor]:
    """Run a program `loops` times over its own results and return every tensor it leaves, on the CPU."""
    start = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE).remainder(7).sub(3)
    live = [start.to(dtype).to(device), start.t().to(dtype).to(device) * 2]
    for _ in range(loops):
        for step in program:
            _apply(step, live)
    return [tensor.cpu() for tensor in live]


def _apply(step: Step, live: list[torch.Tensor]) -> None:
    left, right = live[step.left % len(live)], live[step.right % len(live)]
    if step.kind == "read":
        left.sum().item()
        return
    function = KINDS[step.kind][step.name]
    if step.kind == "inplace":
        function(left, right.expand(SIZE, SIZE).clone())
        return
    operands = {"binary": (left, right), "reduction": (left.expand(SIZE, SIZE),)}.get(step.kind, (left,))
    live.append(function(*operands))
    if len(live) > 8:
        live.pop(0)
