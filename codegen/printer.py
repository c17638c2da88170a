"""MLIR -> C-family source. `codegen.rules` says how operations are written, `codegen.dialects` how languages differ.

Each result becomes one variable; constants are written where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from codegen import mathlib, mlir, multiples
from codegen.dialects import HALVES, Language, Type, combination, language
from codegen.rules import RULES
from codegen.source import Source

MEMREF = re.compile(r"memref<(\?|\d+)x(\w+)(?:, #gpu.address_space<(\w+)>)?>")
VECTOR = re.compile(r"vector<(\d+)x(\w+)>")
INDEX_BITS = re.compile(r"index = (\d+)")
# Blocks of fewer operations are written without the language's marks of a scope, which would be as long as they are:
# with 4 the programs of examples/gpt.py build in the same time (3.30 and 3.29 s).
SCOPE_OPERATIONS = 8
# Operations of a kernel's body, at most, that a compiler is given twice (`Printer.kernel`), which takes it longer:
# NVIDIA's for norm_block (361) 274 ms in place of 152, softmax (176) 117 and 79. The limit is reasoned, not measured.
MOST_TWICE = 500


def print_kernel(mlir_text: str, dialect: str) -> str:
    """The program of the kernel in a module that `Builder.finish` made. Raises what `print_source` raises."""
    return print_source(mlir_text, dialect).program()


def print_source(mlir_text: str, dialect: str, addresses: bool = False, apart: bool = False) -> Source:
    """The source of the kernel in a module that `Builder.finish` made, with the functions it needs.

    mlir_text: parsed, verified, canonicalised. dialect: "opencl", "c" or "cuda". addresses: for memory the kernel is
    given numbers of 64 bits, not pointers, where the language tells these apart. apart: the compiler is told of such
    memory, too, that no other argument points to it.
    Raises the bindings' MLIRError for text that does not verify, NotImplementedError for an operation without a rule.
    """
    module = mlir.run_passes(mlir.parse(mlir_text))
    lang = language(dialect)
    attributes = str(module.operation.attributes["dlti.dl_spec"])
    printer = printer_class(lang)(lang, int(INDEX_BITS.search(attributes)[1]))  # type: ignore[index]
    for container in module.body.operations:
        for function in container.regions[0].blocks[0].operations:
            if function.operation.name == "gpu.func":
                printer.kernel(function.operation, addresses, apart)
    before = [lang.aligned_known] if printer.known else []
    return Source(lang.header, (*before, *functions(printer.needed, dialect)), "".join(printer.out))


def printer_class(lang: Language) -> type[Printer]:
    """How kernels of a language look: as such, or as loops over work items."""
    if lang.kernel:
        return Printer
    from codegen.work_items import ItemPrinter

    return ItemPrinter


class Function(NamedTuple):
    """A library function that a kernel calls: name, type, number of parameters."""

    fn: str
    type: Type
    arity: int


def functions(needed: Iterable[Function], dialect: str) -> Iterable[str]:
    """Definitions of library functions and of those that they call, callees first."""
    order: dict[Function, str] = {}

    def add(function: Function) -> None:
        if function not in order:
            source, inner = function_source(function, dialect)
            for callee in inner:
                add(callee)
            order[function] = source

    for function in needed:
        add(function)
    return order.values()


@cache
def function_source(function: Function, dialect: str) -> tuple[str, tuple[Function, ...]]:
    """The source of one library function, and the functions that it calls."""
    fn, t, arity = function
    lang = language(dialect)
    if fn.startswith("atomic_"):
        _, kind, space = fn.split("_")
        combine, value = combination(kind, t)
        inner = [Function(combine, value, 2)]
        if t.element in HALVES:
            inner += [Function(f"value_{t.element}", Type("i32"), 1), Function(f"bits_{t.element}", Type("f32"), 1)]
        return lang.atomic_function(kind, t, space, f"{combine}_{value.suffix}"), tuple(inner)
    if not mathlib.expands(fn, t.element):
        return lang.lanewise(fn, arity, t), ()
    module = mlir.run_passes(mlir.parse(mathlib.function(fn, t.element, t.width, arity)))
    printer = Printer(lang, 32)
    printer.function(list(module.body.operations)[-1].operation)
    return lang.library_function(fn, t, "".join(printer.out)), tuple(printer.needed)


def operations(block: Any) -> int:
    """Operations of a block and of those within."""
    inner = [b for op in block.operations for region in op.operation.regions for b in region.blocks]
    return len(block.operations) + sum(map(operations, inner))


class Printer:
    """Writes one function of a module. `needed` collects the library functions that it calls."""

    def __init__(self, lang: Language, index_bits: int):
        self.lang, self.index = lang, f"i{index_bits}"
        self.out: list[str] = []
        self.needed: dict[Function, None] = {}
        self.names: dict[Any, str] = {}
        self.constants: dict[Any, Any] = {}
        self.stored: set[Any] = set()
        self.alone: set[Any] = set()
        # What is known of each MLIR type: its text is dear to ask for.
        self.types: dict[Any, Type] = {}
        self.indices: dict[Any, bool] = {}
        self.memrefs: dict[Any, tuple[str, str, str]] = {}
        self.indent = "    "
        self.count = self.scopes = 0
        self.meets = False  # the kernel's work items share memory
        self.known = False  # `whole` says whether all vectors are aligned

    # Functions

    def kernel(self, f: Any, addresses: bool, apart: bool) -> None:
        """A gpu.func as a kernel, or as a function that a kernel calls.

        Compilers heed `restrict` of parameters alone. Numbers become such (apart) in the call of a function, which is
        given the kernel's local memory as well, since that belongs to a kernel. Where asking once for all vectors
        whether they are aligned pays, the kernel calls it with either answer, and the compiler has the body twice.
        """
        lang, attributes = self.lang, f.attributes
        block = f.regions[0].blocks[0]
        n = self.argument_count(f)
        self.stored = self.written(block)
        self.alone = self.unaliased(f)
        self.meets = len(block.arguments) > n
        parameters, inner, given, pointers, local = [], [], [], [], []
        for i, a in enumerate(block.arguments):
            self.names[a] = name = f"a{i}" if i < n else f"l{i - n}"
            given.append(name)
            if i >= n:
                size, element, space = self.memref(a.type)
                type = lang.memory(element)
                local.append(f"{lang.aligned}{lang.spaces[space]}{type} {name}[{size}];")
                inner.append(lang.pointer.format(space=lang.spaces[space], type=type) + name)
                continue
            inner.append(self.variable(a))
            if addresses and self.memref(a.type)[1]:
                parameters.append(f"{lang.type(Type('i64'))} n{i}")
                given[-1] = f"({self.ctype(a)})n{i}"
                pointers.append(f"{inner[-1]} = {given[-1]};")
            else:
                parameters.append(inner[-1])
        sizes = list(attributes["gpu.known_block_size"]) if "gpu.known_block_size" in attributes else []
        name = attributes["sym_name"].value
        head = f"{lang.work_group(sizes)}{lang.whole}{lang.kernel} {name}({', '.join(parameters)})\n{{\n"
        asked = self.aligned(f, n) if apart and pointers and lang.aligned_known and "asked_once" in attributes else ""
        self.known = bool(asked)
        if not (asked or (apart and pointers and self.alone)):
            self.out.append(head)
            for line in pointers + local:
                self.line(line)
            self.block(block)
        else:
            inner = ["const bool whole", *inner] if asked else inner
            self.out.append(f"{lang.function} void {name}_apart({', '.join(inner)})\n{{\n")
            self.block(block)
            self.out += "}\n", head
            for line in local:
                self.line(line)
            calls = [f"{name}_apart({', '.join([*whole, *given])});" for whole in (["true"], ["false"], [])]
            self.line(f"if ({asked}) {calls[0]} else {calls[1]}" if asked else calls[2])
        self.out.append("}\n")

    def aligned(self, f: Any, n: int) -> str:
        """The condition under which all vectors of a kernel are aligned as such, of its n arguments; empty: unknown."""
        masks: dict[str, int] = {}
        block = f.regions[0].blocks[0]
        if operations(block) > MOST_TWICE:
            return ""
        for memory, index, lanes in multiples.vectors(block):
            needed = multiples.needed(index, lanes)
            at = list(block.arguments).index(memory) if memory in self.names else -1
            if needed is None or at < 0:
                return ""
            for argument in needed:
                name = self.names[argument]
                masks[name] = max(masks.get(name, 0), lanes - 1)
            if at < n:
                bytes = lanes * int(self.memref(memory.type)[1].lstrip("bfi")) // 8
                masks[f"n{at}"] = max(masks.get(f"n{at}", 0), bytes - 1)
        tests = [f"({' | '.join(x for x in masks if masks[x] == m)}) & {m}" for m in sorted(set(masks.values()))]
        return " && ".join(f"({test}) == 0" for test in tests)

    def argument_count(self, f: Any) -> int:
        """Arguments of a kernel; its block has the work-group memory as further ones."""
        return len(mlir.bindings()[0].TypeAttr(f.attributes["function_type"]).value.inputs)

    def unaliased(self, f: Any) -> set[Any]:
        """The arguments that point to memory which no other argument points to."""
        if "arg_attrs" not in f.attributes:
            return set()
        arguments = list(f.regions[0].blocks[0].arguments)
        attributes = zip(arguments, f.attributes["arg_attrs"], strict=False)  # work-group memory has none
        return {argument for argument, attribute in attributes if "llvm.noalias" in attribute}

    def function(self, f: Any) -> None:
        """A func.func as a function that returns its one result."""
        block = f.regions[0].blocks[0]
        for i, a in enumerate(block.arguments):
            self.names[a] = f"x{i}"
        result = mlir.bindings()[0].TypeAttr(f.attributes["function_type"]).value.results[0]
        parameters = ", ".join(map(self.variable, block.arguments))
        head = f"{self.lang.function} {self.lang.type(self.parse_type(result))} {f.attributes['sym_name'].value}"
        self.out.append(f"{head}({parameters})\n{{\n")
        self.block(block)
        self.out.append("}\n")

    def written(self, block: Any) -> set[Any]:
        """The memory that is stored to within a block, or that what is stored to is picked from."""
        found = set()
        for op in reversed(list(block.operations)):
            o = op.operation
            if o.name == "arith.select" and o.results[0] in found:
                found.update(o.operands[1:])
            if o.name == "scf.index_switch":
                picked = [i for i, result in enumerate(o.results) if result in found]
                for region in o.regions:
                    last = list(region.blocks[0].operations)[-1].operation
                    found.update(last.operands[i] for i in picked)
            if o.name in ("memref.store", "vector.store", "memref.atomic_rmw"):
                found.add(o.operands[1])
            for region in o.regions:
                for inner in region.blocks:
                    found |= self.written(inner)
        return found

    def constness(self, memory: Any) -> str:
        """`const ` for memory that the kernel does not write."""
        return "" if memory in self.stored else "const "

    # Statements

    def block(self, block: Any) -> None:
        """All operations of a block."""
        *operations, last = block.operations
        enter, leave = self.lang.scope if len(operations) >= SCOPE_OPERATIONS else ("", "")
        self.scopes += 1
        label = f"s{self.scopes}"
        if enter:
            self.line(enter.format(label))
        for op in operations:
            self.one(op.operation)
        if leave:
            self.line(leave.format(label))
        self.one(last.operation)

    def one(self, op: Any) -> None:
        """One operation, by its rule."""
        name = op.name
        rule = RULES.get(name)
        if rule is None:
            raise NotImplementedError(f"no printing rule for {name}")
        text = rule(self, op)
        if text is not None:
            self.define(op.results[0], text)

    def line(self, text: str) -> None:
        """One line of source."""
        self.out.append(f"{self.indent}{text}\n")

    def define(self, result: Any, text: str) -> None:
        """A new variable for a result."""
        self.line(f"{self.variable(result, self.new(result))} = {text};")

    def new(self, value: Any, prefix: str = "v") -> str:
        """A fresh name for a value."""
        self.count += 1
        self.names[value] = name = f"{prefix}{self.count}"
        return name

    def alias(self, result: Any, text: str) -> None:
        """A result that is what a variable holds already."""
        self.names[result] = text

    def declare(self, value: Any, size: str = "", attribute: str = "") -> None:
        """A variable that is assigned later, or an array."""
        self.line(f"{attribute}{self.variable(value, self.new(value))}{size};")

    def nested(self, block: Any) -> None:
        """A block, indented."""
        self.indent += "    "
        self.block(block)
        self.indent = self.indent[4:]

    def need(self, fn: str, args: list[str], t: Type) -> str:
        """A call of a library function, whose definition goes before the kernel."""
        self.needed[Function(fn, t, len(args))] = None
        return f"{fn}_{t.suffix}({', '.join(args)})"

    def half_value(self, bits: str, t: Type) -> str:
        """The f32 value of the 16 bits of a half type t."""
        return self.need(f"value_{t.element}", [self.lang.convert(bits, t.to("i32"))], t.to("i32"))

    def half_bits(self, x: str, t: Type, rounded: bool = False) -> str:
        """The 16 bits of an f32 value that a half type t holds. rounded: the value was just rounded to t, which leaves
        no signalling NaN, of which a plain copy keeps all bits and an instruction does not."""
        fn = "rounded_bits_f16" if rounded and t.element == "f16" else f"bits_{t.element}"
        return self.lang.convert(self.need(fn, [x], t.to("f32")), t.to("i16"))

    def is_rounded(self, value: Any) -> bool:
        """Whether a value of a half type is the result of a rounding, and not of a load."""
        return getattr(value.owner, "name", "") == "arith.truncf"

    # Values

    def __getitem__(self, value: Any) -> str:
        """The text of a value: its variable, or its literal."""
        name = self.names.get(value)
        return self.literal(value, self.is_index(value)) if name is None else name

    def signed(self, value: Any) -> str:
        """An integer value as its signed type. An index is signed already."""
        if value in self.constants:
            return self.literal(value, True)
        text = self.names[value]
        return text if self.is_index(value) else self.lang.signed(text, self.type(value))

    def literal(self, value: Any, signed: bool) -> str:
        """A constant where it is used."""
        t, constant = self.type(value), self.constants[value]
        if isinstance(constant, list):
            lane = t._replace(width=1)
            return self.lang.pack([self.lang.literal(c, lane, signed) for c in constant], t)
        return self.lang.literal(constant, t, signed)

    def is_index(self, value: Any) -> bool:
        """Whether a value is an index or a vector of index."""
        key = value.type
        found = self.indices.get(key)
        if found is None:
            found = self.indices[key] = "index" in str(key)
        return found

    def type(self, value: Any) -> Type:
        """The type of a value, an index having its width."""
        key = value.type
        found = self.types.get(key)
        if found is None:
            found = self.types[key] = self.parse_type(key)
        return found

    def parse_type(self, type: Any) -> Type:
        """The type that an MLIR type is printed as."""
        text = str(type)
        match = VECTOR.fullmatch(text)
        width, element = (int(match[1]), match[2]) if match else (1, text)
        return Type(self.index if element == "index" else element, width)

    def ctype(self, value: Any) -> str:
        """The C type of a value; of memory, a pointer to it, or its elements where its size is known."""
        size, element, space = self.memref(value.type)
        if not element:
            return self.lang.type(self.type(value), self.is_index(value))
        elements = f"{self.lang.spaces[space]}{self.lang.memory(element)}"
        return f"{self.constness(value)}{elements} *" if size == "?" else elements

    def variable(self, value: Any, name: str = "") -> str:
        """The declarator of a variable for a value."""
        type = self.ctype(value)
        between = "" if type.endswith("*") else " "
        if value in self.alone:
            between = self.lang.restrict
        return f"{type}{between}{name or self.names[value]}"

    def id(self, op: Any) -> str:
        """Where a work item is along an axis."""
        axis = "xyz".index(str(op.attributes["dimension"])[len("#gpu<dim ")])
        return self.lang.id(op.name, axis, self.meets)

    def memref(self, type: Any) -> tuple[str, str, str]:
        """Size, element and address space of a memref type; empty texts for other types."""
        found = self.memrefs.get(type)
        if found is None:
            match = MEMREF.fullmatch(str(type))
            found = self.memrefs[type] = (match[1], match[2], match[3] or "global") if match else ("", "", "")
        return found
