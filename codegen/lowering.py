"""Fusion group -> loop program: values become instructions at indices, views vanish into the indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codegen.fusion import Fusion
from codegen.groups import REDUCTIONS, Group, identity, space
from codegen.index import Expr, Index, contiguous, linear
from codegen.kernels.operand import Source
from codegen.kernels.random import philox
from codegen.loops import Program, Reduction, Store
from codegen.views import VIEWS, indexed_operands, moved_operands, operand_index
from ops_core.ir import Node, Value
from ops_core.sizes import multiple


@dataclass(frozen=True)
class Location:
    """Where a value lies: ref is ("slot", n) or ("temp", value id); strides and offset in elements."""

    ref: tuple[str, int]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def temp(value: Value, order: Sequence[int]) -> Location:
        """An intermediate that lies dense, `order` of its dims from the outermost to the innermost."""
        outer_first = contiguous([value.shape[d] for d in order])
        return Location(("temp", value.id), tuple(outer_first[order.index(d)] for d in range(len(order))))

    @staticmethod
    def slot(node: Node) -> Location:
        """What a load or store names."""
        attrs = node.attrs
        return Location(("slot", attrs["slot"]), tuple(attrs["strides"]), attrs["offset"])

    def access(self, program: Program, dtype: str, index: Index) -> tuple[int, int | None, Expr]:
        """The buffer, the offset argument and the expression of element `index`.

        Real and imaginary parts share an offset argument: how they lie is known then, and stores are vectors."""
        part = 0
        if 2 in self.strides and all(multiple(s, 2) for s in self.strides):
            part = self.offset - self.offset // 2 * 2
        offset = program.offset(self.ref, self.offset - part)
        return program.buffer(self.ref, dtype), offset, linear(index, self.strides, part)


def lower(fusion: Fusion, group: Group, locations: Mapping[Value, Location]) -> Program:
    """The program of a group; an anchor's results are its accumulators.

    locations: of all values that are kept in memory, by whatever group.
    """
    lowering = Lowering(fusion, group, locations, Program(group.vars, group.reduced))
    lowering.outputs()
    return lowering.program


def lower_operands(fusion: Fusion, group: Group, locations: Mapping[Value, Location]) -> list[Source]:
    """What the group's anchor reads, each with a program of its own."""
    assert group.anchor
    sources = []
    for number, value in enumerate(group.anchor.inputs):
        program = Program(space(value.shape), group.rows.reduced if group.rows and not number else frozenset())
        root = Lowering(fusion, group, locations, program).value(value, identity(program.vars))
        program.roots = [root]
        sources.append(Source(program, value.shape))
    return sources


def lower_copy(fusion: Fusion, group: Group, locations: Mapping[Value, Location], to: Location) -> Program | None:
    """The program that brings an in-place anchor's first operand to where it is updated; None if it is there."""
    assert group.anchor
    value = group.anchor.inputs[0]
    if value.node.op == "load" and Location.slot(value.node) == to:
        return None
    program = Program(space(value.shape))
    instr = Lowering(fusion, group, locations, program).value(value, identity(program.vars))
    program.stores.append(Store(*to.access(program, value.dtype, identity(program.vars)), instr))
    return program


def lower_results(values: Mapping[int, Value], locations: Mapping[Value, Location]) -> Program:
    """The program that puts a template's results, its accumulators of these numbers, where they lie; of one shape."""
    program = Program(space(next(iter(values.values())).shape))
    index = identity(program.vars)
    for number, value in values.items():
        result = program.emit("acc", value.dtype, (), (number,))
        program.stores.append(Store(*locations[value].access(program, value.dtype, index), result))
    return program


