"""Fusion groups: the unit that becomes a kernel, the limits that it respects, and index arithmetic about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import gcd, prod

from codegen.index import Expr, Index, Var, linear, variable
from codegen.views import VIEWS
from ops_core.dtypes import BY_NAME
from ops_core.ir import Node, Value
from ops_core.sizes import common_divisor, usual, varies

REDUCTIONS = frozenset(("sum", "prod", "amax", "amin", "argmax", "argmin"))
LEAVES = frozenset(("load", "param", "full", "iota", "rand_bits"))
INLINE = LEAVES | VIEWS | {"pad", "cat", "gather", "index"}
# Anchors that read each element of their operands for many terms.
CONTRACTIONS = frozenset(("matmul", "convolution"))
# Anchors that update the memory of their result, where their first operand is then, and those that make it anew, dense:
# what follows them is another kernel.
UPDATES, DENSE = frozenset(("index_put", "scatter")), frozenset(("nonzero", "partial_updates"))
IN_PLACE = UPDATES | DENSE

# Computing a value again costs its operations, keeping it costs a write and a read: below this weight (an addition
# is 1) and when it reads no more bytes than it has, again is cheaper. benchmarks: elementwise chain, GPT training.
RECOMPUTE_WEIGHT = 6
# One number for the whole kernel is computed once per work item, so longer chains pay too. benchmarks: optimizer step.
SCALAR_RECOMPUTE_WEIGHT = 24
# Operations per kernel: compile time of OpenCL compilers grows faster than linearly, and registers run out.
MAX_WEIGHT = 400
# Buffers per kernel; devices give fewer through `max_kernel_args`. Each buffer may bring an offset argument.
MAX_BUFFERS = 48
# A row that is read again by a later phase of the same kernel should still be in the cache (elements).
MAX_ROW = 1 << 16

_HEAVY = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma", "pow",
    "fmod", "remainder",
))  # fmt: skip
HEAVY_WEIGHT = 8
RANDOM_WEIGHT = 100


def weight(node: Node) -> int:
    """What computing an element of a node costs, in additions."""
    return HEAVY_WEIGHT if node.attrs.get("fn") in _HEAVY else RANDOM_WEIGHT if node.op == "rand_bits" else 1


def nbytes(value: Value) -> int:
    """Bytes of a value that lies dense in memory."""
    return prod(value.shape) * BY_NAME[value.dtype].bytes


def usual_bytes(value: Value) -> int:
    """The bytes by which it is decided whether a value is kept."""
    return usual(nbytes(value))  # type: ignore[no-any-return]


def space(shape: Iterable[int]) -> tuple[Var, ...]:
    """Fresh loop variables over `shape`; equal shapes have equal variables."""
    return tuple(Var(i, n) for i, n in enumerate(shape))


def identity(vars: Iterable[Var]) -> Index:
    """The index that walks the variables; a dim of size 1 stands still."""
    return tuple(variable(v) if v.size != 1 else Expr() for v in vars)


def itemsize(node: Node) -> int:
    """Bytes of an element that a load or store touches."""
    return BY_NAME[(node.outputs or node.inputs)[0].dtype].bytes


def memory_index(node: Node, index: Index) -> Expr:
    """The byte that a load or store touches, relative to its slot."""
    return linear(index, node.attrs["strides"], node.attrs["offset"]) * itemsize(node)


@dataclass(eq=False)
class Group:
    """One kernel to be. `anchor`: the contraction, sort.. that it is built around, or None for plain loops."""

    id: int
    domain: tuple[int, ...]
    anchor: Node | None = None
    reduced: frozenset[Var] = frozenset()
    nodes: list[Node] = field(default_factory=list)
    index: dict[Value, Index] = field(default_factory=dict)
    reads: dict[Value, set[Index]] = field(default_factory=dict)
    touched: dict[int, set[Expr]] = field(default_factory=dict)  # slot -> bytes that are loaded
    loads: set[Node] = field(default_factory=set)
    stores: dict[Node, Index] = field(default_factory=dict)
    at: dict[Node, Index] = field(default_factory=dict)  # reductions -> the index of their operand
    weight: int = 0
    rows: Group | None = None  # statistics of the rows of a product's first operand, computed in its kernel

    @property
    def vars(self) -> tuple[Var, ...]:
        """The loop variables."""
        return space(self.domain)

    @property
    def parallel(self) -> frozenset[Var]:
        """The variables that are not reduced: a row each."""
        return frozenset(self.vars) - self.reduced

    def buffers(self) -> int:
        """How many buffers the kernel will have, about."""
        return len(self.reads) + len(self.touched) + len(self.stores)


@dataclass
class Uses:
    """What a node needs when it is computed at a given index of a group."""

    reads: dict[Value, set[Index]] = field(default_factory=dict)
    loads: list[tuple[Node, Expr]] = field(default_factory=list)
    random: list[Node] = field(default_factory=list)
    rows: bool = False  # reads the result of a reduction of the group
    weight: int = 0


class Misfit(Exception):
    """The node cannot be computed in this group."""


def operand_space(number: int, value: Value) -> tuple[Var, ...]:
    """Loop variables over an anchor's operand, apart from those of its result."""
    return tuple(Var(1000 * (number + 1) + d, n) for d, n in enumerate(value.shape))


def same_view(load: Node, store: Node) -> bool:
    """Whether a load and a store name the same elements."""
    return load.op == "load" and all(load.attrs[k] == store.attrs[k] for k in ("slot", "sizes", "strides", "offset"))


def index_vars(index: Index) -> frozenset[Var]:
    """The variables that an index varies with."""
    return frozenset().union(*(e.vars for e in index))


def apart(a: Expr, b: Expr) -> bool:
    """Whether two accesses, each given by its first byte, cannot meet."""
    return a.bounds[1] + _extent(a) <= b.bounds[0] or b.bounds[1] + _extent(b) <= a.bounds[0]


def in_turns(a: Expr, b: Expr, nbytes: int) -> bool:
    """Whether two accesses, each given by its first byte, to elements of at most nbytes cannot meet since they take
    turns: real and imaginary parts."""
    step, distance = common_divisor(*(c for _, c in (*a.terms, *b.terms))), a.const - b.const
    return step > 0 and not varies(distance) and nbytes <= distance % step <= step - nbytes


def neighbours(a: Node, b: Node) -> bool:
    """Whether two stores write parts of one concatenation."""
    return "cat" in a.attrs and a.attrs["cat"] == b.attrs.get("cat")


def parts(a: Node, b: Node) -> bool:
    """Whether two stores to a slot are of a complex number's parts, or of a concatenation's, so that neither overwrites
    the other."""
    if neighbours(a, b):
        return True
    first, second = (memory_index(node, identity(space(node.attrs["sizes"]))) for node in (a, b))
    return in_turns(first, second, max(itemsize(a), itemsize(b)))


def _extent(byte: Expr) -> int:
    """Bytes of an element at most: its strides are multiples of its size, and no type has more than 8."""
    return gcd(8, *(c for _, c in byte.terms))


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
