"""What a step cannot do without is counted and measured, not estimated."""

import time

import pytest
import torch
from torch import nn

from benchmarks.floor import Floor, between_seconds, profiled, traffic
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


def test_time_between_ops_is_python_s_and_time_within_is_not():
    x = torch.ones(4 << 20)

    def step():
        time.sleep(0.01)
        return x.exp_().clamp_(max=1)

    found = profiled(step, 3)
    assert found.calls == 2 and found.contraction_s == 0
    assert found.between_s >= 0.01, "what the script does itself"
    plain = profiled(lambda: x.exp_().clamp_(max=1), 3)
    assert plain.between_s < 0.01, "an op's own work is not Python's"


def test_contractions_are_the_library_s_time():
    a = torch.randn(256, 256)
    assert profiled(lambda: (a @ a).relu(), 3).contraction_s > 0


def test_calls_themselves_are_counted_with_the_ops():
    x = torch.empty(1, device="meta")

    def step():
        for _ in range(1000):
            x.detach()
        return x

    calls = profiled(step, 3)
    assert between_seconds(calls, calls) < 1000 * 1e-6, "what the profiler adds for each is taken off"
    slower = calls._replace(between_s=calls.between_s + 1.0)
    assert between_seconds(slower, calls) == pytest.approx(between_seconds(calls, slower), abs=1e-3), "the smaller"


def test_the_table_adds_up_round_by_round():
    floor = Floor("w", bytes=4_000_000, ops=500, contraction_s=[1e-3, 2e-3], between_s=[0.5e-3] * 2, triad=[4e9, 2e9])
    lazy = Measured("w", "lazy", step_s=6e-3, rounds_s=[3e-3, 10e-3])
    row = floor_table([lazy], [floor], 1.0, "lazy").splitlines()[-1]
    assert row == "| w | 1.5 | 1.5 | 1 | 4 | 6 | 75% |", "3 of 3 and 5 of 10"
