"""Convolutions (N C spatial, 1 to 3 spatial dims) and their gradients as matrix products.

On a CPU the input is first spread into planes with its padding, one plane for each phase of the stride. In such a
plane the elements that one kernel tap meets lie at a fixed distance from those of another, so with outputs numbered
along the padded width every load of the product is a plain vector load. The numbers that fall into the padding are
computed and not stored; where a row of outputs is whole vectors there are none. On a GPU the product gathers from the
input itself.

    forward          w[o, (c, t)]  x  x[(c, t), u]         for each image
    transposed       the same for each phase of the output, with the taps that meet it, last tap first
    weight gradient  w[o, (n, u)]  x  x[(n, u), (c, t)]    a convolution whose kernel is larger than its output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import ceil, gcd, prod
from typing import Any, NamedTuple

from codegen.builder import Builder, V
from codegen.kernels.blocks import lanes
from codegen.kernels.contraction import Load, Operand, Output, Runs, Store, Term
from codegen.kernels.matmul import MatmulSpec, matmul
from codegen.kernels.step import Step, Steps
from ops_core.dtypes import BY_NAME
from ops_core.sizes import deferred, multiple

Index = Sequence[V | int]

# Elements that a work item spreads into planes, at least: a work-group takes some 60 ns, as long as 600 of them.
# benchmarks: the CNN demo, whose eight such copies took 0.71 ms of a step of 7.5 and take 0.13 (Zen 5).
SPREAD_EACH = 4096


class Tensor(NamedTuple):
    """An operand or the result of a convolution.

    bind        declares a kernel's arguments; for an operand returns read(index, along=None, width=1) -> V: an element,
                or a vector along dim `along`; for the result write(index, values, along=None)
    shape       N C spatial; weights: [O, C / groups, spatial], transposed [C, O / groups, spatial]
    dtype       in registers
    contiguous  the last dim may be read or written as vectors
    flops       elementwise operations of the prologue for each element
    """

    bind: Callable[[Builder], Callable[..., Any]]
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool = True
    flops: int = 0


class ConvSpec(NamedTuple):
    """out = epilogue(convolution(x, w)). acc: dtype of the sums. names: of x, w and out in `Step.args`."""

    x: Tensor
    w: Tensor
    out: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    groups: int = 1
    acc: str = "f32"
    index_bits: int = 32
    names: tuple[str, str, str] = ("x", "w", "out")


class Axis(NamedTuple):
    """One spatial dim of a correlation: output u and tap t meet input u * step + t * spacing - pad.

    size: of the input; outputs, taps: their numbers.
    """

    size: int
    outputs: int
    taps: int
    step: int
    spacing: int
    pad: int

    @property
    def cycle(self) -> int:
        """Tap t and tap t + cycle meet the same phase of the input."""
        return self.step // gcd(self.step, self.spacing)

    @property
    def phases(self) -> int:
        """How many phases of the input are met."""
        return min(self.taps, self.cycle)

    @property
    def reach(self) -> int:
        """How far the last tap is from the first, in elements of one phase."""
        return max(self.taps - 1, 0) * self.spacing // self.step

    @property
    def extent(self) -> int:
        """Elements of one phase that are met."""
        return self.outputs + self.reach

    def valid(self, phase: int) -> tuple[int, int]:
        """Which elements of a phase lie in the input; the others are padding."""
        first = phase * self.spacing % self.step - self.pad
        return max(0, ceil(-first / self.step)), max(0, min(self.extent, (self.size - 1 - first) // self.step + 1))


class Planes(NamedTuple):
    """How the input is spread: for each image and channel the phases, each a block of `plane` elements."""

    axes: tuple[Axis, ...]
    plane: int

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in a plane between neighbours along each dim."""
        extents = [a.extent for a in self.axes]
        return tuple(prod(extents[d + 1 :]) for d in range(len(extents)))

    @property
    def span(self) -> int:
        """Numbers from the first output to the last."""
        return sum((a.outputs - 1) * s for a, s in zip(self.axes, self.strides, strict=True)) + 1

    @property
    def size(self) -> int:
        """Elements for one image and channel."""
        return prod(a.phases for a in self.axes) * self.plane

    def tap(self, t: V) -> V:
        """Distance from an output's number to the element that tap number t meets."""
        offset: V | int = 0
        for a, stride, at in zip(self.axes, self.strides, unravel(t, [a.taps for a in self.axes]), strict=True):
            offset = at * a.spacing // a.step * stride + offset
        return self.phase(t) * self.plane + offset

    def phase(self, t: V) -> V:
        """The number of the plane that tap number t reads."""
        number: V | int = 0
        for a, at in zip(self.axes, unravel(t, [a.taps for a in self.axes]), strict=True):
            number = (at % a.cycle if a.phases > 1 else at * 0) + number * a.phases
        return number  # type: ignore[return-value]


