"""Automatic mixed precision."""

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lists(dtype):
    """Autocast: products in the low precision, exponentials and losses in float32, promotion in between."""
    x, w = torch.ones(4, 4, device="lazy"), torch.ones(4, 4, device="lazy")
    with torch.autocast("lazy", dtype=dtype):
        assert (x @ w).dtype == dtype == nn.functional.linear(x, w).dtype
        assert (x @ w).exp().dtype == torch.float32 == (x @ w).softmax(-1).dtype == (x @ w).sum().dtype
        assert nn.functional.mse_loss(x @ w, w).dtype == torch.float32
        assert torch.addcmul(x, x @ w, x @ w).dtype == torch.float32
        assert nn.functional.conv2d(x[None, None], w[None, None]).dtype == dtype
        with torch.autocast("lazy", enabled=False):
            assert (x @ w).dtype == torch.float32
    assert (x @ w).dtype == torch.float32


def test_autocast_refuses():
    """binary_cross_entropy is refused with the advice to use logits; a dtype that is not supported warns."""
    p = torch.full((2,), 0.5, device="lazy")
    with torch.autocast("lazy", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="with_logits"):
        nn.functional.binary_cross_entropy(p, p)
    assert torch.lazy.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
    assert torch.amp.is_autocast_available("lazy") and torch.lazy.is_bf16_supported()


def test_autocast_trains():
    """A bf16 autocast training run follows eager CPU's."""

    def losses(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.randn(64, 8)
        y = x.sum(1, keepdim=True).to(device)
        x = x.to(device)
        found = []
        for _ in range(20):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return torch.stack(found).cpu()

    torch.testing.assert_close(losses("lazy"), losses("cpu"), rtol=0.05, atol=0.02)


def test_grad_scaler():
    """GradScaler scales, skips a step with infinite gradients, and grows again."""
    weight = torch.ones(2, device="lazy", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("lazy", init_scale=8.0, growth_interval=1)
    scaler.scale((weight * 3).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.detach().cpu().tolist() == [-0.5, -0.5] and scaler.get_scale() == 16
    optimizer.zero_grad()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.detach().cpu().tolist() == [-0.5, -0.5] and scaler.get_scale() == 8


class Scaled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="lazy", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.dtype = x.dtype
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="lazy")
    def backward(ctx, gradient):
        return gradient * 2


def test_custom_fwd_and_bwd():
    """custom_fwd and custom_bwd set autocast inside a Function."""
    x = torch.ones(2, dtype=torch.bfloat16, device="lazy", requires_grad=True)
    with torch.autocast("lazy", dtype=torch.bfloat16):
        y = Scaled.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.cpu().tolist() == [2, 2]
