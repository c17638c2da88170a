"""A window without a plan -> a plan: lowering, scheduling, building. Runs on an executor thread, with the GIL.

The window arrives as plain objects (written by csrc/module.cpp):

    {"device": int, "nodes": [(op name, args, outs, seed, user line)], "slots": [(nbytes, alive, had data)],
     "scalars": [value, ..], "ordered": whether torch.use_deterministic_algorithms was on}

An argument is None, a Python number, a list of arguments, or a tagged tuple: ("tensor", slot, dtype, sizes, strides,
offset), ("scalar", index, kind), ("host_scalar", dtype, wrapped, scalar), ("enum", number), ("device", index).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch

from codegen import core_calls, externs, schedule
from codegen.functionalize import Window, WindowNode, functionalize
from codegen.plan import Arg, CoreCall, KernelSource, Plan
from codegen.printer import print_source
from codegen.source import Source
from lazy_backend import (
    _C,
    archive,
    background,
    cache,
    config,
    custom,
    entries,
    identity,
    kernels,
    plans,
    repeats,
    tuning,
)
from lazy_backend.builder import Ended
from lazy_backend.core_steps import core_step, core_steps
from lazy_backend.driver import abi
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.families import Families
from lazy_backend.kernels import Asked, NoCompile, described, library_handle
from lazy_backend.numbering import numbers
from lazy_backend.reports import compiles, explain, profile
from lazy_backend.sized import Untraceable
from lazy_backend.uncollected import uncollected
from lazy_backend.upcoming import Upcoming
from lazy_backend.variants import MIN_RUNS, Family, Variant
from ops_core import sizes
from ops_core.ir import Node

log = logging.getLogger("lazy_backend.compile")


@functools.cache
def capabilities(device: int) -> Capabilities:
    """What the device is, with defaults filled in."""
    return abi.unpack(abi.Properties.from_buffer_copy(_C.device_properties(device))).complete()


@functools.cache
def library(device: int) -> frozenset[str]:
    """The core ops that the device's driver, or the host's library in its place, offers beside generated kernels."""
    return frozenset(_C.extern_ops(device, list(externs.CLAIMS)))


def extern(device: int, node: Node) -> bool:
    """Whether a library computes the node: the driver's own where it was measured to win, else the host's by rule."""
    if not externs.claims(library(device), node):
        return False
    told = [value for name, value in node.attrs.items() if name != "output_padding"]  # which the result's sizes tell
    if any(sizes.varies(n) for value in told if isinstance(value, tuple) for n in value):
        raise Untraceable("a library takes strides and paddings as they are")
    if node.op in entries.own(device):
        return entries.wins(device, node)
    return externs.suits_host(node, _fast_halves())


@functools.cache
def _fast_halves() -> bool:
    """Whether the host multiplies tiles of bf16: several times as fast as what OpenCL's compiler makes of float32."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))


# Loaded kernels by (device, MLIR without its name), whose it is to load those that are not there yet, and the
# structures that windows have had, by their key.
_kernels = kernels.table()
_asked: dict[tuple[int, str], Kernels] = {}
_families = Families()
_upcoming = Upcoming()

_compiling = threading.Lock()  # one compile at a time

# Lines that a kernel's description names, where several use it.
MAX_LINES = 4


