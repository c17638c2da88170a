"""Graph -> plan: rewrites, fusion groups, kernels by structure, launches, memory of intermediates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from codegen import printer
from codegen.fusion import Fusion, Group, nbytes
from codegen.kernels import nest
from codegen.loops import Program
from codegen.lowering import Location, lower
from codegen.memory import Life, arena
from codegen.plan import Arg, KernelSource, Launch, Plan, SlotInfo
from codegen.rewrite import rewrite
from ops_core.ir import Graph, Value


@dataclass(frozen=True)
class Compiled:
    """A kernel of the process-wide cache, with its launch geometry."""

    source: KernelSource
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]


_cache: dict[Any, Compiled] = {}


def plan(graph: Graph, slots: Mapping[int, SlotInfo], caps: Any) -> Plan:
    """The plan of a graph over `slots` on a device with capabilities `caps`."""
    fusion = Fusion(rewrite(graph, caps), max_buffers=caps.max_kernel_args // 2)
    return _Scheduler(fusion, caps).plan()


class _Scheduler:
    def __init__(self, fusion: Fusion, caps: Any):
        self.fusion, self.caps = fusion, caps
        self.result = Plan()
        self.temps: dict[int, Value] = {}
        self._kernels: dict[str, int] = {}

    def plan(self) -> Plan:
        locations, groups = self._locate()
        pending = [(group, lower(self.fusion, group, locations)) for group in groups]
        for group, program in pending:
            if prod(v.size for v in program.parallel):
                self._launch(group, program)
        self._place_temps()
        return self.result

    def _locate(self) -> tuple[dict[Value, Location], list[Group]]:
        """Where the values that cross groups lie, and the groups that anything depends on."""
        wanted: set[Value] = set()
        live: list[Group] = []
        for group in reversed(self.fusion.groups):
            if group.stores or any(v in wanted for v in group.index):
                live.append(group)
                wanted |= group.reads.keys()
        locations = {v: Location.temp(v) for v in wanted}
        self.temps = {v.id: v for v in wanted}
        return locations, live[::-1]

    def _launch(self, group: Group, program: Program) -> None:
        compiled = compile_program(program, self.caps, [n.origin for n in group.nodes])
        args = [Arg(*buffer.ref) for buffer in program.buffers]
        args += [Arg("bytes", n, "i64" if program.wide else "i32") for _, n in program.offsets]
        args += [Arg("scalar", index, dtype) for index, dtype in program.scalars]
        origins = sorted({n.origin for n in group.nodes})
        kernel = self._kernel(compiled.source)
        self.result.launches.append(Launch(kernel, args, compiled.global_size, compiled.local_size, origins))

    def _kernel(self, source: KernelSource) -> int:
        if source.key not in self._kernels:
            self._kernels[source.key] = len(self.result.kernels)
            self.result.kernels.append(source)
        return self._kernels[source.key]

    def _place_temps(self) -> None:
        """Number the temps in order of first use and give each a place in the arena."""
        uses: dict[int, list[int]] = {}
        for at, launch in enumerate(self.result.launches):
            for arg in launch.args:
                if arg.kind == "temp":
                    uses.setdefault(int(arg.value), []).append(at)
        numbers = {id: n for n, id in enumerate(uses)}
        lives = [Life(nbytes(self.temps[id]), at[0], at[-1]) for id, at in uses.items()]
        self.result.temps, self.result.arena_bytes = arena(lives, self.caps.mem_alignment)
        for launch in self.result.launches:
            launch.args = [a._replace(value=numbers[int(a.value)]) if a.kind == "temp" else a for a in launch.args]


def compile_program(program: Program, caps: Any, origins: list[int]) -> Compiled:
    """The kernel of a program, from the cache where an equal one was compiled before."""
    key = (caps, program.key())
    if key not in _cache:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        name = f"k_{digest[:12]}"
        kernel = nest.build(name, program, caps)
        text = printer.print_kernel(kernel.mlir, caps.language)
        source = KernelSource(digest, name, text, kernel.mlir, caps.language, sorted(set(origins)))
        _cache[key] = Compiled(source, kernel.global_size, kernel.local_size)
    return _cache[key]
