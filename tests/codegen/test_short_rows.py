"""Rows of two or four elements: vectors hold several of them, whatever has an element for each row or each column."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lazy_backend

Case = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
# x: rows x columns; row: rows x 1; column: columns; table: 64 x columns; at: rows, numbers of lines of the table.
CASES: dict[str, Case] = {
    "a number for each row": lambda x, row, column, table, at: x * row + 1,
    "computed for each row": lambda x, row, column, table, at: x / (row * row + 1).sqrt(),
    "a number for each column": lambda x, row, column, table, at: x * column - x,
    "both": lambda x, row, column, table, at: (x - column) * row,
    "rows of a table": lambda x, row, column, table, at: x * 0.5 + table[at],
    "one element of each": lambda x, row, column, table, at: x + table[at, 0][:, None],
    "every other column": lambda x, row, column, table, at: x + torch.cat([table, table], 1)[:, ::2][at],
    "parts of longer rows": lambda x, row, column, table, at: torch.cat([x, x], 1)[:, : x.shape[1]] * row,
    "the other way round": lambda x, row, column, table, at: x.flip(1) * row,
    "beside each other": lambda x, row, column, table, at: torch.cat([x[:, :1] * 2, x[:, 1:] + row], 1),
    "a mask for each row": lambda x, row, column, table, at: torch.where(row > 0.5, x, -x),
    "the number of the column": lambda x, row, column, table, at: x * torch.arange(x.shape[1], device=x.device),
    "the number of the row": lambda x, row, column, table, at: (
        x + torch.arange(x.shape[0], device=x.device, dtype=x.dtype)[:, None] % 7
    ),
    "a wide number for each row": lambda x, row, column, table, at: x * (at % 7 - 3)[:, None].to(x.dtype),
    "rows found by a sum": lambda x, row, column, table, at: x + table[(at * 3 + 1) % 64] * row,
    "rows found from the end": lambda x, row, column, table, at: x - table[at - 64],
    "every fourth row": lambda x, row, column, table, at: (
        x + torch.arange(x.shape[0], device=x.device, dtype=x.dtype).div(4, rounding_mode="floor")[:, None]
    ),
    "the sum of all": lambda x, row, column, table, at: (x * row + table[at]).sum(),
    "less the greatest of all": lambda x, row, column, table, at: x * row - (x * row).amax(),
    "over a third dim": lambda x, row, column, table, at: x[None] * row + table[:3, None],
}


def operands(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    def some(*shape: int) -> Tensor:
        return torch.randint(1, 9, shape).to(dtype) / 8 if dtype.is_floating_point else torch.randint(1, 99, shape)

    x, row, column, table = some(rows, columns), some(rows, 1), some(columns), some(64, columns)
    return [x.to(dtype), row.to(dtype), column.to(dtype), table.to(dtype), torch.randint(64, (rows,))]


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(512, torch.float32), (509, torch.float32), (64, torch.float64), (512, torch.bfloat16), (512, torch.int64)],
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled
def test_as_eager(device: str, name: str, rows: int, dtype: torch.dtype, columns: int) -> None:
    if not dtype.is_floating_point and name == "computed for each row":
        pytest.skip("a root of integers is no integer")
    given = operands(rows, columns, dtype)
    expected = CASES[name](*given)
    got = CASES[name](*(t.to(device) for t in given)).cpu()
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=1e-6 if name == "computed for each row" else 0, atol=0)


@pytest.mark.parametrize("columns", [2, 4])
def test_in_place(device: str, columns: int) -> None:
    x, row, _, table, at = operands(512, columns, torch.float32)
    mine: list[Any] = [t.to(device) for t in (x, row, table, at)]
    for a, b, c, d in ((x, row, table, at), mine):
        a.lerp_(c[d], 0.25).add_(b).remainder_(0.75)
    torch.testing.assert_close(mine[0].cpu(), x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["a number for each row", "a number for each column", "both", "rows of a table"])
def test_vectors_hold_several_rows(device: str, name: str) -> None:
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    given = [t.to(device) for t in operands(4096, 2, torch.float32)]
    torch.lazy.synchronize()
    sources = [k.source for w in lazy_backend.explain(lambda: CASES[name](*given)).windows for k in w.kernels]
    if not any("STORE(__" in source for source in sources):
        pytest.skip("this device uses no vectors")
    assert not any("STORE(__global, float, 2," in source for source in sources)


def test_what_is_one_for_a_row_is_computed_once_for_it(device: str) -> None:
    """64-bit places of rows take no lanes from their elements: vectors are as wide as of elements alone."""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    x, _, column, table, at = (t.to(device) for t in operands(4096, 4, torch.float32))
    torch.lazy.synchronize()

    def widest(program: Callable[[], Tensor]) -> set[str]:
        kernels = [k for w in lazy_backend.explain(program).windows for k in w.kernels]
        return {
            line.split("(")[1].split(",")[2]
            for k in kernels
            for line in k.source.splitlines()
            if "STORE(__global, f" in line
        }

    assert widest(lambda: x + table[(at * 3 + 1) % 64]) == widest(lambda: x + column)
