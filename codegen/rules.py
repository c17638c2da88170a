"""The printing table: MLIR operation name -> rule.

A rule gives the C expression of an operation's result, or writes statements itself and gives None. What differs
between languages is asked of the printer's `lang`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from codegen import mathlib
from codegen.dialects import HALVES, Type
from codegen.scalar import MATH

if TYPE_CHECKING:
    from codegen.printer import Printer

Rule = Callable[["Printer", Any], "str | None"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function into the table."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def infix(operator: str, signed: bool = False) -> Rule:
    """A binary operator on operands as they are, or on signed ones."""

    def print_infix(p: Printer, op: Any) -> str:
        a, b = op.operands
        if not signed or p.is_index(a):
            return f"{p[a]} {operator} {p[b]}"
        t = p.type(a)
        return p.lang.unsigned(f"{p.signed(a)} {operator} {p.signed(b)}", t)

    return print_infix


def builtin(fn: str) -> Callable[[Printer, Any], str]:
    """A function that every language has, lane by lane on vectors."""

    def print_builtin(p: Printer, op: Any) -> str:
        t = p.type(op.results[0])
        args = [p[v] for v in op.operands]
        return p.lang.scalar_call(fn, args, t) if t.width == 1 else p.need(fn, args, t)

    return print_builtin


def library(fn: str) -> Rule:
    """A function of `codegen.mathlib`; without an expansion for the type, the language's own."""
    own = builtin(BUILTIN_NAMES.get(fn, fn))

    def print_library(p: Printer, op: Any) -> str | None:
        t = p.type(op.results[0])
        return p.need(fn, [p[v] for v in op.operands], t) if mathlib.expands(fn, t.element) else own(p, op)

    return print_library


BUILTIN_NAMES = {"powf": "pow"}

for _name, _operator in {"addi": "+", "subi": "-", "muli": "*", "andi": "&", "ori": "|"}.items():
    RULES[f"arith.{_name}"] = infix(_operator)
for _name, _operator in {"addf": "+", "subf": "-", "mulf": "*", "divf": "/", "divui": "/", "remui": "%"}.items():
    RULES[f"arith.{_name}"] = infix(_operator)
RULES |= {"arith.shli": infix("<<"), "arith.shrui": infix(">>")}
for _name, _operator in {"divsi": "/", "remsi": "%", "shrsi": ">>"}.items():
    RULES[f"arith.{_name}"] = infix(_operator, signed=True)
for _name, _function in {
    "arith.remf": "fmod", "math.absf": "fabs", "math.floor": "floor", "math.ceil": "ceil", "math.trunc": "trunc",
    "math.roundeven": "rint", "math.round": "round", "math.sqrt": "sqrt",
    "math.copysign": "copysign",
}.items():  # fmt: skip
    RULES[_name] = builtin(_function)
for _name in (*MATH, "powf"):
    RULES.setdefault(f"math.{_name}", library(_name))


@rule("math.fma")
def _(p: Printer, op: Any) -> str:
    loose = "contract" in str(op.attributes["fastmath"]) and p.type(op.results[0]).width > 1
    return builtin(p.lang.multiply_add if loose else "fma")(p, op)


@rule("arith.xori")
def _(p: Printer, op: Any) -> str:
    """All bits of a scalar turned over are kept from what they are turned over for: Intel's compiler (2026.2, LLVM's
    scalar-to-vector pass) forgets to where they are a maximum or minimum, or one is taken of them."""
    (a, b), t = op.operands, p.type(op.results[0])
    turned = t.width == 1 and t.element in ("i32", "i64") and p.constants.get(b) in (-1, (1 << t.bits) - 1)
    return p.lang.opaque.format(f"{p.lang.opaque.format(p[a])} ^ {p[b]}") if turned else f"{p[a]} ^ {p[b]}"


@rule("func.call")
def _(p: Printer, op: Any) -> str | None:
    return library(op.attributes["callee"].value.rpartition("_")[0])(p, op)


@rule("arith.constant")
def _(p: Printer, op: Any) -> None:
    value = op.attributes["value"]
    if hasattr(value, "is_splat"):
        p.constants[op.results[0]] = value.get_splat_value().value if value.is_splat else list(value)
    else:
        p.constants[op.results[0]] = value.value


