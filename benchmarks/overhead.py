"""What one op costs the host: Python time per call on (8, 8) tensors, the device's work not waited for.

`python -m benchmarks.overhead`: the same over windows of 200 ops, recording, key and submission included, as processor
time of the thread that records; then what 100,000 further ops change.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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


def host_us(devices: Sequence[str]) -> dict[str, dict[str, float]]:
    """Microseconds per call by device and op name; medians over rounds of 2000 calls, without gradients.

    The devices take turns: a shared machine has phases in which everything takes 1.7 times as long, eager's ops too.
    """
    costs: dict[str, dict[str, float]] = {device: {} for device in devices}
    with torch.no_grad():
        for name, op in OPS.items():
            operands = {device: (torch.randn(8, 8).to(device), torch.zeros(8, 8).to(device)) for device in devices}
            rounds: dict[str, list[float]] = {device: [] for device in devices}
            for _ in range(ROUNDS):
                for device, (a, b) in operands.items():
                    start = time.perf_counter()
                    for _ in range(CALLS):
                        op(a, b)
                    rounds[device].append((time.perf_counter() - start) / CALLS * 1e6)
                    if device == "lazy":
                        torch.lazy.synchronize()
            for device, found in rounds.items():
                costs[device][name] = statistics.median(found)
    return costs


WINDOW, MANY = 200, 100_000


def mixed(a: Tensor, b: Tensor) -> Tensor:
    """Window's worth of ops: sums, products, functions, a scalar."""
    for _ in range(WINDOW // 5):
        a = torch.relu(a + b) @ b
        a = torch.tanh(a) * 0.5
    return a


def windowed_us(device: str, ops: int) -> float:
    """Microseconds of the recording thread's processor time per op."""
    a, b = torch.randn(8, 8).to(device), torch.zeros(8, 8).to(device)
    start = time.thread_time()
    for _ in range(ops // WINDOW):
        mixed(a, b)
    return (time.thread_time() - start) / ops * 1e6


def main() -> None:
    """Prints medians of 9 rounds of 20 windows, the lazy device's before and after many ops."""
    with torch.no_grad(), torch.lazy.window(WINDOW):
        for device in ("cpu", "lazy"):
            for _ in range(2):  # what is compiled is compiled
                windowed_us(device, WINDOW)
                torch.lazy.synchronize()
            rounds = [windowed_us(device, 20 * WINDOW) for _ in range(ROUNDS)]
            print(f"{device}: {statistics.median(rounds):.2f} us an op")
        resident = memory()
        many = windowed_us("lazy", MANY)
        torch.lazy.synchronize()
        rounds = [windowed_us("lazy", 20 * WINDOW) for _ in range(ROUNDS)]
        print(f"lazy: {many:.2f} us over {MANY} ops, then {statistics.median(rounds):.2f}; ", end="")
        print(f"{torch.lazy.stats()['plans_compiled']} plans; resident memory {(memory() - resident) / 1e6:+.1f} MB")


def memory() -> int:
    """Resident bytes of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
