"""A recorded window -> core graphs: mutation becomes SSA values, views become index maps.

Each slot (buffer) has a *state*: the value that was last written over all of it, if that has not gone to
memory yet. A read of a view of such a value is a chain of expand/permute/reshape/slice; a write of part of a
buffer goes to memory at once (`store`), in order. At the end of the window the values that somebody can
still see are stored. An op without a lowering ends a segment: it runs on the host between two graphs.

Checks of indices become words of 8 bytes, stored to a slot of their own behind those of the window.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, NamedTuple

import torch

from codegen.layout import View, view_of
from codegen.parts import dense, large, number, padded, replaced
from codegen.plan import SlotInfo
from codegen.views import VIEWS
from ops_core.array import Arr, building, where
from ops_core.ir import Graph, Node, Value
from ops_core.lowering import Complex, NeedsStatic, NotLowerable, lower
from ops_core.sizes import current

log = logging.getLogger("lazy_backend.lowering")

# c10::ScalarType numbers -> (dtype name of the graph, is complex). A complex tensor is a pair of real ones.
SCALAR_TYPES = {
    0: ("u8", False), 1: ("i8", False), 2: ("i16", False), 3: ("i32", False), 4: ("i64", False), 5: ("f16", False),
    6: ("f32", False), 7: ("f64", False), 8: ("f16", True), 9: ("f32", True), 10: ("f64", True), 11: ("bool", False),
    15: ("bf16", False), 27: ("u16", False), 28: ("u32", False), 29: ("u64", False),
}  # fmt: skip
TORCH_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
    27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}  # fmt: skip
SCALAR_KINDS = ("f64", "i64", "bool", "c128")


def _dtype(number: int) -> tuple[str, bool]:
    """(dtype of the parts, whether there are two) of a dtype's number. Raises NotLowerable for one without kernels."""
    if number not in SCALAR_TYPES:
        raise NotLowerable(f"no kernel reads or writes dtype {number}, as 8-bit floats")
    return SCALAR_TYPES[number]


class Slot(NamedTuple):
    """nbytes; alive: something outside the window still sees it; had_data: it was written before the window."""

    nbytes: int
    alive: bool
    had_data: bool


class Tensor(NamedTuple):
    """A tensor argument: a strided view of a slot. strides and offset in elements of `dtype` (a ScalarType number)."""

    slot: int
    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class WindowNode:
    """One recorded op: arguments in schema order, fresh outputs, (seed, offset) of a random op, the user's line."""

    op: str
    args: list[Any]
    outs: list[Any]
    seed: tuple | None
    line: str

    def slots(self) -> set[int]:
        """Every slot that the node reads or writes."""
        return {t[1] for t in tensors(self.args)} | {t[1] for t in tensors(self.outs)}


@dataclass
class Window:
    """A recorded window. scalars: (kind, value) of each run-time scalar; values are for static uses only.

    ordered: what is added up at indices is added up in their order, in every run.
    """

    device: int
    nodes: list[WindowNode]
    slots: list[Slot]
    scalars: list[float | int]
    ordered: bool = False

    @classmethod
    def from_recorded(cls, source: dict[str, Any]) -> Window:
        """From the plain objects that the recorder hands over (lazy_backend/compiler.py has the format)."""
        return cls(
            source["device"],
            [WindowNode(*n) for n in source["nodes"]],
            [Slot(*s) for s in source["slots"]],
            source["scalars"],
            source["ordered"],
        )

    def slot_infos(self) -> dict[int, SlotInfo]:
        """Sizes of all slots, for the scheduler."""
        return {i: SlotInfo(slot.nbytes) for i, slot in enumerate(self.slots)}


@dataclass
class Segment:
    """Either a graph to compile or the index of a node to run on the host."""

    graph: Graph | None = None
    host_node: int | None = None


class Check(NamedTuple):
    """One word of a window. node: that checks; raises, text: the error, in which {index} is the one that lies outside,
    {size} is `size`, and {line} the user's."""

    node: int
    raises: str
    text: str
    size: int


# What the user calls, where ops_core.data_dependent records another op for it.
RECORDED_FOR = {
    "aten._unsafe_index.Tensor": "aten.index.Tensor",
    "aten._index_put_impl_.default": "aten.index_put_.default",
}
# Parts of a concatenation that its readers look among, element by element: more are copied to memory, each by itself
# and many in one launch. Rows of 64 joined along their first dim, then doubled, us, looked up / copied: 4 parts of 2048
# rows 173 / 213, 8 of them 776 / 371, 16 3290 / 1369, 16 of 64 rows 146 / 119; but eight embeddings 718 / 921. And a
# list that grows is no new kernel at each length.
MOST_PARTS = 8
# The word of a check that found nothing, else the largest index that lies outside; csrc/checks.cpp has the number too.
NOTHING = -(1 << 63)


