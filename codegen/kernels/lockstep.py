"""Several vectors whose operations take turns, where library functions make chains of them that a core waits for.

Each operation of an exponential waits four cycles for the one before, and a core looks some hundred operations ahead:
three or four vectors' functions one after another, of which it could do two operations in each cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from codegen.emit import Emitter
from codegen.index import Var
from codegen.kernels.kept import FUNCTION_OPS
from codegen.mathlib.table import FUNCTIONS

Result = TypeVar("Result")

# Vectors of one step, of a register file of so many for each, and operations of all of them: more take long to compile.
# benchmarks, Emerald Rapids, ms by kernel's time, 1 / 2 / 4 vectors: elementwise 1.55, 1.40, 1.32 (PoCL 1.72, 1.56,
# 1.40), norm_block 2.60, 2.40, 2.24; two calls one after another 1.44. On Zen 3, of 16 registers, 1 / 2 / 4 vectors:
# 2.14, 1.89, 1.86 and 3.12, 3.25, 3.02. In products' epilogues (`codegen.kernels.blocks.store_row`) there, a product of
# 2048 x 256 x 1024 with one vector / with three: with GELU 8.0 / 7.5, with GELU and its gradient 11.7 / 10.6.
REGISTERS, VECTORS, MOST_OPS = 8, 4, 160


def count(ops: Sequence[int], caps: Any) -> int:
    """How many vectors take turns. ops: of the instructions for one vector (`codegen.kernels.kept.ops`)."""
    if not caps.is_cpu or FUNCTION_OPS not in ops:
        return 1
    most = min(VECTORS, caps.max_private_bytes // caps.vector_bytes // REGISTERS, MOST_OPS // sum(ops))
    return 1 << max(most, 1).bit_length() - 1


def vectors(emitter: Emitter, var: Var, width: int, visits: Sequence[Callable[[], Result]]) -> list[Result]:
    """What visits to vectors that follow each other along a variable give, the first of them where `env` has it."""
    env, first = emitter.env, emitter.env[var]
    places = [first + n * width for n in range(len(visits))]

    def at(place: Any, visit: Callable[[], Result]) -> Callable[[], Result]:
        def body() -> Result:
            env[var] = place
            with emitter.scope():
                return visit()

        return body

    bodies = [at(place, visit) for place, visit in zip(places, visits, strict=True)]
    results = emitter.k.in_lockstep(bodies, FUNCTIONS if len(bodies) > 1 else {})
    env[var] = first
    return results
