"""What a kernel costs: operations and memory traffic, read off its source, or off a core op's shapes.

Generated kernels are regular: one operation a line, one new name a line, loops with computable bounds. So a line costs
its operator times its lanes times the turns of the loops around it; and an access moves the elements that differ with
the loops and ids its index depends on. Ids count as 0 where a bound needs a number: one work-item stands for all, and
does not go where its conditions do not lead. Where groups of one launch do the same to different tensors, as an
optimizer's, one work-item stands for those of each tensor.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections import Counter, defaultdict
from typing import Any

from lazy_backend.driver.base import Arg, Buffer, Scalar, Tensor

from .clock import Work

_BYTES = {"char": 1, "uchar": 1, "bool": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4}
_BYTES |= {"long": 8, "ulong": 8, "double": 8, "size_t": 8}
_BYTES |= {f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}
_TYPE = r"(?:const )?(?P<type>\w+?)(?P<lanes>2|4|8|16|32)?"
_FUNCTION = re.compile(r"^(?!\s)[^\n;{}#]*?\b(\w+)\s*\(([^\n;{}()]*)\)\s*\{\n(.*?)^\}", re.S | re.M)
_FOR = re.compile(r"for \(\w+ (\w+) = ([^;]+); \w+ < ([^;]+); (?:\w+ \+= ([^;)]+)|\+\+\w+)\)")
_DEFINE = re.compile(rf"^{_TYPE} (?P<name>\w+) = (?P<value>.*);$")
_SPECIAL = re.compile(r"\b(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|tanh|erf|erfc|sqrt|rsqrt|atan2?)f?\(")
_CHOICE = re.compile(r"\((\w+) < (\w+)\) \? (\w+) : (\w+)")
_SELECT = re.compile(r"(\w+) \? (\w+) : (\w+)")
_POINTER = re.compile(rf"^(?:const )?(?:__global )?\w+ \*(?P<name>\w+) = {_SELECT.pattern};$")
_SWITCH = re.compile(r"switch \((\w+)\) \{")
_CASE = re.compile(r"(?:case (\d+)|default): \{")
_PICKED = re.compile(r"(\w+) = (\w+);")
_FIRST_GROUP = frozenset({"get_group_id(0)", "global0 / (int32_t)local[0]"})  # the group's id in dimension 0
_IF = re.compile(r"if \((\w+)\) \{")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_COMPARISON = re.compile(rf"(.+?) ({'|'.join(_COMPARE)}) (.+)")
_VECTOR_LOAD = re.compile(r"_at \*|\bLOAD\(")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_OPERATOR = re.compile(r" (?:[-+*/<>|&^?]|[<>=!]=) ")
_PAGE = 4096  # bytes; accesses further apart than this cost a translation each, and nothing fetches them ahead


_IDS = re.compile(r"(?:get_(global|local|group)_id|GLOBAL_ID)\((\d)\)")
_SIZES = re.compile(r"\b(global|local)\[(\d)\]")
_FLOATS = {"float": "f32", "double": "f64", "half": "f16"}


def functions(source: str) -> dict[str, tuple[str, str]]:
    """Name -> (parameters, body) of every function of a source."""
    return {name: (parameters, body) for name, parameters, body in _FUNCTION.findall(source)}


@functools.lru_cache(maxsize=4096)
def _pointers(source: str, kernel: str) -> tuple[tuple[str, str, int, bool], ...]:
    """(name, element type, argument index, is constant) of the kernel's buffers."""
    parameters, body = functions(source).get(kernel, ("", ""))
    if "**" in parameters:
        unpacked = re.findall(r"(const )?(\w+) \*\s*(?:restrict )?(\w+) = [^;]*args\[(\d+)\]", body)
        return tuple((name, type_, int(index), bool(const)) for const, type_, name, index in unpacked)
    found = []
    for index, parameter in enumerate(parameters.split(",")):
        if match := re.search(r"(const )?(?:__global )?(\w+) \*\s*(?:restrict )?(\w+)$", parameter.strip()):
            found.append((match[3], match[2], index, bool(match[1])))
    return tuple(found)