class Kernels:
    """The kernels of a graph's plan, in its order."""

    def __init__(self, window: Window, family: Family) -> None:
        self.variants: list[Variant] = []
        self._window, self._family = window, family
        self._keys: list[tuple[int, str]] = []
        self._new: list[tuple[int, str]] = []
        self._loading = kernels.Loading(window.device)
        self._loaded = False

    def ask(self, source: KernelSource, origins: Sequence[int]) -> None:
        """One more kernel: known, or loaded, or built from now on. origins: the nodes that it computes first."""
        device, name = self._window.device, source.name
        # Sizes that vary are arguments already where they are traced.
        traced = sizes.current() is not None
        variant = Variant(source.mlir, ()) if traced else self._family.variant(source.mlir, name)
        key = device, variant.mlir.replace(f"@{name}(", "@(")
        self.variants.append(variant)
        self._keys.append(key)
        if key in _kernels or key in _asked:
            return
        self._new.append(key)
        _asked[key] = self
        line = self._window.nodes[origins[0]].line if origins else "an unknown line"
        entry = cache.kernel_name(key[1], _C.device_properties(device))
        function = f"k_{entry[:12]}"
        renamed = variant.mlir.replace(f"@{name}(", f"@{function}(")
        caps = capabilities(device)
        source_of = functools.partial(print_source, renamed, caps.language, caps.address_args, not caps.is_cpu)
        self._loading.ask(Asked(entry, function, line, source_of))

    def wait(self) -> bool:
        """Whether the driver's compiler still has some of them to build."""
        return self._loading.wait()

    def handles(self) -> list[int]:
        """The driver's handles, when all are there. Raises what the driver raises where it cannot build one."""
        self.load()
        for key in self._keys:
            if key in _asked:  # of a window whose turn comes later
                _asked[key].load()
        return [_kernels[key] for key in self._keys]

    def load(self) -> None:
        """Loads those that nobody had asked for before, once they are built."""
        if self._loaded:
            return
        self._loaded = True
        try:
            _kernels.update(zip(self._new, self._loading.finish(), strict=True))
        finally:
            self._forget()

    def abandon(self) -> None:
        """Waits for what is being built, and leaves the rest."""
        self._loaded = True
        self._forget()
        self._loading.abandon()

    def _forget(self) -> None:
        for key in self._new:
            _asked.pop(key, None)


def capture(window: Window, made: list[Plan], steps: list[tuple]) -> None:
    """Add a window to the explanation that is being made."""
    if explain.captured is None:
        return
    kernels = []
    for plan in made:
        for launch in plan.launches:
            if isinstance(launch, CoreCall):
                node = window.nodes[launch.origin]
                kernels.append(explain.KernelReport([node.op], [node.line], (0, 0, 0), "", f"library: {launch.op}"))
                continue
            source, nodes = plan.kernels[launch.kernel], [window.nodes[i] for i in launch.origins]
            ops, lines = [node.op for node in nodes], list(dict.fromkeys(node.line for node in nodes))
            kernels.append(explain.KernelReport(ops, lines, launch.global_size, source.mlir, source.source))
    host = [window.nodes[step[1]].op for step in steps if step[0] == "host"]
    explain.captured.append(
        explain.WindowReport([n.op for n in window.nodes], [n.line for n in window.nodes], kernels, host)
    )


def compile_window(source: dict[str, Any]) -> dict[str, Any]:
    """The plan of a window, as plain objects for csrc/module.cpp: compiled, or the rung below it for now."""
    family = _families.of(source)
    if plan := traced(source, family):
        return plan
    window = Window.from_recorded(source)
    family.meet(window)
    if archive.recording is not None:
        plan = compiled(source, window, family)
        archive.recording.take(source, plan)
        return plan
    if explain.captured is None:
        if family.rare(source["generic_runs"]) and family.varying <= interpretable(window):
            return compiled(source, window, family, generic=True)
        if config.COMPILE.get() == "async" and (host := interpretable(window)) and background.takes(source):
            return left_to_background(source, window, family, host)
    return compiled(source, window, family)


def forget() -> None:
    """Forgets what is known of structures and kernels."""
    with _compiling:
        _upcoming.forget()
        _families.clear()
        repeats.forget()
        schedule.forget()


kernels.before_forgetting.append(forget)


def foretold(source: dict[str, Any]) -> dict[str, Any] | None:
    """The plan of a window of other sizes than its structure came with, if a trace gives it."""
    family = _families.known(source)
    if family is None or not family.traces.traces or profile.active:
        return None
    return family.traces.foretold(numbers(source))


