"""What the recorder says of a result before anything ran: eager's shapes, strides and dtypes, without Python's help."""

import sys

import pytest
import torch
import torch.nn.functional as F

REFERENCES = ("torch._refs", "torch._decomp", "torch._meta_registrations", "torch._prims")

# Of tensors (b, n, m), of which there are two, and an index; n is a size that has not been met before.
OPS = {
    "add": lambda x, y, i: x + y, "sub": lambda x, y, i: x - 2.5, "mul": lambda x, y, i: x * i,
    "div": lambda x, y, i: i / x,
    "power": lambda x, y, i: x**2, "power of": lambda x, y, i: x**y, "maximum": lambda x, y, i: torch.maximum(x, y),
    "compare": lambda x, y, i: (x < y, x >= 0, i == 3, i != x), "where": lambda x, y, i: torch.where(x > 0, x, y),
    "where a number": lambda x, y, i: torch.where(i > 3, x, 0.5), "relu": lambda x, y, i: x.relu(),
    "unary": lambda x, y, i: (x.exp(), x.neg(), x.rsqrt(), x.sin(), x.tanh(), x.sigmoid(), x.floor(), x.erf()),
    "activation": lambda x, y, i: (F.gelu(x), F.silu(x), F.elu(x), F.leaky_relu(x), F.softplus(x), x.clamp(0, 1)),
    "sum": lambda x, y, i: (x.sum(1), x.sum((0, 2), keepdim=True), x.mean(-1), x.amax(1), x.amin(0), x.norm(dim=2)),
    "argmax": lambda x, y, i: (x.argmax(1), x.argmin(-1, keepdim=True), x.cumsum(1), x.topk(2, 1)),
    "matmul": lambda x, y, i: (x.bmm(y.mT), x[0].mm(y[1].t()), x[0, 0].addmm(x[0], y[0].t() @ x[1])),
    "softmax": lambda x, y, i: (x.softmax(1), x.log_softmax(-1), torch.ops.aten._safe_softmax(x, 1)),
    "cat": lambda x, y, i: (torch.cat([x, y], 1), torch.cat([x, x, i], 0), torch.cat([x.mT, y.mT], 1)),
    "gather": lambda x, y, i: (x.gather(1, i), x.triu(), x.tril(-1), torch.lerp(x, y, 0.3), torch.addcmul(x, x, y)),
    "in place": lambda x, y, i: (x.clone().add_(y), x.clone().mul_(2), x.clone().div_(y), x.clone().sub_(i)),
    "lists in place": lambda x, y, i: adam([x.clone(), y[0].clone()], [y, x[0]]),
}  # fmt: skip
LAYOUTS = {
    "dense": lambda t: t, "transposed": lambda t: t.mT.contiguous().mT,
    "strided": lambda t: t.repeat(1, 1, 2)[:, :, ::2],
    "short": lambda t: t[:, :3], "expanded": lambda t: t[:1].expand_as(t),
}  # fmt: skip


def adam(parameters, gradients):
    """A step as torch.optim.Adam(foreach=True) takes it."""
    first, second = [g * 0.1 for g in gradients], [g * g for g in gradients]
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 0.001)
    sizes = torch._foreach_sqrt(second)
    torch._foreach_div_(sizes, [0.5, 0.7])
    torch._foreach_add_(sizes, 1e-8)
    torch._foreach_addcdiv_(parameters, first, sizes, [-0.1, -0.2])
    return (*parameters, *first, *second)


def results(where, op, layout, n):
    x = torch.linspace(0.1, 2, 3 * n * 5).sin().view(3, n, 5)
    index = (torch.arange(3 * n * 5) // 7 % 3).view(3, n, 5)
    x, y, index = (LAYOUTS[layout](t.to(where)) for t in (x, x.flip(1), index))
    found = OPS[op](x, y, index)
    return [u for t in (found if isinstance(found, tuple) else (found,)) for u in (t if isinstance(t, tuple) else (t,))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_results_are_laid_out_as_eager_s(device, op, layout):
    ours, eager = results(device, op, layout, 7), results("cpu", op, layout, 7)
    assert [(t.shape, t.stride(), t.dtype) for t in ours] == [(t.shape, t.stride(), t.dtype) for t in eager]
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_a_new_size_runs_no_python(device, op):
    """torch's references, which stand in for Meta kernels, take up to 1 ms an op: a loop whose sizes grow feels it"""
    if device == "cpu":
        pytest.skip("the cpu records nothing")
    results(device, op, "dense", 9)
    called = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_globals.get("__name__")))
    try:
        results(device, op, "dense", 11)
    finally:
        sys.setprofile(None)
    assert not {name for name in called if name and name.startswith(REFERENCES)}