def constant_arguments(source: str, kernel: str) -> list[bool]:
    """By argument index: whether it is a buffer that the kernel only reads."""
    constant = {index: const for _, _, index, const in _pointers(source, kernel)}
    return [constant.get(i, False) for i in range(max(constant, default=-1) + 1)]


@functools.lru_cache(maxsize=4096)
def _whole_numbers(source: str, kernel: str) -> frozenset[int]:
    """The arguments that are integers: those that sizes and bounds may depend on."""
    parameters, body = functions(source)[kernel]
    if "**" in parameters:
        return frozenset(
            int(i) for i in re.findall(r"^\s*(?:const )?u?int\d*_t \w+ = \*[^;]*args\[(\d+)\]", body, re.M)
        )
    types = (parameter.replace("const", "").split() for parameter in parameters.split(","))
    return frozenset(i for i, words in enumerate(types) if words and words[0] in ("int", "uint", "long", "ulong"))


Size = tuple[int, int, int]


class _Walk:
    """One pass over a kernel's lines, counting the whole launch.

    flops: operations by dtype. traffic: bytes by buffer, read and written ones apart; scattered: those of accesses that
    turn a page each time.
    group: the one (in dimension 0) that stands for all; bounds: the groups from which on another tensor's turn is.
    """

    def __init__(
        self, source: str, kernel: str, global_size: Size, local_size: Size, scalars: dict[str, int], group: int
    ):
        parameters, body = functions(source)[kernel]
        self.source, self.group = source, group
        self.bounds: set[int] = set()
        self.chosen: dict[str, str] = {}  # pointer -> the buffer that it stands for
        self.sizes = {"global": global_size, "local": local_size}
        self.spans = {f"group{d}": global_size[d] // local_size[d] for d in range(3)}
        self.spans |= {f"local{d}": local_size[d] for d in range(3)}
        self.values: dict[str, int] = dict(scalars)
        self.depends: dict[str, frozenset[str]] = {}
        self.turns = 1.0 if "**" in parameters else float(math.prod(global_size))
        self.buffers = {name: _BYTES.get(type_, 4) for name, type_, _, _ in _pointers(source, kernel)}
        self.flops: dict[str, float] = defaultdict(float)
        self.traffic: dict[tuple[str, bool], float] = defaultdict(float)
        self.scattered: dict[tuple[str, bool], float] = defaultdict(float)
        self.formulas: dict[str, str] = {}
        self.loops: list[tuple[str, int]] = []  # the open ones, with their steps
        self._walk(body)

    def _walk(self, body: str) -> None:
        outer: list[tuple[float, int, bool]] = []  # turns and loops around a block; whether it is a branch taken
        number, case = "", ""  # what the last switch is about, and the case that is taken: "" is the last one
        for line in map(str.strip, body.splitlines()):
            if loop := _FOR.search(line):
                outer.append((self.turns, len(self.loops), False))
                self.turns *= self._enter(*loop.groups())
            elif line.startswith("}"):
                taken, number = False, number if line == "} break;" else ""
                if outer:
                    self.turns, depth, taken = outer.pop()
                    del self.loops[depth:]
                if line.endswith("{"):
                    outer.append((self.turns, len(self.loops), False))
                    if taken:  # `else`, as of a row's rest behind its vectors, is not the way of the one for all
                        self.turns = 0.0
            elif switch := _SWITCH.fullmatch(line):
                outer.append((self.turns, len(self.loops), False))
                number = switch[1]
                case = str(self.values.get(number, ""))
            elif label := _CASE.fullmatch(line):
                taken = case != "taken" and label[1] in (case, None)
                outer.append((self.turns, len(self.loops), False))
                self.turns, case = (self.turns, "taken") if taken else (0.0, case)
            elif line.endswith("{"):
                branch = _IF.fullmatch(line)
                outer.append((self.turns, len(self.loops), bool(branch and self.values.get(branch[1]))))
            elif number and (picked := _PICKED.fullmatch(line)):
                if self.turns:
                    self._pick(picked[1], picked[2], number)
            else:
                self._line(line)

    def _pick(self, name: str, value: str, number: str) -> None:
        """A pointer or number of a switch's case is what it says."""
        self.chosen[name] = self.chosen.get(value, value)
        self.depends[name] = self._dependence(value) | self._dependence(number)
        if value in self.values:
            self.values[name] = self.values[value]

    def _enter(self, name: str, low: str, high: str, step: str | None) -> int:
        """Begin a loop; its turns, 1 where a bound is not known."""
        first, last, by = (self._value(text) for text in (low, high, step or "1"))
        turns = 1 if first is None or last is None or not by else max(0, -(-(last - first) // by))
        key = f"loop {name}"
        self.spans[key] = turns
        self.depends[name] = self._dependence(low) | {key}
        self.values[name] = self.group * self.sizes["local"][0] if name == "global0" else first or 0
        self.loops.append((name, by or 1))
        return turns

    def _value(self, text: str) -> int | None:
        """An integer expression over known names."""
        if choice := _CHOICE.fullmatch(text):
            left, right, yes, no = (self._value(part) for part in choice.groups())
            return None if left is None or right is None else yes if left < right else no
        if select := _SELECT.fullmatch(text):
            condition, yes, no = (self._value(part) for part in select.groups())
            return None if condition is None else yes if condition else no
        text = _SIZES.sub(lambda m: str(self.sizes[m[1]][int(m[2])]), _IDS.sub(self._id, text))
        text = re.sub(r"\((?:u?int\w*|u?long|size_t|int64_t)\)|(?<=\d)[uUlL]+\b", "", text).replace("/", "//")
        if not re.fullmatch(r"[\w\s()+*/%-]+", text) or not set(_NAME.findall(text)) <= set(self.values):
            return None
        try:
            return int(eval(text, {"__builtins__": {}}, self.values))
        except (ArithmeticError, SyntaxError, TypeError):
            return None

    def _id(self, match: re.Match[str]) -> str:
        """The id of the work-item that stands for all."""
        kind, dimension = match.groups()
        if kind == "local" or dimension != "0":
            return "0"
        return str(self.group * (1 if kind == "group" else self.sizes["local"][0]))

    def _compared(self, text: str) -> int | None:
        """Whether a comparison of two known numbers holds."""
        match = _COMPARISON.fullmatch(text)
        left, right = (self._value(match[1]), self._value(match[3])) if match else (None, None)
        if match and right is not None and match[2] == ">=" and self.formulas.get(match[1]) in _FIRST_GROUP:
            self.bounds.add(right)
        return None if match is None or left is None or right is None else int(_COMPARE[match[2]](left, right))

    def _dependence(self, text: str) -> frozenset[str]:
        """The loops and ids that an expression varies with."""
        names = (self.depends.get(name, frozenset()) for name in _NAME.findall(text))
        ids: set[str] = set()
        for kind, d in _IDS.findall(text):
            ids |= {f"group{d}", f"local{d}"} if kind in ("global", "") else {f"{kind}{d}"}
        return frozenset(ids).union(*names)

    def _line(self, line: str) -> None:
        if define := _DEFINE.match(line):
            self.depends[define["name"]] = self._dependence(define["value"])
            self.formulas[define["name"]] = define["value"]
            value = self._compared(define["value"]) if define["type"] == "bool" else self._value(define["value"])
            if value is not None:
                self.values[define["name"]] = value
        elif pointer := _POINTER.match(line):
            name, condition, yes, no = pointer.groups()
            taken = yes if self.values.get(condition) else no
            self.chosen[name] = self.chosen.get(taken, taken)
        for dtype, count in _line_flops(self.source, line).items():
            self.flops[dtype] += count * self.turns
        width = re.search(r"\b(?:LOAD|STORE)\(__\w+, \w+, (\d+),|[a-z](\d+)_at \*", line)
        lanes = int(width[1] or width[2]) if width else 1
        for name, index, shift in re.findall(r"\b(\w+)(?:\[([^\]]*)\]| \+ (\w+)\))", line):
            name = self.chosen.get(name, name)
            if name in self.buffers:
                depends = self._dependence(index or shift)
                distinct = math.prod(self.spans.get(key, 1) for key in depends)
                moved = self.buffers[name] * lanes * min(self.turns, distinct)
                self.traffic[name, bool(define)] += moved
                if self.buffers[name] * self._stride(index or shift, depends) >= _PAGE:
                    self.scattered[name, bool(define)] += moved

    def _stride(self, index: str, depends: frozenset[str]) -> int:
        """Elements between an access and the next, in the innermost loop that moves it; 0 where it is not known."""
        for loop, step in reversed(self.loops):
            if (key := f"loop {loop}") in depends:
                here, kept = self._value(index), dict(self.values)
                self.values[loop] += step
                for name, formula in self.formulas.items():
                    if key in self.depends[name] and (value := self._value(formula)) is not None:
                        self.values[name] = value
                there, self.values = self._value(index), kept
                return 0 if here is None or there is None else abs(there - here)
        return 0


@functools.lru_cache(maxsize=4096)
def _function_flops(source: str, name: str) -> Counter[str]:
    """Operations of one call of a helper, as `_line_flops` counts them. Of a branch, what the usual operand takes."""
    total: Counter[str] = Counter()
    rare = False
    for line in map(str.strip, functions(source)[name][1].splitlines()):
        rare = line.startswith("if (") or (rare and not line.startswith("}"))
        if not rare:
            total += _line_flops(source, line)
    return total


@functools.lru_cache(maxsize=65536)
def _line_flops(source: str, line: str) -> Counter[str]:
    """Operations of one line, all lanes, by dtype; "slots": how many were issued."""
    define = _DEFINE.match(line)
    if not define or _VECTOR_LOAD.search(define["value"]):
        return Counter()
    value, lanes = define["value"], int(define["lanes"] or 1)
    if define["type"] not in _FLOATS:  # scalar integers are addresses, which other units compute
        return Counter({"slots": lanes} if lanes > 1 else {})
    dtype = _FLOATS[define["type"]]
    if re.search(r"\b(?:fma|muladd)\w*\(", value):
        return Counter({dtype: 2 * lanes, "slots": lanes})
    helpers = functions(source)
    called = [name for name in re.findall(r"\b(\w+)\(", value) if name in helpers]
    found: Counter[str] = sum((_function_flops(source, name) for name in called), Counter())
    if found:
        return found
    if called or _SPECIAL.search(value):  # what the language has itself
        special = _SPECIAL.search(value) or any(_SPECIAL.match(f"{name.partition('_')[0]}(") for name in called)
        return Counter({"special": lanes if special else 0, "slots": lanes})
    operators = Counter(operator.strip() for operator in _OPERATOR.findall(value.replace(" ", "  ")))
    arithmetic = sum(operators[operator] for operator in "-+*")
    divisions = operators["/"]
    return Counter({dtype: lanes * arithmetic, "special": lanes * divisions, "slots": lanes * operators.total()})


@functools.lru_cache(maxsize=4096)
def _walked(
    source: str, kernel: str, global_size: Size, local_size: Size, scalars: tuple[int, ...]
) -> tuple[dict[str, float], dict[tuple[int, bool], tuple[float, float]]]:
    """Operations by dtype with "slots" among them; bytes, and which of them are scattered, by argument index and
    whether they are read."""
    names = {index: name for name, _, index, _ in _pointers(source, kernel)}
    parameters, body = functions(source)[kernel]
    if "**" in parameters:
        by_name = {n: scalars[int(i)] for n, i in re.findall(r"\w+ (\w+) = \*\(\w+ \*\)args\[(\d+)\]", body)}
    else:
        names_in_order = [parameter.split()[-1].strip("*") for parameter in parameters.split(",")]
        by_name = dict(zip(names_in_order, scalars, strict=False))
    groups = global_size[0] // local_size[0]
    first = _Walk(source, kernel, global_size, local_size, by_name, 0)
    starts = [0, *sorted(bound for bound in first.bounds if 0 < bound < groups)]
    flops: Counter[str] = Counter()
    moved: dict[tuple[int, bool], tuple[float, float]] = {}
    for start, end in itertools.pairwise([*starts, groups]):
        walk = _Walk(source, kernel, global_size, local_size, by_name, start) if start else first
        share = (end - start) / groups
        flops.update({dtype: n * share for dtype, n in walk.flops.items()})
        for index, is_read in itertools.product(names, (False, True)):
            total, apart = moved.get((index, is_read), (0.0, 0.0))
            key = names[index], is_read
            moved[index, is_read] = total + walk.traffic[key] * share, apart + walk.scattered[key] * share
    return dict(flops), moved


def kernel_work(source: str, kernel: str, global_size: Size, local_size: Size, args: list[Arg]) -> Work:
    """What one launch does. A source that is not one of ours counts as a touch of all that its arguments reach."""
    groups = math.prod(g // n for g, n in zip(global_size, local_size, strict=True))
    reach = {i: arg.mem.nbytes - arg.offset for i, arg in enumerate(args) if isinstance(arg, Buffer)}
    if kernel not in functions(source) or not _pointers(source, kernel):
        return Work(bytes=sum(reach.values()), groups=groups)
    whole = _whole_numbers(source, kernel)
    scalars = tuple(
        int.from_bytes(arg.data, "little", signed=True) if isinstance(arg, Scalar) and i in whole else 0
        for i, arg in enumerate(args)
    )
    counted, traffic = _walked(source, kernel, global_size, local_size, scalars)
    flops = {dtype: n for dtype, n in counted.items() if dtype != "slots" and n}
    moved = scattered = 0.0
    for (i, _), (total, apart) in traffic.items():
        part = min(1.0, reach.get(i, 0) / total) if total else 0.0  # memory of a work-group reaches nothing
        moved += total * part
        scattered += apart * part
    return Work(flops, moved, groups, counted.get("slots", 0.0), scattered)


_SPECIAL_MAPS = frozenset(
    {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin", "acos", "atan"}
    | {"atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma"}
    | {"sqrt", "rsqrt", "div", "reciprocal"}
)


def core_op_work(
    name: str, outputs: list[Tensor], inputs: list[Tensor], attrs: dict[str, Any], dtypes: dict[int, str]
) -> Work:
    """What one core op does: its tensors pass memory once. dtypes: names by `lazy_dtype`."""
    width = {"b": 1, "i": 4, "u": 4, "f": 4}

    def nbytes(t: Tensor) -> int:
        dtype = dtypes[t.dtype]
        bits = "".join(c for c in dtype if c.isdigit())
        return math.prod(t.sizes) * (int(bits) // 8 if bits else width[dtype[0]])

    made = math.prod(outputs[0].sizes) if outputs else 0
    dtype = dtypes[(outputs or inputs)[0].dtype]
    if name == "map":
        count, dtype = made, "special" if attrs.get("fn") in _SPECIAL_MAPS else dtype
    elif name == "matmul":
        count = 2 * made * inputs[0].sizes[-1]
    elif name == "convolution":
        count = 2 * made * math.prod(inputs[1].sizes[1:])
    elif name == "sort":
        count = math.prod(inputs[0].sizes)
        count *= max(1, count.bit_length())
    else:
        count = max((math.prod(t.sizes) for t in inputs), default=0)
    return Work({dtype: float(count)}, float(sum(map(nbytes, (*outputs, *inputs)))), max(1, made // 256))
