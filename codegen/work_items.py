"""Kernels as plain functions: loops over work groups and work items, split where work items meet.

Without barriers and work-group memory a kernel is one loop nest over all work items. With them, the body falls
into segments between barriers; each is a loop over the items of the group. A barrier within a loop or a
conditional makes that a statement of the group, whose bounds or condition are the same for all items (as
barriers require), and segments its body in turn. A value that is used in another segment is an array
over the items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from codegen.printer import Printer

ITEM = "[item]"
GROUP = -1  # the "segment" of what is done once for the group


class ItemPrinter(Printer):
    """Prints a kernel as `void NAME(void **args, const uint64_t global[3], const uint64_t local[3])`."""

    def kernel(self, f: Any, addresses: bool, apart: bool) -> None:
        """A gpu.func as loops. A pointer is an address already, and says itself what it points to."""
        block = f.regions[0].blocks[0]
        self.stored = self.written(block)
        self.alone = self.unaliased(f)
        self.shared: set[Any] = set()
        self.segment: list[Callable[[], None]] = []
        n = self.argument_count(f)
        self.out.append(f"void {f.attributes['sym_name'].value}")
        self.out.append("(void **args, const uint64_t global[3], const uint64_t local[3])\n{\n")
        for i, argument in enumerate(list(block.arguments)[:n]):
            self.argument(i, argument)
        local = list(block.arguments)[n:]
        if local or has_barrier(block):
            self.grouped(block, local)
        else:
            self.flat(block)
        self.out.append("}\n")

    def argument(self, i: int, argument: Any) -> None:
        """A variable for what args[i] points at."""
        self.names[argument] = f"a{i}"
        type = self.ctype(argument)
        self.line(f"{self.variable(argument)} = *({type}{'' if type.endswith('*') else ' '}*)args[{i}];")

    def flat(self, block: Any) -> None:
        """One loop over all work items: compilers vectorise it whatever the size of the groups."""
        self.loops("global", "global[{d}]")
        with self.captured() as body:
            self.block(block)
        for d in range(3):
            self.derive(f"local{d}", f"global{d} % {self.size(f'local[{d}]')}", body)
            self.derive(f"group{d}", f"global{d} / {self.size(f'local[{d}]')}", body)
        self.out += body
        self.end_loops()

    def grouped(self, block: Any, local: list[Any]) -> None:
        """Loops over groups; within one, its memory, the shared values, and the segments."""
        self.line("const uint64_t items = local[0] * local[1] * local[2];")
        self.share(block)
        self.loops("group", "(global[{d}] / local[{d}])")
        for i, memory in enumerate(local):
            size, element, _ = self.memref(memory.type)
            self.names[memory] = f"l{i}"
            self.line(f"{self.lang.memory(element)} l{i}[{size}] __attribute__((aligned(64)));")
        self.arrays: list[str] = []
        with self.captured() as body:
            self.segments(block)
            self.close()
        for declaration in self.arrays:
            self.line(declaration)
        self.out += body
        self.end_loops()

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """What is printed within goes to a list of its own."""
        outer, self.out = self.out, []
        yield self.out
        self.out = outer

    def derive(self, name: str, value: str, body: list[str]) -> None:
        """A constant, where the lines of the body mention it."""
        if any(name in line for line in body):
            self.line(f"const {self.index_type} {name} = {value};")

    def size(self, text: str) -> str:
        """A size of the launch as an index."""
        return f"({self.index_type}){text}"

    def one(self, op: Any) -> None:
        """Ids are the variables of the loops."""
        if op.name in self.lang.ids:
            self.names[op.results[0]] = self.id(op)
        else:
            super().one(op)

    @property
    def index_type(self) -> str:
        """The C type of an index."""
        return self.lang.signed_names[self.index]

    def loops(self, name: str, limit: str) -> None:
        """Open three nested loops, the first axis innermost."""
        for d in (2, 1, 0):
            counter = f"{name}{d}"
            self.line(
                f"for ({self.index_type} {counter} = 0; {counter} < {self.size(limit.format(d=d))}; ++{counter}) {{"
            )
            self.indent += "    "

    def end_loops(self) -> None:
        """Close the three loops."""
        for _ in range(3):
            self.indent = self.indent[4:]
            self.line("}")

    # Segments

    def share(self, block: Any) -> None:
        """Find the values that are used in another segment than the one that makes them."""
        home: dict[Any, int] = {}
        count = 0

        def use(op: Any, segment: int) -> None:
            for value in op.operands:
                if home.get(value, segment) != segment:
                    self.shared.add(value)

        def walk(block: Any, segment: int, split: bool) -> None:
            nonlocal count
            for op in block.operations:
                o = op.operation
                if o.name == "gpu.barrier":
                    count += 1
                elif split and has_barrier_within(o):
                    use(o, GROUP)
                    for value in [*o.results, *carried(o)]:
                        self.shared.add(value)
                    for region in o.regions:
                        for inner in region.blocks:
                            count += 1
                            walk(inner, count, True)
                    count += 1
                else:
                    here = count if split else segment
                    if o.name not in self.lang.ids and o.name != "arith.constant":
                        home.update((result, here) for result in o.results)
                    use(o, here)
                    for region in o.regions:
                        for inner in region.blocks:
                            home.update((a, here) for a in inner.arguments)
                            walk(inner, here, False)

        walk(block, 0, True)
        self.share_results(block)

    def share_results(self, block: Any) -> None:
        """The results of a loop are its carried values, so they are shared together."""
        for op in block.operations:
            o = op.operation
            self.shared.update(a for a, r in zip(carried(o), o.results, strict=False) if r in self.shared)
            for region in o.regions:
                for inner in region.blocks:
                    self.share_results(inner)

    def segments(self, block: Any) -> None:
        """Print a block whose statements are the group's, the others in loops over the items."""
        for op in block.operations:
            o = op.operation
            if o.name == "gpu.barrier":
                self.close()
            elif has_barrier_within(o):
                self.group_statement(o)
            elif o.name == "arith.constant" or o.name in self.lang.ids:
                self.one(o)
            else:
                self.segment.append(partial(self.one, o))

    def group_statement(self, o: Any) -> None:
        """A loop or conditional with a barrier in it."""
        if o.name == "scf.for":
            low, high, step, *init = o.operands
            block = o.regions[0].blocks[0]
            for value, argument, result in zip(init, carried(o), o.results, strict=True):
                self.segment.append(partial(self.carry, value, argument, result))
            self.close()
            name = self.new(block.arguments[0], "i")
            bounds = [self.of_group(v) for v in (low, high, step)]
            head = f"{self.ctype(block.arguments[0])} {name} = {bounds[0]}; {name} < {bounds[1]}; {name} += {bounds[2]}"
            self.line(f"for ({head}) {{")
            self.group_block(block)
        else:
            self.close()
            for result in o.results:
                self.declare(result)
            self.line(f"if ({self.of_group(o.operands[0])}) {{")
            for i, region in enumerate(o.regions):
                if len(region.blocks):
                    if i:
                        self.line("} else {")
                    self.group_block(region.blocks[0])
        self.line("}")

    def group_block(self, block: Any) -> None:
        """The body of a group's statement."""
        self.indent += "    "
        self.segments(block)
        self.close()
        self.indent = self.indent[4:]

    def of_group(self, value: Any) -> str:
        """A value that all items agree on, read outside the loops over them."""
        return self[value].replace(ITEM, "[0]")

    def carry(self, value: Any, argument: Any, result: Any) -> None:
        """The first value of what a loop carries."""
        self.define(argument, self[value])
        self.names[result] = self.names[argument]

    def close(self) -> None:
        """End a segment: a loop over the items of the group."""
        if not self.segment:
            return
        self.loops("local", "local[{d}]")
        with self.captured() as body:
            for print_item in self.segment:
                print_item()
        self.segment = []
        self.derive("item", "(local2 * local[1] + local1) * local[0] + local0", body)
        for d in range(3):
            self.derive(f"global{d}", f"group{d} * {self.size(f'local[{d}]')} + local{d}", body)
        self.out += body
        self.end_loops()

    # Shared values are arrays

    def declare(self, value: Any, size: str = "", attribute: str = "") -> None:
        """A variable that is assigned later, or an array; shared values are arrays over the items."""
        if value not in self.shared:
            super().declare(value, size, attribute)
            return
        name = self.new(value)
        self.arrays.append(f"{attribute}{self.variable(value, name)}[items]{size};")
        self.names[value] = name + ITEM

    def alias(self, result: Any, text: str) -> None:
        """A result that is what a variable holds already; shared, it needs its place."""
        if result in self.shared:
            self.define(result, text)
        else:
            super().alias(result, text)

    def define(self, result: Any, text: str) -> None:
        """A new variable for a result, or its place in an array over the items."""
        if result in self.shared:
            self.declare(result)
            self.line(f"{self.names[result]} = {text};")
        else:
            super().define(result, text)


def has_barrier(block: Any) -> bool:
    """Whether a block has a barrier somewhere within."""
    return any(op.operation.name == "gpu.barrier" or has_barrier_within(op.operation) for op in block.operations)


def has_barrier_within(op: Any) -> bool:
    """Whether the regions of an operation have a barrier."""
    return any(has_barrier(block) for region in op.regions for block in region.blocks)


def carried(op: Any) -> list[Any]:
    """The values that a loop carries from turn to turn."""
    return list(op.regions[0].blocks[0].arguments)[1:] if op.name == "scf.for" else []
