"""Two chemicals react and diffuse on a grid (Gray and Scott's model), stepped with in-place slices.

python examples/stencil.py --device cpu
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 768
DIFFUSION_U, DIFFUSION_V, FEED, KILL = 0.16, 0.08, 0.035, 0.060


def laplacian(x: Tensor) -> Tensor:
    """The five-point Laplacian of the inside of `x` (n, m): (n - 2, m - 2)."""
    return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]


def mirror(x: Tensor) -> None:
    """Copies the inside's rim to the border, so that nothing flows out."""
    x[0], x[-1] = x[1], x[-2]
    x[:, 0], x[:, -1] = x[:, 1], x[:, -2]


def run(device: str, steps: int, report: Callable[[int, Tensor], None]) -> dict[str, object]:
    """Simulates `steps` steps; `report(step, mean of v)` after each. Returns the final amounts."""
    torch.manual_seed(0)
    u = torch.ones(SIZE, SIZE)
    v = torch.zeros(SIZE, SIZE)
    for row, column in torch.randint(16, SIZE - 32, (200, 2)).tolist():
        u[row : row + 16, column : column + 16] = 0.5
        v[row : row + 16, column : column + 16] = 0.25 + 0.1 * torch.rand(16, 16)
    u, v = u.to(device), v.to(device)

    inner_u, inner_v = u[1:-1, 1:-1], v[1:-1, 1:-1]
    for step in range(steps):
        reaction = inner_u * inner_v * inner_v
        change_u = DIFFUSION_U * laplacian(u) - reaction + FEED * (1 - inner_u)
        change_v = DIFFUSION_V * laplacian(v) + reaction - (FEED + KILL) * inner_v
        inner_u += change_u
        inner_v += change_v
        mirror(u)
        mirror(v)
        report(step, v.mean())
    return {"u": u.mean().item(), "v": v.mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()

    def report(step: int, amount: Tensor) -> None:
        if step % 100 == 0:
            print(f"step {step:5d}  mean of v {amount.item():.6f}", flush=True)

    print(run(args.device, args.steps, report))


if __name__ == "__main__":
    main()
