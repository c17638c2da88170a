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


def gpt_losses(device: str, steps: int, size: dict[str, int], monkeypatch) -> torch.Tensor:
    """The losses of the GPT demo's model, data and optimizer under bf16 autocast, at the sizes given."""
    from examples import gpt

    for name, value in size.items():
        monkeypatch.setattr(gpt, name, value)
    torch.manual_seed(0)
    text = gpt.TEXT.read_text()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(c) for c in text])
    batches = torch.Generator().manual_seed(1)
    model = gpt.GPT(len(alphabet)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - gpt.CONTEXT, (gpt.BATCH,), generator=batches)
        window = torch.stack([data[i : i + gpt.CONTEXT + 1] for i in starts]).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).float().cpu()


SMALL = {"CONTEXT": 32, "WIDTH": 32, "LAYERS": 2, "HEADS": 2, "BATCH": 8}


@pytest.mark.parametrize("size", [SMALL, pytest.param({}, marks=pytest.mark.slow)], ids=["small", "demo"])
def test_gpt_under_bf16_autocast(size, monkeypatch):
    """The GPT demo under bf16 autocast converges as eager CPU's does, without a fallback."""
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    found = gpt_losses("lazy", 60, size, monkeypatch)
    assert torch.lazy.stats()["host_ops_by_name"] == {}
    expected = gpt_losses("cpu", 60, size, monkeypatch)
    assert expected[-10:].mean() < 0.8 * expected[0]
    print(f"largest difference of a step's loss {(found - expected).abs().max():.4f}", found[-1], expected[-1])
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.0)
    torch.testing.assert_close(found[-10:].mean(), expected[-10:].mean(), rtol=0.01, atol=0.0)


def test_grad_scaler_trains():
    """fp16 autocast with a GradScaler follows float32 training, from a scale that overflows at first."""

    def losses(device, dtype):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**20, enabled=dtype == torch.float16)
        x = torch.randn(64, 8)
        y = x.sum(1, keepdim=True).to(device)
        x = x.to(device)
        found = []
        for _ in range(40):
            with torch.autocast(device, dtype=dtype, enabled=dtype == torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            skipped = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= skipped:
                found.append(loss.item())
        return found

    found, expected = losses("lazy", torch.float16), losses("cpu", torch.float32)
    assert 0 < len(expected) - len(found) < 20, "some steps overflow and are skipped, not all"
    torch.testing.assert_close(found, expected[: len(found)], rtol=0.05, atol=0.02)


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
