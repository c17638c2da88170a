"""What a step cannot do without is counted, not estimated."""

import torch
from torch import nn

from benchmarks.floor import traffic
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


def test_the_table_adds_up():
    floors = {"w": {"contraction_s": 1e-3, "bytes": 4e6, "triad": 4e9, "ops": 500}}
    row = floor_table([Measured("w", "lazy", step_s=4e-3)], floors, 2.0, "lazy").splitlines()[-1]
    assert row == "| w | 1 | 1 | 1 | 3 | 4 | 75% |"