class Lowering:
    """Evaluates values of one group at indices, emitting instructions into `program`."""

    def __init__(self, fusion: Fusion, group: Group, locations: Mapping[Value, Location], program: Program):
        self.fusion, self.group, self.locations, self.program = fusion, group, locations, program
        self._memo: dict[tuple[Value, Index, int | None], int] = {}
        self._accumulators: dict[Value, int] = {}

    def outputs(self) -> None:
        """Every store of the group, and every value that other groups read."""
        program, group = self.program, self.group
        stores = [(s.inputs[0], index, Location.slot(s)) for s, index in group.stores.items()]
        temps = [(v, i, self.locations[v]) for v, i in group.index.items() if v in self.locations]
        for value, index, location in stores + [t for t in temps if t[2].ref[0] == "temp"]:
            instr = self.value(value, index)
            program.stores.append(Store(*location.access(program, value.dtype, index), instr))
        loaded = {program.buffers[i.data[0]].ref for i in program.instrs if i.op == "load"}
        program.stores = [s._replace(in_place=program.buffers[s.buffer].ref in loaded) for s in program.stores]

    def value(self, value: Value, index: Index, guard: int | None = None) -> int:
        """The instruction that computes element `index` of `value`. Loads happen only where `guard` holds."""
        if (copy := self.fusion.copies.get(value)) in self.group.reads:
            value = copy
        key = (value, index, guard)
        if key not in self._memo:
            self._memo[key] = self._value(value, index, guard)
        return self._memo[key]

    def _value(self, value: Value, index: Index, guard: int | None) -> int:
        node = value.node
        if node.op in VIEWS:
            return self.value(node.inputs[0], operand_index(node, index), guard)
        if node.op in _LEAVES:
            return _LEAVES[node.op](self, node, index, guard)
        if (rows := self.group.rows) and self.fusion.owner[value] is rows:
            return Lowering(self.fusion, rows, self.locations, self.program).value(value, index)
        if self.fusion.owner[value] is not self.group and value in self.group.reads:
            return self.load(self.locations[value], value, index, guard)
        if node is self.group.anchor:
            return self.program.emit("acc", value.dtype, (), (value.index,))
        if node.op in REDUCTIONS:
            return self._reduction(value, guard)
        assert node.op == "map", f"{node} is computed by no loop"
        return self._map(node, index, guard)

    def load(self, location: Location, value: Value, index: Index, guard: int | None) -> int:
        """Element `index` of the value, which lies at `location`."""
        access = location.access(self.program, value.dtype, index)
        if guard is None:
            return self.program.emit("load", value.dtype, (), access)
        last = sum((n - 1) * stride for n, stride in zip(value.shape, location.strides, strict=True))
        return self.program.emit("load", value.dtype, (guard,), (*access, last))

    def _map(self, node: Node, index: Index, guard: int | None) -> int:
        fn, out = node.attrs["fn"], node.outputs[0]
        if fn == "convert" and (param := _parameter(node.inputs[0])) is not None and out.dtype in _SCALARS:
            return self.program.scalar(param, out.dtype)
        args = tuple(self.value(v, index, guard) for v in node.inputs)
        if out.dtype == "f32":
            fn = next((special for (of, attr), special in _SPECIAL.items() if fn == of and attr in node.attrs), fn)
        if fn == "convert" and self.program.instrs[args[0]].dtype == out.dtype:
            return args[0]
        return self.program.map(fn, out.dtype, *args)

    def _reduction(self, value: Value, guard: int | None) -> int:
        """The accumulator's value after its loop; a reduction over dims of one element is that element."""
        node, group = value.node, self.group
        index = group.at[node]
        if not frozenset().union(*(index[d].vars for d in node.attrs["dims"])):
            if node.op.startswith("arg"):
                return self.program.const(0, "i64")
            return self.value(node.inputs[0], index, guard)
        if value not in self._accumulators:
            body = self.value(node.inputs[0], index)
            position = linear((index[d] for d in node.attrs["dims"]), (1,) * len(node.attrs["dims"]))
            dtype = node.inputs[0].dtype
            op = "softmax_max" if node.op == "amax" and node.attrs.get("softmax") else node.op
            self.program.reductions.append(
                Reduction(op, body, dtype, position if node.op.startswith("arg") else Expr())
            )
            number = len(self.program.reductions) - 1
            self._accumulators[value] = self.program.emit("acc", value.dtype, (), (number,))
        return self._accumulators[value]

    def guard(self, ranges: list[tuple[Expr, int, int]], outer: int | None) -> int | None:
        """An instruction that tells whether all ranges (and `outer`) hold; None if they always do."""
        result = outer
        for expr, lo, hi in ranges:
            low, high = expr.bounds
            if low < lo or high >= hi:
                inside = self.program.emit("inside", "bool", (), (expr, lo, hi))
                result = inside if result is None else self.program.map("and", "bool", result, inside)
        return result

    def _load(self, node: Node, index: Index, guard: int | None) -> int:
        return self.load(Location.slot(node), node.outputs[0], index, guard)

    def _param(self, node: Node, index: Index, guard: int | None) -> int:
        return self.program.scalar(node.attrs["index"], node.outputs[0].dtype)

    def _full(self, node: Node, index: Index, guard: int | None) -> int:
        return self.program.const(node.attrs["value"], node.outputs[0].dtype)

    def _iota(self, node: Node, index: Index, guard: int | None) -> int:
        return self.program.emit("index", node.outputs[0].dtype, (), (index[0],))

    def _moved(self, node: Node, index: Index, guard: int | None) -> int:
        """pad and cat: the operand whose range holds. Each loads only within its own."""
        result = None
        for operand, at, ranges in reversed(moved_operands(node, index)):
            own = self.guard(ranges, guard)
            part = self.value(operand, at, own)
            if result is None or own == guard:
                result = part
            else:
                here = self.guard(ranges, None)
                assert here is not None
                result = self.program.map("where", node.outputs[0].dtype, here, part, result)
        assert result is not None
        return result

    def _indexed(self, node: Node, index: Index, guard: int | None) -> int:
        def number(value: Value, at: Index, size: int) -> Expr:
            return self.program.dynamic(self.value(value, at, guard), size)

        return self.value(node.inputs[0], indexed_operands(node, index, number)[1], guard)

    def _random(self, node: Node, index: Index, guard: int | None) -> int:
        seed, offset = (self.value(v, ()) for v in node.inputs)
        return philox(self.program, seed, offset, linear(index, contiguous(node.outputs[0].shape)))


def _parameter(value: Value) -> int | None:
    """The number of the run-time scalar behind a value, if that is what it is."""
    while value.node.op in VIEWS:
        value = value.node.inputs[0]
    return value.node.attrs["index"] if value.node.op == "param" else None


# Functions of float32 that a node asks less of: by function and attribute.
_SPECIAL = {("exp", "softmax"): "softmax_exp", ("erf", "beside_one"): "erf_beside_one"}
_SCALARS = ("bool", "i32", "i64", "f32", "f64")
_LEAVES = {
    "load": Lowering._load, "param": Lowering._param, "full": Lowering._full, "iota": Lowering._iota,
    "pad": Lowering._moved, "cat": Lowering._moved, "gather": Lowering._indexed, "index": Lowering._indexed,
    "rand_bits": Lowering._random,
}  # fmt: skip
