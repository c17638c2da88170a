"""Builds the MLIR of one kernel as text, from Python.

    k = Builder("scale")
    x, y, n = k.buffer("f32", readonly=True), k.buffer("f32"), k.arg("index")
    i = k.global_id(0)
    with k.if_(i < n):
        k.store(y, i, k.load(x, i) * 2.0)
    text = k.finish()

A value `V` is an SSA name with a dtype of `ops_core.dtypes` (or "index") and a width: 1 is a scalar, more
are the lanes of a vector. Half types exist in memory only: `load` gives f32, `store` rounds once, and
`round_to` rounds in place. Text is written because it is ten times cheaper than building operations through
the bindings; `codegen.mlir` parses, verifies and canonicalises it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from codegen import scalar
from codegen.turns import by_turns
from codegen.values import AXES, HALVES, Buf, Loop, Mlir, Operand, V, literal, memory_type, mlir_type, type_suffix
from ops_core.dtypes import BY_NAME
from ops_core.sizes import Traced

__all__ = ["HALVES", "Buf", "Builder", "Loop", "Operand", "V", "memory_type", "mlir_type"]

Result = TypeVar("Result")
Expansions = Mapping[tuple[str, str], Callable[..., V]]


class Builder:
    """One kernel. `index_bits` is the width of `index` arithmetic: 32 where all offsets fit, else 64.

    local_size: the work-group size where the kernel relies on it. Launches must then use it. asked_once: it pays to ask
    once whether all vectors are aligned, not each, and to have the body twice (`codegen.printer.Printer.kernel`).
    """

    asked_once = False

    def __init__(self, name: str, index_bits: int = 32, local_size: tuple[int, int, int] | None = None):
        self.name, self.index_bits, self.local_size = name, index_bits, local_size
        self._args: list[str] = []
        self._workgroup: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._sizes: dict[tuple[str, str], tuple[int | float, str]] = {}  # that vary -> the number and its argument
        self._called: dict[str, str] = {}
        self._expansions: Expansions = {}
        self._lines: list[str] = []
        self._depth = 1
        self._count = 0

    # Arguments and memory

    def buffer(self, dtype: str, readonly: bool = False) -> Buf:
        """The next kernel argument: a pointer to elements of dtype. What is readonly no other argument writes."""
        buf = Buf(f"%a{len(self._args)}", dtype, readonly=readonly)
        self._args.append(f"{buf.name}: {buf.type}{' {llvm.noalias}' if readonly else ''}")
        return buf

    def arg(self, dtype: str) -> V:
        """The next kernel argument: a scalar. "index" has `index_bits` bits, bool is a byte."""
        name = f"%a{len(self._args)}"
        self._args.append(f"{name}: {memory_type(dtype)}")
        return self._from_memory(name, dtype, 1)

    def parameter(self, dtype: str, width: int) -> V:
        """The next parameter of a library function."""
        v = V(self, f"%a{len(self._args)}", dtype, width)
        self._args.append(f"{v.name}: {mlir_type(dtype, width)}")
        return v

    def local(self, dtype: str, n: int) -> Buf:
        """Work-group memory of n elements."""
        buf = Buf(f"%l{len(self._workgroup)}", dtype, "workgroup", n)
        self._workgroup.append(f"{buf.name}: {buf.type}")
        return buf

    def private(self, dtype: str, n: int) -> Buf:
        """Memory of n elements for each work item."""
        buf = Buf(self._name(), dtype, "private", n)
        self._line(f"{buf.name} = memref.alloca() : {buf.type}")
        return buf

    # Where a work item is

    def global_id(self, d: int) -> V:
        """Where the work item is in the whole grid, along axis d."""
        return self._index(f"gpu.global_id {AXES[d]}")

    def local_id(self, d: int) -> V:
        """Where the work item is in its group, along axis d."""
        return self._index(f"gpu.thread_id {AXES[d]}")

    def group_id(self, d: int) -> V:
        """Where the group is in the grid, along axis d."""
        return self._index(f"gpu.block_id {AXES[d]}")

    def barrier(self) -> None:
        """All work items of the group arrive; their work-group memory is then visible to each other."""
        self._line("gpu.barrier memfence [#gpu.address_space<workgroup>]")

    def separate(self, registers: bool = False) -> None:
        """Compilers keep what is read from memory after this point after it. registers: nor does one hold its value."""
        over = ",~{registers}" if registers else ""
        self._line(f'llvm.inline_asm has_side_effects "", "~{{memory}}{over}" : () -> ()')

    # Values

    def const(self, value: int | float | bool, dtype: str, width: int = 1) -> V:
        """A constant; an argument where the value varies. Half types give f32, as everywhere in registers."""
        dtype = "f32" if dtype in HALVES else dtype
        if isinstance(value, Traced):
            _, name = self._sizes.setdefault((value.name, dtype), (value, f"%s{len(self._sizes)}"))
            return self.broadcast(V(self, name, dtype), width)
        text = literal(value, dtype)
        type = mlir_type(dtype, width)
        key = (text, type)
        if key not in self._constants:
            self._constants[key] = f"%c{len(self._constants)}"
        return V(self, self._constants[key], dtype, width, value)

    def iota(self, width: int) -> V:
        """0, 1, .. width-1 as a vector of index."""
        return self._value(f"vector.step : {mlir_type('index', width)}", "index", width)

    def broadcast(self, v: V, width: int) -> V:
        """The same value in every lane. A vector of that width is returned as it is."""
        if v.width == width:
            return v
        if v.const is not None:
            return self.const(v.const, v.dtype, width)
        source = mlir_type(v.dtype, v.width)
        return self._value(f"vector.broadcast {v.name} : {source} to {mlir_type(v.dtype, width)}", v.dtype, width)

    def lane(self, v: V, i: int) -> V:
        """Lane i of a vector; a scalar is its own lane."""
        if v.width == 1:
            return v
        if v.const is not None:
            return self.const(v.const, v.dtype)
        vector = mlir_type(v.dtype, v.width)
        return self._value(f"vector.extract {v.name}[{i}] : {mlir_type(v.dtype)} from {vector}", v.dtype)

    def pack(self, lanes: Sequence[V]) -> V:
        """A vector of scalars, lane by lane."""
        if len(lanes) == 1:
            return lanes[0]
        type = mlir_type(lanes[0].dtype, len(lanes))
        names = ", ".join(v.name for v in lanes)
        return self._value(f"vector.from_elements {names} : {type}", lanes[0].dtype, len(lanes))

    def shuffle(self, v: V, w: V, lanes: Sequence[int]) -> V:
        """A vector picked from the lanes of v followed by those of w."""
        type = mlir_type(v.dtype, v.width)
        text = f"vector.shuffle {v.name}, {w.name} {list(lanes)} : {type}, {type}"
        return self._value(text, v.dtype, len(lanes))

    def reduce(self, fn: str | Callable[[V, V], V], v: V) -> V:
        """One scalar of a vector whose width is a power of two. fn: of the scalar catalogue, or what makes one of two.

        The order is fixed: the upper half is combined onto the lower half until two lanes are left.
        """
        both = fn if callable(fn) else partial(self.map, fn)
        while v.width > 2:
            half = v.width // 2
            low, high = self.shuffle(v, v, range(half)), self.shuffle(v, v, range(half, v.width))
            v = both(low, high)
        return v if v.width == 1 else both(self.lane(v, 0), self.lane(v, 1))

    def any(self, v: V) -> V:
        """Whether a lane holds."""
        if v.width == 1:
            return v
        return self._value(f"vector.reduction <or>, {v.name} : {mlir_type('bool', v.width)} into i1", "bool")

    def select(self, c: V, a: Operand, b: Operand) -> V:
        """a where c, else b. c may be a scalar while a and b are vectors."""
        a, b = self._alike(a, b)
        if a.width == 1 and c.width > 1:
            a, b = self.broadcast(a, c.width), self.broadcast(b, c.width)
        type = mlir_type(a.dtype, a.width)
        condition = f"{mlir_type('bool', c.width)}, " if c.width > 1 else ""
        return self._value(f"arith.select {c.name}, {a.name}, {b.name} : {condition}{type}", a.dtype, a.width)

    def select_buffer(self, c: V, a: Buf, b: Buf) -> Buf:
        """Memory a where c, else b; both of one type."""
        name = self._name()
        self._line(f"{name} = arith.select {c.name}, {a.name}, {b.name} : {a.type}")
        return replace(a, name=name)

    def map(self, fn: str, *operands: Operand, to: str | None = None) -> V:
        """A function of the scalar catalogue on scalars or vectors of one dtype; scalars are broadcast.

        `convert` and `bitcast` take their dtype as `to`. f16 and bf16 do not occur: registers hold f32.
        Raises KeyError where the catalogue has no such function for the dtype.
        """
        if fn == "where":
            return self.select(*operands)  # type: ignore[arg-type]
        if fn in ("convert", "bitcast"):
            return (self.cast if fn == "convert" else self.bitcast)(operands[0], to)  # type: ignore[arg-type]
        values = self._alike(*operands)
        rule = scalar.CATALOGUE[fn][scalar.kind(values[0].dtype)]
        if values[0].dtype == "index" and (folded := self._fold(fn, values)) is not None:
            return folded
        return self.emit(rule, *values) if isinstance(rule, str) else rule(self, *values)

    def multiply_add(self, *operands: Operand) -> V:
        """a * b + c, for a term of a sum: floats are rounded once or twice, whichever the language is quicker at."""
        a, b, c = self._alike(*operands)
        if scalar.kind(c.dtype) != "f":
            return a * b + c
        type = mlir_type(c.dtype, c.width)
        return self._value(f"math.fma {a.name}, {b.name}, {c.name} fastmath<contract> : {type}", c.dtype, c.width)

    def emit(self, op: str, *values: V) -> V:
        """One MLIR operation whose operands all have the type of the first."""
        first = values[0]
        if expansion := self._expansions.get((op.removeprefix("func.call @").removeprefix("math."), first.dtype)):
            return expansion(self, *values)
        type = mlir_type(first.dtype, first.width)
        names = ", ".join(v.name for v in values)
        if op.startswith("func.call"):
            return self._call(op, values)
        if op == "math.fpowi":
            type += ", " + mlir_type(values[1].dtype, first.width)
        dtype = "bool" if op.startswith("arith.cmp") else first.dtype
        return self._value(f"{op} {names} : {type}", dtype, first.width)

    def cast(self, v: V, dtype: str) -> V:
        """The value in another dtype: towards zero from float to integer, != 0 to bool, rounded to half types."""
        if dtype in HALVES:
            return self.round_to(self.cast(v, "f32"), dtype)
        if v.dtype == dtype:
            return v
        if v.const is not None:
            return self.const(self._convert_constant(v.const, dtype), dtype, v.width)
        source, target = scalar.kind(v.dtype), scalar.kind(dtype)
        if target == "b":
            return self.map("ne", v, 0)
        if "x" in (source, target):
            return self._cast_index(v, dtype)
        if source == "f" and target in "iu" and BY_NAME[dtype].bytes < 4:
            return self.cast(self.cast(v, "i32"), dtype)  # out of range wraps, as torch has it
        a, b = BY_NAME[v.dtype].bytes, BY_NAME[dtype].bytes
        op = {
            "ff": "arith.extf" if a < b else "arith.truncf",
            "if": "arith.sitofp",
            "uf": "arith.uitofp",
            "bf": "arith.uitofp",
            "fi": "arith.fptosi",
            "fu": "arith.fptoui",
        }.get(source + target)
        if op is None:
            if a == b and source != "b":
                return V(self, v.name, dtype, v.width)  # MLIR integers have no sign
            op = "arith.trunci" if a > b else "arith.extsi" if source == "i" else "arith.extui"
        if v.width > 1 and op in ("arith.sitofp", "arith.fptosi") and "i64" in (v.dtype, dtype):
            return self._cast_longs(op, v, dtype)
        return self._convert(op, v, dtype)

    def bitcast(self, v: V, dtype: str, half: str = "") -> V:
        """The same bits as another dtype of the same size.

        half: the half type that an f32 value stands for, if any. A half type as `dtype` gives the f32 value of 16 bits.
        A `dtype` of 32 bits asks for those of the f32 that is computed with.
        """
        if half in HALVES and BY_NAME[dtype].bytes == BY_NAME[half].bytes:
            v = self._convert("arith.truncf", v, half)
        if dtype in HALVES:
            return self._convert("arith.extf", self._convert("arith.bitcast", v, dtype), "f32")
        if mlir_type(v.dtype) == mlir_type(dtype):
            return V(self, v.name, dtype, v.width)
        return self._convert("arith.bitcast", v, dtype)

    def round_to(self, v: V, dtype: str) -> V:
        """An f32 rounded to what a half type can hold, to nearest even. Other dtypes: unchanged."""
        if dtype not in HALVES:
            return v
        narrow, wide = mlir_type(dtype, v.width), mlir_type("f32", v.width)
        rounded = self._value(f"arith.truncf {v.name} : {wide} to {narrow}", dtype, v.width)
        return self._convert("arith.extf", rounded, "f32")

    # Memory

    def load(self, buf: Buf, idx: Operand, width: int = 1) -> V:
        """Element idx, or the `width` elements from idx on (aligned to the element only).

        idx may be a vector of index: then its lanes are gathered. f16 and bf16 arrive as f32, bool as bool.
        """
        idx = self._operand(idx, "index", 1)
        if idx.width > 1:
            return self.pack([self.load(buf, self.lane(idx, i)) for i in range(idx.width)])
        element = memory_type(buf.dtype)
        name = self._name()
        if width == 1:
            self._line(f"{name} = memref.load {buf.name}[{idx.name}] : {buf.type}")
        else:
            self._line(f"{name} = vector.load {buf.name}[{idx.name}] : {buf.type}, vector<{width}x{element}>")
        return self._from_memory(name, buf.dtype, width)

    def prefetch(self, buf: Buf, idx: Operand) -> None:
        """Ask for the cache line of element idx, which is read soon. A hint: nothing waits for it."""
        idx = self._operand(idx, "index", 1)
        self._line(f"memref.prefetch {buf.name}[{idx.name}], read, locality<3>, data : {buf.type}")

    def store(self, buf: Buf, idx: Operand, v: Operand) -> None:
        """Write a scalar, or a vector to contiguous elements. The value has the register dtype of the buffer."""
        idx = self._operand(idx, "index", 1)
        v = self._to_memory(self._operand(v, buf.dtype, 1), buf.dtype)
        if v.width == 1:
            self._line(f"memref.store {v.name}, {buf.name}[{idx.name}] : {buf.type}")
        else:
            vector = f"vector<{v.width}x{memory_type(buf.dtype)}>"
            self._line(f"vector.store {v.name}, {buf.name}[{idx.name}] : {buf.type}, {vector}")

    def atomic(self, fn: str, buf: Buf, idx: Operand, v: V) -> None:
        """Combine a scalar into memory atomically: add, mul, maximum, minimum, and, or; "set" writes."""
        idx = self._operand(idx, "index", 1)
        v = self._to_memory(v, buf.dtype)
        op = scalar.ATOMICS[fn][scalar.kind(buf.dtype)]
        type = memory_type(buf.dtype)
        self._line(
            f"{self._name()} = memref.atomic_rmw {op} {v.name}, {buf.name}[{idx.name}] : ({type}, {buf.type}) -> {type}"
        )

    # Control

    @contextmanager
    def for_(
        self, lo: Operand, hi: Operand, step: Operand = 1, init: Sequence[V] = (), unroll: bool = False,
        rolled: bool = False,
    ) -> Iterator[Loop]:  # fmt: skip
        """`for iv in range(lo, hi, step)` carrying the values `init`. unroll, rolled: the compiler is to, or not to."""
        lo, hi, step = (self._operand(v, "index", 1) for v in (lo, hi, step))
        iv = V(self, self._name("%i"), "index")
        loop = Loop(iv, [V(self, self._name(), v.dtype, v.width) for v in init])
        results = [V(self, self._name(), v.dtype, v.width) for v in init]
        types = ", ".join(mlir_type(v.dtype, v.width) for v in init)
        head = f"scf.for {iv.name} = {lo.name} to {hi.name} step {step.name}"
        if init:
            carried = ", ".join(f"{a.name} = {v.name}" for a, v in zip(loop.args, init, strict=True))
            names = ", ".join(r.name for r in results)
            head = f"{names} = {head} iter_args({carried}) -> ({types})"
        with self._region(head + " {"):
            yield loop
            if init:
                values = self._matching(loop.yielded, init)
                self._line(f"scf.yield {', '.join(v.name for v in values)} : {types}")
        self._close(" {unroll}" if unroll else " {rolled}" if rolled else "")
        loop.results = results

    @contextmanager
    def if_(self, cond: V) -> Iterator[None]:
        """Statements under a scalar condition. Values come out through `select` or memory."""
        with self._region(f"scf.if {cond.name} {{"):
            yield
        self._close()

    @contextmanager
    def else_(self) -> Iterator[None]:
        """The other side of the `if_` that has just been closed."""
        self._lines[-1] += " else {"
        with self._region(None):
            yield
        self._close()

    def either(self, cond: V, yes: Callable[[], Sequence[V]], no: Callable[[], Sequence[V]]) -> list[V]:
        """The values that one of the two builds, under a scalar condition; the other is skipped."""
        head = len(self._lines)
        with self._region(""):
            values = yes()
            types = ", ".join(mlir_type(v.dtype, v.width) for v in values)
            self._line(f"scf.yield {', '.join(v.name for v in values)} : {types}")
        results = [V(self, self._name(), v.dtype, v.width) for v in values]
        names = ", ".join(v.name for v in results)
        self._lines[head] = "  " * self._depth + f"{names} = scf.if {cond.name} -> ({types}) {{"
        with self._region("} else {"):
            others = self._matching(no(), values)
            self._line(f"scf.yield {', '.join(v.name for v in others)} : {types}")
        self._close()
        return results

    def switch(self, number: V, cases: Sequence[Sequence[V | Buf]]) -> list[Any]:
        """The values and buffers of case `number`; of the last one, where there is none."""
        *first, last = cases
        types = ", ".join(v.type if isinstance(v, Buf) else mlir_type(v.dtype, v.width) for v in last)
        results = [
            replace(v, name=self._name()) if isinstance(v, Buf) else V(self, self._name(), v.dtype, v.width)
            for v in last
        ]
        self._line(f"{', '.join(v.name for v in results)} = scf.index_switch {number.name} -> {types}")
        for n, case in enumerate(first):
            self._line(f"case {n} {{ scf.yield {', '.join(v.name for v in case)} : {types} }}")
        self._line(f"default {{ scf.yield {', '.join(v.name for v in last)} : {types} }}")
        return results

    def rarely(self, cond: V, usual: Sequence[V], rare: Callable[[], Sequence[V]]) -> list[V]:
        """`usual`, but what `rare` builds in the lanes where cond holds; skipped where it holds in none."""

        def chosen() -> list[V]:
            return [self.select(cond, a, b) for a, b in zip(rare(), usual, strict=True)]

        return self.either(self.any(cond), chosen, lambda: usual)

    def in_lockstep(self, bodies: Sequence[Callable[[], Result]], expansions: Expansions) -> list[Result]:
        """What independent bodies give, their statements by turns, so that chains of them do not each wait alone.

        expansions: library functions that are written out in place, since a call is one statement.
        """
        start, results, parts, self._expansions = len(self._lines), [], [], expansions
        for body in bodies:
            results.append(body())
            parts.append(self._lines[start:])
            del self._lines[start:]
        self._expansions = {}
        self._lines += by_turns(parts, "  " * self._depth)
        return results

    def finish(self) -> Mlir:
        """The text of a module that holds the kernel as one `gpu.func`, for `codegen.printer.print_kernel`."""
        sizes = [f"{name}: {mlir_type(dtype)}" for (_, dtype), (_, name) in self._sizes.items()]
        signature = f"gpu.func @{self.name}({', '.join(self._args + sizes)})"
        if self._workgroup:
            signature += f" workgroup({', '.join(self._workgroup)})"
        signature += " kernel"
        attributes = ["asked_once"] * self.asked_once
        if self.local_size:
            attributes.append(f"gpu.known_block_size = array<i32: {', '.join(map(str, self.local_size))}>")
        if attributes:
            signature += f" attributes {{{', '.join(attributes)}}}"
        lines = [
            "module attributes {gpu.container_module, "
            f"dlti.dl_spec = #dlti.dl_spec<index = {self.index_bits} : i32>}} {{",
            "gpu.module @kernels {",
            *(f"func.func private @{name}{type}" for name, type in self._called.items()),
            signature + " {",
            *self._constant_lines(),
            *self._lines,
            "  gpu.return",
            "}",
            "}",
            "}",
            "",
        ]
        text = Mlir("\n".join(lines))
        word = f"i{self.index_bits}"
        text.sizes = tuple((n, word if dtype == "index" else dtype) for (_, dtype), (n, _) in self._sizes.items())
        return text

    def finish_function(self, result: V) -> str:
        """The text of a module that holds one `func.func` returning `result`: a library function of the printer."""
        type = mlir_type(result.dtype, result.width)
        return "\n".join(
            [
                *(f"func.func private @{name}{type}" for name, type in self._called.items()),
                f"func.func @{self.name}({', '.join(self._args)}) -> {type} {{",
                *self._constant_lines(),
                *self._lines,
                f"  return {result.name} : {type}",
                "}",
                "",
            ]
        )

    # How text is made

    def _name(self, prefix: str = "%") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    @contextmanager
    def _region(self, head: str | None) -> Iterator[None]:
        if head is not None:
            self._line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def _close(self, attributes: str = "") -> None:
        self._line("}" + attributes)

    def _constant_lines(self) -> Iterator[str]:
        for (text, type), name in self._constants.items():
            value = text if type == "i1" else f"dense<{text}> : {type}" if "vector" in type else f"{text} : {type}"
            yield f"  {name} = arith.constant {value}"

    def _value(self, text: str, dtype: str, width: int = 1) -> V:
        name = self._name()
        self._line(f"{name} = {text}")
        return V(self, name, dtype, width)

    def _index(self, text: str) -> V:
        return self._value(text, "index")

    def _operand(self, v: Operand, dtype: str, width: int) -> V:
        return v if isinstance(v, V) else self.const(v, dtype, width)

    def _alike(self, *operands: Operand) -> list[V]:
        """Operands with the dtype of the first value among them and the greatest width."""
        values = [v for v in operands if isinstance(v, V)]
        dtype, width = values[0].dtype, max(v.width for v in values)
        if any(v.dtype != dtype for v in values):
            raise TypeError(f"operands differ in dtype: {values}")
        return [self.broadcast(self._operand(v, dtype, width), width) for v in operands]

    def _matching(self, values: Sequence[V], init: Sequence[V]) -> list[V]:
        if [(v.dtype, v.width) for v in values] != [(v.dtype, v.width) for v in init]:
            raise TypeError(f"a loop or branch that carries {list(init)} yields {list(values)}")
        return list(values)

    def _fold(self, fn: str, values: list[V]) -> V | None:
        """Index arithmetic on constants, and the identities that offset computations are full of."""
        a, b = values[0], values[-1]
        if a.const is not None and b.const is not None and fn in FOLDS:
            return self.const(FOLDS[fn](a.const, b.const), "bool" if fn in COMPARISONS else "index", a.width)
        if b.const == IDENTITIES.get(fn, math.nan):
            return a
        if a.const == IDENTITIES.get(fn, math.nan) and fn in ("add", "mul"):
            return b
        if (fn == "mul" and 0 in (a.const, b.const)) or (fn == "fmod" and b.const == 1):
            return self.const(0, "index", a.width)
        return None

    def _call(self, op: str, values: Sequence[V]) -> V:
        first = values[0]
        type = mlir_type(first.dtype, first.width)
        name = op.removeprefix("func.call @") + "_" + type_suffix(first)
        self._called[name] = f"({', '.join([type] * len(values))}) -> {type}"
        names = ", ".join(v.name for v in values)
        return self._value(f"func.call @{name}({names}) : {self._called[name]}", first.dtype, first.width)

    def _convert(self, op: str, v: V, dtype: str) -> V:
        text = f"{op} {v.name} : {mlir_type(v.dtype, v.width)} to {mlir_type(dtype, v.width)}"
        return self._value(text, dtype, v.width)

    def _cast_longs(self, op: str, v: V, dtype: str) -> V:
        """Floats to i64 and back by way of i32, where all lanes fit: Intel's compiler converts i64 lane by lane.

        2 Mi elements on Zen 4, ms: f32 to i64 0.75 -> 0.30, back 0.93 -> 0.23, f64 to i64 0.74 -> 0.41.
        """
        if v.dtype == "i64":
            fits = self.map("eq", self.cast(self.cast(v, "i32"), "i64"), v)
        else:
            fits = self.map("abs", v) < float(1 << 31)  # not NaN

        def any_lanes() -> list[V]:
            return [self._convert(op, v, dtype)]

        def words() -> list[V]:
            return [self.cast(self.cast(v, "i32"), dtype)]

        return self.either(self.any(self.map("not", fits)), any_lanes, words)[0]

    def _cast_index(self, v: V, dtype: str) -> V:
        """Between index and the integer of its width, and from there on."""
        word = f"i{self.index_bits}"
        if v.dtype == "index":
            return self.cast(self._convert("arith.index_cast", v, word), dtype)
        return self._convert("arith.index_cast", self.cast(v, word), dtype)

    def _convert_constant(self, value: int | float | bool, dtype: str) -> int | float | bool:
        target = scalar.kind(dtype)
        return value != 0 if target == "b" else float(value) if target == "f" else int(value)

    def _from_memory(self, name: str, dtype: str, width: int) -> V:
        if dtype == "bool":
            return self.map("ne", V(self, name, "u8", width), 0)
        if dtype in HALVES:
            return self._convert("arith.extf", V(self, name, dtype, width), "f32")
        return V(self, name, dtype, width)

    def _to_memory(self, v: V, dtype: str) -> V:
        if v.dtype == "bool" and dtype == "bool":
            return self._convert("arith.extui", v, "u8")
        if v.dtype == "f32" and dtype in HALVES:
            return self._convert("arith.truncf", v, dtype)
        if mlir_type(v.dtype) != mlir_type(dtype):
            raise TypeError(f"a {v.dtype} value for a {dtype} buffer: cast it first")
        return v


FOLDS: dict[str, Callable[..., int | bool]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv, "fmod": operator.mod,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "maximum": max, "minimum": min,
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
IDENTITIES = {"add": 0, "sub": 0, "mul": 1, "div": 1}
