"""Random programs over shapes: what lays out, looks up, sorts, reduces and writes into copies, with dims of one.

Every value a program computes is kept and compared: a kernel that takes in another's work must still store what
somebody holds. Random programs found one that did not, which OpInfo's samples and whole models had not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

LENGTHS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
# Tensors of more elements are not made; larger values are compared within a tolerance, since float32 counts to 2^24.
MOST = 2**14
EXACT = 2**6
LARGE = 2**18

Op = Callable[[Tensor, int, int, int], Tensor]


def at(d: int, what: object) -> tuple[object, ...]:
    """An index of dim d alone."""
    return (slice(None),) * d + (what,)


def numbers(x: Tensor, d: int, a: int, b: int, each: bool = False) -> Tensor:
    """Positions along dim d, some of them negative or, unless `each` is to come once, repeated."""
    length = x.shape[d]
    if each:
        return (torch.arange((length + 1) // 2) * (1 if b % 2 else -1)).to(x.device)
    return ((torch.arange(1 + 3 * a) * (2 * b + 1)) % length - (length if b % 2 else 0)).to(x.device)


def written(write: Callable[[Tensor, int, int, int], object]) -> Op:
    """What a write in place leaves in a copy."""

    def op(x: Tensor, d: int, a: int, b: int) -> Tensor:
        copy = x.clone()
        write(copy, d, a, b)
        return copy

    return op


def reversed_index(x: Tensor, d: int) -> Tensor:
    """An index that turns dim d round, of x's shape."""
    order = torch.arange(x.shape[d], device=x.device).flip(0)
    return order.view([-1 if i == d else 1 for i in range(x.ndim)]).expand_as(x)


