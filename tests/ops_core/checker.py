"""Lowers real ATen calls, interprets the graphs with NumPy and compares with eager CPU. Needs no device.

`Recorder` sees each op that a dense backend would get (below autograd, composites already gone); `check` lowers one
call and compares every result and every mutated argument.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ops_core import interpret, lowering
from ops_core.ir import Graph, Value
from ops_core.lowering.promote import FROM_TORCH
from ops_core.lowering.schema import Op, op_of

SEED, OFFSET = 1234, 5
# tolerances of torch.testing, widened for half types whose eager kernels round between fused steps
TOLERANCE = {torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2), torch.float32: (2e-5, 2e-5),
             torch.float64: (1e-7, 1e-7)}  # fmt: skip


def to_numpy(t: torch.Tensor) -> np.ndarray:
    """A contiguous 1-D NumPy copy, bfloat16 as float32."""
    t = torch.zeros_like(t) if t._is_zerotensor() else t
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy().reshape(-1).copy()


class Call:
    """One graph for one call: tensors become loads, Python scalars of Scalar arguments become params."""

    def __init__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], static: frozenset[str] = frozenset()):
        self.op, self.graph = op, Graph()
        self.memory: dict[int, np.ndarray] = {}
        self.params: list[Any] = []
        static |= lowering.static_scalars(op.name)
        bound = op.bind(args, kwargs)
        kinds = {a.name: a.kind for a in op.arguments}
        values = {n: self.value(v, kinds[n].startswith("scalar") and n not in static) for n, v in bound.items()}
        if torch.Tag.nondeterministic_seeded in op.func.tags:
            values |= {"seed": self.param(SEED), "offset": self.param(OFFSET)}
        self.lowered = lowering.lower(self.graph, op.name, [], values)

    def param(self, x: Any) -> Value:
        self.params.append(x)
        dtype = "bool" if isinstance(x, bool) else "i64" if isinstance(x, int) else "f64"
        return self.graph.add("param", (), (), dtype, index=len(self.params) - 1)

    def load(self, memory: np.ndarray, shape: tuple[int, ...], dtype: str) -> Value:
        slot = len(self.memory)
        self.memory[slot] = memory
        strides = tuple(int(np.prod(shape[d + 1 :])) for d in range(len(shape)))
        return self.graph.add_multi("load", (), [(shape, dtype)], slot=slot, sizes=shape, strides=strides, offset=0)[0]

    def value(self, x: Any, scalar: bool) -> Any:
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        if isinstance(x, (list, tuple)):
            return [self.value(v, scalar) for v in x]
        return self.param(x) if scalar and isinstance(x, (bool, int, float)) else x

    def tensor(self, t: torch.Tensor) -> Any:
        shape = tuple(t.shape)
        if t.dtype.is_complex:
            pair = torch.view_as_real(t.resolve_conj()).to(
                torch.float32 if t.dtype == torch.complex32 else t.real.dtype
            )
            name = FROM_TORCH[t.real.dtype]
            return lowering.Complex(*(self.load(to_numpy(pair.select(-1, i)), shape, name) for i in (0, 1)))
        if t.dtype not in FROM_TORCH or t.layout != torch.strided:
            raise lowering.NotLowerable(f"{t.dtype} {t.layout}")
        return self.load(to_numpy(t), shape, FROM_TORCH[t.dtype])

    def run(self) -> dict[Value, np.ndarray]:
        return interpret.run(self.graph, self.memory, self.params)


def lower_call(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Lower, making scalars static where a rule asks for it."""
    static: frozenset[str] = frozenset()
    while True:
        try:
            return Call(op, args, kwargs, static)
        except lowering.NeedsStatic as need:
            if need.names <= static:
                raise
            static |= need.names


def tensors_of(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple)):
        return [t for v in x for t in tensors_of(v)]
    return [x]


