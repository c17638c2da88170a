"""`python -m benchmarks.structures`: training steps of which no two record the same ops, beside eager.

What such a script has in each step is drawn anew: which step of an LSTM sees its own last word, the shape of a small
tree, which augmentations are applied in which order, which blocks of a residual net are left out, what a loop does in
each of its turns, which layers of a network are taken. Prints ms a step of each sixth of a run, on "cpu" and on "lazy",
and what the whole run made.
"""

import random
import time
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

Losses = Callable[[], Tensor]
Draw = random.Random

WIDTH, BATCH, CLASSES = 128, 64, 10
TURNS, WORDS = 20, 50  # of the LSTM
BLOCKS, LEFT_OUT = 12, 0.2
LEAVES, TREE_WIDTH = (6, 14), 64
LONGEST_LOOP = 24


def sampling(draw: Draw, device: str) -> tuple[nn.Module, Losses]:
    """An LSTM that reads the last word, or its own guess at it, as a coin says."""
    net = nn.ModuleList([nn.Embedding(WORDS, WIDTH // 2), nn.LSTMCell(WIDTH // 2, WIDTH), nn.Linear(WIDTH, WORDS)])
    net.to(device)
    words = torch.randint(0, WORDS, (BATCH // 2, TURNS + 1)).to(device)

    def loss() -> Tensor:
        embedding, cell, head = net
        state = tuple(torch.zeros(BATCH // 2, WIDTH, device=device) for _ in range(2))
        word, losses = words[:, 0], []
        for turn in range(1, TURNS + 1):
            state = cell(embedding(word), state)
            guess = head(state[0])
            losses.append(F.cross_entropy(guess, words[:, turn]))
            word = words[:, turn] if draw.random() < 0.5 else guess.argmax(-1)
        return torch.stack(losses).mean()

    return net, loss


def trees(draw: Draw, device: str) -> tuple[nn.Module, Losses]:
    """A vector for each node of a binary tree, from those of its children."""
    both, leaf, head = nn.Linear(2 * TREE_WIDTH, TREE_WIDTH), nn.Embedding(100, TREE_WIDTH), nn.Linear(TREE_WIDTH, 2)
    net = nn.ModuleList([both, leaf, head]).to(device)
    words, label = torch.arange(100).to(device), torch.ones(1, dtype=torch.long).to(device)

    def node(leaves: int) -> Tensor:
        if leaves == 1:
            return leaf(words[draw.randrange(100)].view(1))  # type: ignore[no-any-return]
        left = draw.randrange(1, leaves)
        return torch.tanh(both(torch.cat([node(left), node(leaves - left)], 1)))

    return net, lambda: F.cross_entropy(head(node(draw.randrange(*LEAVES))), label)


def augmented(draw: Draw, device: str) -> tuple[nn.Module, Losses]:
    """A small convolution net on images that three of seven augmentations have changed."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, CLASSES),
    ).to(device)  # fmt: skip
    images, labels = torch.randn(32, 3, 64, 64).to(device), torch.randint(0, CLASSES, (32,)).to(device)
    changes: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.flip(-1),
        lambda x: x + 0.1 * torch.randn_like(x),
        lambda x: x * draw.uniform(0.8, 1.2),
        lambda x: torch.roll(x, draw.randrange(-4, 5), -1),
        lambda x: F.pad(x, (4, 4, 4, 4))[:, :, (at := draw.randrange(9)) : at + 64, 4:68],
        lambda x: x.clamp(-1, 1),
        lambda x: (x - x.mean()) / x.std(),
    ]

    def loss() -> Tensor:
        x = images
        for change in draw.sample(changes, 3):
            x = change(x)
        return F.cross_entropy(net(x), labels)

    return net, loss


def depth(draw: Draw, device: str) -> tuple[nn.Module, Losses]:
    """A residual net of which each block is left out at times."""
    width = WIDTH
    blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
              for _ in range(BLOCKS)]  # fmt: skip
    net = nn.ModuleList([*blocks, nn.Linear(width, CLASSES)]).to(device)
    inputs, labels = torch.randn(BATCH, width).to(device), torch.randint(0, CLASSES, (BATCH,)).to(device)

    def loss() -> Tensor:
        x = inputs
        for block in net[:-1]:
            if draw.random() >= LEFT_OUT:
                x = x + block(x)
        return F.cross_entropy(net[-1](x), labels)

    return net, loss


def branches(draw: Draw, device: str) -> tuple[nn.Module, Losses]:
    """A loop of some turns, in each of which a coin says what is done."""
    one, other = nn.Linear(TREE_WIDTH, TREE_WIDTH), nn.Linear(TREE_WIDTH, TREE_WIDTH)
    net = nn.ModuleList([one, other]).to(device)
    inputs = torch.randn(2 * BATCH, TREE_WIDTH).to(device)

    def loss() -> Tensor:
        x = inputs
        for _ in range(draw.randint(3, LONGEST_LOOP)):
            x = torch.tanh(one(x)) + x * 0.5 if draw.random() < 0.5 else torch.relu(other(x))
        return x.square().mean()

    return net, loss


def paths(draw: Draw, device: str) -> tuple[nn.Module, Losses]:
    """A search for an architecture: in each layer one of four, so others have gradients in each step."""
    width = TREE_WIDTH
    layers = nn.ModuleList(
        nn.ModuleList([
            nn.Linear(width, width),
            nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width)),
            nn.Identity(),
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()),
        ])
        for _ in range(8)
    )  # fmt: skip
    net = nn.ModuleList([layers, nn.Linear(width, CLASSES)]).to(device)
    inputs, labels = torch.randn(BATCH, width).to(device), torch.randint(0, CLASSES, (BATCH,)).to(device)

    def loss() -> Tensor:
        x = inputs
        for layer in layers:
            x = x + draw.choice(list(layer))(x)
        return F.cross_entropy(net[1](x), labels)

    return net, loss


SCRIPTS = {f.__name__: f for f in (sampling, trees, augmented, depth, branches, paths)}
PARTS = 6


def run(name: str, device: str, steps: int) -> list[float]:
    """ms a step in each part of a run."""
    torch.manual_seed(0)
    net, loss = SCRIPTS[name](random.Random(0), device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = []
    for _ in range(PARTS):
        start = time.perf_counter()
        for _ in range(steps // PARTS):
            optimizer.zero_grad()
            result = loss()
            result.backward()
            optimizer.step()
            result.item()
        found.append((time.perf_counter() - start) * 1e3 / (steps // PARTS))
    return found


def main(steps: Annotated[int, typer.Option(min=PARTS)] = 240) -> None:
    """Prints a Markdown table."""
    counts = ("windows", "windows_op_by_op", "plans_compiled", "plans_assembled")
    print(f"| script | device | ms a step, in sixths of {steps} steps | {' | '.join(counts)} |")
    print("| --- " * (3 + len(counts)) + "|")
    for name in SCRIPTS:
        for device in ("cpu", "lazy"):
            torch.lazy.reset_stats()
            times = ", ".join(f"{ms:.1f}" for ms in run(name, device, steps))
            stats = torch.lazy.stats()
            made = " | ".join(str(stats[count]) if device == "lazy" else "" for count in counts)
            print(f"| {name} | {device} | {times} | {made} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