def tensors(args: Iterable[Any]) -> Iterator[tuple]:
    """The ("tensor", ...) tuples in nested arguments."""
    for arg in args:
        if isinstance(arg, list):
            yield from tensors(arg)
        elif isinstance(arg, tuple) and arg and arg[0] == "tensor":
            yield arg


@functools.cache
def schema(op: str) -> torch._C.FunctionSchema:
    """The schema of "aten.add.Tensor"."""
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema


def writes_nothing(node: WindowNode) -> bool:
    """Whether all that the node writes is empty, as the factors of an empty matrix are: nobody needs to run it."""
    changed = [raw for raw, a in zip(node.args, schema(node.op).arguments, strict=True)
               if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
    written = list(tensors([*node.outs, *changed]))
    return bool(written) and all(0 in Tensor(*tensor[1:]).sizes for tensor in written)


@dataclass
class State:
    """What is known of a slot. `value`: over all of it, in layout `view`; `dirty`: memory does not hold it yet.

    part: all in which the value differs from memory, where that is one write that nobody has read since.
    """

    value: Value | Complex | None = None
    view: View | None = None
    dtype: int = -1
    dirty: bool = False
    loads: dict[tuple, Value] = field(default_factory=dict)
    part: tuple[View, Value] | None = None


class Functionalizer:
    """Walks a window once. `segments` and `checks` are the result; `statics` the (op, argument) whose scalars had to be
    known.

    host: nodes that are not lowered whether or not they could be.
    """

    def __init__(self, window: Window, host: Set[int]):
        self.window, self.host = window, host
        self.graph = Graph()
        self.states: dict[int, State] = {}
        self.params: dict[int, Value] = {}
        self.segments: list[Segment] = []
        self.statics: list[tuple[str, set[str]]] = []
        self.checks: list[Check] = []
        self.checked: set[tuple] = set()
        self.read_up_to = 0  # nodes that stay where an op has no lowering: reading its arguments may store others
        # What was read, and of which value of all of the slot in which layout; of memory where there is none.
        self.views: dict[Value, tuple[Tensor, Value | None, View | None]] = {}

    def run(self) -> list[Segment]:
        """The window's segments, in order."""
        last_use = {slot: i for i, node in enumerate(self.window.nodes) for slot in node.slots()}
        for index, node in enumerate(self.window.nodes):
            self.graph.origin = index
            self.read_up_to = len(self.graph.nodes)
            try:
                if index in self.host:
                    raise NotLowerable(node.op)
                self.node(node)
            except Exception as error:  # a script never dies because of a rule: the next rung is the host
                if not isinstance(error, NotLowerable):
                    log.warning("the lowering of %s failed (at %s): %r", node.op, node.line, error)
                del self.graph.nodes[self.read_up_to :]
                if isinstance(error, NotLowerable) and index not in self.host and writes_nothing(node):
                    continue
                self.end_segment(lambda slot, at=index: self.window.slots[slot].alive or last_use[slot] >= at)
                self.segments.append(Segment(host_node=index))
        self.end_segment(lambda slot: self.window.slots[slot].alive)
        return self.segments

    def end_segment(self, visible: Any) -> None:
        """Store what is still seen, and close the graph."""
        for slot, state in self.states.items():
            if state.dirty and visible(slot):
                self.spill(slot, state)
        loaded = {node.attrs["slot"] for node in self.graph.nodes if node.op == "load"}
        words = len(self.window.slots)  # the slot of what checks found
        drop_dead(self.graph, lambda slot: slot == words or slot in loaded or visible(slot))
        for node in self.graph.nodes if self.window.ordered else ():
            if node.op in ("index_put", "scatter"):
                node.attrs["ordered"] = True
        if self.graph.nodes:
            self.segments.append(Segment(graph=self.graph))
        self.graph, self.states, self.params, self.checked, self.views = Graph(), {}, {}, set(), {}

    def node(self, node: WindowNode) -> None:
        """Lower one op and write its results. Raises NotLowerable where it has no rule for these arguments."""
        op_schema = schema(node.op)
        arguments = {a.name: self.argument(v) for a, v in zip(op_schema.arguments, node.args, strict=True)}
        positional = [arguments[a.name] for a in op_schema.arguments if not a.kwarg_only]
        keywords = {a.name: arguments[a.name] for a in op_schema.arguments if a.kwarg_only}
        if node.seed is not None:
            keywords["seed"], keywords["offset"] = map(self.argument, node.seed)
        mark = self.read_up_to = len(self.graph.nodes)
        while True:
            try:
                lowered = lower(self.graph, node.op, positional, keywords)
                break
            except NeedsStatic as need:
                del self.graph.nodes[mark:]
                self.statics.append((node.op, set(need.names)))
                raw = dict(zip((a.name for a in op_schema.arguments), node.args, strict=True))
                arguments |= {name: self.static(raw[name]) for name in need.names}
                positional = [arguments[a.name] for a in op_schema.arguments if not a.kwarg_only]
                keywords |= {a.name: arguments[a.name] for a in op_schema.arguments if a.kwarg_only}
        raw_args = {a.name: v for a, v in zip(op_schema.arguments, node.args, strict=True)}
        for name, value in lowered.writes.items():
            self.write_argument(raw_args[name], value)
        # Results that are an argument were written above; the others are flat, lists opened.
        aliased = [result.alias_info is not None for result in op_schema.returns]
        results = lowered.outputs
        if len(results) == len(aliased):
            results = tuple(value for value, alias in zip(results, aliased, strict=True) if not alias)
        for target, value in zip(node.outs, () if all(aliased) else results, strict=True):
            if target is not None and value is not None:
                self.write(Tensor(*target[1:]), value)
        self.expand_checks(mark)

    def expand_checks(self, mark: int) -> None:
        """The checks among the nodes from `mark` on as words; one is enough for all ops that look at an index alike."""
        added = self.graph.nodes[mark:]
        self.graph.nodes[mark:] = [node for node in added if node.op != "check"]
        for check in (node for node in added if node.op == "check"):
            (index,), low, size = check.inputs, check.attrs["low"], check.attrs["size"]
            stricter = any((found, high) == (index.id, size) and least >= low for found, high, least in self.checked)
            if stricter or found_below(index) <= size:
                continue
            self.checked.add((index.id, size, low))
            with building(self.graph):
                # Inside is what lies less than size - low beyond low, as unsigned numbers, of which negative ones are
                # the largest: two operations an index. Of signed numbers, the first bit the other way, that is amax.
                beyond = Arr(index) - low if low else Arr(index)
                worst = (beyond ^ NOTHING).amax() ^ NOTHING
                word = where((worst >= 0) & (worst < size - low), NOTHING, worst + low).v
            at = View((), (), len(self.checks))
            self.graph.add_multi("store", (word,), [], slot=len(self.window.slots), **at._asdict())
            name = self.window.nodes[self.graph.origin].op
            text = f"{check.attrs['text']} ({RECORDED_FOR.get(name, name)} at {{line}})"
            self.checks.append(Check(self.graph.origin, check.attrs["raises"], text, size))

    def write_argument(self, raw: Any, value: Any) -> None:
        """Write what an op leaves in an argument, or in each member of a list; None leaves it as it is."""
        if isinstance(raw, list):
            for member, new in zip(raw, value, strict=True):
                self.write_argument(member, new)
        elif value is not None and raw is not None:
            self.write(Tensor(*raw[1:]), value)

    # --- arguments ----------------------------------------------------------------------------------------------------

    def argument(self, raw: Any) -> Any:
        """A recorded argument as `lower` takes it."""
        if isinstance(raw, list):
            return [self.argument(member) for member in raw]
        if not isinstance(raw, tuple):
            return raw
        tag = raw[0]
        if tag == "tensor":
            return self.read(Tensor(*raw[1:]))
        if tag == "scalar":
            return self.param(raw[1], raw[2])
        if tag == "host_scalar":
            return self.host_scalar(raw)
        if tag == "device":
            return torch.device("lazy", raw[1]) if raw[1] >= 0 else torch.device("lazy")
        return TORCH_DTYPES.get(raw[1], raw[1])  # "enum": a dtype, or a layout or memory format that no rule looks at

    def static(self, raw: Any) -> Any:
        """A run-time scalar as the number that it is this time."""
        if isinstance(raw, list):
            return [self.static(member) for member in raw]
        if isinstance(raw, tuple) and raw[0] == "scalar":
            value = self.window.scalars[raw[1]]
            return complex(value, self.window.scalars[raw[1] + 1]) if SCALAR_KINDS[raw[2]] == "c128" else value
        return self.argument(raw)

    def param(self, index: int, kind: int) -> Any:
        """A run-time scalar as an input of the graph (0-dim); a complex one is a pair."""
        if SCALAR_KINDS[kind] == "c128":
            return Complex(self.param(index, 0), self.param(index + 1, 0))
        if index not in self.params:
            self.params[index] = self.graph.add("param", (), (), SCALAR_KINDS[kind], index=index)
        return self.params[index]

    def host_scalar(self, raw: tuple) -> Any:
        """A 0-dim CPU tensor: a number that keeps its dtype for promotion, unless it wraps a Python number."""
        _, dtype, wrapped, scalar = raw
        value = self.param(scalar[1], scalar[2])
        if wrapped:
            return value
        name, is_complex = _dtype(dtype)
        if is_complex:
            return Complex(*(self.convert(part, name) for part in (value.re, value.im)))
        return self.convert(value, name, always=True)

    def convert(self, value: Value, dtype: str, always: bool = False) -> Value:
        """The value in `dtype`; `always`: a new one even where it has that dtype."""
        if value.dtype == dtype and not always:
            return value
        return self.graph.add("map", (value,), value.shape, dtype, fn="convert", to=dtype)

    # --- slots --------------------------------------------------------------------------------------------------------

    def read(self, t: Tensor) -> Value | Complex:
        """What a view of a slot holds: a view of the known value, or else a load."""
        state = self.states.setdefault(t.slot, State())
        wanted = View(t.sizes, t.strides, t.offset)
        if state.part and state.view and not large(wanted, state.view):
            # As edges are mirrored: no chain of values. Those of other slots at once, whose kernels they may share.
            for slot, other in self.states.items():
                if other.part:
                    self.spill(slot, other)
        if state.value is not None and state.dtype == t.dtype:
            assert state.view is not None
            if isinstance(state.value, Complex):
                parts = [view_of(self.graph, part, state.view, wanted) for part in (state.value.re, state.value.im)]
                found: Any = Complex(*parts) if None not in parts else None
            else:
                found = view_of(self.graph, state.value, state.view, wanted)
                if found is not None:
                    self.views.setdefault(found, (t, state.value, state.view))
            if found is not None:
                state.part = None
                return found
        if state.dirty:
            self.spill(t.slot, state)
        name, is_complex = _dtype(t.dtype)
        if is_complex:
            return Complex(*(self.load(state, t.slot, name, part) for part in complex_parts(wanted)))
        found = self.load(state, t.slot, name, wanted)
        self.views.setdefault(found, (t, None, None))
        return found

    def load(self, state: State, slot: int, dtype: str, view: View) -> Value:
        """A view of a slot from memory; asked for again before a write, the same value."""
        key = (dtype, view)
        if key not in state.loads:
            state.loads[key] = self.graph.add("load", (), view.sizes, dtype, slot=slot, **view._asdict())
        return state.loads[key]

    def write(self, t: Tensor, value: Any) -> None:
        """Write a value over a view of a slot."""
        name, is_complex = _dtype(t.dtype)
        if is_complex:
            if not isinstance(value, Complex):
                value = Complex(value, self.graph.add("full", (), value.shape, name, value=0.0))
            value = Complex(*(self.convert(part, name) for part in (value.re, value.im)))
        else:
            value = self.convert(value.re if isinstance(value, Complex) else value, name)
        shape = (value.re if isinstance(value, Complex) else value).shape
        # Where sizes vary this was seen when the structure came first, and each comparison would be a guard.
        assert current() or shape == t.sizes, f"a rule gives the shape {shape} where Meta gives {t.sizes}"
        if 0 in t.sizes:
            return
        state = self.states.setdefault(t.slot, State())
        view = View(t.sizes, t.strides, t.offset)
        itemsize = TORCH_DTYPES[t.dtype].itemsize
        if view.fills(self.window.slots[t.slot].nbytes // itemsize):
            if not isinstance(value, Complex) and value.node.op == "cat" and len(value.node.inputs) > MOST_PARTS:
                self.store_parts(t.slot, view, value.node)
                self.states[t.slot] = State()
                return
            state.value, state.view, state.dtype, state.dirty, state.part = value, view, t.dtype, True, None
            state.loads.clear()
            return
        if self.write_part(state, t, view, value):
            return
        if state.dirty:
            self.spill(t.slot, state)
        self.store(t.slot, view, value)
        state.value = None
        state.loads.clear()

    def write_part(self, state: State, t: Tensor, part: View, value: Any) -> bool:
        """Writes a part as a new value of all of the slot, where that is known or worth reading. False: not done."""
        if isinstance(value, Complex) or isinstance(state.value, Complex):
            return False
        slot, known = self.window.slots[t.slot], state.value is not None and state.dtype == t.dtype
        have = state.view if known else dense(part, slot.nbytes // TORCH_DTYPES[t.dtype].itemsize)
        if have is None or (state.dirty and not known):
            return False
        fill = number(state.value) if state.value is not None and state.dirty else None
        if fill is None and not (large(part, have) and (known or slot.had_data)):
            return False
        with building(self.graph):
            if fill is not None:
                whole = padded(fill, have, part, value)
            else:
                base = state.value if known and state.value else self.load(state, t.slot, value.dtype, have)
                whole = replaced(base, have, part, value, functools.partial(self.whole, part, have))
        if whole is None:
            return False
        state.part = None if state.dirty else (part, value)
        state.value, state.view, state.dtype, state.dirty = whole, have, t.dtype, True
        return True

    def whole(self, part: View, have: View, value: Value) -> Value | None:
        """All of a buffer in layout `have` of which `value` was read as `part`, as it was then."""
        t, of, layout = self.views.get(value, (None, None, None))
        if t is None or View(t.sizes, t.strides, t.offset) != part:
            return None
        if of is not None:
            return of if layout == have else None
        state, slot = self.states[t.slot], self.window.slots[t.slot]
        fits = slot.nbytes == prod(have.sizes) * TORCH_DTYPES[t.dtype].itemsize
        current = any(value is loaded for loaded in state.loads.values())
        return self.load(state, t.slot, value.dtype, have) if fits and current else None

    def store(self, slot: int, view: View, value: Any, **more: int) -> None:
        """Write a value to memory; a complex one part by part."""
        parts = (
            zip((value.re, value.im), complex_parts(view), strict=True)
            if isinstance(value, Complex)
            else [(value, view)]
        )
        for part, at in parts:
            self.graph.add_multi("store", (part,), [], slot=slot, **at._asdict(), **more)

    def store_parts(self, slot: int, view: View, cat: Node) -> None:
        """Write the parts of a concatenation to memory, each by itself."""
        dim, start = cat.attrs["dim"], view.offset
        for part in cat.inputs:
            if 0 not in part.shape:
                self.store(slot, View(part.shape, view.strides, start), part, cat=cat.outputs[0].id)
            start += part.shape[dim] * view.strides[dim]

    def spill(self, slot: int, state: State) -> None:
        """Bring memory up to date; the value stays known."""
        assert state.view is not None
        if state.part:
            self.store(slot, *state.part)
            state.value = state.part = None
        else:
            self.store(slot, state.view, state.value)
        state.dirty = False
        state.loads.clear()


def complex_parts(view: View) -> tuple[View, View]:
    """The real and imaginary parts of a complex view, as views of real elements."""
    strides = tuple(2 * s for s in view.strides)
    return View(view.sizes, strides, 2 * view.offset), View(view.sizes, strides, 2 * view.offset + 1)


def found_below(index: Value) -> float:
    """What positions that the device itself found or counted lie below, if `index` is such; else infinity."""
    while index.node.op in VIEWS or index.node.attrs.get("fn") == "convert":
        index = index.node.inputs[0]
    node = index.node
    if node.op in ("argmax", "argmin"):
        return node.inputs[0].shape[node.attrs["dims"][0]]
    if node.op == "sort" and index.index == 1:
        return node.inputs[0].shape[node.attrs["dim"]]
    if node.op == "nonzero":
        return max(node.inputs[0].shape)
    return index.shape[0] if node.op == "iota" else inf


def drop_dead(graph: Graph, read: Callable[[int], bool]) -> None:
    """Remove nodes that no store needs. read: whether anybody reads what is stored in a slot."""
    needed: set[int] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if read(node.attrs["slot"]) if node.op == "store" else any(v.id in needed for v in node.outputs):
            needed.update(v.id for v in node.inputs)
            kept.append(node)
    graph.nodes = kept[::-1]


def functionalize(
    window: Window, host: Set[int] = frozenset()
) -> tuple[list[Segment], list[Check], list[tuple[str, set[str]]]]:
    """The window's segments in order, its checks, and the (op, argument names) whose scalars were compiled in.

    host: nodes that are not lowered whether or not they could be.
    """
    walker = Functionalizer(window, host)
    return walker.run(), walker.checks, walker.statics