@rule("ub.poison")
def _(p: Printer, op: Any) -> None:
    """A value that is never read: canonicalisation leaves it as the unused operand of a shuffle."""
    p.constants[op.results[0]] = 0


@rule("arith.negf")
def _(p: Printer, op: Any) -> str:
    return f"-{p[op.operands[0]]}"


# Comparison and choice

FLOAT_PREDICATES = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
INT_PREDICATES = {0: "==", 1: "!=", 2: "<", 3: "<=", 4: ">", 5: ">=", 6: "<", 7: "<=", 8: ">", 9: ">="}


@rule("arith.cmpf")
def _(p: Printer, op: Any) -> str:
    a, b = op.operands
    t = p.type(a)
    return p.lang.compare(f"{p[a]} {FLOAT_PREDICATES[op.attributes['predicate'].value]} {p[b]}", t)


@rule("arith.cmpi")
def _(p: Printer, op: Any) -> str:
    a, b = op.operands
    predicate = op.attributes["predicate"].value
    t, signed = p.type(a), 2 <= predicate <= 5
    if t.element == "i1":
        # A true lane is printed as -1, a true scalar as 1: the order of what MLIR takes for 1 and for -1.
        a, b = (b, a) if predicate > 1 and signed == (t.width == 1) else (a, b)
        return p.lang.compare(f"{p[a]} {INT_PREDICATES[predicate]} {p[b]}", t)
    text = p.signed if signed else p.__getitem__
    return p.lang.compare(f"{text(a)} {INT_PREDICATES[predicate]} {text(b)}", t)


@rule("arith.select")
def _(p: Printer, op: Any) -> str:
    c, a, b = op.operands
    if p.memref(a.type)[1]:
        return f"{p[c]} ? {p[a]} : {p[b]}"
    return p.lang.select(p[c], p[a], p[b], p.type(a), p.type(c).width, signed=p.is_index(a))


def extremum(operator: str, kind: str) -> Rule:
    """The greater or smaller operand. Of floats ("f"), a NaN wins."""

    def print_extremum(p: Printer, op: Any) -> str:
        a, b = op.operands
        t = p.type(a)
        text = p.signed if kind == "s" else p.__getitem__
        condition = f"({text(a)} {operator} {text(b)})"
        if kind == "f":
            condition = f"({condition} | ({p[a]} != {p[a]}))"
        return p.lang.select(condition, p[a], p[b], t, t.width, raw=True, signed=p.is_index(a))

    return print_extremum


RULES |= {
    "arith.maximumf": extremum(">", "f"),
    "arith.minimumf": extremum("<", "f"),
    "arith.maxsi": extremum(">", "s"),
    "arith.minsi": extremum("<", "s"),
    "arith.maxui": extremum(">", "u"),
    "arith.minui": extremum("<", "u"),
}


@rule("math.absi")
def _(p: Printer, op: Any) -> str:
    a = op.operands[0]
    t = p.type(a)
    zero = p.lang.literal(0, t)
    return p.lang.select(
        f"({p.signed(a)} < {p.lang.literal(0, t, True)})", f"({zero} - {p[a]})", p[a], t, t.width, raw=True
    )


# Conversion


def conversion(source_signed: bool = False, signed: bool = False) -> Rule:
    """The value as another type, reading or writing integers as signed ones."""

    def print_conversion(p: Printer, op: Any) -> str:
        a, result = op.operands[0], op.results[0]
        source, target = p.type(a), p.type(result)
        x = p.signed(a) if source_signed and source.element != "i1" else p[a]
        if source.element == "i1":
            x = p.lang.truth(x, source)
        converted = p.lang.convert(x, target, signed or p.is_index(result))
        if target.element in HALVES and source.element != "i1":  # what canonicalisation makes of the way through f32
            return p.need("round_" + target.element, [converted], target.to("f32"))
        return p.lang.unsigned(converted, target) if signed and not p.is_index(result) else converted

    return print_conversion


for _name in ("arith.trunci", "arith.extui", "arith.uitofp", "arith.fptoui", "arith.index_castui"):
    RULES[_name] = conversion()
for _name in ("arith.extsi", "arith.sitofp"):
    RULES[_name] = conversion(source_signed=True)
