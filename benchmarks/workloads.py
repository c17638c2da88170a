"""The workloads: one function each, an ordinary script cut into a step.

A workload takes a device and `wrap` (the identity, or torch.compile) and returns its step. `wrap` is put where a user
of torch.compile would put it: around the model, or around the function. A step returns a tensor that depends on all
that it did.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .models import Recommender, Tagger, Transformer, UNetBlock, resnet18

Step = Callable[[], Tensor]
Wrap = Callable[[Any], Any]


class Workload(NamedTuple):
    """`python`: Python takes most of a step whatever the device, so a compiled function has nothing to wait for."""

    make: Callable[[str, Wrap], Step]
    python: bool = False


def training(model: nn.Module, wrap: Wrap, loss: Callable[[Any], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """A training step of `loss(compiled model)`."""
    compiled = wrap(model)

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss(compiled)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def inference(function: Callable[[], Tensor]) -> Step:
    """A step without autograd."""
    return torch.no_grad()(function)


def elementwise(device: str, wrap: Wrap) -> Step:
    x = torch.randn(4 << 20, device=device)

    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    f = wrap(gelu)
    return inference(lambda: f(x))


def softmax(device: str, wrap: Wrap) -> Step:
    x = torch.randn(4096, 1024, device=device)
    f = wrap(lambda x: F.softmax(x, dim=-1))
    return inference(lambda: f(x))


def layer_norm(device: str, wrap: Wrap) -> Step:
    x, norm = torch.randn(4096, 1024, device=device), nn.LayerNorm(1024).to(device)
    f = wrap(norm)
    return inference(lambda: f(x))


def norm_block(device: str, wrap: Wrap) -> Step:
    x, norm = torch.randn(4096, 1024, device=device), nn.LayerNorm(1024).to(device)
    f = wrap(lambda x: norm(x + F.softmax(F.gelu(x), dim=-1)))
    return inference(lambda: f(x))


def optimizer_step(device: str, wrap: Wrap) -> Step:
    model = Transformer(2048, 256, 512, 8, 8).to(device)  # 27 M parameters in 100 tensors
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    update = wrap(optimizer.step)

    def step() -> Tensor:
        update()
        return model.norm.weight

    return step


def mlp_train(device: str, wrap: Wrap) -> Step:
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    x, y = torch.randn(256, 784, device=device), torch.randint(10, (256,), device=device)
    return training(model, wrap, lambda m: F.cross_entropy(m(x), y), torch.optim.Adam(model.parameters()))


def tiny_ops(device: str, wrap: Wrap) -> Step:
    a, b = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def two_hundred(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(50):
            a = torch.tanh(a + b) * 0.5 - b
        return a

    f = wrap(two_hundred)
    return inference(lambda: f(a, b))


def gpt(device: str) -> Transformer:
    return Transformer(512, 256, 256, 8, 6).to(device)


def gpt_infer(device: str, wrap: Wrap) -> Step:
    model, tokens = wrap(gpt(device).eval()), torch.randint(512, (8, 256), device=device)
    return inference(lambda: model(tokens))


def gpt_train(device: str, wrap: Wrap) -> Step:
    model, tokens = gpt(device), torch.randint(512, (8, 257), device=device)

    def loss(m: nn.Module) -> Tensor:
        return F.cross_entropy(m(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return training(model, wrap, loss, torch.optim.AdamW(model.parameters(), lr=1e-4))


def gpt_decode(device: str, wrap: Wrap) -> Step:
    model = gpt(device).eval()
    decode = wrap(model.decode)
    caches = [torch.zeros(2, 1, 8, 256, 32, device=device) for _ in range(6)]
    token = torch.zeros(1, 1, dtype=torch.long, device=device)

    def sixteen_tokens() -> Tensor:
        new = token
        for position in range(16):
            new = decode(new, caches, position).argmax(dim=-1, keepdim=True)
        return new

    return inference(sixteen_tokens)


def resnet_infer(device: str, wrap: Wrap) -> Step:
    model, x = wrap(resnet18().to(device).eval()), torch.randn(4, 3, 128, 128, device=device)
    return inference(lambda: model(x))


def resnet_train(device: str, wrap: Wrap) -> Step:
    model, x, y = resnet18().to(device), torch.randn(4, 3, 128, 128), torch.randint(100, (4,))
    x, y = x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return training(model, wrap, lambda m: F.cross_entropy(m(x), y), optimizer)


def lstm_train(device: str, wrap: Wrap) -> Step:
    model, x = Tagger(1000, 128, 2, 16).to(device), torch.randint(1000, (16, 48), device=device)
    y = torch.randint(16, (16, 48), device=device)
    optimizer = torch.optim.Adam(model.parameters())
    return training(model, wrap, lambda m: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), optimizer)


def bert_lengths(device: str, wrap: Wrap) -> Step:
    model = wrap(Transformer(2048, 256, 256, 8, 4, causal=False).to(device).eval())
    lengths: Iterator[int] = cycle([17, 48, 96, 33, 128, 61, 80, 112])
    batches = {n: torch.randint(2048, (8, n), device=device) for n in (17, 48, 96, 33, 128, 61, 80, 112)}

    def eight_lengths() -> Tensor:
        return torch.stack([model(batches[next(lengths)]).mean() for _ in range(8)])

    return inference(eight_lengths)


def stencil(device: str, wrap: Wrap) -> Step:
    u, v = torch.randn(768, 768, device=device), torch.zeros(768, 768, device=device)

    def wave(u: Tensor, v: Tensor) -> Tensor:
        for _ in range(4):
            laplacian = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
            v[1:-1, 1:-1] += 0.2 * laplacian
            v *= 0.999
            u[1:-1, 1:-1] += 0.2 * v[1:-1, 1:-1]
        return u

    f = wrap(wave)
    return inference(lambda: f(u, v))


def matmul(device: str, wrap: Wrap) -> Step:
    a, b = torch.randn(1024, 1024, device=device), torch.randn(1024, 1024, device=device)
    f = wrap(torch.matmul)
    return inference(lambda: f(a, b))


def batched_matmul(device: str, wrap: Wrap) -> Step:
    a, b = torch.randn(32, 256, 64, device=device), torch.randn(32, 64, 256, device=device)
    f = wrap(torch.bmm)
    return inference(lambda: f(a, b))


def recommender_train(device: str, wrap: Wrap) -> Step:
    model = Recommender(rows=10_000, fields=8, dense=13, width=32).to(device)
    categories, dense = torch.randint(10_000, (512, 8), device=device), torch.randn(512, 13, device=device)
    clicks = torch.randint(2, (512,), device=device).float()

    def loss(m: nn.Module) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(categories, dense), clicks)

    return training(model, wrap, loss, torch.optim.Adagrad(model.parameters(), lr=0.01))


def long_attention(device: str, wrap: Wrap) -> Step:
    q, k, v = (torch.randn(1, 8, 2048, 64, device=device) for _ in range(3))
    f = wrap(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    return inference(lambda: f(q, k, v))


def unet_train(device: str, wrap: Wrap) -> Step:
    model = UNetBlock(64).to(device)
    x, t = torch.randn(4, 64, 48, 48, device=device), torch.randn(4, 64, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return training(model, wrap, lambda m: m(x, t).square().mean(), optimizer)


def particles(device: str, wrap: Wrap) -> Step:
    place, speed = torch.rand(200_000, 2, device=device), torch.randn(200_000, 2, device=device) * 1e-3

    def advance(place: Tensor, speed: Tensor) -> Tensor:
        cells = (place * 64).long().clamp_(0, 63)
        cell = cells[:, 0] * 64 + cells[:, 1]
        count = torch.zeros(4096, device=place.device).scatter_add_(0, cell, torch.ones_like(place[:, 0]))
        momentum = torch.zeros(4096, 2, device=place.device).index_add_(0, cell, speed)
        mean = momentum / count.clamp(min=1)[:, None]
        speed.lerp_(mean[cell], 0.1)
        place.add_(speed).remainder_(1.0)
        return count

    f = wrap(advance)
    return inference(lambda: f(place, speed))


WORKLOADS: dict[str, Workload] = {
    "elementwise": Workload(elementwise),
    "softmax": Workload(softmax),
    "layer_norm": Workload(layer_norm),
    "norm_block": Workload(norm_block),
    "optimizer_step": Workload(optimizer_step),
    "mlp_train": Workload(mlp_train),
    "tiny_ops": Workload(tiny_ops, python=True),
    "gpt_infer": Workload(gpt_infer),
    "gpt_train": Workload(gpt_train),
    "gpt_decode": Workload(gpt_decode, python=True),
    "resnet_infer": Workload(resnet_infer),
    "resnet_train": Workload(resnet_train),
    "lstm_train": Workload(lstm_train),
    "bert_lengths": Workload(bert_lengths),
    "stencil": Workload(stencil),
    "matmul": Workload(matmul),
    "batched_matmul": Workload(batched_matmul),
    "recommender_train": Workload(recommender_train),
    "long_attention": Workload(long_attention),
    "unet_train": Workload(unet_train),
    "particles": Workload(particles),
}