def compare(name: str, got: np.ndarray, dtype: str, expected: torch.Tensor, exact: bool) -> str | None:
    """None, or what differs."""
    want = to_numpy(expected).reshape(tuple(expected.shape))
    if got.shape != want.shape and want.size == 0:
        return None  # the CPU leaves out what the meta kernel promises
    if got.shape != want.shape:
        return f"{name}: shape {got.shape}, expected {want.shape}"
    if dtype != FROM_TORCH[expected.dtype]:
        return f"{name}: dtype {dtype}, expected {expected.dtype}"
    if not exact:
        return None
    rtol, atol = TOLERANCE.get(expected.dtype, (0, 0))
    scale = 1.0
    if want.dtype.kind == "f" and want.size:
        finite = np.abs(want[np.isfinite(want)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
    close = (
        np.isclose(got, want, rtol=rtol * 4, atol=atol * scale, equal_nan=True)
        if want.dtype.kind == "f"
        else got == want
    )
    if close.all():
        return None
    at = np.unravel_index(int(np.argmin(close)), close.shape)
    return f"{name}{list(map(int, at))}: {got[at]} expected {want[at]} ({int((~close).sum())} of {close.size} differ)"


UNDEFINED = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
# results whose other entries are unspecified (positions among equals, scratch beyond the lengths)
FIRST_RESULT_ONLY = frozenset({"sort", "topk", "kthvalue", "median", "nanmedian", "mode", "_ctc_loss",
                               "_embedding_bag", "_embedding_bag_forward_only"})  # fmt: skip


class Refused(Exception):
    """Eager itself raises on this call."""


def clones(x: Any) -> Any:
    return tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, x)


def unlike_meta(op: Op, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What differs between the lowered results' shapes and those of the Meta kernel, which the recorder believes."""
    moved = tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, (args, kwargs))
    if "device" in kwargs:
        moved[1]["device"] = "meta"
    try:
        promised = op.func(*moved[0], **moved[1])
    except (NotImplementedError, RuntimeError):
        return None
    for i, (value, tensor) in enumerate(zip(call.lowered.outputs, tensors_of(promised), strict=False)):
        if (
            isinstance(tensor, torch.Tensor)
            and tensor.is_meta
            and value is not None
            and value.shape != tuple(tensor.shape)
        ):
            return f"out{i}: shape {value.shape}, the meta kernel says {tuple(tensor.shape)}"
    return None


def check(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Run one call eagerly, then lower and interpret it: None when all results and writes agree, else what differs.
    Raises `NotLowerable`, and `Refused` where eager does not take the call."""
    eager_args, eager_kwargs = clones((args, kwargs))
    try:
        expected = op.func(*eager_args, **eager_kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise Refused from error
    bound = op.bind(eager_args, eager_kwargs)
    # the recorder's meta kernel has resized out= arguments by the time a call is lowered
    resized = {n: torch.zeros_like(bound[n]) for n in op.out_names if isinstance(bound[n], torch.Tensor)}
    call = lower_call(op, args, kwargs | resized)
    unlike = unlike_meta(op, call, args, kwargs)
    if unlike:
        return unlike
    random = torch.Tag.nondeterministic_seeded in op.func.tags
    exact = not random and op.base not in UNDEFINED
    env = call.run()
    results = tensors_of(expected) if expected is not None else []
    pairs = [(f"out{i}", v, t) for i, (v, t) in enumerate(zip(call.lowered.outputs, results, strict=False))]
    if len(call.lowered.outputs) != len(results) and op.face != "out" and results and call.lowered.outputs:
        return f"{len(call.lowered.outputs)} results, expected {len(results)}"
    for name, new in call.lowered.writes.items():
        pairs += [(name, v, t) for v, t in zip(tensors_of(new), tensors_of(bound[name]), strict=False)]
    if op.base in FIRST_RESULT_ONLY:
        pairs = pairs[:1]
    for name, value, tensor in pairs:
        if isinstance(tensor, torch.Tensor) and value is not None:
            found = _compare_value(name, value, tensor, env, exact)
            if found:
                return found
        elif isinstance(tensor, torch.Tensor) and tensor.numel():
            return f"{name}: nothing lowered"
    return None


def _compare_value(
    name: str, value: Any, tensor: torch.Tensor, env: dict[Value, np.ndarray], exact: bool
) -> str | None:
    if not isinstance(value, lowering.Complex):
        if tensor.dtype.is_complex:
            return f"{name}: real, expected {tensor.dtype}"
        return compare(name, env[value], value.dtype, tensor, exact)
    if not tensor.dtype.is_complex:
        return f"{name}: complex, expected {tensor.dtype}"
    pair = torch.view_as_real(tensor.resolve_conj())
    parts = (compare(f"{name}.{n}", env[v], v.dtype, pair.select(-1, i), exact)
             for i, (n, v) in enumerate((("re", value.re), ("im", value.im))))  # fmt: skip
    return next((p for p in parts if p), None)


@dataclass
class Tally:
    """Outcomes per op: how many calls agreed, and the first example of each other outcome."""

    passed: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: dict[str, str] = field(default_factory=dict)
    unlowered: dict[str, str] = field(default_factory=dict)

    def add(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], label: str) -> None:
        try:
            found = check(op, args, kwargs)
        except Refused:
            return
        except lowering.NotLowerable as why:
            self.unlowered.setdefault(op.name, f"{why} [{label}]")
            return
        if found:
            self.failed.setdefault(op.name, f"{found} [{label}]")
        else:
            self.passed[op.name] += 1


def signature(x: Any) -> Any:
    """What makes two calls the same test: shapes, dtypes, static arguments."""
    if isinstance(x, torch.Tensor):
        return (tuple(x.shape), x.dtype)
    if isinstance(x, (list, tuple)):
        return tuple(signature(v) for v in x)
    return x if isinstance(x, (int, str, bool, type(None), torch.dtype)) else str(x)


class Recorder(TorchDispatchMode):
    """Checks each distinct dispatched call on the way, then runs it eagerly."""

    def __init__(self, tally: Tally, skip: Callable[[Op], bool]):
        super().__init__()
        self.tally, self.skip, self.label, self.seen = tally, skip, "", set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        op = op_of(func)
        key = (func, signature(args), signature(tuple(kwargs.items())))
        if key not in self.seen and not self.skip(op):
            self.seen.add(key)
            self.tally.add(op, args, kwargs, self.label)
        return func(*args, **kwargs)


def is_view_or_query(op: Op) -> bool:
    """Ops that no backend computes: views, queries, and what is not ATen's."""
    return op.namespace != "aten" or op.func.is_view or op.base in QUERIES


QUERIES = frozenset({"detach", "_local_scalar_dense", "is_same_size", "sym_size", "item", "set_", "resize_", "equal",
                     "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "resize_as_",
                     "as_strided_", "_linalg_check_errors", "_efficientzerotensor"})  # fmt: skip


def spread(samples: list[Any], count: int) -> Iterator[Any]:
    """At most `count` samples, evenly spaced."""
    step = max(1, len(samples) / count) if count else 1
    return (samples[int(i * step)] for i in range(min(count, len(samples))))
