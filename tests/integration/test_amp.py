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


# By the dtype that comes out, calls of torch's lists for accelerators on a float32 `x`, a low `h` and a vector of each.
POLICIES = {
    "low": (
        "x @ x", "torch.mm(x, x)", "torch.mv(x, v)", "torch.bmm(x[None], x[None])", "torch.addmm(x, x, x)",
        "torch.baddbmm(x[None], x[None], x[None])", "torch.einsum('ij,jk', x, x)", "torch.linalg.multi_dot([x, x, x])",
        "F.linear(x, x)", "F.conv1d(x[None], x[..., None])", "F.conv2d(x[None, None], x[None, None])",
        "F.conv3d(x[None, None, None], x[None, None, None])", "F.conv_transpose2d(x[None, None], x[None, None])",
        "F.scaled_dot_product_attention(x[None], x[None], x[None])", "nn.GRUCell(4, 4).to(x.device)(x)",
        "nn.LSTM(4, 4).to(x.device)(x[None])[0]", "nn.MultiheadAttention(4, 2).to(x.device)(x, x, x)[0]",
    ),
    "float32": (
        "h.exp()", "h.log()", "h.pow(2)", "h.rsqrt()", "h.softmax(-1)", "h.log_softmax(-1)", "h.sum()", "h.cumsum(0)",
        "h.prod()", "h.norm()", "h.norm(p=2, dim=1)", "torch.cdist(h, h)", "torch.dist(h, h)", "h.acos()", "h.tan()",
        "F.layer_norm(h, (4,))", "F.cosine_similarity(h, h)", "F.mse_loss(h, h)", "F.l1_loss(h, h)",
        "F.smooth_l1_loss(h, h)", "F.kl_div(h, h)", "F.cross_entropy(h, v.long())", "F.softplus(h)",
        "F.binary_cross_entropy_with_logits(h, h)", "F.group_norm(h[None], 2)", "h.logsumexp(0)", "h.expm1()",
        "F.cosine_embedding_loss(h, h, v)", "F.triplet_margin_loss(h, h, h)", "torch.renorm(h, 2, 0, 1)",
    ),
    "promoted": (
        "torch.addcmul(x, h, h)", "torch.addcdiv(x, h, h)", "torch.atan2(h, x)",
        "torch.cross(h[:, 1:], x[:, 1:], dim=1)", "torch.dot(h[0], v)",
        "torch.tensordot(h, x)", "torch.cat([h, x])", "torch.stack([h, x])", "h + x",
        "F.bilinear(h, x, x[None])", "x.scatter_add(0, v.long()[None], h)",
    ),
    "kept": ("h + h", "h.relu()", "h.max()", "h.reshape(-1)", "F.gelu(h)", "F.dropout(h)", "h.mean()"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", POLICIES)
def test_autocast_policies(policy, dtype):
    """torch's lists for accelerators, op by op: low precision, float32, promoted to the widest, kept."""
    x = torch.eye(4, device="lazy") * 0.5 + 0.1
    names = {"torch": torch, "nn": nn, "F": nn.functional, "x": x, "h": x.to(dtype), "v": torch.ones(4, device="lazy")}
    expected = {"low": dtype, "kept": dtype}.get(policy, torch.float32)
    with torch.autocast("lazy", dtype=dtype):
        found = {call: eval(call, names) for call in POLICIES[policy]}
    assert {call: y.dtype for call, y in found.items() if y.dtype != expected} == {}
    assert all(y.isfinite().all().item() for y in found.values())


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
