"""Autograd."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_gradients_of_a_network(agrees):
    """Backward through a network gives eager's gradients."""

    def program(device):
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        nn.functional.cross_entropy(model(torch.ones(4, 6).to(device)), torch.arange(4).to(device) % 3).backward()
        return [p.grad for p in model.parameters()]

    agrees(program)


def test_hooks(agrees):
    """Tensor, module and accumulate-grad hooks run and may change gradients."""

    def program(device):
        layer = nn.Linear(3, 3).to(device)
        seen = []
        layer.register_forward_hook(lambda module, inputs, output: output * 2)
        layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].sum()))
        layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
        x = torch.ones(2, 3).to(device).requires_grad_()
        x.register_hook(lambda gradient: gradient + 1)
        layer(x).sum().backward()
        return x.grad, layer.weight.grad, *seen

    agrees(program)


def test_double_backward(agrees):
    """Gradients of gradients."""

    def program(device):
        x = torch.linspace(0.1, 1, 5).to(device).requires_grad_()
        (first,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)

    agrees(program)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


def test_custom_function(agrees):
    """torch.autograd.Function."""

    def program(device):
        x = torch.arange(4.0).to(device).requires_grad_()
        Cube.apply(x).sum().backward()
        return x.grad

    agrees(program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(agrees, reentrant):
    """torch.utils.checkpoint, with dropout: the recomputation draws the same numbers."""
    layer = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 4)).to("lazy")
    x = torch.ones(2, 4, device="lazy", requires_grad=True)

    def gradient(run):
        torch.manual_seed(1)
        return torch.autograd.grad(run(x).square().sum(), [x, *layer.parameters()]) if not reentrant else backward(run)

    def backward(run):
        layer.zero_grad()
        x.grad = None
        run(x).square().sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    plain = gradient(layer)
    again = gradient(lambda x: checkpoint(layer, x, use_reentrant=reentrant))
    torch.testing.assert_close([t.cpu() for t in again], [t.cpu() for t in plain])


def test_saved_tensor_hooks(agrees):
    """Saved-tensor hooks, and save_on_cpu."""

    def program(device):
        x = torch.arange(1.0, 5).to(device).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(device)):
            y = x.exp() * x
        with torch.autograd.graph.save_on_cpu():
            z = y * y
        z.sum().backward()
        return x.grad

    agrees(program)


def test_anomaly_mode():
    """Anomaly mode names the op of a NaN gradient."""
    x = torch.zeros(2, device="lazy", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="SqrtBackward0"):
        (x.sqrt() * 0).sum().backward()


def test_forward_mode(agrees):
    """Forward-mode differentiation."""

    def program(device):
        x, tangent = torch.linspace(0, 1, 4).to(device), torch.ones(4).to(device)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            return tuple(torch.autograd.forward_ad.unpack_dual((dual * dual).tanh()))

    agrees(program)


def test_gradcheck():
    """torch.autograd.gradcheck in float64."""
    x = torch.rand(3, 2, dtype=torch.float64, device="lazy", requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (x.sigmoid() @ x.T).logsumexp(0), (x,))


def test_inplace_on_a_saved_tensor_is_refused():
    """Changing a tensor that backward needs raises, as in eager."""
    x = torch.ones(3, device="lazy", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
