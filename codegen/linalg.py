"""A loop program as `linalg` on tensors, through the upstream passes, and back.

    instruction          in the module
    load                 an argument `tensor<?xT>`, read through an affine map: views are index maps here too
    other leaves         an argument over the loops that they vary with
    const, scalar        a constant, a scalar argument
    map                  one `linalg.generic` with parallel iterators
    acc                  one `linalg.generic` with reduction iterators

Upstream fuses the elementwise ops and removes what is constant, repeated or dead; no pass changes a bit of a result.
Reading back gives a program whose bodies are single MLIR operations (instruction `mlir`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codegen import mlir
from codegen.builder import HALVES, Builder, V, mlir_type
from codegen.emit import operands, registers
from codegen.index import Atom, Div, Dyn, Expr, Var
from codegen.loops import Instr, Program
from ops_core.dtypes import TABLE
from ops_core.sizes import plain

PIPELINE = "builtin.module(func.func(linalg-fuse-elementwise-ops),canonicalize,cse)"
# Conversions, and whether they take integers as unsigned.
CASTS = {
    "arith.extf": False, "arith.truncf": False, "arith.sitofp": False, "arith.uitofp": True, "arith.fptosi": False,
    "arith.fptoui": True, "arith.extsi": False, "arith.extui": True, "arith.trunci": False,
}  # fmt: skip
# Element types of MLIR -> registers. Integers have no sign there, operations do.
REGISTERS = {"index": "index"} | {d.mlir: registers(d.name) for d in reversed(TABLE) if d.kind != "u"}
PREDICATES = {
    "arith.cmpf": [
        "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno",
        "true",
    ],
    "arith.cmpi": ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"],
}  # fmt: skip


def module_text(program: Program) -> str:
    """The `linalg` module of a program, before any pass."""
    return _Writer(program).text()


def simplify(program: Program) -> tuple[Program, str]:
    """The program after the upstream passes, over the same arguments, and the module that it was read from."""
    writer = _Writer(program)
    text = writer.text()
    if not writer.results:  # reads and writes alone: two thirds of the programs of examples/gpt.py
        return _Reader(program).program(), text
    module = mlir.run_passes(mlir.parse(text), PIPELINE)
    return _Reader(program, writer, module).program(), str(module)


class _Writer(Builder):
    """Writes the module. Bodies are the scalar expansions of `Builder.map`."""

    def __init__(self, program: Program):
        super().__init__("program")
        self.program = program
        self.leaves: list[int] = []  # instructions that are arguments of the function, in order
        self.results: list[int] = []  # instructions that the function returns, in order
        self._reduced = {program.instrs[r.value] for r in program.reductions}
        self._tensors: dict[int, str] = {}
        self._scalars: dict[int, V] = {}

    def text(self) -> str:
        roots = [s.value for s in self.program.stores] + [r.value for r in self.program.reductions]
        roots += self.program.roots
        for id, instr in enumerate(self.program.instrs):
            if self._computed(instr):
                self._generic(id, instr)
            elif instr.op == "const":
                self._scalars[id] = self.const(instr.data[0], instr.dtype)
            else:
                self._leaf(id, instr)
                roots += operands(instr)
        roots += [id for id, i in enumerate(self.program.instrs) if i.op == "acc"]
        self.results = [r for r in dict.fromkeys(roots) if self._computed(self.program.instrs[r])]
        types = ", ".join(self._type(r) for r in self.results)
        returned = ", ".join(self._tensors[r] for r in self.results)
        return "\n".join(
            [
                *(f"func.func private @{name}{type}" for name, type in self._called.items()),
                f"func.func @program({', '.join(self._args)}) -> ({types}) {{",
                *self._constant_lines(),
                *self._lines,
                f"  return {returned} : {types}" if self.results else "  return",
                "}",
            ]
        )

    def _computed(self, instr: Instr) -> bool:
        """Whether the module computes an instruction; the results of a template are arguments."""
        return instr.op == "map" or (instr.op == "acc" and bool(self.program.reductions))

    def _vars(self, id: int) -> list[Var]:
        """The loops that an instruction varies with, outermost first."""
        return [v for v in self.program.vars if v in self.program.dependence[id]]

    def _element(self, id: int) -> str:
        return mlir_type(registers(self.program.instrs[id].dtype))

    def _type(self, id: int) -> str:
        """The tensor type of an instruction over its loops."""
        return f"tensor<{extents(self._vars(id))}{self._element(id)}>"

    def _operand_type(self, id: int) -> str:
        """The tensor type through which a generic reads an instruction."""
        return f"tensor<?x{self._element(id)}>" if self._plain(self.program.instrs[id]) else self._type(id)

    def _leaf(self, id: int, instr: Instr) -> None:
        name = f"%a{len(self._args)}"
        if instr.op in ("scalar", "size"):
            self._scalars[id] = V(self, name, registers(instr.dtype))
            self._args.append(f"{name}: {self._element(id)}")
        else:
            self._tensors[id] = name
            self._args.append(f"{name}: {self._operand_type(id)}")
        self.leaves.append(id)

    def _plain(self, instr: Instr) -> bool:
        """Whether a leaf is a load whose access is an affine map, and not what gives a reduction its extent."""
        return instr.op == "load" and not operands(instr) and instr not in self._reduced

    def _generic(self, id: int, instr: Instr) -> None:
        """One `linalg.generic` for a map, or for the reduction behind an accumulator."""
        reduction = self.program.reductions[instr.data[0]] if instr.op == "acc" else None
        inputs = [reduction.value] if reduction else list(instr.args)
        loops = [v for v in self.program.vars if any(v in self.program.dependence[i] for i in inputs)]
        if reduction:
            loops = [v for v in self.program.vars if v in loops or v in self.program.reduced]
        tensors = list(dict.fromkeys(i for i in inputs if i in self._tensors))
        kept = [v for v in loops if not (reduction and v in self.program.reduced)]
        element = self._element(id)
        out_type = f"tensor<{extents(kept)}{element}>"
        out, result = self._name(), self._name()
        self._line(f"{out} = tensor.empty() : {out_type}")
        maps = [self._map(i, loops) for i in tensors]
        kinds = ", ".join('"reduction"' if reduction and v in self.program.reduced else '"parallel"' for v in loops)
        read = [(self._tensors[i], self._operand_type(i)) for i in tensors]
        silent = [v for v in loops if not any(v in self.program.dependence[i] for i in (*tensors, id))]
        if silent:  # a broadcast value is reduced: an operand that nobody reads gives these loops their extents
            extent = self._name()
            type = f"tensor<{extents(silent)}{element}>"
            self._line(f"{extent} = tensor.empty() : {type}")
            maps.append(affine(loops, [self._dim(v, loops) for v in silent]))
            read.append((extent, type))
        ins = f" ins({', '.join(n for n, _ in read)} : {', '.join(t for _, t in read)})" if read else ""
        maps.append(affine(loops, [self._dim(v, loops) for v in kept]))
        head = f"{result} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}}{ins}"
        self._line(f"{head} outs({out} : {out_type}) {{")
        names = {i: self._name("%in") for i in tensors}
        last = self._name("%out")
        arguments = [*(f"{n}: {self._element(i)}" for i, n in names.items()), f"{last}: {element}"]
        if silent:
            arguments.insert(-1, f"{self._name('%in')}: {element}")
        self._line(f"^bb0({', '.join(arguments)}):")
        inside = {i: V(self, n, registers(self.program.instrs[i].dtype)) for i, n in names.items()}
        values = [inside[i] if i in inside else self._scalars[i] for i in inputs]
        if reduction:
            combine = f"{reduction.fn}_{values[0].dtype}"
            self._called[combine] = signature = f"({element}, {mlir_type(values[0].dtype)}) -> {element}"
            value = self._value(f"func.call @{combine}({last}, {values[0].name}) : {signature}", instr.dtype)
        elif instr.data[0] == "bitcast":
            value = self.bitcast(values[0], instr.dtype, self.program.instrs[inputs[0]].dtype)
        else:
            value = self.round_to(self.map(instr.data[0], *values, to=instr.dtype), instr.dtype)
        self._line(f"linalg.yield {value.name} : {element}")
        self._line(f"}} -> {out_type}")
        self._tensors[id] = result

    def _map(self, id: int, loops: list[Var]) -> str:
        """How a generic over `loops` reads the tensor of an instruction."""
        instr = self.program.instrs[id]
        if self._plain(instr):
            return affine(loops, [expression(instr.data[2], lambda v: self._dim(v, loops))])
        return affine(loops, [self._dim(v, loops) for v in self._vars(id)])

    def _dim(self, var: Var, loops: list[Var]) -> str:
        return f"d{loops.index(var)}"


def extents(vars: list[Var]) -> str:
    """The sizes of loops in a type. No pass looks at them, and nobody who reads the program back."""
    return "".join(f"{plain(v.size)}x" for v in vars)


def affine(loops: list[Var], results: list[str]) -> str:
    """An affine map over loops."""
    return f"affine_map<({', '.join(f'd{i}' for i in range(len(loops)))}) -> ({', '.join(results)})>"


def expression(expr: Expr, dim: Callable[[Var], str]) -> str:
    """An index expression as MLIR writes affine expressions."""

    def term(atom: Atom) -> str:
        if isinstance(atom, Var):
            return dim(atom)
        assert not isinstance(atom, Dyn)
        inner = expression(atom.expr, dim)
        return f"(({inner}) {'floordiv' if isinstance(atom, Div) else 'mod'} {plain(atom.by)})"

    return " + ".join([*(f"{term(a)} * {plain(c)}" for a, c in expr.terms), str(plain(expr.const))])


class _Reader:
    """Reads a program back from a module that `writer` wrote and passes changed; without one, what computes nothing."""

    def __init__(self, source: Program, writer: _Writer | None = None, module: Any = None):
        self.source = source
        self.leaf: dict[Any, int] = {}
        self.tensor: dict[int, Any] = {}
        if writer:
            function = next(
                o.operation for o in module.body.operations
                if o.operation.name == "func.func" and "program" in str(o.operation.attributes["sym_name"])
            )  # fmt: skip
            block = function.regions[0].blocks[0]
            self.leaf = dict(zip(block.arguments, writer.leaves, strict=True))
            returned = list(block.operations)[-1].operation.operands
            self.tensor = dict(zip(writer.results, returned, strict=True))
        self.accumulator = {tensor: id for id, tensor in reversed(self.tensor.items()) if source.instrs[id].op == "acc"}
        self.new = Program(source.vars, source.reduced, buffers=source.buffers, scalars=source.scalars,
                           offsets=source.offsets)  # fmt: skip
        self._ids: dict[int, int] = {}
        self._values: dict[tuple[Any, Any], int] = {}

    def program(self) -> Program:
        new, source = self.new, self.source
        new.reductions = list(source.reductions)
        for id, instr in enumerate(source.instrs):
            if instr.op == "acc" and source.reductions:
                self.id(id)
        new.stores = [s._replace(value=self.id(s.value)) for s in source.stores]
        new.roots = [self.id(r) for r in source.roots]
        return new

    def id(self, old: int) -> int:
        """The new number of an instruction of the source."""
        if old not in self._ids:
            instr = self.source.instrs[old]
            if old in self.tensor:
                self._ids[old] = self._as(self._result(self.tensor[old]), instr.dtype)
            else:
                data = tuple(self._redirect(d) if isinstance(d, Expr) else d for d in instr.data)
                args = tuple(self.id(a) for a in instr.args)
                self._ids[old] = self.new.emit(instr.op, instr.dtype, args, data)
        return self._ids[old]

    def _as(self, id: int, dtype: str) -> int:
        """The instruction with the sign of its dtype again."""
        have = self.new.instrs[id].dtype
        return id if registers(have) == registers(dtype) else self.new.map("bitcast", dtype, id)

    def _redirect(self, expr: Expr) -> Expr:
        """The expression with its dynamic indices renumbered."""
        return expr.redirect(self.id)

    def _result(self, value: Any) -> int:
        """The instruction of an element of a tensor of the module."""
        if value in self.leaf:
            return self.id(self.leaf[value])
        if value in self.accumulator:
            return self._accumulate(self.accumulator[value])
        op = value.owner
        if op.name == "tensor.cast":  # upstream learns sizes from the other operands
            return self._result(op.operands[0])
        position = list(op.results).index(value)
        block = op.regions[0].blocks[0]
        yielded = list(block.operations)[-1].operation.operands[position]
        return self._body(yielded, op, block)

    def _accumulate(self, old: int) -> int:
        """An accumulator; before it, what it accumulates."""
        instr = self.source.instrs[old]
        (number,) = instr.data
        reduction = self.source.reductions[number]
        value = self._as(self._reduced(self.tensor[old]), reduction.dtype)
        self.new.reductions[number] = reduction._replace(value=value)
        return self.new.emit("acc", instr.dtype, (), instr.data)

    def _reduced(self, tensor: Any) -> int:
        """What a reduction adds up: the operand of its combining call that is not the accumulator."""
        op = tensor.owner
        block = op.regions[0].blocks[0]
        position = list(op.results).index(tensor)
        call = list(block.operations)[-1].operation.operands[position].owner
        return self._body(call.operands[1], op, block)

    def _body(self, value: Any, op: Any, block: Any) -> int:
        """The instruction of a scalar within the body of a generic."""
        key = (op.results[0], value)
        if key not in self._values:
            self._values[key] = self._scalar(value, op, block)
        return self._values[key]

    def _cast(self, op: Any, operand: int, dtype: str) -> int:
        """A conversion, whose sign is in the operation. Half types are f32 that has been rounded."""
        before, after = str(op.operands[0].type), str(op.results[0].type)
        if before in HALVES:
            return operand
        unsigned = CASTS[op.name]
        if before[0] == "i" and before != "i1" and op.name != "arith.trunci":
            operand = self._as(operand, "u" + before[1:] if unsigned else before)
        if after in HALVES:  # from integers too: canonicalisation leaves out the f32 between
            return self.new.map("convert", after, operand)
        target = "u" + after[1:] if unsigned and after[0] == "i" else dtype
        return self._as(self.new.map("convert", target, operand), dtype)

    def _scalar(self, value: Any, op: Any, block: Any) -> int:
        arguments = list(block.arguments)
        if value in arguments:
            return self._result(op.operands[arguments.index(value)])
        if value in self.leaf:
            return self.id(self.leaf[value])
        inner = value.owner
        dtype = REGISTERS[str(value.type)]
        if inner.name == "arith.constant":
            return self.new.const(constant(inner.attributes["value"]), dtype)
        args = tuple(self._body(v, op, block) for v in inner.operands)
        if inner.name in CASTS:
            return self._cast(inner, args[0], dtype)
        if inner.name == "arith.bitcast":
            return self.new.map("bitcast", str(value.type) if str(value.type) in HALVES else dtype, args[0])
        return self.new.emit("mlir", dtype, args, (spelled(inner),))


def spelled(op: Any) -> str:
    """An operation's name as it begins in the text, with its predicate or callee."""
    if op.name in PREDICATES:
        return f"{op.name} {PREDICATES[op.name][op.attributes['predicate'].value]},"
    if op.name == "func.call":
        return f"func.call {str(op.attributes['callee']).rpartition('_')[0]}"  # without the type
    return str(op.name)


def constant(attribute: Any) -> int | float | bool:
    """The number of an attribute."""
    return bool(attribute.value) if str(attribute.type) == "i1" else attribute.value