RULES["arith.fptosi"] = conversion(signed=True)


@rule("arith.index_cast")
def _(p: Printer, op: Any) -> str:
    a, result = op.operands[0], op.results[0]
    if p.is_index(result):
        return p.lang.convert(p.signed(a), p.type(result), True)
    return p.lang.convert(p[a], p.type(result))


@rule("arith.extf")
def _(p: Printer, op: Any) -> str | None:
    """To f64; a half is an f32 already."""
    a, result = op.operands[0], op.results[0]
    if p.type(result).element == "f64":
        return p.lang.convert(p[a], p.type(result))
    p.alias(result, p[a])
    return None


@rule("arith.truncf")
def _(p: Printer, op: Any) -> str:
    a, result = op.operands[0], op.results[0]
    target = p.type(result)
    x = p[a] if p.type(a).element == "f32" else p.lang.convert(p[a], target.to("f32"))
    if target.element == "f32":
        return x
    return p.need("round_" + target.element, [x], target.to("f32"))


@rule("arith.bitcast")
def _(p: Printer, op: Any) -> str:
    a, result = op.operands[0], op.results[0]
    source, target = p.type(a), p.type(result)
    if source.element in HALVES:
        return p.half_bits(p[a], source, p.is_rounded(a))
    if target.element in HALVES:
        return p.half_value(p[a], target)
    return p.lang.reinterpret(p[a], target)


# Lanes


@rule("vector.broadcast")
def _(p: Printer, op: Any) -> str:
    result = op.results[0]
    t = p.type(result)
    x = p[op.operands[0]]
    return p.lang.splat(f"-{x}" if t.element == "i1" else x, t, p.is_index(result))


@rule("vector.extract")
def _(p: Printer, op: Any) -> str:
    a = op.operands[0]
    x = p.lang.lane(p[a], op.attributes["static_position"][0])
    return f"{x} != 0" if p.type(a).element == "i1" else x


@rule("vector.reduction")
def _(p: Printer, op: Any) -> str:
    """Only the disjunction of i1 lanes; numbers are reduced by shuffles, in a stated order."""
    return p.lang.any(p[op.operands[0]], p.type(op.operands[0]))


@rule("vector.from_elements")
def _(p: Printer, op: Any) -> str:
    t = p.type(op.results[0])
    lanes = [f"-{p[v]}" if t.element == "i1" else p[v] for v in op.operands]
    return p.lang.pack(lanes, t, p.is_index(op.results[0]))


@rule("vector.shuffle")
def _(p: Printer, op: Any) -> str:
    a, b = op.operands
    return p.lang.shuffle(p[a], p[b], list(op.attributes["mask"]), p.type(a).width, p.type(op.results[0]))


@rule("vector.step")
def _(p: Printer, op: Any) -> str:
    t = p.type(op.results[0])
    return p.lang.pack([str(i) for i in range(t.width)], t, True)


# Memory and ids


def load(p: Printer, op: Any) -> str:
    """Elements from memory; halves become the f32 values that stand for them."""
    buffer, index = op.operands
    _, element, space = p.memref(buffer.type)
    t = Type(element, p.type(op.results[0]).width)
    x = p.lang.load(p[buffer], p[index], t, space, p.known)
    return p.half_value(x, t) if t.element in HALVES else x


def store(p: Printer, op: Any) -> None:
    """Elements to memory; halves by their bits."""
    value, buffer, index = op.operands
    _, element, space = p.memref(buffer.type)
    t = Type(element, p.type(value).width)
    x = p.half_bits(p[value], t, p.is_rounded(value)) if t.element in HALVES else p[value]
    p.line(p.lang.store(x, p[buffer], p[index], t, space, p.known))


@rule("memref.prefetch")
def prefetch(p: Printer, op: Any) -> None:
    """A hint that memory is read soon."""
    buffer, index = op.operands
    if p.lang.prefetch:
        p.line(p.lang.prefetch.format(f"{p[buffer]} + {p[index]}"))


@rule("llvm.inline_asm")
def separate(p: Printer, op: Any) -> None:
    """No instruction but a call of nothing, and reads stay on their side of it (`Builder.separate`)."""
    text = p.lang.release if "registers" in op.attributes["constraints"].value else p.lang.separate
    if text:
        p.line(text)


