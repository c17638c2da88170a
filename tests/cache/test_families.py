"""Windows of one op: products of one network are families of their own, whatever rows they have."""

import pytest
import torch

from lazy_backend.families import MAX_KINDS, Families


@pytest.fixture(autouse=True)
def compiled(device):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")


def product(m, k, n, op="aten.mm.default"):
    def tensor(slot, rows, columns):
        return "tensor", slot, "float32", (rows, columns), (columns, 1), 0

    node = op, [tensor(0, m, k), tensor(1, k, n)], [tensor(2, m, n)], None, "a line"
    return {"structure": op, "nodes": [node], "slots": [(4 * m * k, True, True)]}


def test_products_of_other_weights_are_other_families():
    families = Families()
    up, down = families.of(product(28, 256, 1024)), families.of(product(28, 512, 256))
    assert up is not down
    for rows in (39, 1, 512):
        assert families.of(product(rows, 256, 1024)) is up and families.known(product(rows, 256, 1024)) is up
        assert families.of(product(rows, 512, 256)) is down
    assert families.of(product(256, 28, 1024)) is families.of(product(256, 39, 1024)), "the length of the sums varies"
    assert families.known(product(7, 8, 9)) is not families.of(product(7, 8, 9))


def test_kinds_without_end_join_the_nearest():
    families = Families()
    first = [families.of(product(2 + i, 100 + i, 200 + i)) for i in range(MAX_KINDS)]
    assert len(set(map(id, first))) == MAX_KINDS
    assert families.of(product(2, 100, 999)) is first[0]
    assert any(families.of(product(7777, 8888, 9999)) is one for one in first)


def test_windows_of_more_ops_and_of_other_ops_are_a_family_by_structure():
    families = Families()
    one, other = product(28, 256, 1024), product(39, 512, 256)
    assert families.of({**one, "nodes": one["nodes"] * 2}) is families.of({**other, "nodes": other["nodes"] * 2})
    assert families.of(product(2, 3, 4, "aten.add.Tensor")) is families.of(product(5, 6, 7, "aten.add.Tensor"))


def test_shares_of_experts_build_nothing_op_by_op(device):
    """Four kinds of products a step, of ever other rows; float64 is the oracle."""
    up, down = (torch.randn(*s, device=device) * 0.1 for s in ((48, 160), (160, 48)))
    x = torch.randn(120, 48, device=device)

    def step(share):
        rows = x[:share].detach().requires_grad_()
        (rows @ up).relu().matmul(down).square().sum().backward()
        exact = rows.detach().double().cpu().requires_grad_()
        (exact @ up.double().cpu()).relu().matmul(down.double().cpu()).square().sum().backward()
        torch.testing.assert_close(rows.grad.cpu().double(), exact.grad, rtol=1e-4, atol=1e-4)

    with torch.lazy.window(1):
        for share in (40, 72, 33, 101, 56, 90):
            step(share)
        before = torch.lazy.stats()
        for share in (41, 77, 119, 64, 100, 35, 87):
            step(share)
        after = torch.lazy.stats()
    assert after["kernels_built"] == before["kernels_built"]
    assert after["plans_compiled"] == before["plans_compiled"] and after["ops_interpreted"] == before["ops_interpreted"]