def traced(source: dict[str, Any], family: Family) -> dict[str, Any] | None:
    """The window's plan from a new trace of its structure, or None where that is not for such a window."""
    watched = archive.recording is not None or explain.captured is not None or profile.active
    if watched or config.COMPILE.get() != "sync" or capabilities(source["device"]).level == 1:
        return None

    def compile(window: Window) -> dict[str, Any]:
        with compiling():
            compiles.note(source)
            return fused(window, family)

    earlier = plans.met.get(source["structure"])
    if earlier and _families.of(earlier) is family:
        family.traces.note(plans.met.pop(source["structure"]))
    first = not family.traces.seen
    try:
        plan = family.traces.plan(source, compile)
        if plan and first:  # in place of the plan for its sizes
            plans.remember(source, plan)
        return plan
    except (NoCompile, FallbackForbidden, Ended):
        raise
    except Exception:
        log.exception("a window could not be traced; its first op is %s", source["nodes"][0][4])
        family.traces.give_up()
        return None


class FallbackForbidden(NotImplementedError):
    """LAZY_FALLBACK=error, and an op of the window has no lowering."""


# Frames that a window's longest chain may take, walked from its end: 512 ops, each of several maps, four frames a map.
DEEPEST = 20_000


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """One compile at a time, that may walk a chain as long as a window: Python's own limit ends at some 250 maps."""
    with _compiling, uncollected():
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, DEEPEST))
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


def compiled(source: dict[str, Any], window: Window, family: Family, generic: bool = False) -> dict[str, Any]:
    """The window's plan with its kernels. A compiler that fails costs speed, not the script: the host runs it then.

    generic: a plan for whatever sizes the nodes have in which windows of the family differed; the host runs these.
    """
    with compiling():
        try:
            compiles.note(source)
            if generic:
                plan = fused(window, family, family.varying)
                return plan | {"varying": sorted(family.varying), "runs_each": MIN_RUNS}
            plan = _upcoming.finished(source) or beside_others(lambda: Begun(window, family))
            plans.remember(source, plan)
            return plan
        except (NoCompile, FallbackForbidden, Ended):
            raise
        except Exception:
            if not capabilities(window.device).host_visible:
                raise
            log.exception(
                "a window could not be compiled and runs on the CPU; its first op is %s", window.nodes[0].line
            )
            return background.op_by_op(source, "host")


def beside_others(plan: Callable[[], Begun]) -> dict[str, Any]:
    """The plan when its kernels are there. Meanwhile windows of new structures are planned that wait for their turn."""
    begun = plan()

    def begin(source: dict[str, Any]) -> Begun | None:
        if _families.known(source) or repeats.other_sizes(source) is not None:  # it may be traced
            return None
        return Begun(Window.from_recorded(source), _families.of(source))

    if config.COMPILE.get() == "sync" and not (archive.recording or explain.captured is not None or profile.active):
        _upcoming.begin(begun, begin)
    try:
        return begun.finish()
    except LookupError:  # it shares a kernel with a window that was passed over meanwhile
        return plan().finish()


def compile_now(source: dict[str, Any]) -> None:
    """Compiles for another process, which finds the plan in the cache. Raises what the compiler raises."""
    kernels.make_room(source["device"])
    window = Window.from_recorded(source)
    family = _families.of(source)
    with compiling():
        plans.remember(source, fused(window, family))


def fused(window: Window, family: Family, interpreted: Set[int] = frozenset()) -> dict[str, Any]:
    """The window's plan: core graphs, fused kernels, and host steps for ops without a lowering.

    interpreted: nodes that run on the host though they have one.
    """
    return Begun(window, family, interpreted).finish()