def matrix(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


# (tensor, a dim of it, two numbers from 0 to 7): of small integers, halves and quarters they make others, exactly.
EXACTLY: dict[str, Op] = {
    "permute": lambda x, d, a, b: x.movedim(d, a % x.ndim),
    "dense permute": lambda x, d, a, b: x.movedim(d, a % x.ndim).contiguous(),
    "flip": lambda x, d, a, b: x.flip(d),
    "roll": lambda x, d, a, b: x.roll(a - 3, d),
    "slice": lambda x, d, a, b: x[at(d, slice(a % x.shape[d], None, 1 + b % 3))],
    "pad": lambda x, d, a, b: F.pad(x, (a, b), value=0.5),
    "look up": lambda x, d, a, b: x[at(d, numbers(x, d, a, b))],
    "cat": lambda x, d, a, b: torch.cat([x, x * 2, x.flip(d)], d),
    "stack": lambda x, d, a, b: torch.stack([x + i for i in range(1 + a)], b % (x.ndim + 1)),
    "split": lambda x, d, a, b: torch.cat(x.split(1 + a, d)[::-1], d),
    "repeat": lambda x, d, a, b: x.repeat_interleave(2, d),
    "expand": lambda x, d, a, b: x.expand(2, *x.shape).clone().add_(1),
    "unfold": lambda x, d, a, b: x.unfold(d, 1 + a % 3, 1 + b % 2),
    "flatten": lambda x, d, a, b: x.reshape(-1),
    "fold up": lambda x, d, a, b: x.reshape(x.shape[0], -1),
    "unsqueeze": lambda x, d, a, b: x.unsqueeze(d),
    "diagonal": lambda x, d, a, b: x.diagonal(0, 0, -1),
    "tril": lambda x, d, a, b: x.tril(a - 3),
    "sum": lambda x, d, a, b: x.sum(d),
    "kept sum": lambda x, d, a, b: x.sum(d, keepdim=True),
    "largest": lambda x, d, a, b: x.amax(d, keepdim=True),
    "less the largest": lambda x, d, a, b: x - x.amax(d, keepdim=True),
    "extremes": lambda x, d, a, b: torch.stack([x.amin(d), x.amax(d), x.argmax(d).to(x.dtype)], 0),
    "sort": lambda x, d, a, b: x.sort(dim=d, stable=True)[0],
    "order": lambda x, d, a, b: x.argsort(dim=d, stable=True).to(x.dtype),
    "topk": lambda x, d, a, b: x.topk(1 + a % x.shape[d], d)[0],
    "cumsum": lambda x, d, a, b: x.cumsum(d),
    "cummax": lambda x, d, a, b: x.cummax(d)[0],
    "gather": lambda x, d, a, b: x.gather(d, reversed_index(x, d)),
    "scatter": lambda x, d, a, b: x.scatter(d, reversed_index(x, d), x * 2),
    "scatter a number": lambda x, d, a, b: x.scatter(d, reversed_index(x, d)[at(d, slice(1))], 3.0),
    "scatter_add": lambda x, d, a, b: x.scatter_add(d, reversed_index(x, d) // 2, x),
    "index_add": lambda x, d, a, b: x.index_add(d, i := numbers(x, d, a, 0), x.index_select(d, i)),
    "index_copy": lambda x, d, a, b: x.index_copy(d, i := numbers(x, d, a, 1, each=True), x.index_select(d, i) * 2),
    "index_fill": lambda x, d, a, b: x.index_fill(d, numbers(x, d, a, 1, each=True), 3.0),
    "index_put": written(lambda x, d, a, b: x.__setitem__(at(d, numbers(x, d, a, b, each=True)), 0.25)),
    "slice_put": written(lambda x, d, a, b: x[at(d, slice(a % x.shape[d], None, 1 + b % 3))].mul_(2)),
    "select_put": written(lambda x, d, a, b: x.select(d, -1).copy_(x.select(d, 0) + 1)),
    "masked_put": written(lambda x, d, a, b: x.__setitem__(x > a - 3, 0.5)),
    "transposed_put": written(lambda x, d, a, b: x.transpose(0, d)[..., 0].add_(1)),
    "masked_fill": lambda x, d, a, b: x.masked_fill(x > a - 3, 0.5),
    "masked_select": lambda x, d, a, b: x[x > a - 7],
    "where": lambda x, d, a, b: torch.where(x > 0, x, x * 0.5),
    "remainder": lambda x, d, a, b: torch.remainder(x, a + 0.5),
    "integers": lambda x, d, a, b: ((x * 4).int() // (1 + a) % 5).to(x.dtype),
    "relu": lambda x, d, a, b: x.relu(),
    "double": lambda x, d, a, b: (x.double() * 2).to(x.dtype),
    "outer": lambda x, d, a, b: x.flatten()[: 1 + a].unsqueeze(1) * x.flatten()[: 1 + 4 * b].unsqueeze(0),
    "product": lambda x, d, a, b: matrix(x) @ matrix(x).t()[:, :24],
    "embedding": lambda x, d, a, b: F.embedding(numbers(x, 0, a, 0), matrix(x)),
    "max_pool": lambda x, d, a, b: F.max_pool1d(x.reshape(1, 1, -1), 2, 1, 1),
}
# What rounds: nothing that depends on which of two numbers is the larger comes after it.
ROUNDING: dict[str, Op] = {
    "softmax": lambda x, d, a, b: x.softmax(d),
    "mean": lambda x, d, a, b: x.mean(d, keepdim=True),
    "less the mean": lambda x, d, a, b: x - x.mean(d, keepdim=True),
    "var": lambda x, d, a, b: x.var(d, keepdim=True, correction=0) + x,
    "logsumexp": lambda x, d, a, b: x.logsumexp(d, keepdim=True),
    "norm": lambda x, d, a, b: x / (1 + x.norm(dim=d, keepdim=True)),
    "layer_norm": lambda x, d, a, b: F.layer_norm(x, x.shape[-1:], eps=0.1),
    "gelu": lambda x, d, a, b: F.gelu(x) + F.silu(x),
    "tanh": lambda x, d, a, b: x.tanh(),
    "conv": lambda x, d, a, b: F.conv1d(x.reshape(1, 1, -1), x.new_full((1, 1, 3), 0.3), padding=1).reshape(x.shape),
    "complex": lambda x, d, a, b: torch.view_as_real(torch.complex(x, x * 2) * (1 + 0.5j)).sum(-1),
}
# What a rounding can turn into another result.
STEPPED = {"extremes", "order", "masked_put", "masked_fill", "masked_select", "where", "remainder", "integers"}
OPS = EXACTLY | ROUNDING


@dataclass(frozen=True)
class Step:
    """One op on one of the values so far; `dim` and the two numbers are what the op makes of them."""

    name: str
    operand: int
    dim: int
    a: int
    b: int

    def __call__(self, values: list[Tensor]) -> Tensor:
        x = values[self.operand % len(values)]
        return OPS[self.name](x, self.dim % x.ndim, self.a, self.b)


@dataclass(frozen=True)
class Value:
    """What eager CPU computes; `exact` where every device gives these bits."""

    value: Tensor
    exact: bool


def shapes() -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=4).filter(lambda s: torch.Size(s).numel() <= MOST)


def programs(least: int = 4, most: int = 10) -> st.SearchStrategy[list[Step]]:
    """Programs of `least` to `most` steps; an op is mostly of one of the last values."""
    number = st.integers(0, 7)
    step = st.builds(Step, st.sampled_from(sorted(OPS)), st.sampled_from((-1, -1, -1, -2, 0)), number, number, number)
    return st.lists(step, min_size=least, max_size=most)


def start(shape: list[int], device: str) -> Tensor:
    """Integers from -3 to 3 in no order."""
    count = torch.Size(shape).numel()
    return (torch.arange(count).mul(5).remainder(23).remainder(7).sub(3)).reshape(shape).float().to(device)


def expected(program: list[Step], shape: list[int]) -> tuple[list[Step], list[Value]]:
    """The steps that eager CPU takes and that stay small and finite, and the values they give after the first."""
    steps, values = [], [Value(start(shape, "cpu"), True)]
    for step in program:
        operand = values[step.operand % len(values)]
        if operand.value.ndim == 0 or (step.name in STEPPED and not operand.exact):
            continue
        try:
            value = step([v.value for v in values])
        except (RuntimeError, IndexError, ValueError):
            continue  # Not an op of this shape.
        if not 0 < value.numel() <= MOST or not value.isfinite().all() or value.abs().amax() > LARGE:
            continue
        exact = operand.exact and step.name in EXACTLY and value.abs().amax().item() <= EXACT
        steps.append(step)
        values.append(Value(value, exact))
    return steps, values[1:]


def run(steps: list[Step], shape: list[int], device: str) -> list[Tensor]:
    """Every value that the steps compute on the device, read at the end."""
    values = [start(shape, device)]
    for step in steps:
        values.append(step(values))
    return [value.cpu() for value in values[1:]]
