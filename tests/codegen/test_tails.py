"""Rows that vectors do not divide: the last elements are computed one by one, and the vectors stay vectors."""

import re

import pytest
import torch

import lazy_backend
from codegen.functionalize import MOST_PARTS
from codegen.kernels.nest import tail
from ops_core.sizes import Tape, tracing


@pytest.mark.parametrize("rows", [1021, 1024])
def test_the_last_items_may_have_no_row(device, rows):
    """as in every kernel over rows whose number varies; softmax of 416 rows of 13 took 81 us with items side by side"""
    x = torch.linspace(-1, 1, rows * 256).reshape(rows, 256)
    torch.testing.assert_close(x.to(device).log_softmax(-1).cpu(), x.log_softmax(-1))


def test_what_is_left_of_a_row_goes_in_shorter_vectors():
    """(first, end, lanes); where the length varies all of them, with at most one turn each"""
    assert tail(70, 16) == [(64, 68, 4), (68, 70, 1)] and tail(13, 8) == [(8, 12, 4), (12, 13, 1)]
    assert tail(64, 16) == [] and tail(28, 16) == [(16, 24, 8), (24, 28, 4)] and tail(3, 2) == [(2, 3, 1)]
    tape = Tape()
    n = tape.symbol(13, 100)
    with tracing(tape):
        parts = tail(n, 16), tail(n * 8, 16), tail(n * 16, 16)
    assert not tape.guards
    assert parts == ([(0, 8, 8), (8, 12, 4), (12, 13, 1)], [(96, 104, 8)], [])


def test_what_is_left_of_a_block_of_vectors_goes_in_single_ones_first():
    assert tail(200, 16, 64) == [(192, 200, 8)] and tail(177, 16, 64) == [(128, 176, 16), (176, 177, 1)]
    assert tail(128, 16, 64) == [] and tail(100, 8, 32) == [(96, 100, 4)] and tail(24, 8, 16) == [(16, 24, 8)]


COLUMNS = {
    "sum": lambda x: x.sum(1),
    "sum and bias": lambda x: (x + x[0, 0]).relu().sum(1) * x[0, 1],
    "positions": lambda x: torch.stack([x.argmax(1), x.argmin(1)]),
    "of half": lambda x: x.bfloat16().amax(1).float(),
    "of doubles": lambda x: x.double().sum(1),
    "two results": lambda x: torch.stack([x.sum(1), x.amin(1)]),
    "of a part": lambda x: torch.cat([x, x[:, :3]], 1)[:, 2:, 1:].sum(1),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_every_number(device, name):
    """several vectors of columns a walk, one, and what is left; each summed in the order of its rows"""
    for n in (*range(60, 72), 128, 145, 200):
        x = torch.arange(40.0 * 5 * n).mul(2.4).sin().mul(5).round().div(4).reshape(40, 5, n)
        assert torch.equal(COLUMNS[name](x.to(device)).cpu(), COLUMNS[name](x)), n


EDGES = {
    "cat": lambda x: torch.cat([x, x[:, 1:] + 1, x], 1),
    "cat of halves": lambda x: torch.cat([-x.bfloat16(), x.bfloat16()], 1),
    "roll": lambda x: x.roll(5, 1) + x.roll(-3, 1),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "flipped and padded": lambda x: torch.nn.functional.pad(x.flip(1), (3, 0)),
    "columns": lambda x: torch.cat([x[:, :1] * 2, x, *(x.amax(1, keepdim=True) + i for i in range(3))], 1),
    "padded columns": lambda x: torch.cat([torch.constant_pad_nd(x, (2, 0))[:, i : i + 1] for i in range(3)], 1),
    "rotated": lambda x: x + torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_within_vectors_and_between_them(device, name):
    for n in (*range(1, 36), 64, 96):
        x = torch.arange(6.0 * n).mul(2.4).sin().reshape(6, n)
        assert torch.equal(EDGES[name](x.to(device)).cpu(), EDGES[name](x)), n


def test_scalars_side_by_side(device):
    for n in (1, 7, 16, 33):
        x = torch.arange(6.0 * n).mul(2.4).sin().reshape(6, n)
        on_cpu, on_device = (torch.stack([*t[1], *t[4, :3].bfloat16().float()]).abs() for t in (x, x.to(device)))
        assert torch.equal(on_device.cpu(), on_cpu), n


def test_a_part_of_one_element_is_read_once(device):
    """not lane by lane under its edge: 148 norms, as clip_grad_norm_ stacks them, took 3.0 s, and 1.4 so (more than
    eight are copied one by one now)"""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    parts = [torch.tensor(float(i), device=device) + 1 for i in range(MOST_PARTS)]
    torch.lazy.synchronize()
    explained = lazy_backend.explain(lambda: torch.stack(parts))
    assert explained.result.tolist() == [i + 1.0 for i in range(MOST_PARTS)]
    (kernel,) = explained.windows[0].kernels
    assert len(re.findall(r"\ba\d+\[", kernel.source.split("__kernel")[-1])) <= 2 * MOST_PARTS, kernel.source


ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "sum and extremes": lambda x: torch.stack([x.sum(-1), x.amax(-1), x.prod(-1)]),
    "positions": lambda x: torch.stack([x.argmax(-1), x.argmin(-1)]),
    "norm": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt(),
    "every second row": lambda x: x[::2] * 2 + x[1::2],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_every_length(device, name):
    """below a vector, and with each rest; of equal values the first position wins"""
    for n in range(1, 36):
        x = torch.arange(6.0 * n).mul(2.4).sin().mul(5).round().div(4).reshape(6, n)
        torch.testing.assert_close(ROWS[name](x.to(device)).cpu(), ROWS[name](x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [3, 5, 6, 7, 13])
def test_rows_looked_up_and_laid_across(device, parts):
    """rows of three in two lanes: a loop that asked in each turn whether the vector is whole lost elements (Intel's)"""
    tables = torch.linspace(-1, 1, parts * 100 * 32).reshape(parts, 100, 32)
    rows = torch.arange(5 * parts).mul(37).remainder(200).sub(100).reshape(5, parts)

    def across(tables, rows):
        found = [tables[i].flip(1)[rows[:, i]] if i % 2 else tables[i][rows[:, i]] for i in range(1, parts)]
        return torch.stack([tables[0, :5], *found[::-1]], 1).transpose(1, 2).contiguous()

    assert torch.equal(across(tables.to(device), rows.to(device)).cpu(), across(tables, rows))
