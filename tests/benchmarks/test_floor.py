"""What a step cannot do without is counted and measured, not estimated."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.floor import Floor, Profiled, between_seconds, call_seconds, not_inside, profiled, traffic
from benchmarks.harness import Measured
from benchmarks.tables import floor_table

FLOAT = 4


def test_a_chain_moves_its_input_and_its_result():
    x = torch.randn(100, 10)
    assert traffic(lambda: (x * 2).tanh() + x.t().t()) == (2 * 1000 * FLOAT, 3), "views are free"


def test_what_is_updated_in_place_is_read_and_written():
    x = torch.randn(100)
    assert traffic(lambda: x.mul_(2).add_(1)) == (2 * 100 * FLOAT, 2)


def test_a_lookup_reads_the_rows_that_it_gives():
    table, rows = torch.randn(1000, 8), torch.tensor([3, 5, 5])
    assert traffic(lambda: table[rows])[0] == (3 * 8 + 3 * 8) * FLOAT + 3 * 8, "rows, their copy, the numbers"


def test_training_keeps_what_its_backward_pass_needs():
    layer, x = nn.Linear(8, 4, bias=False), torch.randn(16, 8)

    def step():
        layer.weight.grad = None
        value = layer(x).exp().sum()
        value.backward()
        return value.detach()

    weight, result, kept = 8 * 4, 1, 16 * 4
    expected = (weight + 16 * 8) + 2 * kept + weight + result
    assert traffic(step)[0] == expected * FLOAT, "operands; exp's result, twice; the gradient; the loss"


def test_a_script_s_own_time_is_between_ops():
    x = torch.ones(100)

    def step():
        time.sleep(0.01)
        return x.exp_().clamp_(max=1)

    found = profiled(step, 3)
    assert found.calls == 2 and found.contraction_s == 0 and found.between_s >= 0.01


def test_ops_that_ops_call_are_theirs():
    spans = [(10, 20), (0, 30), (12, 15), (30, 31), (40, 50), (40, 45)]
    events = [SimpleNamespace(time_range=SimpleNamespace(start=start, end=end)) for start, end in spans]
    assert [(e.time_range.start, e.time_range.end) for e in not_inside(events)] == [(0, 30), (30, 31), (40, 50)]


def test_contractions_are_the_library_s_time():
    a = torch.randn(256, 256)
    assert profiled(lambda: (a @ a).relu(), 3).contraction_s > 0


def test_calls_themselves_are_counted_with_the_ops(monkeypatch):
    monkeypatch.setattr("benchmarks.floor.call_seconds", lambda: 1e-6)
    one, other = Profiled(0.0, between_s=3e-3, calls=1000), Profiled(0.0, between_s=9e-3, calls=8000)
    assert between_seconds(one, other) == pytest.approx(1e-3), "the smaller of the two, of an op in pieces too"
    assert between_seconds(one, Profiled(0.0, between_s=1e-3, calls=2000)) == 0, "no less than nothing"


def test_a_call_that_does_nothing_takes_time():
    assert call_seconds(10) > 0


def test_the_table_adds_up_round_by_round():
    floor = Floor("w", bytes=4_000_000, ops=500, contraction_s=[1e-3, 2e-3], between_s=[0.5e-3] * 2, triad=[4e9, 2e9])
    lazy = Measured("w", "lazy", step_s=6e-3, rounds_s=[3e-3, 10e-3])
    row = floor_table([lazy], [floor], 1.0, "lazy").splitlines()[-1]
    assert row == "| w | 1.5 | 1.5 | 1 | 4 | 6 | 75% |", "3 of 3 and 5 of 10"
