"""Ops whose shape depends on data, against eager CPU on the same tensors."""

import pytest
import torch

from ops_core import data_dependent
from ops_core.data_dependent import KERNELS

INTEGERS = torch.tensor([3, 1, 3, 0, 1, 1, 7, 0])
MATRIX = torch.tensor([[1, 2, 1], [0, 0, 3], [1, 2, 1], [0, 0, 1]])


def same(got, expected):
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for a, b in pairs:
        assert torch.equal(a, b) and a.dtype == b.dtype, (a, b)


@pytest.mark.parametrize("x", [torch.randn(3, 4) > 0, torch.tensor([0.0, 2.0]), torch.tensor(5), torch.zeros(0, 3)])
def test_nonzero(x):
    same(data_dependent.nonzero(x), x.nonzero())


def test_masked_select_broadcasts_both_operands():
    x, mask = torch.arange(12).reshape(3, 4), torch.tensor([True, False, True, True])
    same(data_dependent.masked_select(x, mask), x.masked_select(mask))


@pytest.mark.parametrize("build", [lambda m: [m], lambda m: [None, m[0]], lambda m: [m[:, 0], torch.tensor(1)]])
def test_masks_index_and_assign(build):
    x, mask = torch.randn(3, 4), torch.tensor([[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0]], dtype=torch.bool)
    indices = build(mask)
    assert data_dependent.masked(indices)
    same(data_dependent.index(x, indices), torch.ops.aten.index.Tensor(x, indices))
    ours, theirs = x.clone(), x.clone()
    data_dependent.index_put_(ours, indices, torch.tensor(5.0), True)
    same(ours, torch.ops.aten.index_put_(theirs, indices, torch.tensor(5.0), True))


def test_a_mask_of_another_shape_is_an_index_error():
    with pytest.raises(IndexError, match="does not match the shape"):
        data_dependent.index(torch.randn(3, 4), [torch.ones(2, 4, dtype=torch.bool)])


def test_repeat_interleave():
    repeats = torch.tensor([2, 0, 3])
    same(data_dependent.repeat_interleave(repeats), torch.repeat_interleave(repeats))


@pytest.mark.parametrize("weights", [None, torch.arange(8.0), torch.arange(8)])
def test_bincount(weights):
    same(data_dependent.bincount(INTEGERS, weights, 10), torch.bincount(INTEGERS, weights, 10))


def test_bincount_rejects_negative_values():
    with pytest.raises(RuntimeError, match="non-negative"):
        data_dependent.bincount(torch.tensor([1, -1]))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("_unique2.default", (INTEGERS.reshape(2, 4), True, True, True)),
        ("_unique.default", (INTEGERS, True, True)),
        ("unique_consecutive.default", (INTEGERS, True, True)),
        ("unique_consecutive.default", (MATRIX, True, True, 1)),
        ("unique_dim.default", (MATRIX, 0, True, True, True)),
        ("unique_dim.default", (MATRIX, 1, True, True, True)),
        ("unique_dim_consecutive.default", (MATRIX, 0, True, True)),
    ],
)
def test_unique_in_all_forms(name, args):
    base, overload = name.split(".")
    same(KERNELS[name](*args), getattr(getattr(torch.ops.aten, base), overload)(*args))


def test_equal():
    assert data_dependent.equal(INTEGERS, INTEGERS.clone())
    assert not data_dependent.equal(INTEGERS, INTEGERS + 1)
    assert not data_dependent.equal(INTEGERS, INTEGERS[:3])
