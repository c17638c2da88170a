"""Contraction kernels alone, beside torch: the numbers that stand above the constants of `codegen.kernels`.

    python -m benchmarks.kernels sgemm skinny layers long_k small conv attention attention_backward

Wall time on all processors, in turns of both sides; the median counts. A turn's first runs are not timed: for some
milliseconds after an op the threads of the other side's library spin, and take a processor of two.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import numpy as np
import torch

from codegen.kernels.attention import AttentionSpec, attention
from codegen.kernels.attention_backward import Gradients, attention_backward
from codegen.kernels.conv import ConvSpec, Tensor, convolution
from codegen.kernels.matmul import MatmulSpec, candidates, matmul
from codegen.kernels.step import Steps
from lazy_backend.driver import discovery
from tests.codegen.kernels.contract import Launcher, dense, operand, output

SECONDS = 1.5  # for each case, at least
# libgomp's threads spin for milliseconds: without a wait a product of 512^3 had one processor of the two, 209 GFLOP/s
# in place of 414.
SETTLE = 0.01  # seconds
CAPS = discovery.load("opencl").open().open(0).properties().complete()


def turn(run: Callable[[], Any]) -> list[float]:
    """Seconds of each run in a turn."""
    settled = time.perf_counter() + SETTLE
    while time.perf_counter() < settled:
        run()
    taken = []
    while not taken or sum(taken) < SETTLE:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken


def compare(label: str, flops: float, ours: Callable[[], Any], torchs: Callable[[], Any], note: str = "") -> None:
    """Print both rates and how many times faster the kernel is."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < 5:
        for run, taken in zip((ours, torchs), times, strict=True):
            taken += turn(run)
    mine, theirs = (flops / statistics.median(t) / 1e9 for t in times)
    print(f"{label:40} {mine:7.1f} {theirs:7.1f} GFLOP/s {mine / theirs:6.2f}x  {note}", flush=True)


def product(layout: str, batch: int, m: int, n: int, k: int) -> None:
    """A matrix product; t: the operand lies transposed."""
    a, b = (
        torch.randn(batch, *((columns, rows) if t == "t" else (rows, columns)))
        for t, rows, columns in zip(layout, (m, k), (k, n), strict=True)
    )
    strides = [(r * c, 1, r) if t == "t" else (r * c, c, 1) for t, r, c in zip(layout, (m, k), (k, n), strict=True)]
    operands = operand("f32", strides[0]), operand("f32", strides[1]), output("f32", (m * n, n, 1))
    spec = MatmulSpec(batch, m, n, k, *operands)
    out = np.empty((batch, m, n), np.float32)
    launcher = Launcher(matmul("product", spec, CAPS), {"a": [a.numpy()], "b": [b.numpy()], "out": [out]})
    views = [x.transpose(1, 2) if t == "t" else x for t, x in zip(layout, (a, b), strict=True)]
    views = [x[0] for x in views] if batch == 1 else views
    result = torch.empty(batch, m, n) if batch > 1 else torch.empty(m, n)
    label = f"{layout} {batch} x {m} x {n} x {k}"
    note = str(tuple(candidates(spec, CAPS)[0]))
    compare(label, 2.0 * batch * m * n * k, launcher.run, lambda: torch.matmul(*views, out=result), note)


