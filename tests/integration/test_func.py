"""torch.func, parametrizations, stateless calls."""

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap


def test_grad_and_vmap(agrees):
    """grad, vmap and per-sample gradients."""

    def program(device):
        weight, xs = torch.arange(6.0).view(2, 3).to(device), torch.ones(5, 3).to(device)
        loss = lambda weight, x: (weight @ x).tanh().sum()  # noqa: E731
        return grad(loss)(weight, xs[0]), vmap(grad(loss), in_dims=(None, 0))(weight, xs)

    agrees(program)


def test_jacobians(agrees):
    """jvp, vjp, jacrev, jacfwd and hessian."""

    def program(device):
        x = torch.linspace(0.1, 1, 3).to(device)
        f = lambda x: (x * x.sum()).sin()  # noqa: E731
        value, pull = vjp(f, x)
        return jvp(f, (x,), (x,)), value, pull(x), jacrev(f)(x), jacfwd(f)(x), hessian(lambda x: f(x).sum())(x)

    agrees(program)


def test_vmap_randomness():
    """vmap with randomness "same" and "different"."""
    draw = lambda x: x + torch.rand((), device="lazy")  # noqa: E731
    x = torch.zeros(4, device="lazy")
    assert vmap(draw, randomness="same")(x).cpu().unique().numel() == 1
    assert vmap(draw, randomness="different")(x).cpu().unique().numel() == 4


def test_functional_call(agrees):
    """functional_call with other parameters."""

    def program(device):
        layer = nn.Linear(3, 2).to(device)
        other = {name: torch.ones_like(p) for name, p in layer.named_parameters()}
        return functional_call(layer, other, (torch.ones(4, 3).to(device),))

    agrees(program)


def test_parametrizations(agrees):
    """nn.utils.parametrizations: weight norm and spectral norm."""

    def program(device):
        torch.manual_seed(0)
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).to(device)
        layer(torch.ones(2, 4).to(device)).sum().backward()
        spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).to(device)
        return [p.grad for p in layer.parameters()], spectral.eval()(torch.ones(2, 4).to(device))

    agrees(program)
