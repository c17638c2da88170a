"""PyTorch's own decompositions as lowering rules: run one on meta tensors and follow what it does.

Each meta tensor stands for a view of a *cell* (one storage) that holds an array; in-place ops replace the cell's array.
A trace is cached as a template per (op, metadata) and spliced into the graph. Nested ops are lowered, and cached, the
same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from ops_core import array as A
from ops_core.array import Arr
from ops_core.ir import Graph, Node, Value
from ops_core.lowering import views
from ops_core.lowering.promote import name_of, torch_dtype
from ops_core.lowering.registry import RULES, Complex, Effects, NeedsStatic, NotLowerable, Scalar
from ops_core.lowering.schema import Op, op_of
from ops_core.sizes import current

Decomposition = Callable[..., Any]
OWN: dict[str, Decomposition] = {}  # decompositions written for this project over torch ops, by overload or base
LONGEST_CONSTANT = 256
# two stand-ins per run-time scalar: no constant of a decomposition equals either
PLACEHOLDERS = (0.7390851332151607, 0.5671432904097838)


def decomposition(*names: str) -> Callable[[Decomposition], Decomposition]:
    """Declare a function over torch tensors as the decomposition of ATen ops (overloads or bases)."""

    def register(fn: Decomposition) -> Decomposition:
        OWN.update((f"aten.{name}", fn) for name in names)
        return fn

    return register


@cache
def decomposition_of(op: Op) -> Decomposition | None:
    """Ours, PyTorch's decomposition table (refs included), or the op's composite kernel."""
    own = OWN.get(op.name) or OWN.get(op.base_name)
    if own is not None:
        return own
    if op.func in decomposition_table:
        return decomposition_table[op.func]
    if op.func._can_decompose():
        return op.func.decompose
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.func.name(), "CompositeExplicitAutograd"):
        return lambda *args, **kwargs: op.func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    return None


class Cell:
    """One storage of the trace: the array of its base tensor."""

    def __init__(self, value: Any, base: torch.Tensor):
        self.value, self.base = value, base


Step = tuple[Callable[..., Any], Callable[..., Arr] | None, tuple[Any, ...]]


class Track:
    """What a meta tensor stands for: a chain of view steps from a cell."""

    def __init__(self, cell: Cell, chain: tuple[Step, ...] = ()):
        self.cell, self.chain = cell, chain

    def read(self, upto: int | None = None) -> Any:
        """The array that the tensor (or the first `upto` views) shows."""
        value = self.cell.value
        for forward, _, args in self.chain[:upto]:
            value = _both(lambda x, f=forward, a=args: f(x, *a), value)
        return value

    def write(self, new: Any) -> None:
        """Replace what the tensor shows, through its views."""
        for i in reversed(range(len(self.chain))):
            _, backward, args = self.chain[i]
            if backward is None:
                raise NotLowerable("a write through this view")
            base = self.read(i)
            new = _both(lambda x, b, f=backward, a=args: f(x, b, *a), new, base)
        self.cell.value = new


def _both(fn: Callable[..., Any], *values: Any) -> Any:
    """`fn` on arrays, or on both parts of complex ones."""
    if not isinstance(values[0], Complex):
        return fn(*values)
    return Complex(fn(*(v.re for v in values)), fn(*(v.im for v in values)))


class Tracer(TorchDispatchMode):
    """Lowers every op that runs on its meta tensors into the graph being built."""

    def __init__(self, scalars: dict[float, Scalar], rng: tuple[Arr, Arr] | None):
        super().__init__()
        self.tracks: dict[int, Track] = {}
        self.alive: list[torch.Tensor] = []  # ids stay unique while the tensors live
        self.scalars, self.rng, self.drawn = scalars, rng, 0

    def adopt(self, value: Any, like: torch.Tensor | None = None) -> torch.Tensor:
        """A meta tensor for `value`; `like` is one that a meta kernel made."""
        tensor = torch.empty(value.shape, dtype=torch_dtype(value), device="meta") if like is None else like
        return self.remember(tensor, Track(Cell(value, tensor)))

    def remember(self, tensor: torch.Tensor, track: Track) -> torch.Tensor:
        """Track a meta tensor for the length of the trace."""
        self.tracks[id(tensor)] = track
        self.alive.append(tensor)
        return tensor

    def array(self, x: Any) -> Any:
        """An argument of a traced op as an argument of a rule."""
        if isinstance(x, torch.Tensor):
            track = self.tracks.get(id(x))
            return self.constant(x) if track is None else track.read()
        if isinstance(x, float) and x in self.scalars:
            return self.scalars[x]
        if isinstance(x, (list, tuple)):
            return [self.array(v) for v in x]
        return x

    def constant(self, t: torch.Tensor) -> Any:
        """A tensor that the decomposition made by itself, from Python numbers."""
        if t.device.type != "cpu" or t.numel() > LONGEST_CONSTANT:
            raise NotLowerable("an unknown tensor in a decomposition")
        if t.ndim == 0:
            return self.array(t.item())
        name = name_of(t.dtype)
        flat = A.cat([A.full((1,), v, name) for v in t.reshape(-1).tolist()], 0) if t.numel() else A.full((0,), 0, name)
        return flat.reshape(*t.shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = op_of(func)
        if torch.Tag.data_dependent_output in func.tags:
            raise NotLowerable(f"{op.name} reads data")
        if func._can_decompose() and not known(op):
            with self:
                return func.decompose(*args, **kwargs)
        if args and isinstance(args[0], torch.Tensor) and id(args[0]) in self.tracks:
            if op.base in RESHAPED_INPLACE:
                return self.reshape_inplace(op, args, kwargs)
            if op.func.is_view or op.base in ("detach", "alias", "lift_fresh"):
                return self.view(op, args, kwargs)
        return self.compute(op, args, kwargs)

    def view(self, op: Op, args: Any, kwargs: Any) -> Any:
        """A view: nothing is computed, the result shows the same cell."""
        out = op.func(*args, **kwargs)
        base = self.tracks[id(args[0])]
        bound = list(op.bind(args, kwargs).values())[1:]
        if isinstance(out, (list, tuple)):
            steps = list(_parts(op, tuple(args[0].shape), bound))
            return [
                self.remember(t, Track(base.cell, (*base.chain, step))) for t, step in zip(out, steps, strict=False)
            ]
        if out is args[0]:
            return out
        return self.remember(out, self.extended(op, base, tuple(bound), out))

    def extended(self, op: Op, base: Track, bound: tuple[Any, ...], out: torch.Tensor) -> Track:
        """`base` seen through one more view."""
        if op.base == "as_strided":
            if not base.cell.base.is_contiguous():
                raise NotLowerable("as_strided of a permuted base")
            bound, base = (tuple(out.shape), out.stride(), out.storage_offset()), Track(base.cell)
        if op.base in ("view_as_real", "view_as_complex", "real", "imag"):
            raise NotLowerable("a complex view")
        found = views.find(op.base, op.func._overloadname)
        if found is None:
            raise NotLowerable(f"view {op.name}")
        return Track(base.cell, (*base.chain, (*found, bound)))

    def reshape_inplace(self, op: Op, args: Any, kwargs: Any) -> Any:
        """squeeze_ and its kind: the tensor itself becomes another view."""
        tensor, track = args[0], self.tracks[id(args[0])]
        bound = tuple(op.bind(args, kwargs).values())[1:]
        op.func(*args, **kwargs)
        forward, backward = views.VIEWS[op.base.rstrip("_")]
        self.tracks[id(tensor)] = Track(track.cell, (*track.chain, (forward, backward, bound)))
        return tensor

    def compute(self, op: Op, args: Any, kwargs: Any) -> Any:
        """Lower one op on the arrays of its arguments and wrap its results."""
        from ops_core.lowering.dispatch import run

        if "device" in kwargs or not any(isinstance(a, torch.Tensor) for a in tree_flatten((args, kwargs))[0]):
            kwargs = {**kwargs, "device": "meta"} if any(a.name == "device" for a in op.arguments) else kwargs
        fresh = self.metadata(op, args, kwargs)
        bound = {n: self.array(v) for n, v in op.bind(args, kwargs).items()}
        if torch.Tag.nondeterministic_seeded in op.func.tags:
            bound |= self.draw(fresh)
        effects = run(op, bound)
        for name, value in effects.writes.items():
            self.write(op.bind(args, kwargs)[name], value)
        return self.results(op, args, kwargs, effects.outputs, fresh)

    def metadata(self, op: Op, args: Any, kwargs: Any) -> Any:
        """What the meta kernel returns (this also resizes out= tensors); None where there is none."""
        try:
            args, kwargs = tree_map(_as_meta, (args, kwargs))
            out = op.func(*args, **kwargs)
        except NotImplementedError:
            return None
        for name in op.out_names:  # resized: the old contents are gone
            tensor = kwargs.get(name)
            if isinstance(tensor, torch.Tensor) and id(tensor) in self.tracks:
                track = self.tracks[id(tensor)]
                if not track.chain and track.cell.value.shape != tuple(tensor.shape):
                    track.cell.value = A.full(tuple(tensor.shape), 0, track.cell.value.dtype)
        return out

    def draw(self, fresh: Any) -> dict[str, Arr]:
        """Seed and offset of an inner random op: the outer op's, counters consumed in order."""
        if self.rng is None:
            raise NotLowerable("a random op inside one that is not random")
        seed, offset = self.rng
        first = tree_flatten(fresh)[0][0]
        at, self.drawn = self.drawn, self.drawn + -(-first.numel() // 4)
        return {"seed": seed, "offset": offset + at if at else offset}

    def write(self, tensors: Any, values: Any) -> None:
        """New arrays for written arguments."""
        if isinstance(tensors, torch.Tensor):
            self.tracks[id(tensors)].write(values)
            return
        for tensor, value in zip(tensors, values, strict=False):
            if value is not None:
                self.write(tensor, value)

    def results(self, op: Op, args: Any, kwargs: Any, outputs: Any, fresh: Any) -> Any:
        """What the traced op returns: its own arguments, or fresh meta tensors."""
        if op.face == "inplace":
            return args[0]
        if op.face == "out":
            outs = [kwargs[n] for n in op.out_names]
            return outs[0] if len(outs) == 1 else tuple(outs)
        if isinstance(outputs, (list, tuple)):
            metas = fresh if isinstance(fresh, (list, tuple)) else [None] * len(outputs)
            return [None if v is None else self.adopt(v, m) for v, m in zip(outputs, metas, strict=False)]
        return None if outputs is None else self.adopt(outputs, fresh)


def _as_meta(x: Any) -> Any:
    """A constant of the decomposition as a meta tensor; 0-dim ones mix with any device as they are."""
    return x.to("meta") if isinstance(x, torch.Tensor) and x.ndim and x.device.type == "cpu" else x


def known(op: Op) -> bool:
    """There is a rule, a view or a decomposition of ours for `op`."""
    names = (op.name, op.base_name)
    return any(n in RULES or n in OWN for n in names) or views.find(op.base, op.func._overloadname) is not None


RESHAPED_INPLACE = frozenset({"squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"})


def _parts(op: Op, shape: tuple[int, ...], bound: list[Any]) -> Sequence[Step]:
    """The views that a splitting op returns, one step each."""
    dim = (bound[1] if len(bound) > 1 else bound[0]) % len(shape)
    n = shape[dim]
    if op.base == "unbind":
        return [(*views.VIEWS["select"], (dim, i)) for i in range(n)]
    if op.base == "split":
        size = bound[0]
        sizes = [min(size, n - i) for i in range(0, max(n, 1), size)] if size else [0]
    elif op.base == "split_with_sizes":
        sizes = list(bound[0])
    elif op.base in ("chunk", "tensor_split"):
        raise NotLowerable(op.name)
    else:
        raise NotLowerable(f"views of {op.name}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [(*views.VIEWS["slice"], (dim, s, s + z)) for s, z in zip(starts, sizes, strict=False)]


class Template:
    """A traced lowering: a graph over `inputs`, spliced by renaming."""

    def __init__(self, graph: Graph, inputs: list[Value], outputs: Any):
        self.inputs, self.outputs = inputs, outputs
        live = {v for v in tree_flatten(_values(outputs))[0] if isinstance(v, Value)}
        self.nodes: list[Node] = []
        for node in reversed(graph.nodes):
            if node.op == "check" or (node.op not in ("input", "param") and not live.isdisjoint(node.outputs)):
                live.update(node.inputs)
                self.nodes.append(node)
        self.nodes.reverse()

    def splice(self, inputs: list[Value], graph: Graph) -> Any:
        """Append the nodes to `graph`, reading `inputs` instead of the trace's."""
        env = dict(zip(self.inputs, inputs, strict=False))
        for node in self.nodes:
            specs = [(v.shape, v.dtype) for v in node.outputs]
            env.update(
                zip(
                    node.outputs,
                    graph.add_multi(node.op, tuple(env[v] for v in node.inputs), specs, **node.attrs),
                    strict=False,
                )
            )
        return _rewrap(self.outputs, env)

    def same(self, other: Template) -> bool:
        """Equal up to the numbering of values."""
        return len(self.nodes) == len(other.nodes) and repr(self.nodes) == repr(other.nodes)


def _values(x: Any) -> Any:
    """Arrays as values, complex pairs as lists."""
    if isinstance(x, Complex):
        return [x.re.v, x.im.v]
    if isinstance(x, (list, tuple)):
        return [_values(v) for v in x]
    if isinstance(x, dict):
        return [_values(v) for v in x.values()]
    return x.v if isinstance(x, Arr) else None


def _rewrap(x: Any, env: dict[Value, Value]) -> Any:
    if isinstance(x, Arr):
        return Arr(env[x.v])
    if isinstance(x, Complex):
        return Complex(Arr(env[x.re.v]), Arr(env[x.im.v]))
    if isinstance(x, (list, tuple)):
        return [_rewrap(v, env) for v in x]
    if isinstance(x, dict):
        return {k: _rewrap(v, env) for k, v in x.items()}
    return x


def _key(x: Any) -> Any:
    if isinstance(x, Scalar):
        return ("scalar", x.dtype)
    if isinstance(x, Arr):
        return (x.shape, x.dtype, x.v.node.op == "param")
    if isinstance(x, Complex):
        return ("complex", x.shape, x.dtype)
    if isinstance(x, (list, tuple)):
        return tuple(map(_key, x))
    return (type(x), x)


# Of graphs whose sizes are numbers. What contains sizes of a tape means nothing on another, though they may be equal.
_cache: dict[Any, Template | Exception] = {}
_running: ContextVar[frozenset[Any]] = ContextVar("running", default=frozenset())


def traced(op: Op, bound: dict[str, Any]) -> Effects:
    """Lower `op` by its decomposition; the template is cached per op and metadata."""
    function = decomposition_of(op)
    if function is None:
        of = " of complex numbers" if any(isinstance(x, Complex) for x in bound.values()) else ""
        raise NotLowerable(f"{op.name}{of} has no decomposition")
    tape = current()
    templates = tape.cache.setdefault(Template, {}) if tape else _cache
    try:
        key = (op.name, torch.get_default_dtype(), tuple((n, _key(v)) for n, v in bound.items()))
        template = templates.get(key)
    except TypeError:
        key, template = None, None
    if template is None:
        if key in _running.get():
            raise NotLowerable(f"{op.name} decomposes into itself")
        token = _running.set(_running.get() | {key})
        try:
            template = _template(op, function, bound)
        except (NotLowerable, NeedsStatic) as why:
            template = why
        finally:
            _running.reset(token)
        if key is not None:
            templates[key] = template
    if isinstance(template, Exception):
        raise template
    outputs, writes = template.splice([v for v in tree_flatten(_values(bound))[0] if v is not None], A.current())
    return Effects(outputs, writes)


def _template(op: Op, function: Decomposition, bound: dict[str, Any]) -> Template:
    first = _trace(op, function, bound, 0)
    names = {v.name for v in bound.values() if isinstance(v, Scalar)}
    if names and not first.same(_trace(op, function, bound, 1)):
        raise NeedsStatic(names)
    return first


def _trace(op: Op, function: Decomposition, bound: dict[str, Any], which: int) -> Template:
    graph = Graph()
    inputs: list[Value] = []
    scalars: dict[float, Scalar] = {}

    def shadow(x: Arr) -> Arr:
        inputs.append(graph.add("param" if x.v.node.op == "param" else "input", (), x.shape, x.dtype))
        return Arr(inputs[-1])

    def enter(x: Any) -> Any:
        if isinstance(x, Scalar):
            if not x.is_float:
                raise NeedsStatic({x.name})
            stand_in = PLACEHOLDERS[which] + len(scalars)
            scalars[stand_in] = Scalar(shadow(x).v, x.name)
            return stand_in
        if isinstance(x, Arr):
            return tracer.adopt(shadow(x))
        if isinstance(x, Complex):
            return tracer.adopt(Complex(shadow(x.re), shadow(x.im)))
        return [enter(v) for v in x] if isinstance(x, (list, tuple)) else x

    with A.building(graph):
        tracer = Tracer(scalars, None)
        entered = {n: enter(v) for n, v in bound.items()}
        if "seed" in entered:
            tracer.rng = (tracer.array(entered.pop("seed")), tracer.array(entered.pop("offset")))
        args, kwargs = _call_arguments(op, entered)
        try:
            with tracer:
                result = function(*args, **kwargs)
        except (NotImplementedError, RuntimeError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise NotLowerable(f"the decomposition of {op.name} failed: {type(error).__name__}: {error}") from error
        outputs = tree_map_tensors(lambda t: tracer.array(t), result)
        writes = {name: tracer.array(entered[name]) for name in op.mutated if entered[name] is not None}
    return Template(graph, inputs, (outputs, writes))


def tree_map_tensors(fn: Callable[[torch.Tensor], Any], x: Any) -> Any:
    """`fn` on the tensors of nested tuples; everything else becomes None."""
    if isinstance(x, (list, tuple)):
        return [tree_map_tensors(fn, v) for v in x]
    return fn(x) if isinstance(x, torch.Tensor) else None


def _call_arguments(op: Op, entered: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments as the schema has them."""
    args, kwargs = [], {}
    for a, schema in zip(op.arguments, op.func._schema.arguments, strict=False):
        value = entered["from_" if a.name == "from" else a.name]
        if schema.kwarg_only:
            if value is not None:
                kwargs[a.name] = torch.device("meta") if a.name == "device" else value
        else:
            args.append(value)
    return args, kwargs
