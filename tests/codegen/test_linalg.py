"""Programs as `linalg` on tensors: what the module says, what passes remove, and that reading back keeps every bit."""

from __future__ import annotations

import numpy as np
import pytest

from codegen import linalg, mlir
from codegen.index import Var, variable
from codegen.loops import Program, Reduction, Store
from ops_core.array import map_
from tests.codegen.case import Case, build

ROW, COLUMN = Var(0, 4), Var(1, 6)
FLAT = variable(ROW) * 6 + variable(COLUMN)


def chain() -> Program:
    """out = (x * 2 + x * 2) * 1, and its sum over columns."""
    p = Program((ROW, COLUMN), frozenset((COLUMN,)))
    x = p.emit("load", "f32", (), (p.buffer(("slot", 0), "f32"), None, FLAT))
    two, one = p.const(2.0, "f32"), p.const(1.0, "f32")
    doubled = p.map("add", "f32", p.map("mul", "f32", x, two), p.map("mul", "f32", x, two))
    value = p.map("mul", "f32", doubled, one)
    p.reductions.append(Reduction("sum", value, "f32", FLAT * 0))
    p.stores.append(Store(p.buffer(("slot", 1), "f32"), None, FLAT, value))
    p.stores.append(Store(p.buffer(("slot", 2), "f32"), None, variable(ROW), p.emit("acc", "f32", (), (0,))))
    return p


def test_one_generic_for_each_op_before_passes() -> None:
    text = linalg.module_text(chain())
    assert text.count("linalg.generic") == 4
    assert "(d0, d1) -> (d0 * 6 + d1 * 1 + 0)" in text
    mlir.parse(text)


def test_passes_fuse_elementwise_ops_and_drop_what_does_nothing() -> None:
    program, module = linalg.simplify(chain())
    assert module.count("linalg.generic") <= 2
    assert [i.data[0] for i in program.instrs if i.op == "mlir"] == ["arith.mulf", "arith.addf"]


def test_reading_back_keeps_loads_stores_and_reductions() -> None:
    before = chain()
    after, _ = linalg.simplify(before)
    assert [i for i in after.instrs if i.op == "load"] == [i for i in before.instrs if i.op == "load"]
    assert [(s.buffer, s.expr) for s in after.stores] == [(s.buffer, s.expr) for s in before.stores]
    assert [(r.fn, r.dtype) for r in after.reductions] == [("sum", "f32")]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int64])
def test_integers_keep_their_sign(dtype: type) -> None:
    data = np.random.default_rng(0).integers(0, 1 << 8, (33, 5)).astype(dtype)

    def write(c: Case) -> None:
        x, y = c.input(data), c.input(data[::-1] | 1)
        for fn in ("div", "fmod", "maximum", "gt", "add"):
            c.output(map_(fn, x, y))
        c.output(x.to("f32"))
        c.output(x.amax(0))

    build(write).check(exact=True)


def test_a_plan_shows_its_linalg() -> None:
    plan = build(lambda c: [c.output(c.input(np.ones((4, 6), np.float32)).sum(1))]).plan()
    assert '"reduction"' in plan.kernels[0].linalg


def test_a_broadcast_value_is_reduced_over_loops_that_it_does_not_vary_with() -> None:
    data = np.random.default_rng(0).random((3, 1), dtype=np.float32)

    def write(c: Case) -> None:
        spread = map_("exp", c.input(data)).expand(3, 7)
        c.output(spread.sum(1))
        c.output(spread.amax(0))

    build(write).check()
