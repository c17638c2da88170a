"""Bags of embeddings: empty ones first, between and last, whatever is made of them."""

import pytest
import torch
import torch.nn.functional as F

INDICES = torch.tensor([1, 2, 2, 9, 0])


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("starts", [[0], [0, 5], [0, 0, 3, 3, 5, 5], [0, 1, 2, 3, 4]], ids=str)
def test_bags(agrees, starts, mode, closed, padding):
    """closed: the last offset is where the last bag ends"""
    table, offsets = torch.randn(10, 4), torch.tensor([*starts, len(INDICES)] if closed else starts)

    def program(device):
        weight = table.to(device).requires_grad_()
        bags = F.embedding_bag(
            INDICES.to(device), weight, offsets.to(device), mode=mode, include_last_offset=closed, padding_idx=padding
        )
        bags.square().sum().backward()
        return bags, weight.grad

    agrees(program)