RULES |= {"memref.load": load, "vector.load": load, "memref.store": store, "vector.store": store}


ATOMIC_KINDS = (
    "addf", "addi", "andi", "assign", "maximumf", "maxnumf", "maxs", "maxu", "minimumf", "minnumf", "mins", "minu",
    "mulf", "muli", "ori", "xori",
)  # fmt: skip


@rule("memref.atomic_rmw")
def _(p: Printer, op: Any) -> None:
    """An update whose old value nobody asks for."""
    value, buffer, index = op.operands
    _, element, space = p.memref(buffer.type)
    kind = ATOMIC_KINDS[op.attributes["kind"].value]
    p.line(p.lang.atomic(p, kind, Type(element), space, p[buffer], p[index], p[value]))


@rule("memref.alloca")
def _(p: Printer, op: Any) -> None:
    p.declare(op.results[0], f"[{p.memref(op.results[0].type)[0]}]", p.lang.aligned)


@rule("gpu.global_id", "gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim")
def _(p: Printer, op: Any) -> str:
    return p.id(op)


@rule("gpu.barrier")
def _(p: Printer, op: Any) -> None:
    p.line(p.lang.barrier)


# Control


# A compiler is not to look whether it could unroll a loop of so many lines, or around another: kernels are written with
# as many vectors side by side as pay. Of examples/gpt.py's programs, processor time to build (Zen 4): with long ones
# marked 2.04 s in place of 2.27 (40 lines: 2.02, 160: 2.11), later with those around others too 1.81 in place of 1.93.
# If no loop may be unrolled a copy of 1 MB takes up to twice as long.
LONG_LOOP = 100


@rule("scf.for")
def _(p: Printer, op: Any) -> None:
    low, high, step, *init = op.operands
    block = op.regions[0].blocks[0]
    iv, *carried = block.arguments
    for value, argument, result in zip(init, carried, op.results, strict=True):
        p.define(argument, p[value])
        p.names[result] = p.names[argument]
    name, t = p.new(iv, "i"), p.ctype(iv)
    if unrolled := "unroll" in op.attributes:
        p.line(p.lang.unroll)
    start = len(p.out)
    p.line(f"for ({t} {name} = {p[low]}; {name} < {p[high]}; {name} += {p[step]}) {{")
    p.nested(block)
    p.line("}")
    inner = p.out[start + 1 :]
    rolled = "rolled" in op.attributes or len(inner) >= LONG_LOOP or any(x.lstrip().startswith("for (") for x in inner)
    if p.lang.rolled and rolled and not unrolled:
        p.out.insert(start, f"{p.indent}{p.lang.rolled}\n")


@rule("scf.if")
def _(p: Printer, op: Any) -> None:
    for result in op.results:
        p.declare(result)
    p.line(f"if ({p[op.operands[0]]}) {{")
    for i, region in enumerate(op.regions):
        if len(region.blocks):
            if i:
                p.line("} else {")
            p.nested(region.blocks[0])
    p.line("}")


@rule("scf.index_switch")
def _(p: Printer, op: Any) -> None:
    for result in op.results:
        p.declare(result)
    p.line(f"switch ({p[op.operands[0]]}) {{")
    default, *regions = op.regions
    labels = [f"case {number}" for number in op.attributes["cases"]]
    for label, region in zip([*labels, "default"], [*regions, default], strict=True):
        p.line(f"{label}: {{")
        p.nested(region.blocks[0])
        p.line("} break;")
    p.line("}")


@rule("scf.yield")
def _(p: Printer, op: Any) -> None:
    """Assign to the variables of the loop or conditional, as if all at once."""
    targets = [p.names[r] for r in op.operation.parent.results]
    values = [p[v] for v in op.operands]
    for i, value in enumerate(values):
        if value in targets[:i]:
            p.count += 1
            p.line(f"{p.ctype(op.operands[i])} t{p.count} = {value};")
            values[i] = f"t{p.count}"
    for target, value in zip(targets, values, strict=True):
        if target != value:
            p.line(f"{target} = {value};")


@rule("gpu.return")
def _(p: Printer, op: Any) -> None:
    pass


@rule("func.return")
def _(p: Printer, op: Any) -> None:
    p.line(f"return {p[op.operands[0]]};")
