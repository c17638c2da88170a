"""`python -m benchmarks.lengths`: training on sequences of many lengths, against the same steps at one shape only.

A small GPT with dropout, AdamW and a learning rate that changes every step meets 32 random lengths (8 to 128) in
batches of 2 to 8. Prints what was compiled in which step, then for some of the shapes the time of a step in that
process beside a process that has only ever seen this shape, in turns.
"""

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from .models import Transformer

WIDTH, HEADS, LAYERS, VOCABULARY = 64, 4, 2, 256
LENGTHS, SHORTEST, LONGEST, BATCHES = 32, 8, 128, (2, 8)
COLUMNS = ("plans_compiled", "kernels_built", "plans_assembled", "ops_interpreted", "host_ops")
Shape = tuple[int, int]


class Model(nn.Module):
    """A GPT with dropout after each block."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.dropout = Transformer(VOCABULARY, LONGEST, WIDTH, HEADS, LAYERS), nn.Dropout(0.1)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of predicting each of `tokens` (batch, length + 1) from those before."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        body = self.body
        x = body.token(inputs) + body.position.weight[: inputs.shape[1]]
        for block in body.blocks:
            x = self.dropout(block(x))
        return F.cross_entropy(body.head(body.norm(x)).flatten(0, 1), targets.flatten())


def trainer() -> Callable[[Shape], float]:
    """A function that takes a training step at (batch, length) and returns the loss."""
    torch.manual_seed(0)
    model = Model().to("lazy")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)

    def step(shape: Shape) -> float:
        batch, length = shape
        tokens = torch.randint(0, VOCABULARY, (batch, length + 1)).to("lazy")
        optimizer.zero_grad()
        loss = model.loss(tokens)
        loss.backward()
        optimizer.step()
        schedule.step()
        return float(loss.item())

    return step


def shapes(steps: int) -> Iterator[Shape]:
    """The (batch, length) of each step."""
    draw = random.Random(0)
    lengths = draw.sample(range(SHORTEST, LONGEST + 1), LENGTHS)
    for _ in range(steps):
        yield draw.randint(*BATCHES), draw.choice(lengths)


def serve(pipe: Connection) -> None:
    """A process that trains: takes lists of shapes, answers with seconds and counters of each step."""
    step = trainer()
    while wanted := pipe.recv():
        rows = []
        for shape in wanted:
            torch.lazy.reset_stats()
            start = time.perf_counter()
            step(shape)
            seconds = time.perf_counter() - start
            stats = torch.lazy.stats()
            rows.append({"seconds": seconds} | {name: stats[name] for name in COLUMNS})
        pipe.send(rows)


class Process:
    """A process that trains."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()

    def run(self, wanted: list[Shape]) -> list[dict[str, float]]:
        """Seconds and counters of a step at each shape."""
        self._pipe.send(wanted)
        return self._pipe.recv()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends it."""
        self._pipe.send([])
        self._process.join()


def table(rows: list[dict[str, float]], met: list[Shape]) -> str:
    """Steps in which something was compiled, and the sums over the others."""
    lines = ["| step | batch, length | " + " | ".join(COLUMNS) + " | ms |", "| --- " * (len(COLUMNS) + 3) + "|"]
    rest = []
    for number, (row, shape) in enumerate(zip(rows, met, strict=True)):
        if row["plans_compiled"] or row["kernels_built"]:
            counts = " | ".join(str(row[name]) for name in COLUMNS)
            lines.append(f"| {number} | {shape[0]}, {shape[1]} | {counts} | {row['seconds'] * 1e3:.0f} |")
        else:
            rest.append(row)
    counts = " | ".join(str(sum(row[name] for row in rest)) for name in COLUMNS)
    lines.append(f"| {len(rest)} others | | {counts} | {statistics.median(r['seconds'] for r in rest) * 1e3:.1f} |")
    return "\n".join(lines)


def main(
    steps: Annotated[int, typer.Option(min=8)] = 200,
    compared: Annotated[int, typer.Option(min=1, help="shapes that are timed against a process of their own")] = 3,
    rounds: Annotated[int, typer.Option(min=1)] = 15,
) -> None:
    """Prints two Markdown tables."""
    met = list(shapes(steps))
    varying = Process()
    print(table(varying.run(met), met))
    print(
        "\n| batch, length | a plan for all sizes, ms | a plan for this size, ms | ratio |\n| --- | --- | --- | --- |"
    )
    chosen = sorted(set(met[steps // 2 :]), key=lambda shape: shape[0] * shape[1])
    for shape in [chosen[(2 * i + 1) * len(chosen) // (2 * compared)] for i in range(compared)]:
        fixed = Process()
        fixed.run([shape] * 4)
        varying.run([shape] * 2)
        times = [[process.run([shape] * 5)[2]["seconds"] for process in (varying, fixed)] for _ in range(rounds)]
        a, b = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
        print(f"| {shape[0]}, {shape[1]} | {a:.2f} | {b:.2f} | {a / b:.2f} |")
        fixed.close()
    varying.close()


if __name__ == "__main__":
    typer.run(main)
