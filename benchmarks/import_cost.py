"""What the installed package adds to `import torch`: fresh interpreters, with and without autoload, in turn.

python -m benchmarks.import_cost
"""

import os
import statistics
import subprocess
import sys

TURNS = 9
PROGRAM = """
import time
start, cpu = time.perf_counter(), time.process_time()
import torch
print(time.perf_counter() - start, time.process_time() - cpu)
"""


def import_ms(autoload: bool) -> tuple[float, float]:
    """Milliseconds of wall and of processor time that `import torch` takes in a new interpreter."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    wall, cpu = (float(text) * 1e3 for text in done.stdout.split())
    return wall, cpu


def main() -> None:
    """Prints medians. The first turn warms the file cache and does not count."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for turn in range(TURNS + 1):
        for autoload, times in found.items():
            took = import_ms(autoload)
            if turn:
                times.append(took)
    for column, name in enumerate(("wall", "processor")):
        without, with_it = (statistics.median(times[column] for times in found[key]) for key in (False, True))
        print(f"import torch, {name} time: {without:.0f} ms; the device adds {with_it - without:+.0f} ms")


if __name__ == "__main__":
    main()
