"""torch.compile, export and fake tensors."""

import copy

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


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Bilinear(8, 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, x.flip(0)).tanh()


class Words(nn.Module):
    """Indices, a lookup, a mean over words, a buffer that the forward pass writes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        words = (x.abs() * 8).long().clamp(max=15)
        return self.head(self.table(words).mean(1)).log_softmax(-1) * self.seen


class Branch(nn.Module):
    """A branch on a value: Dynamo breaks the graph there, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * 2 if y.sum() > 1e6 else y.sin()


class Recurrent(nn.Module):
    """An LSTM, which Dynamo leaves alone: its ops are met eagerly, within a frame that Dynamo watches."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(2, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x.unflatten(1, (4, 2)))[0][:, -1])


MODELS = {
    "linear": lambda: nn.Linear(8, 8),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)),
    "residual": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU()),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()
    ),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()),
    "embedding": Words,
    "attention": lambda: nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Linear(2, 16), Block(), nn.Flatten()),
    "bilinear": Bilinear,
    "prelu": lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU(), nn.RMSNorm(8)),
    "pooling": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3), nn.MaxPool1d(2), nn.Flatten()),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8)),
    "transformer": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.Linear(4, 16), nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    ),
}
BREAKING = {"branch": Branch, "recurrent": Recurrent}


def outcome(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    """The output and all gradients, on the CPU."""
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    return [None if t is None else t.detach().cpu() for t in (y, x.grad, *(p.grad for p in model.parameters()))]


def breaks(model: nn.Module, x: torch.Tensor, backend: str) -> dict[str, int]:
    """The reasons for which Dynamo broke the graph of a forward and backward pass, with their counts."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    outcome(torch.compile(model, backend=backend), x)
    graphs = counters["stats"]["unique_graphs"]
    return {"graphs": graphs, **{reason.splitlines()[0]: count for reason, count in counters["graph_break"].items()}}


@pytest.mark.parametrize("name", MODELS)
def test_backend_lazy(name):
    """torch.compile(backend="lazy"): twelve models, forward and backward, equal to eager, no graph break."""
    torch.manual_seed(0)
    model, x = MODELS[name](), torch.randn(4, 8)
    on_device = copy.deepcopy(model).to("lazy")
    expected = outcome(copy.deepcopy(on_device), x.to("lazy"))
    if name != "dropout":  # its numbers are the device's
        torch.testing.assert_close(expected, outcome(model, x), rtol=1e-4, atol=1e-5)
    compiled = torch.compile(on_device, backend="lazy", fullgraph=True)
    torch.testing.assert_close(outcome(compiled, x.to("lazy")), expected)


@pytest.mark.parametrize("name", [*MODELS, *BREAKING])
def test_no_graph_break_is_the_device_s(name):
    """Dynamo makes as many graphs, with the same breaks, as with backend="eager" on the CPU."""
    model, x = {**MODELS, **BREAKING}[name](), torch.randn(4, 8)
    expected = breaks(model, x, "eager")
    assert breaks(model.to("lazy"), x.to("lazy"), "lazy") == expected
    assert len(expected) == 1 or name in BREAKING


def test_without_a_backend():
    """torch.compile(model), which means Inductor elsewhere, takes the device's backend for the device's graphs."""
    model, x = MODELS["mlp"]().to("lazy"), torch.randn(4, 8, device="lazy")
    expected = outcome(model, x)
    torch.testing.assert_close(outcome(torch.compile(model, mode="reduce-overhead", fullgraph=True), x), expected)
    made = torch.compile(lambda: torch.arange(3, device="lazy") * 2, fullgraph=True)
    assert made().tolist() == [0, 2, 4]


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
