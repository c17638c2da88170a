"""How many lanes a vector has: as many as a register holds of the widest number that there is for each element."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding

import lazy_backend

Case = Callable[[Tensor, Tensor, Tensor], Tensor]
# table: 100 x 64 floats, at: 30 x 4 of its rows, each: 30 x 64 wide numbers.
OF_A_ROW: dict[str, Case] = {
    "rows of a table": lambda table, at, each: embedding(at[:, 0], table) * 2,
    "rows counted from the end": lambda table, at, each: table[at[:, 0] - 100] * 2,
    "tables side by side": lambda table, at, each: torch.stack([embedding(at[:, i], table) for i in range(4)], 1),
    "a sum of rows": lambda table, at, each: embedding(at, table).sum(1),
    "a wide number for each row": lambda table, at, each: table[:30] * (at[:, :1] % 7),
}
OF_AN_ELEMENT: dict[str, Case] = {
    "a wide number for each element": lambda table, at, each: table[:30] * each,
    "rounded as a wide number": lambda table, at, each: table.double().square().float(),
    "an element of a row for each": lambda table, at, each: table[:30].gather(1, each),
}


def lanes(case: Case, device: torch.device) -> int:
    """The most floats in a vector of the case's kernels (another checks indices); the result is the CPU's."""
    torch.manual_seed(0)
    operands = torch.randn(100, 64), torch.randint(100, (30, 4)), torch.randint(64, (30, 64))
    explanation = lazy_backend.explain(case, *(x.to(device) for x in operands))
    mlir = "".join(k.mlir for w in explanation.windows for k in w.kernels)
    torch.testing.assert_close(explanation.result.cpu(), case(*operands))
    return max(map(int, re.findall(r"vector<(\d+)xf32>", mlir)), default=1)


@pytest.mark.parametrize("name", OF_A_ROW)
def test_what_there_is_once_for_a_row_takes_no_lanes(name: str, device: torch.device) -> None:
    assert lanes(OF_A_ROW[name], device) == device_lanes(4)


@pytest.mark.parametrize("name", OF_AN_ELEMENT)
def test_what_there_is_for_each_element_does(name: str, device: torch.device) -> None:
    assert lanes(OF_AN_ELEMENT[name], device) == device_lanes(8)


def device_lanes(itemsize: int) -> int:
    """Elements that a register of the device holds."""
    return int(torch.lazy.get_device_properties().capabilities["vector_bytes"]) // itemsize