def channel_and_tap(term: Term, taps: Sequence[int]) -> tuple[V, V]:
    """Which channel a term is of, and the number of its tap."""
    return term if isinstance(term, tuple) else (term // prod(taps), term % prod(taps))


def unravel(index: V, shape: Sequence[int]) -> list[V]:
    """The coordinates of a flat index."""
    found = []
    for n in reversed(shape[1:]):
        found.append(index % n)
        index = index // n
    return [index, *reversed(found)]


def convolution(name: str, spec: ConvSpec, caps: Any) -> Steps:
    """Kernels for a convolution. caps: `Capabilities`."""
    if spec.transposed:
        return transposed(name, spec, caps)
    outputs, taps = spec.out.shape[2:], spec.w.shape[2:]
    axes = tuple(
        Axis(n, u, t, s, d, p)
        for n, u, t, s, d, p in zip(
            spec.x.shape[2:], outputs, taps, spec.stride, spec.dilation, spec.padding, strict=True
        )
    )
    if caps.is_cpu and prod(taps) > prod(outputs):
        return weight_gradient(name, spec, axes, caps)
    return forward(name, spec, axes, caps)


def planes(axes: tuple[Axis, ...], spec: ConvSpec, caps: Any, rows: int = 1) -> Planes:
    """Planes long enough that a whole vector can be read from every number of an output, wherever a tap meets it.

    rows: how many runs of outputs a product walks one after the other; where there are several, no vector may cross."""
    bare = Planes(axes, 0)
    furthest = sum(a.reach * s for a, s in zip(axes, bare.strides, strict=True))
    width = lanes(caps, BY_NAME[spec.acc].bytes, bare.span if rows == 1 else bare.span * caps.vector_bytes)
    return bare._replace(plane=ceil(bare.span / width) * width + furthest)


def forward(name: str, spec: ConvSpec, axes: tuple[Axis, ...], caps: Any) -> Steps:
    """For each image and group: weights x taps of the image."""
    channels, outs = spec.x.shape[1] // spec.groups, spec.w.shape[0] // spec.groups
    taps = spec.w.shape[2:]

    def weights(k: Builder) -> Load:
        read = spec.w.bind(k)

        def load(z: V, i: V, p: Term, width: int = 1) -> V:
            if width > 1:
                return k.pack([load(z, i, p + lane) for lane in range(width)])  # type: ignore[operator]
            channel, tap = channel_and_tap(p, taps)
            return read([z % spec.groups * outs + i, channel, *unravel(tap, taps)])

        return load

    a = Operand(weights, spec.w.dtype, 1, spec.groups > 1, spec.w.flops)
    return correlate(name, spec, axes, a, channels, outs, lambda u: list(u), caps)


def transposed(name: str, spec: ConvSpec, caps: Any) -> Steps:
    """A product for each phase of the output: the outputs a stride apart that meet the same taps."""
    ins, outs = spec.x.shape[1] // spec.groups, spec.w.shape[1]
    sizes, kernel = spec.out.shape[2:], spec.w.shape[2:]
    steps: list[Step] = []
    temps: list[int] = []
    for number, phase in enumerate(product(*(range(min(s, n)) for s, n in zip(spec.stride, sizes, strict=True)))):
        axes, taps = [], []
        for d, first in enumerate(phase):
            stride, dilation, pad = spec.stride[d], spec.dilation[d], spec.padding[d]
            # Output first + stride * u and tap r meet input u + (first + pad - r * dilation) / stride.
            met = [r for r in range(kernel[d]) if (first + pad - r * dilation) % stride == 0][::-1]
            taps.append(met)
            spacing = (met[0] - met[1]) * dilation // stride if len(met) > 1 else 1
            start = (first + pad - met[0] * dilation) // stride if met else 0
            axes.append(Axis(spec.x.shape[2 + d], ceil((sizes[d] - first) / stride), len(met), 1, spacing, -start))
        part = phase_product(f"{name}_{number}", spec, tuple(axes), taps, phase, (ins, outs), caps)
        for step in part.steps:
            args = tuple(a + len(temps) if isinstance(a, int) else a for a in step.args)
            steps.append(step._replace(args=args))
        temps += part.temps
    return Steps(steps, temps)


def phase_product(
    name: str, spec: ConvSpec, axes: tuple[Axis, ...], taps: list[list[int]], phase: tuple[int, ...],
    channels: tuple[int, int], caps: Any,
) -> Steps:  # fmt: skip
    """One phase of a transposed convolution. taps: for each dim those that meet it, last first."""
    ins, outs = channels
    counts = [len(t) for t in taps]

    def weights(k: Builder) -> Load:
        read = spec.w.bind(k)

        def load(z: V, i: V, p: Term, width: int = 1) -> V:
            channel, tap = channel_and_tap(p, counts)
            at = unravel(tap, counts)
            where = [t[0] - a * (t[0] - t[1]) if len(t) > 1 else t[0] for a, t in zip(at, taps, strict=True)]
            return read([z % spec.groups * ins + channel, i, *where])

        return load

    def place(u: Index) -> list[V | int]:
        return [at * s + first for at, s, first in zip(u, spec.stride, phase, strict=True)]

    a = Operand(weights, spec.w.dtype, None, spec.groups > 1, spec.w.flops)
    return correlate(name, spec, axes, a, ins, outs, place, caps)


def correlate(
    name: str, spec: ConvSpec, axes: tuple[Axis, ...], a: Operand, channels: int, outs: int,
    place: Callable[[Index], list[V | int]], caps: Any,
) -> Steps:  # fmt: skip
    """out[n, (group, i), place(u)] = sum over c, t of a[i, (c, t)] x[n, (group, c), u * step + t * spacing - pad]."""
    counts = [ax.taps for ax in axes]
    taps = prod(counts)
    outputs = [ax.outputs for ax in axes]
    layout = planes(axes, spec, caps)
    groups, images = spec.groups, spec.x.shape[0]
    dense = place(outputs) == outputs and spec.out.contiguous

    strides, span = tuple(prod(outputs[d + 1 :]) for d in range(len(axes))), prod(outputs)
    runs: Runs | None
    if not caps.is_cpu:
        b = Operand(lambda k: from_input(k, spec, axes, channels), spec.acc, None, flops=spec.x.flops)
        runs = Runs(span, span, 1)
    elif taps and multiple(outputs[-1], caps.vector_bytes // BY_NAME[spec.acc].bytes):
        b = Operand(lambda k: from_planes(k, spec, layout, channels, outputs), spec.acc, 1)
        runs = None if dense else Runs(span, span, 1)
    elif taps:
        strides, span = layout.strides, layout.span
        b = Operand(lambda k: from_planes(k, spec, layout, channels), spec.acc, 1)
        width = min(lanes(caps, BY_NAME[spec.acc].bytes, outputs[-1]), outputs[-1]) if dense else 1
        runs = Runs(axes[-1].extent, outputs[-1], width)
    else:
        strides, span = Planes(axes, 0).strides, Planes(axes, 0).span
        runs = Runs(axes[-1].extent, outputs[-1], 1)
    if not taps:
        a = b = Operand(lambda k: lambda z, i, p, width=1: k.const(0, spec.acc, width), spec.acc, 1)

    def result(k: Builder) -> Store:
        write = spec.out.bind(k)

        def store(z: V, i: V, j: V, acc: V, width: int = 1) -> None:
            sizes = extents(strides, span)
            u = [j // s % n if d else j // s for d, (s, n) in enumerate(zip(strides, sizes, strict=True))]
            inside = [at < n for at, n, e in zip(u[1:-1], outputs[1:-1], sizes[1:-1], strict=True) if n < e]
            along = 1 + len(axes) if width > 1 else None
            channel = z % groups * outs + i
            if inside:
                with k.if_(inside[0]):
                    write([z // groups, channel, *place(u)], [acc], along)
            else:
                write([z // groups, channel, *place(u)], [acc], along)

        return Store(store)

    matmul_spec = MatmulSpec(
        images * groups, outs, span, channels * taps, a, b, Output(result, 1, runs), spec.acc, spec.index_bits,
        (spec.names[1], "planes" if caps.is_cpu else spec.names[0], spec.names[2]),
        inner=max(taps, 1) if caps.is_cpu else 1,
    )  # fmt: skip
    steps, temps = matmul(name, matmul_spec, caps)
    if not taps:
        return Steps([s._replace(args=spec.names[2:]) for s in steps], temps)
    if not caps.is_cpu:
        return Steps(steps, temps)
    first = spread(f"{name}_planes", spec.x, spec.names[0], layout, spec, caps, len(temps))
    return Steps([first, *named(steps, planes=len(temps))], [*temps, planes_bytes(spec.x, layout, spec)])


def extents(strides: Sequence[int], span: int) -> list[int]:
    """Sizes of the dims that have these strides, of which the last is 1."""
    return [span, *(a // b for a, b in pairwise(strides))]


def named(steps: Sequence[Step], **temps: int) -> list[Step]:
    """Steps with temps in place of the arguments of these names."""
    return [s._replace(args=tuple(temps.get(a, a) if isinstance(a, str) else a for a in s.args)) for s in steps]


def planes_bytes(x: Tensor, layout: Planes, spec: ConvSpec) -> int:
    """Bytes of all planes of x."""
    return x.shape[0] * x.shape[1] * layout.size * BY_NAME[spec.acc].bytes


def from_planes(k: Builder, spec: ConvSpec, layout: Planes, channels: int, outputs: Sequence[int] = ()) -> Load:
    """B of the forward product: (c, t) x output number, read from the planes.

    outputs: their sizes where they are numbered without the planes' padding."""
    buffer = k.buffer(spec.acc, readonly=True)

    def load(z: V, p: Term, j: V, width: int = 1) -> V:
        channel, tap = channel_and_tap(p, [a.taps for a in layout.axes])
        if outputs:
            j = sum((u * s for u, s in zip(unravel(j, outputs), layout.strides, strict=True)), k.const(0, "index"))
        return k.load(buffer, (z * channels + channel) * layout.size + j + layout.tap(tap), width)

    return load


def from_input(k: Builder, spec: ConvSpec, axes: tuple[Axis, ...], channels: int) -> Load:
    """The same, one element at a time, read from the input itself; zero in the padding."""
    read = spec.x.bind(k)

    def load(z: V, p: V, j: V, width: int = 1) -> V:
        at, inside = [], k.const(True, "bool")
        counts = [a.taps for a in axes]
        channel, tap = channel_and_tap(p, counts)
        for a, u, t in zip(axes, unravel(j, [a.outputs for a in axes]), unravel(tap, counts), strict=True):
            i = u * a.step + t * a.spacing - a.pad
            inside = inside & (i >= 0) & (i < a.size)
            at.append(k.map("maximum", k.map("minimum", i, a.size - 1), 0))
        v = read([z // spec.groups, z % spec.groups * channels + channel, *at])
        return k.select(inside, v, k.const(0, spec.acc))

    return load


@deferred
def channels_each(plane: int) -> int:
    """How many channels a work item spreads, whose planes have so many elements."""
    return max(1, SPREAD_EACH // plane)


def spread(name: str, x: Tensor, argument: str, layout: Planes, spec: ConvSpec, caps: Any, temp: int) -> Step:
    """The kernel that copies each image and channel of x into its planes, zero where there is no input."""
    k = Builder(name, spec.index_bits, (1, 1, 1))
    read, out = x.bind(k), k.buffer(spec.acc)
    width = lanes(caps, BY_NAME[spec.acc].bytes, layout.size)
    each, rank = channels_each(layout.size), len(layout.axes)

    def fill(d: int, start: V, at: list[V | int], phase: tuple[int, ...]) -> None:
        """Copy dims d and on of one phase; `start` is where dims before d begin."""
        a = layout.axes[d]
        lo, hi = a.valid(phase[d])
        first = phase[d] * a.spacing % a.step - a.pad
        plain = d == rank - 1 and x.contiguous and a.step == 1
        vector = lanes(caps, BY_NAME[spec.acc].bytes, max(hi - lo, 1)) if plain else 1
        whole = lo + (hi - lo) // vector * vector
        for low, high, step in ((lo, whole, vector), (whole, hi, 1)):
            if low < high:
                with k.for_(low, high, step) as loop:
                    here = [*at, loop.iv * a.step + first]
                    if d < rank - 1:
                        fill(d + 1, start + loop.iv * layout.strides[d], here, phase)
                    else:
                        v = read(here, 1 + rank if step > 1 else None, step)
                        k.store(out, start + loop.iv, v)

    image, channel = k.global_id(1), k.global_id(0) * each
    with k.for_(channel, k.map("minimum", channel + each, x.shape[1])) as channels:
        base = (image * x.shape[1] + channels.iv) * layout.size
        with k.for_(0, layout.size // width) as loop:
            k.store(out, base + loop.iv * width, k.const(0, spec.acc, width))
        with k.for_(layout.size // width * width, layout.size) as loop:
            k.store(out, base + loop.iv, k.const(0, spec.acc))
        for number, phase in enumerate(product(*(range(a.phases) for a in layout.axes))):
            fill(0, base + number * layout.plane, [image, channels.iv], phase)
    return Step(name, k.finish(), (argument, temp), (ceil(x.shape[1] / each), x.shape[0], 1), (1, 1, 1))


def weight_gradient(name: str, spec: ConvSpec, axes: tuple[Axis, ...], caps: Any) -> Steps:
    """A convolution whose kernel is larger than its output: outputs and taps exchange their roles.

    x [B, groups * N, ...] and w [O, N, ...] give out [B, O, ...]: w[o, (n, u)] x x[(n, u), (b, t)].
    """
    turned = tuple(Axis(a.size, a.taps, a.outputs, a.spacing, a.step, a.pad) for a in axes)
    layout = planes(turned, spec, caps, rows=spec.w.shape[1])
    row = layout.plane - sum(a.reach * s for a, s in zip(turned, layout.strides, strict=True))
    # The kernel lies in a plane of its own, numbered like the planes of x and zero between.
    flat = Planes(tuple(Axis(a.outputs, a.extent, 1, 1, 1, 0) for a in turned), row)
    groups, images, outs = spec.groups, spec.w.shape[1], spec.w.shape[0] // spec.groups
    blocks, taps = spec.x.shape[0], prod(a.taps for a in turned)

    def kernel(k: Builder) -> Load:
        buffer = k.buffer(spec.acc, readonly=True)
        return lambda z, i, p, width=1: k.load(buffer, (z * outs + i) * (images * row) + p, width)

    def image(k: Builder) -> Load:
        buffer = k.buffer(spec.acc, readonly=True)

        def load(z: V, p: V, j: V, width: int = 1) -> V:
            channel = j // taps * (groups * images) + z * images + p // row
            return k.load(buffer, channel * layout.size + layout.tap(j % taps) + p % row, width)

        return load

    def result(k: Builder) -> Store:
        write = spec.out.bind(k)

        def store(z: V, i: V, j: V, acc: V, width: int = 1) -> None:
            write([j // taps, z * outs + i, *unravel(j % taps, [a.taps for a in turned])], [acc], None)

        return Store(store)

    n = blocks * taps
    product_spec = MatmulSpec(
        groups, outs, n, images * row, Operand(kernel, spec.acc, 1), Operand(image, spec.acc, 0),
        Output(result, 1, Runs(n, n, 1)), spec.acc, spec.index_bits, ("kernel", "planes", spec.names[2]),
    )  # fmt: skip
    steps, temps = matmul(name, product_spec, caps)
    at = len(temps)
    before = [
        spread(f"{name}_planes", spec.x, spec.names[0], layout, spec, caps, at),
        spread(f"{name}_kernel", spec.w, spec.names[1], flat, spec, caps, at + 1),
    ]
    sizes = [planes_bytes(spec.x, layout, spec), planes_bytes(spec.w, flat, spec)]
    return Steps([*before, *named(steps, planes=at, kernel=at + 1)], [*temps, *sizes])