def conv(images: int, channels: int, size: int, outs: int, kernel: int, stride: int = 1) -> None:
    """A convolution with padding for the same size, its input's and its weight's gradient."""
    pad = kernel // 2
    x, w = torch.randn(images, channels, size, size), torch.randn(outs, channels, kernel, kernel)
    y = torch.nn.functional.conv2d(x, w, None, stride, pad)
    flops = 2.0 * y.numel() * channels * kernel**2
    geometry = {"stride": (stride,) * 2, "padding": (pad,) * 2, "dilation": (1, 1)}

    def gradient(*mask: bool) -> Any:
        arguments = [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1
        return torch.ops.aten.convolution_backward(y, x, w, None, *arguments, [*mask, False])

    def ours(x: torch.Tensor, w: torch.Tensor, shape: tuple[int, ...], **geometry: Any) -> Callable[[], None]:
        tensors = [Tensor(dense(s, readonly=i < 2), tuple(s), "f32") for i, s in enumerate((x.shape, w.shape, shape))]
        buffers = {"x": [x.numpy()], "w": [w.numpy()], "out": [np.empty(shape, np.float32)]}
        return Launcher(convolution("conv", ConvSpec(*tensors, **geometry), CAPS), buffers).run

    label = f"{images} x {channels} x {size}^2 -> {outs}, {kernel}^2 / {stride}"
    torchs = lambda: torch.nn.functional.conv2d(x, w, None, stride, pad)  # noqa: E731
    compare(label, flops, ours(x, w, tuple(y.shape), **geometry), torchs)
    compare("  input", flops, ours(y, w, tuple(x.shape), transposed=True, **geometry), lambda: gradient(True, False))
    turned = x.transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous(), (channels, outs, kernel, kernel)
    dilated = {"stride": (1, 1), "padding": (pad,) * 2, "dilation": (stride,) * 2}
    compare("  weight", flops, ours(*turned, **dilated), lambda: gradient(False, True))


def attend(backward: bool, batch: int, heads: int, length: int, depth: int, causal: bool) -> None:
    """Self-attention, or its gradients."""
    shape = (batch, heads, length, depth)
    q, k, v, grad = (torch.randn(shape) for _ in range(4))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = flash(q, k, v, 0.0, causal)
    spec = AttentionSpec(
        batch, heads, length, length, depth, depth, depth**-0.5, causal, *(dense(shape) for _ in range(3)),
        dense(shape, readonly=False), dense(shape[:3], readonly=False),
    )  # fmt: skip
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    steps: Steps
    if backward:
        binds = [dense(shape), dense(shape), dense(shape[:3]), *(dense(shape, readonly=False) for _ in range(3))]
        steps = attention_backward("attention", spec, Gradients(*binds), CAPS)
        given |= {"grad": grad, "dq": q.clone(), "dk": k.clone(), "dv": v.clone()}
    else:
        steps = attention("attention", spec, CAPS)
    launcher = Launcher(steps, {name: [np.ascontiguousarray(x.numpy())] for name, x in given.items()})
    gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    torchs = lambda: gradient(grad, q, k, v, out, lse, 0.0, causal) if backward else flash(q, k, v, 0.0, causal)  # noqa: E731
    flops = (10.0 if backward else 4.0) * batch * heads * length**2 * depth / (2 if causal else 1)
    compare(f"{shape} {'causal' if causal else ''}", flops, launcher.run, torchs)


SQUARES = (256, 512, 1000, 1024, 2048, 4096)
LAYERS = ((512, 3072, 768), (512, 768, 3072), (256, 256, 4096), (1024, 1024, 4096), (4096, 256, 256), (64, 4096, 4096))
ATTENTION = [(1, 8, 2048, 64, False), (1, 8, 2048, 64, True), (4, 4, 256, 64, True), (1, 4, 2048, 128, True)]
CASES: dict[str, tuple[Callable[..., None], list[tuple[Any, ...]]]] = {
    "sgemm": (product, [(layout, 1, n, n, n) for n in SQUARES for layout in ("nn", "nt", "tn")]),
    "skinny": (product, [(layout, 1, m, 4096, 4096) for m in (1, 2, 4, 8) for layout in ("nn", "nt")]
               + [(layout, 1, m, 1024, 1024) for m in (8, 16, 32, 64, 128) for layout in ("nn", "nt", "tn")]),
    "layers": (product, [(layout, 1, *case) for case in LAYERS for layout in ("nn", "nt", "tn")]),
    "long_k": (product, [("tn", 1, 64, 64, 65536), ("tn", 1, 256, 128, 4096), ("tn", 1, 768, 768, 8192)]),
    "small": (product, [("nt", 48, 128, 128, 64), ("nn", 48, 128, 64, 128), ("tn", 48, 128, 64, 128),
                        ("nn", 256, 16, 16, 16), ("nn", 1, 4096, 64, 64), ("nt", 1, 64, 10, 512)]),
    "conv": (conv, [(4, 64, 56, 64, 3), (4, 128, 28, 128, 3), (4, 256, 14, 256, 3), (4, 512, 7, 512, 3),
                    (4, 64, 56, 128, 3, 2), (4, 3, 64, 64, 7, 2)]),
    "attention": (lambda *case: attend(False, *case), ATTENTION),
    "attention_backward": (lambda *case: attend(True, *case), ATTENTION),
}  # fmt: skip


def main(names: list[str]) -> None:
    """Run these groups of cases, or all."""
    warnings.simplefilter("ignore")
    for name in names or CASES:
        print(name)
        run, cases = CASES[name]
        for case in cases:
            run(*case)


if __name__ == "__main__":
    main(sys.argv[1:])
