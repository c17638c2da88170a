"""Graph -> plan: rewrites, fusion groups, kernels by structure, launches, memory of intermediates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from codegen import composites, linalg
from codegen.anchors import Anchored, Product, kernels, product
from codegen.bands import Chain, chains
from codegen.fusion import Fusion
from codegen.groups import IN_PLACE, UPDATES, Group, identity, nbytes, space, usual_bytes
from codegen.index import contiguous, linear
from codegen.kernels import bands, flat, nest
from codegen.kernels.matmul import Tile
from codegen.kernels.operand import Sink, Source
from codegen.kernels.scatter import Target
from codegen.kernels.step import Step
from codegen.loops import Program
from codegen.lowering import Location, lower, lower_copy, lower_operands, lower_results
from codegen.memory import apart, pieces
from codegen.plan import Arg, CoreCall, KernelSource, Launch, Life, Plan, SlotInfo, TensorRef
from codegen.prologues import take_rows
from codegen.regroup import regroup
from codegen.rewrite import rewrite
from codegen.unrolling import unrolled
from ops_core import sizes
from ops_core.composites import PREFIX
from ops_core.dtypes import BY_NAME
from ops_core.ir import Graph, Node, Value

# The schedule that was measured for a product, or None for the heuristic's.
Tiles = Callable[[Product], Tile | None]
# Told of each kernel of a plan when it is made, with the nodes of the window that it computes first.
Made = Callable[[KernelSource, list[int]], None]


@dataclass(frozen=True)
class Compiled:
    """A kernel of the process-wide cache: its source, what its arguments stand for, its launch geometry."""

    source: KernelSource
    args: tuple[str | int, ...]
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    sizes: tuple[tuple[int | float, str], ...]


@dataclass
class Known:
    """Kernels by structure and device: (launches, bytes of scratch buffers). flat: flat forms by structure; kinds: of
    their programs, one representative of all lengths."""

    kernels: dict[Any, tuple[list[Compiled], list[int]]] = field(default_factory=dict)
    flat: dict[Any, tuple[Program, int] | None] = field(default_factory=dict)
    kinds: dict[Any, Program] = field(default_factory=dict)


_known = Known()


def forget() -> None:
    """Forgets the kernels that this process knows."""
    global _known
    _known = Known()


def known() -> Known:
    """What is known in this process, or, while sizes are traced, of these sizes."""
    tape = sizes.current()
    return tape.cache.setdefault(Known, Known()) if tape else _known


def plan(
    graph: Graph,
    slots: Mapping[int, SlotInfo],
    caps: Any,
    extern: Callable[[Node], bool] = lambda node: False,
    tiles: Tiles | None = None,
    made: Made = lambda kernel, origins: None,
) -> Plan:
    """The plan of a graph over `slots` on a device with capabilities `caps`. extern: whether a library has the node;
    tiles: asked for the schedule of each product; made: told of each kernel, in the plan's order."""
    graph = rewrite(graph, caps, extern)
    fusion = Fusion(graph, caps.max_kernel_args // 2, lambda node: composite(node) or extern(node))
    regroup(fusion)
    take_rows(fusion, graph, caps)
    return _Scheduler(fusion, caps, permuted(graph), tiles, made).plan()


def composite(node: Node) -> bool:
    """Whether a node is a composite that was kept for a kernel of its own."""
    return node.op.startswith(PREFIX)


def permuted(graph: Graph) -> dict[Value, Sequence[int]]:
    """Values that lie in another order of their dims: those that are read in one permutation of them only, as gradients
    of weights often are.

    A Fourier transform reads what there is as it lies, and leaves its results in that order: its kernel takes vectors
    along whichever dim they are. rfft2 and irfft2 of (16, 512, 512), ms: in order for each transform 49.7, so 17.9.
    """
    transforms = [node for node in graph.nodes if node.op == composites.FOURIER]
    transformed = {value for node in transforms for value in node.inputs}
    readings: dict[Value, set[tuple[int, ...] | None]] = {}
    for node in graph.nodes:
        moved = node.op == "permute" and node.outputs[0] not in transformed
        for value in node.inputs:
            readings.setdefault(value, set()).add(node.attrs["dims"] if moved else None)
    orders: dict[Value, Sequence[int]] = {
        value: dims for value, (dims, *others) in readings.items() if dims and not others
    }
    for node in transforms:
        source, dims = node.inputs[0], tuple(range(len(node.inputs[0].shape)))
        if source.node.op == "permute":
            source, dims = source.node.inputs[0], source.node.attrs["dims"]
        order = [dims.index(d) for d in orders.get(source, range(len(dims)))]
        orders |= dict.fromkeys(node.outputs, order)
    return orders


# How many units back a group looks for others of its kind to run with. benchmarks: optimizer step.
BATCH_WINDOW = 64


# Elements of a group that may run later than its place: what it reads stays in memory until then.
# benchmarks: CNN demo, 62 launches a step -> 48.
MAX_LATE = 1 << 12


# Bytes of a result that is written over one of its operands: new memory is read into the cache before it is written.
# benchmarks: stencil.
LEAST_UPDATED = 1 << 16


@dataclass
class _Unit:
    """A group that is launched by itself; program: None if it has an anchor."""

    group: Group
    program: Program | None


@dataclass
class _Band:
    """Groups that follow each other and are one kernel."""

    groups: list[Group]
    chain: Chain


@dataclass
class _Batch:
    """Groups that run as one kernel over several sets of buffers. before: bits of the groups that ran earlier."""

    program: Program
    before: int
    members: list[tuple[Group, Program, int]] = field(default_factory=list)


class _Scheduler:
    def __init__(
        self, fusion: Fusion, caps: Any, permuted: Mapping[Value, Sequence[int]], tiles: Tiles | None, made: Made
    ):
        self.fusion, self.caps, self.permuted, self.tiles, self.made = fusion, caps, permuted, tiles, made
        self.result = Plan()
        self.temps: dict[int, int] = {}  # temp id -> bytes
        self.locations: dict[Value, Location] = {}
        self._kernels: dict[str, int] = {}
        self.known = known()
        self._live = 0

    def plan(self) -> Plan:
        units: list[_Unit | _Batch] = []
        groups = self._small_leaves_last(self._locate())
        self._live = sum(1 << group.id for group in groups)
        done = 0
        for group in groups:
            program = None if group.anchor else lower(self.fusion, group, self.locations)
            found = _flattened(program) if program else None
            if program and found:
                batch = self._batch(units, group, program, found[0])
                if batch is None:
                    units.append(batch := _Batch(found[0], done))
                batch.members.append((group, program, found[1]))
            else:
                units.append(_Unit(group, program))
            done |= 1 << group.id
        for unit in self._chained(units):
            if isinstance(unit, _Batch):
                self._multi(unit)
            elif isinstance(unit, _Band):
                self._band(unit)
            elif unit.group.anchor and composite(unit.group.anchor):
                self._composite(unit.group, unit.group.anchor)
            elif unit.group.anchor and self.fusion.extern(unit.group.anchor):
                self._extern(unit.group, unit.group.anchor)
            elif unit.program:
                self._loops(unit.group, unit.program)
            else:
                self._anchored(unit.group)
        self._place_temps()
        return self.result

    def _chained(self, units: list[_Unit | _Batch]) -> list[_Unit | _Batch | _Band]:
        """Units in order, those that make a chain as one."""
        later: list[set[tuple[str, int]]] = [set()]
        for unit in reversed(units):
            groups = [g for g, _, _ in unit.members] if isinstance(unit, _Batch) else [unit.group]
            groups += [g.rows for g in groups if g.rows]
            later.append(later[-1] | {self.locations[v].ref for g in groups for v in g.reads})
        programs = [None if isinstance(u, _Batch) or u.group.anchor else u.program for u in units]
        found: list[_Unit | _Batch | _Band] = []
        done = 0
        for each in chains(programs, later[::-1], self.caps):
            if isinstance(each, Chain):
                members = units[done : done + len(each.programs)]
                found.append(_Band([u.group for u in members if isinstance(u, _Unit)], each))
            else:
                found.append(units[each])
            done += len(each.programs) if isinstance(each, Chain) else 1
        return found

    def _band(self, band: _Band) -> None:
        """A chain's launch."""
        key = _keyed((self.caps, band.chain.key()))
        nodes = [n for group in band.groups for n in group.nodes]
        if key not in self.known.kernels:
            name, digest = names(key)
            made = [linalg.simplify(program) for program in band.chain.programs]
            simple = Chain([program for program, _ in made], band.chain.kept, self.caps)
            steps, scratch = bands.build(name, simple, band.chain.outer, self.caps)
            module = "".join(text for _, text in made)
            self.known.kernels[key] = self._compiled(digest, steps, module, nodes), scratch
        programs = {str(n): program for n, program in enumerate(band.chain.programs)}
        self._launch(key, {"loops": band.chain.outer, **programs}, nodes)

    def _small_leaves_last(self, groups: list[Group]) -> list[Group]:
        """Small groups on which no other depends go last, where those of a kind are one launch: running statistics."""
        needed = 0
        for group in groups:
            needed |= self.fusion.ancestors(group)
        leaves = [g for g in groups if not needed >> g.id & 1 and not g.anchor]
        late = {g.id for g in leaves if sizes.usual(prod(g.domain)) <= MAX_LATE}
        return sorted(groups, key=lambda g: g.id in late)

    def _batch(self, units: list[_Unit | _Batch], group: Group, program: Program, kind: Program) -> _Batch | None:
        """An open batch that the group can join: the same kernel, and all that it needs runs before."""
        needed = self.fusion.ancestors(group) & self._live
        for unit in reversed(units[-BATCH_WINDOW:]):
            if isinstance(unit, _Batch) and unit.program is kind:
                return unit if not needed & ~unit.before else None
        return None

    def _multi(self, batch: _Batch) -> None:
        """Launches of a batch, as many sets of buffers at a time as the device has arguments for."""
        members = batch.members
        columns = zip(*(program.scalars for _, program, _ in members), strict=True)
        shared = tuple(len(set(each)) == 1 for each in columns)
        sets = flat.set_count(len(members), batch.program, shared, self.caps)
        while members:
            now, members = members[:sets], members[sets:]
            key = _keyed((self.caps, "flat", sets, shared, batch.program.key()))
            if key not in self.known.kernels:
                name, digest = names(key)
                program, module = linalg.simplify(batch.program)
                text = flat.Flat(program, sets, shared).build(name, self.caps)
                steps = [Step(name, text, (), (0, 0, 0), (0, 0, 0))]
                self.known.kernels[key] = self._compiled(digest, steps, module, now[0][0].nodes), []
            lengths = [length for _, _, length in now] + [0] * (sets - len(now))
            chunk = flat.chunk_length(lengths, self.caps)
            args, last, groups = [Arg("bytes", chunk, "i32")], [], 0
            for number, length in enumerate(lengths):
                all = arguments(now[min(number, len(now) - 1)][1], "i32")
                scalars = list(zip(all[len(all) - len(shared) :], shared, strict=True))
                last = [a for a, same in scalars if same]
                own = [*all[: len(all) - len(shared)], *(a for a, same in scalars if not same)]
                args += [*own, Arg("bytes", groups, "i32"), Arg("bytes", length, "i32")]
                groups += -(-length // chunk)
            items = flat.local_size(self.caps)
            origins = sorted({n.origin for group, _, _ in now for n in group.nodes})
            if groups:
                kernel = self._kernel(self.known.kernels[key][0][0].source, origins)
                size = (groups * items, 1, 1), (items, 1, 1)
                last += [Arg("bytes", n, dtype) for n, dtype in self.known.kernels[key][0][0].sizes]
                self.result.launches.append(Launch(kernel, args + last, *size, origins))

    def _locate(self) -> list[Group]:
        """Decide where the values that cross groups lie. Returns the groups that anything depends on, in order."""
        wanted: set[Value] = set()
        live: list[Group] = []
        for group in reversed(self.fusion.groups):
            if group.stores or any(v in wanted for v in group.index):
                live.append(group)
                wanted |= group.reads.keys()
                if group.anchor:
                    wanted |= self._written(group)
        for group in live:
            for store, index in group.stores.items():
                value = store.inputs[0]
                if group.index.get(value) == index and self.fusion.final(store):
                    self.locations[value] = Location.slot(store)
        for value in wanted - self.locations.keys():
            self.locations[value] = Location.temp(value, self.permuted.get(value, range(len(value.shape))))
            self.temps[value.id] = nbytes(value)
        self._update_in_place(live[::-1])
        return live[::-1]

    def _update_in_place(self, groups: list[Group]) -> None:
        """Results lie where values lay that their group reads element by element, and nobody after it."""
        holders = {id: id for id in self.temps}  # of each temp the last value
        readers: dict[Value, list[Group]] = {}
        for group in groups:
            for value in group.reads:
                readers.setdefault(value, []).append(group)
        for group in groups:
            for value, index in group.index.items() if not group.anchor else ():
                if holders.get(value.id) != value.id or usual_bytes(value) < LEAST_UPDATED:
                    continue
                for old in group.reads:
                    place = self.locations[old]
                    if (
                        readers[old][-1] is group and group.reads[old] == {index} and old.dtype == value.dtype
                        and place.ref[0] == "temp" and holders[place.ref[1]] == old.id
                        and sizes.alike(old.shape, value.shape)
                        and sizes.alike(place.strides, self.locations[value].strides)
                    ):  # fmt: skip
                        for other in readers[old][:-1]:
                            self.fusion.precede(other, group)
                        self.locations[value] = place
                        holders[place.ref[1]] = value.id
                        del self.temps[value.id], holders[value.id]
                        break

    def _written(self, group: Group) -> set[Value]:
        """Results that an in-place anchor puts in memory whether or not another group reads them."""
        if not group.anchor or group.anchor.op not in (*IN_PLACE, composites.BACKWARD):
            return set()
        return set(
            group.anchor.outputs[:3]
        )  # the fourth of attention's backward, the scores' gradient, is never written

    def _loops(self, group: Group, program: Program) -> None:
        if not prod(v.size for v in program.parallel):
            return
        key = _keyed((self.caps, program.key()))
        if key not in self.known.kernels:
            name, digest = names(key)
            simple, module = linalg.simplify(unrolled(program))
            kernel = nest.build(name, simple, self.caps)
            steps = [Step(name, kernel.mlir, ("loops",), kernel.global_size, kernel.local_size)]
            self.known.kernels[key] = self._compiled(digest, steps, module, group.nodes), []
        self._launch(key, {"loops": program}, group.nodes)

    def _anchored(self, group: Group) -> None:
        """A template's launches; before them, for one that works in place, the copy that it works on."""
        anchor = group.anchor
        assert anchor
        if not prod(anchor.outputs[0].shape):
            return
        sources = lower_operands(self.fusion, group, self.locations)
        programs = {f"in{i}": s.program for i, s in enumerate(sources)}
        target = None
        if anchor.op in IN_PLACE:
            sink, (out,) = Program(()), anchor.outputs
            place = self.locations[out]
            programs["target"] = memory = Program(space(out.shape))
            memory.buffer(place.ref, out.dtype)
            memory.offsets.append((place.ref, place.offset))
            wide = linear(identity(memory.vars), place.strides).bounds[1] + place.offset >= 1 << 31
            target = Target(out.shape, place.strides, out.dtype, wide)
            copy = lower_copy(self.fusion, group, self.locations, place) if anchor.op in UPDATES else None
            if copy:
                self._loops(group, copy)
        else:
            programs["out"] = sink = lower(self.fusion, group, self.locations)
        anchored = Anchored(anchor, sources, Sink(sink), target)
        tile = self.tiles(product(anchored, self.caps)) if self.tiles and anchor.op == "matmul" else None
        key = _keyed((self.caps, anchored.key(), *([tile] if tile else [])))
        if key not in self.known.kernels:
            name, digest = names(key)
            simple, module = anchored.simplified()
            made = kernels(name, simple, self.caps, tile)
            self.known.kernels[key] = self._compiled(digest, made.steps, module, group.nodes), made.temps
        self._launch(key, programs, group.nodes)

    def _composite(self, group: Group, anchor: Node) -> None:
        """A composite's launches, from memory to memory."""
        sources = lower_operands(self.fusion, group, self.locations)
        programs = {f"in{i}": s.program for i, s in enumerate(sources)}
        outputs = {i: v for i, v in enumerate(anchor.outputs) if v in self.locations}
        written = {0: outputs} if composites.together(anchor) else {i: {0: value} for i, value in outputs.items()}
        programs |= {f"out{i}": lower_results(values, self.locations) for i, values in written.items()}
        keys = tuple((name, program.key()) for name, program in programs.items())
        key = _keyed((self.caps, anchor.op, repr(anchor.attrs), tuple(v.shape for v in anchor.inputs), keys))
        if key not in self.known.kernels:
            name, digest = names(key)
            made = {name: linalg.simplify(program) for name, program in programs.items()}
            simple = [Source(made[f"in{i}"][0], s.shape) for i, s in enumerate(sources)]
            sinks = {i: Sink(made[f"out{i}"][0]) for i in written}
            steps = composites.kernels(name, anchor, simple, sinks, self.caps)
            module = "".join(text for _, text in made.values())
            self.known.kernels[key] = self._compiled(digest, steps.steps, module, group.nodes), steps.temps
        self._launch(key, programs, group.nodes)

    def _extern(self, group: Group, anchor: Node) -> None:
        """A call of a library, on views where the operands are some, on copies where they are computed."""
        if not prod(anchor.outputs[0].shape):
            return
        outputs = [(self.locations[v], v) for v in anchor.outputs]
        tensors = [TensorRef(*at.ref, at.offset, v.dtype, v.shape, at.strides) for at, v in outputs]
        for source in lower_operands(self.fusion, group, self.locations):
            view, dtype = source.view(), source.dtype
            if view is None:
                id = min([0, *self.temps]) - 1
                self.temps[id] = prod(source.shape) * BY_NAME[dtype].bytes
                self._loops(group, source.stored(("temp", id)))
                view = ("temp", id), 0, contiguous(source.shape)
            ref, offset, strides = view
            tensors.append(TensorRef(*ref, offset, dtype, source.shape, strides))
        attrs = json.dumps(anchor.attrs, sort_keys=True)
        self.result.launches.append(CoreCall(anchor.op, len(outputs), tuple(tensors), attrs, anchor.origin))

    def _compiled(self, digest: str, steps: Sequence[Any], module: str, nodes: Sequence[Node]) -> list[Compiled]:
        origins = sorted({n.origin for n in nodes})
        how = self.caps.language, origins, module, self.caps.address_args, not self.caps.is_cpu
        return [
            Compiled(
                KernelSource(f"{digest}{i}", s.name, s.mlir, *how),
                s.args, s.global_size, s.local_size, getattr(s.mlir, "sizes", ()),
            )
            for i, s in enumerate(steps)
        ]  # fmt: skip

    def _launch(self, key: Any, programs: Mapping[str, Program], nodes: Sequence[Node]) -> None:
        launches, scratch = self.known.kernels[key]
        ids = [min([0, *self.temps]) - 1 - i for i in range(len(scratch))]
        self.temps.update(zip(ids, scratch, strict=True))
        word = "i64" if any(p.wide for p in programs.values()) else "i32"
        origins = sorted({n.origin for n in nodes})
        for compiled in launches:
            args: list[Arg] = []
            for name in compiled.args:
                if isinstance(name, int):
                    args.append(Arg("temp", ids[name]))
                else:
                    args += arguments(programs[name], word)
            args += [Arg("bytes", n, dtype) for n, dtype in compiled.sizes]
            kernel = self._kernel(compiled.source, origins)
            self.result.launches.append(Launch(kernel, args, compiled.global_size, compiled.local_size, origins))

    def _kernel(self, source: KernelSource, origins: list[int]) -> int:
        if source.key not in self._kernels:
            self._kernels[source.key] = len(self.result.kernels)
            self.result.kernels.append(source)
            self.made(source, origins)
        return self._kernels[source.key]

    def _place_temps(self) -> None:
        """Number the temps in order of first use and give each a place."""
        uses: dict[int, list[int]] = {}
        for at, launch in enumerate(self.result.launches):
            for id in launch.temps():
                uses.setdefault(id, []).append(at)
        numbers = {id: n for n, id in enumerate(uses)}
        lives = [Life(self.temps[id], at[0], at[-1]) for id, at in uses.items()]
        together = apart(lives) if sizes.current() is not None else pieces(lives, self.caps.mem_alignment)
        self.result.temps, self.result.pieces = together
        self.result.launches = [launch.renumbered(numbers) for launch in self.result.launches]


def _flattened(program: Program) -> tuple[Program, int] | None:
    """The flat form of a program, one object for all lengths, and its length."""
    key, all = _keyed(program.key()), known()
    if key not in all.flat:
        found = flat.flatten(program)
        all.flat[key] = found and (all.kinds.setdefault(_keyed(found[0].key()), found[0]), found[1])
    return all.flat[key]


def _keyed(key: Any) -> Any:
    """What is known by a key. Of sizes that vary, by their names: two may be the same number this time only."""
    return repr(key) if sizes.current() is not None else key


def names(key: Any) -> tuple[str, str]:
    """A kernel's name and digest from its structure."""
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    return f"k_{digest[:12]}", digest


def arguments(program: Program, word: str) -> list[Arg]:
    """A program's arguments in the order in which an `Emitter` declares them; word: the type of an index."""
    return [
        *(Arg(*buffer.ref) for buffer in program.buffers),
        *(Arg("bytes", n, word) for _, n in program.offsets),
        *(Arg("scalar", index, dtype) for index, dtype in program.scalars),
    ]
