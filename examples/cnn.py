"""A small ResNet learns scikit-learn's handwritten digits.

python examples/cnn.py --device cpu
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH, HELD_OUT = 64, 297


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        Residual(32, 32, 1),
        Residual(32, 64, 2),
        Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def run(device: str, steps: int, report: Callable[[int, Tensor], None]) -> dict[str, object]:
    """Trains for `steps` steps; `report(step, loss)` after each. Returns the accuracy on digits held out."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    batches = torch.Generator().manual_seed(1)

    model = resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for step in range(steps):
        chosen = torch.randint(len(images) - HELD_OUT, (BATCH,), generator=batches)
        loss = F.cross_entropy(model(images[chosen].to(device)), labels[chosen].to(device), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss)

    model.eval()
    with torch.no_grad():
        guesses = model(images[-HELD_OUT:].to(device)).argmax(dim=1)
    return {"accuracy": (guesses == labels[-HELD_OUT:].to(device)).float().mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    def report(step: int, loss: Tensor) -> None:
        if step % 10 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)

    print(f"accuracy on held-out digits: {run(args.device, args.steps, report)['accuracy']:.1%}")


if __name__ == "__main__":
    main()
