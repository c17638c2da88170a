"""`python -m benchmarks.decode`: decoding with a key/value cache that grows by concatenation, token by token.

Prints what the device did per token: compiles, kernels, ops run on the host because their sizes vary, and time beside
eager CPU's.
"""

import time
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from .models import Attention, Block, Transformer

LAYERS, WIDTH, HEADS = 2, 128, 4
COLUMNS = ("plans_compiled", "plans_assembled", "kernels_built", "windows", "kernels_launched", "ops_interpreted")


def attend(layer: Attention, x: Tensor, cache: list[Tensor]) -> Tensor:
    """One token (1, 1, width); `cache`: keys and values, each (1, heads, length, width // heads), replaced."""
    q, k, v = layer.qkv(x).view(1, 1, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
    cache[:] = [torch.cat([old, new], dim=2) for old, new in zip(cache, (k, v), strict=True)]
    y = F.scaled_dot_product_attention(q, *cache)
    return layer.out(y.transpose(1, 2).reshape(1, 1, -1))


def step(model: Transformer, token: Tensor, caches: list[list[Tensor]], position: int) -> Tensor:
    """The next token (1, 1), greedily."""
    x = model.token(token) + model.position.weight[position]
    for block, cache in zip(model.blocks, caches, strict=True):
        assert isinstance(block, Block)
        x = x + attend(block.attention, block.norm1(x), cache)
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x))[:, -1].argmax(dim=-1, keepdim=True)


@torch.no_grad()
def decode(device: str, tokens: int) -> tuple[list[int], list[dict[str, float]]]:
    """Tokens chosen, and for each the milliseconds and (on lazy) the counters."""
    torch.manual_seed(0)
    model = Transformer(256, tokens, WIDTH, HEADS, LAYERS).to(device).eval()
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    caches = [[torch.zeros(1, HEADS, 0, WIDTH // HEADS, device=device)] * 2 for _ in range(LAYERS)]
    chosen, rows = [], []
    for position in range(tokens):
        if device == "lazy":
            torch.lazy.reset_stats()
        start = time.perf_counter()
        token = step(model, token, caches, position)
        chosen.append(int(token.item()))
        rows.append({"ms": (time.perf_counter() - start) * 1e3})
        if device == "lazy":
            stats = torch.lazy.stats()
            rows[-1] |= {name: stats[name] for name in COLUMNS}
    return chosen, rows


def main(tokens: Annotated[int, typer.Option(min=2)] = 64) -> None:
    """Prints a Markdown table: the first tokens, then ranges of tokens with the largest count in each."""
    expected, eager = decode("cpu", tokens)
    chosen, rows = decode("lazy", tokens)
    print("same tokens as eager:", expected == chosen)
    print("| tokens | " + " | ".join(COLUMNS) + " | ms, median | eager ms |\n" + "| --- " * (len(COLUMNS) + 3) + "|")
    edges = [*range(1, min(9, tokens)), tokens]
    for first, end in zip([0, *edges], edges, strict=False):
        counts = [max(row[name] for row in rows[first:end]) for name in COLUMNS]
        times = [sorted(row["ms"] for row in run[first:end])[(end - first) // 2] for run in (rows, eager)]
        name = str(first) if end == first + 1 else f"{first} to {end - 1}"
        print(f"| {name} | " + " | ".join(map(str, counts)) + " | " + " | ".join(f"{t:.2f}" for t in times) + " |")


if __name__ == "__main__":
    typer.run(main)
