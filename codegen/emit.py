"""Instructions of a loop program -> a `Builder`: the innermost level, shared by all loop kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from codegen.builder import HALVES, Buf, Builder, V
from codegen.index import Div, Dyn, Expr, Mod, Var, variable
from codegen.loops import Instr, Program, Store, expressions
from codegen.nesting import Rows, varies_with
from ops_core.sizes import multiple

# Functions whose result on rounded operands needs no rounding.
EXACT = frozenset((
    "where", "neg", "abs", "sign", "maximum", "minimum", "floor", "ceil", "trunc", "round", "eq", "ne", "lt", "le",
    "gt", "ge", "and", "or", "xor", "not",
))  # fmt: skip


def registers(dtype: str) -> str:
    """The dtype of a value in registers: half types are computed in f32."""
    return "f32" if dtype in HALVES else dtype


class Arguments(NamedTuple):
    """What the buffers, offsets and scalars of a program are in a kernel."""

    buffers: list[Buf]
    offsets: list[V]
    scalars: list[V]


def declare(k: Builder, program: Program, scalars: list[V] | None = None) -> Arguments:
    """Kernel arguments for a program, in the order of `Arguments`; scalars: those of another program, if shared."""
    written = {s.buffer for s in program.stores}
    buffers = [k.buffer(b.dtype, readonly=i not in written) for i, b in enumerate(program.buffers)]
    offsets = [k.arg("index") for _ in program.offsets]
    return Arguments(buffers, offsets, [k.arg(dtype) for _, dtype in program.scalars] if scalars is None else scalars)


class Emitter:
    """Emits instructions once per scope.

    `env` gives the loop variables; `vector` runs over `width` lanes from there, which are several rows if `rows`.
    """

    def __init__(
        self, k: Builder, program: Program, vector: Var | None, arguments: Arguments | None = None,
        rows: Rows | None = None,
    ):  # fmt: skip
        self.k, self.program, self.vector, self.rows = k, program, vector, rows
        arguments = arguments or declare(k, program)
        self._buffers, self._offsets, self._scalars = arguments
        self._by_row = _ByRow(k, program, vector, arguments, rows.columns) if vector and rows else None
        self.width = 1
        self.env: dict[Var, V | int] = {}
        self.accumulators: dict[int, V] = {}
        self.staged: dict[int, Callable[[], V]] = {}  # instructions whose values lie somewhere else
        self.sure: frozenset[int] = frozenset()  # tests that hold in all lanes
        self._scopes: list[dict[int, V]] = [{}]
        self._for_indices: set[Instr] | None = None

    @contextmanager
    def scope(self, known: dict[int, V] | None = None) -> Iterator[None]:
        """What is emitted inside is not seen after: the body of a loop or branch. known: what is seen there already."""
        self._scopes.append({} if known is None else known)
        with self._by_row.scope() if self._by_row else nullcontext():
            yield
        self._scopes.pop()

    def value(self, id: int) -> V:
        """The value of an instruction; scalar where it does not vary along the vector."""
        if self.sure:
            id = self._chosen(id)
        for scope in reversed(self._scopes):
            if id in scope:
                return scope[id]
        instr = self.program.instrs[id]
        if id in self.sure:
            result = self.k.const(True, "bool")
        elif id in self.staged:
            result = self.staged[id]()
        elif self.rows and id in self.rows.once and self.width > 1:
            result = self.by_row().value(id)
            if result.width > 1:
                result = self.k.shuffle(result, result, [lane // self.rows.columns for lane in range(self.width)])
        else:
            result = _EMIT[instr.op](self, instr)
        self._scopes[-1][id] = result
        return result

    def _holds(self, id: int) -> bool:
        """Whether a condition is one of those that are sure, or several of them."""
        instr = self.program.instrs[id]
        return id in self.sure or (instr.op == "map" and instr.data[0] == "and" and all(map(self._holds, instr.args)))

    def _chosen(self, id: int) -> int:
        """What is left of choices and conditions by those that are sure."""
        while (instr := self.program.instrs[id]).op == "map" and instr.data[0] in ("where", "and"):
            first, second = instr.args[:2]
            if self._holds(first):
                id = second
            elif instr.data[0] == "and" and self._holds(second):
                id = first
            else:
                break
        return id

    def by_row(self) -> Emitter:
        """Of vectors with a lane for each row of this one's."""
        assert self._by_row and self.rows
        self._by_row.env, self._by_row.width = self.env, self.width // self.rows.columns
        self._by_row.accumulators = self.accumulators  # of all rows: a number
        return self._by_row

    def store_all(self, stores: Sequence[Store]) -> None:
        """Compute all values, then write them: a buffer may be among those that are loaded."""
        for store in stores:
            self.value(store.value)
        left = list(stores)
        while left:
            store = left.pop(0)
            other = next((s for s in left if self._takes_turns(store, s)), None)
            if other is None:
                self._store(store)
            else:
                left.remove(other)
                self._store_in_turns(store, other)

    def _takes_turns(self, a: Store, b: Store) -> bool:
        """Whether two vectors' elements follow each other in turns: real and imaginary parts."""
        alike = (a.buffer, a.offset, a.expr + 1) == (b.buffer, b.offset, b.expr)
        return alike and self._varies(a.expr) and self._step(a.expr) == 2

    def _store_in_turns(self, a: Store, b: Store) -> None:
        """As two whole vectors."""
        k, width = self.k, self.width
        first, second = (k.broadcast(self.value(store.value), width) for store in (a, b))
        lanes = [lane + part * width for lane in range(width) for part in range(2)]
        at = self.address(a.offset, a.expr)
        for start in (0, width):
            k.store(self._buffers[a.buffer], at + start, k.shuffle(first, second, lanes[start : start + width]))

    def _store(self, store: Store) -> None:
        """Write a value: as a vector where the buffer is contiguous along it."""
        k, value = self.k, self.value(store.value)
        buf = self._buffers[store.buffer]
        if not self._varies(store.expr):
            k.store(buf, self.address(store.offset, store.expr), k.lane(value, 0))
        elif self._step(store.expr) == 1:
            k.store(buf, self.address(store.offset, store.expr), k.broadcast(value, self.width))
        else:
            index = self.address(store.offset, store.expr, lanes=True)
            for i in range(self.width):
                k.store(buf, k.lane(index, i), k.lane(value, i))

    def memory(self, store: Store) -> tuple[Buf, V]:
        """Where a store writes."""
        return self._buffers[store.buffer], self.address(store.offset, store.expr)

    def address(self, offset: int | None, expr: Expr, lanes: bool = False) -> V:
        """The element number of an access, for each lane if `lanes`."""
        at = self.index(expr, lanes)
        return at if offset is None else at + self._offsets[offset]

    def index(self, expr: Expr, lanes: bool = False) -> V:
        """The value of an index expression; without `lanes` that of the first lane."""
        result = self.size(expr.const)
        for atom, c in expr.terms:
            result = result + self._atom(atom, lanes) * self.size(c)
        return result

    def size(self, n: int) -> V:
        """A size, stride or bound of the program as a constant: the only place where they enter a kernel."""
        return self.k.const(n, "index")

    def _atom(self, atom: Var | Dyn | Div | Mod, lanes: bool) -> V:
        k = self.k
        if isinstance(atom, Var):
            at = self.env[atom]
            at = at if isinstance(at, V) else k.const(at, "index")
            return at + self._lanes() if lanes and atom == self.vector and self.width > 1 else at
        if isinstance(atom, Dyn):
            return k.cast(self.value(atom.id), "index")
        if lanes and self.rows and self.width > 1 and atom == Mod(variable(self.vector), self.rows.columns):  # type: ignore[arg-type]
            return k.iota(self.width) % self.rows.columns  # vectors begin with a row
        inner = self.index(atom.expr, lanes)
        return inner // self.size(atom.by) if isinstance(atom, Div) else inner % self.size(atom.by)

    def _lanes(self) -> V:
        """What the vector's variable is in each lane, from the first on."""
        return self.k.iota(self.width)

    def _varies(self, expr: Expr) -> bool:
        return self.width > 1 and self.vector in expr.vars

    def _step(self, expr: Expr) -> int | None:
        """Elements from lane to lane, or None where they are not evenly spaced."""
        assert self.vector is not None
        return None if self._looked_up(expr) else lane_step(expr, self.vector, self.width)

    def _looked_up(self, expr: Expr) -> bool:
        """Whether lanes have indices of their own that were read from memory: a guard alone may be one for all."""
        for atom, _ in expr.terms:
            if isinstance(atom, Dyn) and self.vector in atom.vars and self.value(atom.id).width > 1:
                return True
            if isinstance(atom, (Div, Mod)) and self._looked_up(atom.expr):
                return True
        return False

    def _load(self, instr: Instr) -> V:
        k = self.k
        buffer, offset, expr, *_ = instr.data
        buf = self._buffers[buffer]
        guard = self.value(instr.args[0]) if instr.args and not self._holds(instr.args[0]) else None
        if not self._varies(expr):
            anywhere = k.any(guard) if guard is not None and guard.width > 1 else guard
            return k.load(buf, self._safe(anywhere, self.address(offset, expr)))
        step = self._step(expr)

        def apart() -> V:
            return k.load(buf, self._safe(guard, self.address(offset, expr, lanes=True)))

        if step not in (1, -1, 2):
            short = self._of_rows(buf, offset, expr) if guard is None else None
            return apart() if short is None else short
        first, width = self.address(offset, expr if step != -1 else expr - (self.width - 1)), self.width

        def whole() -> V:
            loaded = k.load(buf, first, width)
            if step == 1:
                return loaded
            if step == -1:
                return k.shuffle(loaded, loaded, range(width)[::-1])
            last = k.load(buf, first + (width - 1), width)  # begins one early, so that it ends with the last lane
            return k.shuffle(loaded, last, [2 * i + (2 * i >= width) for i in range(width)])

        if guard is None:
            return whole()
        zeros = k.const(0, registers(buf.dtype), width)
        if guard.width == 1:
            return k.either(guard, lambda: [whole()], lambda: [zeros])[0]
        if step in (1, -1) and not self._counts(instr):
            # Whole wherever the vector lies among the elements: lanes outside the guard are chosen by nobody.
            lowest, last = expr if step == 1 else expr - (width - 1), instr.data[3]
            inside = self._between(lowest, 0, last - (width - 2))
            most = lambda: k.either(inside, lambda: [whole()], lambda: [apart()])  # noqa: E731
            return k.either(k.any(guard), most, lambda: [zeros])[0]

        def partly() -> V:
            """Lane by lane only where an edge goes through the vector: cat, roll and padding copy vectors but there."""
            return k.either(k.any(~guard), lambda: [apart()], lambda: [whole()])[0]

        return k.either(k.any(guard), lambda: [partly()], lambda: [zeros])[0]

    def _counts(self, instr: Instr) -> bool:
        """Whether an index is computed of what is loaded: of other memory's contents there, it could be any number."""
        if self._for_indices is None:
            roots = looked_up(self.program.accesses())
            self._for_indices = {self.program.instrs[i] for i in needs(self.program, roots)}
        return instr in self._for_indices

    def _of_rows(self, buf: Buf, offset: int | None, expr: Expr) -> V | None:
        """A load of whole rows, the same one or one for each; None if it is no such load."""
        if not self.rows:
            return None
        k, width, columns = self.k, self.width, self.rows.columns
        column = Mod(variable(self.vector), columns)  # type: ignore[arg-type]
        varies = varies_with(expr, self.vector, columns, self.rows.once.__contains__)  # type: ignore[arg-type]
        if dict(expr.terms).get(column) != 1:
            return None
        if varies == {Mod}:
            each = k.load(buf, self.address(offset, expr), columns)
            return k.shuffle(each, each, [lane % columns for lane in range(width)])
        if varies != {Div, Mod}:
            return None
        starts = self.by_row().address(
            offset, Expr(expr.const, tuple(t for t in expr.terms if t[0] != column)), lanes=True
        )
        parts = [k.load(buf, k.lane(starts, row), columns) for row in range(width // columns)]
        while len(parts) > 1:
            both = list(range(2 * parts[0].width))
            parts = [k.shuffle(a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def prefetch(self, buffer: int, offset: int | None, expr: Expr) -> None:
        """Ask for the cache line of an element."""
        self.k.prefetch(self._buffers[buffer], self.address(offset, expr))

    def _safe(self, guard: V | None, at: V) -> V:
        """An address that may be read even where the guard does not hold: then the buffer's first element."""
        return at if guard is None else self.k.select(guard, at, self.k.const(0, "index", at.width))

    def _const(self, instr: Instr) -> V:
        return self.k.const(instr.data[0], instr.dtype)

    def _scalar(self, instr: Instr) -> V:
        return self._scalars[instr.data[0]]

    def _index(self, instr: Instr) -> V:
        return self.k.cast(self.index(instr.data[0], self._varies(instr.data[0])), instr.dtype)

    def _inside(self, instr: Instr) -> V:
        expr, lo, hi = instr.data
        return self._between(expr, lo, hi, self._varies(expr) and not self._uniform(expr, lo, hi))

    def _between(self, expr: Expr, lo: int, hi: int, lanes: bool = False) -> V:
        """Whether lo <= expr < hi, for each lane if `lanes`."""
        low, high = expr.bounds
        at = self.index(expr, lanes)
        if hi - lo == 1 and low < lo and high >= hi:
            return at == self.size(lo)
        tests = [at >= self.size(lo)] * (low < lo) + [at < self.size(hi)] * (high >= hi)
        if not tests:  # simplification may have narrowed the index since the test was written
            return self.k.const(True, "bool")
        return tests[0] if len(tests) == 1 else tests[0] & tests[1]

    def _uniform(self, expr: Expr, lo: int, hi: int) -> bool:
        """Whether all lanes of a vector lie on the same side of both bounds: bounds at which vectors start."""
        assert self.vector is not None
        edges = expr.const - lo, expr.const - hi, *(f for atom, f in expr.terms if atom != self.vector)
        whole = multiple(self.vector.size, self.width) and all(multiple(n, self.width) for n in edges)
        return whole and expr.coefficient(self.vector) == 1 and not expr.dynamic(self.vector)

    def _map(self, instr: Instr) -> V:
        k, fn = self.k, instr.data[0]
        if fn == "bitcast":
            return k.bitcast(self.value(instr.args[0]), instr.dtype, self.program.instrs[instr.args[0]].dtype)
        result = k.map(fn, *map(self.value, instr.args), to=instr.dtype)
        return result if fn in EXACT else k.round_to(result, instr.dtype)

    def _mlir(self, instr: Instr) -> V:
        """One MLIR operation on values of one type; it knows the sign of integers, so dtypes are only names here."""
        k, op = self.k, instr.data[0]
        values = [self.value(a) for a in instr.args]
        if op == "arith.select":
            return k.select(values[0], *(k.bitcast(v, instr.dtype) for v in values[1:]))
        width = max(v.width for v in values)
        return k.bitcast(k.emit(op, *(k.broadcast(v, width) for v in values)), instr.dtype)

    def _acc(self, instr: Instr) -> V:
        return self.accumulators[instr.data[0]]


class _ByRow(Emitter):
    """Vectors over rows of `columns` elements, with a lane for each: emits what is one value for a whole row."""

    def __init__(self, k: Builder, program: Program, vector: Var, arguments: Arguments, columns: int):
        super().__init__(k, program, vector, arguments)
        self.row, self._columns = Div(variable(vector), columns), columns

    def _lanes(self) -> V:
        return self.k.iota(self.width) * self._columns

    def _atom(self, atom: Var | Dyn | Div | Mod, lanes: bool) -> V:
        if lanes and atom == self.row and self.width > 1:
            return super()._atom(atom, False) + self.k.iota(self.width)
        return super()._atom(atom, lanes)

    def _step(self, expr: Expr) -> int | None:
        if self._looked_up(expr) or any(self.vector in atom.vars for atom, _ in expr.terms if atom != self.row):
            return None
        return dict(expr.terms).get(self.row, 0)


_EMIT = {
    "load": Emitter._load, "const": Emitter._const, "scalar": Emitter._scalar, "size": Emitter._const,
    "index": Emitter._index, "inside": Emitter._inside, "map": Emitter._map, "mlir": Emitter._mlir,
    "acc": Emitter._acc,
}  # fmt: skip


def lane_step(expr: Expr, vector: Var, width: int) -> int | None:
    """What `expr` grows by from lane to lane; None if unevenly.

    Where `width` divides the size of `vector`, vectors start at multiples of it. Then `v // n` and `v % n`, with n a
    multiple of `width`, do not change within a vector, or change as v does.
    """
    total = 0
    for atom, c in expr.terms:
        if atom == vector:
            total += c
        elif isinstance(atom, (Div, Mod)) and vector in atom.vars:
            inner = lane_step(atom.expr, vector, width)
            others = atom.expr.const, *(f for a, f in atom.expr.terms if a != vector)
            if inner is None or inner < 0 or not multiple(vector.size, width):
                return None
            if inner and not all(multiple(n, inner * width) for n in (atom.by, *others)):
                return None
            total += c * inner if isinstance(atom, Mod) else 0
    return total


def needs(program: Program, roots: Iterable[int], known: Collection[int] = ()) -> list[int]:
    """The instructions that `roots` need, operands first; none for what is `known`, but itself."""
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        id = pending.pop()
        if id not in seen:
            seen.add(id)
            pending += () if id in known else operands(program.instrs[id])
    return sorted(seen)


def operands(instr: Instr) -> list[int]:
    """The instructions that an instruction reads, those inside index expressions too."""
    return [*instr.args, *looked_up(expressions(instr))]


def looked_up(exprs: Iterable[Expr]) -> list[int]:
    """The instructions that index expressions are computed of."""
    found, pending = [], list(exprs)
    while pending:
        for atom, _ in pending.pop().terms:
            if isinstance(atom, Dyn):
                found.append(atom.id)
            elif isinstance(atom, (Div, Mod)):
                pending.append(atom.expr)
    return found