class Begun:
    """A window's plan, but for its kernels, which are asked for, and built from now on.

    Raises what planning raises, FallbackForbidden, and Untraceable where sizes are traced.
    """

    def __init__(self, window: Window, family: Family, interpreted: Set[int] = frozenset()) -> None:
        self.device = window.device
        self._window, self._interpreted = window, interpreted
        self._tiles: dict[str, Any] = {}  # products, and the schedules that were measured for them
        tracing = sizes.current() is not None
        family.compiled += not tracing
        tiles = tuning.tiles(window.device, self._tiles) if tuning.on() and not tracing else None
        segments, checks, statics = functionalize(window, interpreted)
        if tracing and statics:
            raise Untraceable("it depends on the value of a scalar")
        for op, names in statics:
            identity.mark_static(op, names)
        self._checks, self._once = [tuple(check) for check in checks], bool(statics)
        # Of each segment the number of its node on the host, or its plan.
        self._parts: list[int | core_calls.CorePlan | tuple[Plan, Kernels]] = []
        caps, library_has = capabilities(window.device), functools.partial(extern, window.device)
        try:
            for segment in segments:
                if segment.host_node is not None:
                    if tracing:
                        raise Untraceable("an op of it runs on the host, or has no lowering for sizes that vary")
                    self._announce(segment.host_node)
                    self._parts.append(segment.host_node)
                    continue
                assert segment.graph is not None
                if caps.level == 1:
                    self._parts.append(core_calls.plan(segment.graph, caps))
                else:
                    built = Kernels(window, family)
                    self._parts.append((Plan(), built))  # what it has asked for when planning fails is not lost
                    plan = schedule.plan(segment.graph, window.slot_infos(), caps, library_has, tiles, built.ask)
                    self._parts[-1] = plan, built
        except BaseException:
            self.abandon()
            raise

    def _announce(self, number: int) -> None:
        node = self._window.nodes[number]
        if number in self._interpreted or node.op in custom.KERNELS:
            return
        try:
            _C.announce_host_op(node.op, node.line)
        except NotImplementedError as error:
            raise FallbackForbidden(str(error)) from None

    def wait(self) -> bool:
        """Whether the driver's compiler still has some of its kernels to build."""
        return any(isinstance(part, tuple) and part[1].wait() for part in self._parts)

    def abandon(self) -> None:
        """Nobody needs it any more."""
        for part in self._parts:
            if isinstance(part, tuple):
                part[1].abandon()

    def finish(self) -> dict[str, Any]:
        """The plan, when its kernels are there. Raises what the driver's compiler raises."""
        try:
            return self._finished()
        except BaseException:
            self.abandon()
            raise

    def _finished(self) -> dict[str, Any]:
        window = self._window
        steps: list[tuple] = []
        numbers: dict[int, int] = {}  # of steps, for a profile
        pieces: list[int] = []  # bytes of each piece of memory for intermediates,
        temps: list[tuple[int, int]] = []  # and the piece and offset of each intermediate, of all segments
        for part in self._parts:
            if isinstance(part, int):
                node = window.nodes[part]
                if part not in self._interpreted and node.op in custom.KERNELS:
                    steps.append(custom_launch(window.device, node))
                    if profile.active:
                        numbers[len(steps) - 1] = profile.custom(window, node, steps[-1])
                else:
                    steps.append(("interpret" if part in self._interpreted else "host", part))
                continue
            plan: Plan | core_calls.CorePlan
            if isinstance(part, tuple):
                plan, built = part
                added = launches(plan, window, built, len(temps))
            else:
                plan = part
                added = core_steps(plan, [node.line for node in window.nodes], len(temps))
            if profile.active:
                numbers |= enumerate(profile.numbers(window, plan, added), len(steps))
            steps += added
            temps += [(len(pieces) + temp.piece, temp.offset) for temp in plan.temps]
            pieces += plan.pieces
        capture(window, [part[0] for part in self._parts if isinstance(part, tuple)], steps)
        more: dict[str, Any] = {"numbers": [numbers.get(i, 0) for i in range(len(steps))]} if numbers else {}
        more |= {"tiles": self._tiles} if self._tiles else {}
        whole = {"pieces": pieces, "temps": temps, "steps": steps, "checks": self._checks, "once": self._once}
        return whole | more


def custom_launch(device: int, node: WindowNode) -> tuple:
    """The step of a user's own kernel. Raises RuntimeError where the device compiles another language than OpenCL C."""
    caps = capabilities(device)
    if caps.language != "opencl":
        raise RuntimeError(f"{node.op} is OpenCL C, and the device compiles {caps.language or 'nothing'}")
    found = custom.KERNELS[node.op]
    if caps.address_args:
        found = custom.by_number(found)
    key = (device, found.source)
    if key not in _kernels:
        entry = cache.kernel_name(found.source, _C.device_properties(device))
        loading = kernels.Loading(device)
        loading.ask(Asked(entry, found.function, node.line, lambda: Source("", (), found.source)))
        [_kernels[key]] = loading.finish()
        described[_kernels[key]] = f"{node.op} ({node.line})"
    return custom.launch(node, found, _kernels[key], caps.address_args)


