"""torch.compile, export and fake tensors."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


MODELS = {
    "linear": lambda: nn.Linear(8, 8),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)),
    "residual": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU()),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 1), nn.Flatten()),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()),
    "embedding": lambda: nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)),
    "attention": lambda: nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Linear(2, 16), Block(), nn.Flatten()),
    "bilinear": lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
    "prelu": lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU(), nn.RMSNorm(8)),
    "pooling": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.AvgPool1d(2), nn.Flatten()),
}


def outcome(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output and all gradients, on the CPU."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    return [t.detach().cpu() for t in (y, x.grad, *(p.grad for p in model.parameters()))]


@pytest.mark.parametrize("name", MODELS)
def test_backend_lazy(name):
    """torch.compile(backend="lazy"): ten models, forward and backward, equal to eager, no graph break."""
    torch.manual_seed(0)
    model, x = MODELS[name]().to("lazy"), torch.randn(4, 8, device="lazy")
    expected = outcome(model, x)
    compiled = torch.compile(model, backend="lazy", fullgraph=True)
    torch.testing.assert_close(outcome(compiled, x), expected)


def test_dynamic_shapes():
    """backend="lazy" with dynamic shapes."""
    layer = nn.Linear(8, 8).to("lazy")
    compiled = torch.compile(layer, backend="lazy", dynamic=True)
    for rows in (2, 3, 7):
        x = torch.ones(rows, 8, device="lazy")
        torch.testing.assert_close(compiled(x).cpu(), layer(x).cpu())


def test_inference_mode():
    """backend="lazy" under inference_mode and no_grad."""
    layer = nn.Linear(4, 4).to("lazy")
    x = torch.ones(2, 4, device="lazy")
    compiled = torch.compile(layer, backend="lazy")
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            torch.testing.assert_close(compiled(x).cpu(), layer(x).cpu())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends(backend):
    """torch.compile with backend eager and aot_eager."""
    model, x = MODELS["mlp"]().to("lazy"), torch.randn(4, 8, device="lazy")
    expected = outcome(model, x)
    torch.testing.assert_close(outcome(torch.compile(model, backend=backend, fullgraph=True), x), expected)


def test_fake_tensors():
    """Fake tensors of the device record nothing and know their device."""
    torch.lazy.synchronize()
    before = torch.lazy.stats()["ops"]
    with FakeTensorMode():
        x = torch.ones(3, 4, device="lazy")
        y = (x @ x.T).relu()
    assert y.shape == (3, 3) and y.device.type == "lazy"
    assert torch.lazy.stats()["ops"] == before


def test_export():
    """torch.export of a module on the device runs as the module does."""
    model, x = MODELS["mlp"]().to("lazy").eval(), torch.randn(2, 8, device="lazy")
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x).cpu(), model(x).cpu())
