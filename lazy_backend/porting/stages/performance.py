"""Stage 8: what the device reaches of what its properties state. Generous: it finds mistakes, not percents."""

from __future__ import annotations

from typing import Any

import numpy as np

from lazy_backend.driver.errors import Unsupported
from lazy_backend.porting.bench import Bench, expect

from . import check

# The least part of a stated number that passes. A port that is slower has a mistake (a copy per launch,
# a debug build, a unit mixed up) or states the wrong number.
LEAST_BANDWIDTH = 0.1
LEAST_COMPUTE = 0.03
# Launches may cost this many times the stated launch_us, beside what this Python host needs for one.
MOST_LAUNCH_FACTOR = 10
HOST_LAUNCH_US = 60.0


def _run(b: Bench, op: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], repeat: int, **attrs: object) -> float:
    """Seconds of one core op on float32 tensors, as the device runs it."""
    from lazy_backend.porting.execute import one_op, seconds

    return seconds(b, one_op(b, op, [(shape, "f32") for shape in shapes], [(out, "f32")], attrs).run, repeat)


@check(seconds=120)
def launch_cost(b: Bench) -> str:
    """A small operation costs about what launch_us says."""
    us = 1e6 * _run(b, "map", [(64,), (64,)], (64,), 200, fn="add")
    limit = MOST_LAUNCH_FACTOR * b.caps.launch_us + HOST_LAUNCH_US
    expect(
        us <= limit, f"one small launch costs {us:.1f} us; launch_us says {b.caps.launch_us}: does each launch wait?"
    )
    return f"{us:.1f} us (states {b.caps.launch_us} us; this host is Python)"


@check(seconds=120)
def copy_bandwidth(b: Bench) -> str:
    """Copies to, from and inside the device; 64 MiB each."""
    n = 64 << 20
    from lazy_backend.porting.execute import seconds

    data = np.ones(n, np.uint8)
    src, dst = b.upload(data), b.upload(data)
    device, queue = b.device, b.queue
    times = {
        "to": seconds(b, lambda: device.copy_h2d(queue, src, 0, data.ctypes.data, n, False), 3),
        "from": seconds(b, lambda: device.copy_d2h(queue, data.ctypes.data, src, 0, n, False), 3),
        "inside": seconds(b, lambda: device.copy_d2d(queue, dst, 0, src, 0, n), 3),
    }
    inside = 2 * n / times["inside"] / 1e9
    part = inside / b.caps.bandwidth_gbs
    expect(part >= LEAST_BANDWIDTH, f"copies inside the device move {inside:.1f} GB/s, {part:.0%} of bandwidth_gbs")
    return ", ".join(f"{name} {n / t / 1e9:.1f} GB/s" for name, t in times.items())


@check(seconds=120)
def kernel_bandwidth(b: Bench) -> str:
    """An addition of large tensors reads and writes near the stated bandwidth."""
    n = 1 << 23
    gbs = 12 * n / _run(b, "map", [(n,), (n,)], (n,), 5, fn="add") / 1e9
    part = gbs / b.caps.bandwidth_gbs
    expect(part >= LEAST_BANDWIDTH, f"an addition moves {gbs:.1f} GB/s, {part:.0%} of bandwidth_gbs")
    return f"{gbs:.1f} GB/s, {part:.0%} of the stated {b.caps.bandwidth_gbs:g}"


@check(seconds=120)
def matmul_rate(b: Bench) -> str:
    """A matrix product of 1024 cubed reaches a fair part of the stated peak."""
    n = 1024
    gflops = 2 * n**3 / _run(b, "matmul", [(n, n), (n, n)], (n, n), 2) / 1e9
    part = gflops / b.caps.peak_gflops_f32
    expect(part >= LEAST_COMPUTE, f"a matrix product runs at {gflops:.1f} GFLOP/s, {part:.1%} of peak_gflops_f32")
    return f"{gflops:.0f} GFLOP/s, {part:.0%} of the stated {b.caps.peak_gflops_f32:g}"


@check(seconds=120)
def reduction_bandwidth(b: Bench) -> str:
    """Sums over rows read near the stated bandwidth."""
    rows, columns = 4096, 2048
    gbs = 4 * rows * columns / _run(b, "sum", [(rows, columns)], (rows,), 5, dims=(1,)) / 1e9
    part = gbs / b.caps.bandwidth_gbs
    expect(part >= LEAST_BANDWIDTH, f"a row sum reads {gbs:.1f} GB/s, {part:.0%} of bandwidth_gbs")
    return f"{gbs:.1f} GB/s, {part:.0%} of the stated {b.caps.bandwidth_gbs:g}"


# Float32 nodes as training has them: (inputs, output, attrs).
_LIBRARY_NODES: dict[str, tuple[list[tuple[int, ...]], tuple[int, ...], dict[str, Any]]] = {
    "matmul": ([(512, 512), (512, 512)], (512, 512), {}),
    "convolution": (
        [(16, 32, 28, 28), (32, 32, 3, 3)],
        (16, 32, 28, 28),
        {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0),
         "groups": 1},
    ),
}  # fmt: skip


@check(seconds=300)
def library_entries(b: Bench) -> str:
    """Library entries beside generated kernels; the faster one is what a window gets."""
    from lazy_backend.porting.execute import library_times

    found = []
    for op in sorted(b.entries):
        shapes, out, attrs = _LIBRARY_NODES[op]
        try:
            library, generated = library_times(b, op, [(shape, "f32") for shape in shapes], [(out, "f32")], attrs)
        except Unsupported as error:
            found.append(f"{op}: refused for float32 ({error})")
            continue
        found.append(f"{op}: {library * 1e3:.3f} ms, generated {generated * 1e3:.3f} ms")
    return "; ".join(found) or "none (optional)"
