"""`python -m lazy_backend.porting.train MODEL`: train on the CPU and on the device; prints the losses as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lazy_backend import _C

STEPS = 8


class Attention(nn.Module):
    """Causal self-attention over characters: a GPT of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(17, 32), nn.Embedding(24, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 17)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, time] -> logits [batch, time, 17]."""
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        heads = self.qkv(self.first(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(x + self.mlp(self.second(x)))


def _perceptron() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 5))
    return model, torch.randn(32, 20), torch.randint(5, (32,))


def _convolutions() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    return model, torch.randn(8, 1, 12, 12), torch.randint(5, (8,))


def _transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    tokens = torch.randint(17, (4, 25))
    return Attention(), tokens[:, :-1], tokens[:, 1:]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


# Name -> model with its data, optimizer.
MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "perceptron with SGD": (_perceptron, _sgd),
    "perceptron with AdamW": (_perceptron, _adamw),
    "convolutions with AdamW": (_convolutions, _adamw),
    "transformer with AdamW": (_transformer, _adamw),
}


def losses(name: str, device: str) -> list[float]:
    """The loss before each step; same weights and data on every device."""
    torch.manual_seed(0)
    make, optimizer = MODELS[name]
    model, x, y = make()
    model, x, y = model.to(device), x.to(device), y.to(device)
    opt = optimizer(model.parameters())
    found = []
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        found.append(loss.item())
    return found


def main(name: str) -> None:
    """Print cpu, lazy (losses) and host_ops."""
    cpu, lazy = losses(name, "cpu"), losses(name, "lazy")
    print(json.dumps({"cpu": cpu, "lazy": lazy, "host_ops": _C.stats()["host_ops"]}))


if __name__ == "__main__":
    main(sys.argv[1])
