"""Concatenations of many tensors: each part is copied to memory by itself, of few the readers look among the parts."""

from __future__ import annotations

import pytest
import torch

from codegen.functionalize import MOST_PARTS

MANY = MOST_PARTS + 4


def parts(where, rows, dtype=torch.float32, width=6, many=MANY):
    draw = torch.Generator().manual_seed(1)
    made = [torch.randn(rows(i), width, generator=draw) * 4 for i in range(many)]
    return [x.to(dtype).to(where) for x in made]


def launched(make):
    """How many kernels run for what is made."""
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    made = make()
    torch.lazy.synchronize()
    del made
    return torch.lazy.stats()["kernels_launched"]


PROGRAMS = {
    "rows": lambda xs: torch.cat(xs) * 2,
    "columns": lambda xs: torch.cat(xs, 1).sum(0),
    "a last dim": lambda xs: torch.stack(xs, -1).softmax(-1),
    "computed": lambda xs: torch.stack([x.tanh() @ x.T for x in xs]).sum(0),
    "products": lambda xs: torch.cat(xs, 1) @ torch.cat([x.T for x in xs]),
    "views of one": lambda xs: torch.cat([xs[0][:, i : i + 2] for i in range(4)] * 4, 1),
    "each the sum of those before": lambda xs: torch.cat([torch.stack(xs[: i + 1]).sum(0) for i in range(len(xs))]),
    "of concatenations": lambda xs: torch.cat([torch.cat(xs) + i for i in range(MANY)], 1),
    "of one number": lambda xs: torch.stack([x.sum() for x in xs]).cumsum(0),
    "expanded": lambda xs: torch.cat([x[:1].expand(4, 6) for x in xs]),
    "of empty ones": lambda xs: torch.cat([*xs, xs[0][:0], *xs]),
    "of all empty": lambda xs: torch.cat([x[:0] for x in xs]),
    "changed afterwards": lambda xs: torch.cat(xs).mul_(torch.cat(xs[::-1])).clamp_(min=0),
    "a part changed afterwards": lambda xs: (torch.cat(xs), xs[3].add_(1))[0] - xs[3].sum(),
    "written over itself": lambda xs: torch.cat(xs)[torch.arange(MANY, device=xs[0].device)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eager_s(device, name, dtype):
    if dtype == torch.complex64 and name in ("a last dim", "changed afterwards", "of one number"):
        pytest.skip("not for complex numbers")
    got, want = (PROGRAMS[name](parts(where, lambda i: 5, dtype)).cpu() for where in (device, "cpu"))
    loose = {torch.bfloat16: {"rtol": 0.05, "atol": 0.5}, torch.float64: {}}.get(dtype, {"rtol": 1e-4, "atol": 1e-4})
    torch.testing.assert_close(got, want, **loose)


def test_parts_of_other_sizes_and_types(device):
    sizes = [3, 0, 1, 7, 2, 2, 64, 1, 0, 5, 9, 1]
    types = [torch.float32, torch.int64, torch.bool, torch.float16]

    def mixed(where):
        return [x.to(types[i % 4]) for i, x in enumerate(parts(where, sizes.__getitem__, many=len(sizes)))]

    got, want = torch.cat(mixed(device)), torch.cat(mixed("cpu"))
    assert got.dtype == want.dtype == torch.float32
    assert torch.equal(got.cpu(), want)


def test_channels_last_parts_stay_so(device):
    xs = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(MANY)]
    for dim in (0, 1, 2, 3):
        got, want = torch.cat([x.to(device) for x in xs], dim), torch.cat(xs, dim)
        assert got.stride() == want.stride()
        assert torch.equal(got.cpu(), want)


def test_gradients_are_eager_s(device):
    grads = []
    for where in (device, "cpu"):
        xs = [x.requires_grad_() for x in parts(where, lambda i: i + 1)]
        joined = torch.cat([x * (i + 1) for i, x in enumerate(xs)])
        (joined.softmax(0) * torch.stack([x.sum() for x in xs]).sum()).square().sum().backward()
        grads.append([x.grad.cpu() for x in xs])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


def test_into_a_given_tensor(device):
    xs = parts(device, lambda i: 2)
    for out in torch.empty(2 * MANY, 6, device=device), torch.empty(6, 2 * MANY, device=device).T:
        assert torch.cat(xs, out=out).data_ptr() == out.data_ptr()
        assert torch.equal(out.cpu(), torch.cat([x.cpu() for x in xs]))


def test_many_parts_are_few_launches(device):
    if device == "cpu":
        pytest.skip("the cpu launches no kernels")
    xs = parts(device, lambda i: 2)
    with torch.lazy.window(512):
        assert launched(lambda: torch.cat(xs)) == 2, "a launch has arguments for eight"
        assert launched(lambda: torch.cat(xs[:MOST_PARTS])) == 1
        assert launched(lambda: torch.cat([x * 2 for x in xs])) == 2, "a part that is computed is stored where it lies"
        assert launched(lambda: (torch.cat(xs), xs[0] + 1)[1]) == 1, "nobody sees the first"
