"""The table of what tuning gains."""

from benchmarks import tuning
from codegen.kernels.matmul import Tile
from lazy_backend.porting import schedules


def test_a_row_says_what_each_repeat_would_choose(monkeypatch, capsys):
    own, other = Tile("panel", 4, 4, 128), Tile("dot", 4, 8, splits=2)
    results = iter([({own: [1e-3] * 4, other: [t] * 4}, own) for t in (5e-4, 2e-3, 5e-4)])
    monkeypatch.setattr(schedules, "measured", lambda b, product: next(results))
    monkeypatch.setattr(tuning, "GROUPS", {"one": [("nt", 1, 5, 700, 300)]})
    tuning.main(3)
    *_, row = capsys.readouterr().out.splitlines()
    assert row == "| nt 1 5 700 300 | panel 4x4p | 1000 | dot 4x8/2 | 2.00 | dot 4x8/2 2.00, -, dot 4x8/2 2.00 |"


def test_products_lie_as_their_layout_says():
    product = tuning.product("nt", 3, 40, 50, 70)
    assert (product.a.contiguous, product.b.contiguous, product.a.batched) == (1, 0, True)
    assert not tuning.product("nn", 1, 40, 50, 70).b.batched
