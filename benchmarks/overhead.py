"""What one op costs the host: Python time per call on (8, 8) tensors, the device's work not waited for."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a + b": torch.add,
    "a @ b": torch.matmul,
    "relu(a)": lambda a, b: torch.relu(a),
    "a * 2.0": lambda a, b: a * 2.0,
    "a.add_(b)": lambda a, b: a.add_(b),
    "a[1:3]": lambda a, b: a[1:3],
}
CALLS, ROUNDS = 2000, 9


def host_us(device: str) -> dict[str, float]:
    """Microseconds per call by op name; medians over rounds of 2000 calls, without gradients."""
    wait = torch.lazy.synchronize if device == "lazy" else lambda: None
    costs = {}
    with torch.no_grad():
        for name, op in OPS.items():
            a, b = torch.randn(8, 8).to(device), torch.zeros(8, 8).to(device)
            rounds = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                for _ in range(CALLS):
                    op(a, b)
                rounds.append((time.perf_counter() - start) / CALLS * 1e6)
                wait()
            costs[name] = statistics.median(rounds)
    return costs