def interpretable(window: Window) -> frozenset[int]:
    """The nodes that the host's kernels can run on the same memory, with the same results up to rounding."""
    if not capabilities(window.device).host_visible:
        return frozenset()
    return frozenset(i for i, node in enumerate(window.nodes) if not on_device_only(node))


def on_device_only(node: WindowNode) -> bool:
    """Whether the host has no such kernel: it would draw other numbers, or knows nothing of the op."""
    draws = node.seed is not None and not (node.op in _ATTENTION and node.args[_ATTENTION[node.op]] == 0)
    unlike = node.op in _HOST_UNLIKE or any(name in node.op for name in _DEVICES_ONLY)
    return draws or unlike or node.op in custom.KERNELS


# Ops whose CPU kernel in torch 2.13 gives something else: NaN where a result in float16 or bfloat16 is finite; what
# backward needs in other shapes than torch's Meta kernel says.
_HOST_UNLIKE = frozenset({
    "aten.linalg_matrix_exp.default", "aten._embedding_bag.default", "aten._embedding_bag_forward_only.default",
    "aten._embedding_bag_dense_backward.default", "aten._embedding_bag_per_sample_weights_backward.default",
})  # fmt: skip
# Parts of the names of ops that the CPU has no kernel for.
_DEVICES_ONLY = ("_thnn_fused", "lazy_backend.recurrence")
# Ops that draw only where their dropout, the argument of this number, is not 0.
_ATTENTION = {"aten._scaled_dot_product_fused_attention_overrideable.default": 4}


def left_to_background(source: dict[str, Any], window: Window, family: Family, host: Set[int]) -> dict[str, Any]:
    """What the window runs as until its plan is ready: on the host, but for what only kernels compute."""
    if len(host) == len(window.nodes):
        family.compiled += 1
        compiles.note(source)
        rung = background.op_by_op(source, "interpret")
    else:
        with compiling():
            compiles.note(source)
            rung = fused(window, family, host) | {"once": True}
    background.compile_later(source, rung)
    return rung


def launches(plan: Plan, window: Window, built: Kernels, first: int) -> list[tuple]:
    """The plan's launches with kernels loaded. first: the number of the plan's first temp in the window."""
    steps = []
    traced = sizes.current() is not None
    handles = built.handles()
    addresses = capabilities(window.device).address_args
    for launch in plan.launches:
        if isinstance(launch, CoreCall) and traced and launch.op in entries.own(window.device):
            raise Untraceable("the driver's library was timed for one size")
        if isinstance(launch, CoreCall):
            steps.append(core_step(launch, first, library_handle(launch.op)))
            continue
        handle = handles[launch.kernel]
        describe(handle, [window.nodes[i] for i in launch.origins])
        args = [recipe(arg, first, addresses) for arg in launch.args]
        args += [("bytes", value, type) for value, type in built.variants[launch.kernel].extra]
        if traced and len(args) > capabilities(window.device).max_kernel_args:
            raise Untraceable("a kernel has too many sizes for its arguments")
        steps.append(("launch", handle, launch.global_size, launch.local_size, args))
    return steps


def describe(handle: int, origins: list[WindowNode]) -> None:
    """Say what a kernel computes: its ops, and the line of each place that uses it."""
    line = origins[0].line if origins else "unknown line"
    known = described.get(handle, "")
    if not known:
        described[handle] = f"{'+'.join(dict.fromkeys(node.op.split('.')[1] for node in origins))} ({line})"
    elif line not in known and known.count("; ") < MAX_LINES:
        described[handle] = f"{known.removesuffix(')')}; {line if known.count('; ') < MAX_LINES - 1 else 'and more'})"


def recipe(arg: Arg, first: int, addresses: bool) -> tuple:
    """An argument as csrc/python_plan.cpp takes it. first: the number of the plan's first temp in the window.

    addresses: memory is given as a number.
    """
    if arg.kind not in ("slot", "temp"):
        return tuple(arg)
    return arg.kind, int(arg.value) + (first if arg.kind == "temp" else 0), "address" if addresses else ""
