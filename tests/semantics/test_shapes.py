"""Zero-dimensional and empty tensors, broadcasting, and results whose shape depends on data."""

import pytest
import torch

EMPTY = {
    "sum": lambda x: x.sum(),
    "sum over the empty dim": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "any and all": lambda x: (x.bool().any(), x.bool().all()),
    "mean is nan": lambda x: x.mean(1),
    "cat": lambda x: torch.cat([x, x.new_ones(3, 2)], 1),
    "matmul": lambda x: x @ x.t(),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(-1),
    "cumsum": lambda x: x.cumsum(1),
    "reshape": lambda x: x.reshape(0, 7),
    "relu": lambda x: x.relu(),
    "index": lambda x: x[torch.tensor([1, 0], device=x.device)],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
}
SCALAR = {
    "add": lambda x: x + 1,
    "sum": lambda x: x.sum(0),
    "sort": lambda x: x.sort(0),
    "max": lambda x: x.max(0),
    "cumsum": lambda x: x.cumsum(0),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "softmax": lambda x: x.softmax(0),
    "gather": lambda x: x.gather(0, torch.tensor(0, device=x.device)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0], device=x.device)),
    "squeeze": lambda x: x.squeeze(),
    "expand": lambda x: x.expand(2, 3),
    "argmax": lambda x: x.argmax(),
    "norm": lambda x: x.norm(),
    "std": lambda x: torch.stack([x, x + 1]).std(),
}
DATA_DEPENDENT = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero as tuple": lambda x: x.nonzero(as_tuple=True),
    "masked_select": lambda x: x[x > 2],
    "unique": lambda x: x.unique(return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: x.unique_consecutive(return_counts=True),
    "unique by rows": lambda x: x.unique(dim=0),
    "bincount": lambda x: x.long().flatten().bincount(),
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].long()),
    "item": lambda x: x[1, 2].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool((x > 0).any()),
    "where": lambda x: torch.where(x == 2),
    "isin": lambda x: torch.isin(x, torch.tensor([1.0, 3.0], device=x.device)),
    "equal": lambda x: torch.equal(x, x.clone()),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors(agrees, name):
    agrees(lambda device: EMPTY[name](torch.ones(3, 0, device=device)))


@pytest.mark.parametrize("name", SCALAR)
def test_zero_dimensional_tensors(agrees, name):
    agrees(lambda device: SCALAR[name](torch.tensor(3.5).to(device)))


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_results_that_depend_on_data(agrees, name):
    data = torch.tensor([[1.0, 2.0, 2.0], [0.0, 3.0, 4.0], [1.0, 2.0, 2.0]])
    agrees(lambda device: DATA_DEPENDENT[name](data.to(device)))


@pytest.mark.parametrize("shapes", [((3, 1), (1, 4)), ((2, 1, 3), (3,)), ((), (2, 2)), ((0, 1), (1, 3)), ((1,), (5,))])
def test_broadcasting(agrees, shapes):
    def program(device):
        a, b = (torch.randn(shape).to(device).requires_grad_() for shape in shapes)
        y = a * b - torch.maximum(a, b)
        y.sum().backward()
        return y, a.grad, b.grad

    agrees(program)


def test_many_dimensions(agrees):
    agrees(lambda device: torch.ones([2] * 9, device=device).cumsum(4).sum((0, 3, 8)))


def test_large_index_ranges_and_odd_sizes(agrees):
    agrees(lambda device: (torch.arange(100_003, device=device) % 7).sum())


def test_factors_of_empty_matrices_need_no_host(device):
    if device == "cpu":
        pytest.skip("the cpu has no host routes")
    x = torch.zeros(2, 0, 0, device=device)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    made = [torch.cholesky_inverse(x), *torch.linalg.qr(x), torch.linalg.solve_triangular(x, x, upper=True)]
    torch.lazy.synchronize()
    assert torch.lazy.stats()["host_ops_by_name"] == {}
    assert all(t.cpu().shape == (2, 0, 0) for t in made)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0])
def test_distances_from_no_points_have_no_slope(agrees, p):
    """and their gradient has the shape of the points as they are, not of all batches"""

    def program(device):
        x, y = torch.ones(0, 4, 5, device=device), torch.ones(1, 3, 5, device=device).requires_grad_()
        torch.cdist(x, y, p).sum().backward()
        return y.grad

    agrees(program)


def test_a_product_that_was_empty_first(agrees):
    """Nothing is read of an empty factor, so that its layout did not matter; the plan for all sizes had that choice."""
    agrees(lambda device: EMPTY["matmul"](torch.ones(3, 0, device=device)))

    def program(device):
        x = torch.arange(24.0).reshape(4, 6).to(device)
        return (x @ x.t()[:, :3]).t() + 1

    agrees(program)


def normal(*sizes):
    return lambda device: torch.randn(sizes).to(device)


CLASSES = [lambda device: torch.tensor([0, 1, 4]).to(device)]
AROUND = [normal(2, 3, 4), normal(2, 3, 4), [4], normal(2, 3, 1), normal(2, 3, 1), normal(4), normal(4)]
# What is inferred without torch's references: an op, and arguments of which some are made on a device.
INFERRED = {
    "a layer norm": ("native_layer_norm", [normal(2, 3, 4), [4], normal(4), normal(4), 1e-5]),
    "one over two dims": ("native_layer_norm", [normal(2, 3, 4), [3, 4], None, normal(3, 4), 1e-5]),
    "one over all": ("native_layer_norm", [normal(4), [4], None, None, 1e-5]),
    "one of columns": ("native_layer_norm", [lambda d: normal(4, 3)(d).t(), [4], normal(4), None, 1e-5]),
    "one of halves": ("native_layer_norm", [lambda d: normal(2, 4)(d).bfloat16(), [4], normal(4), None, 1e-5]),
    "its gradients": ("native_layer_norm_backward", [*AROUND, [True, True, True]]),
    "some of them": ("native_layer_norm_backward", [*AROUND, [False, True, False]]),
    "those of columns": (
        "native_layer_norm_backward",
        [lambda d: normal(3, 2, 4)(d).transpose(0, 1), *AROUND[1:], [True, True, True]],
    ),
    "a loss": ("nll_loss_forward", [normal(3, 5), *CLASSES, None, 1, -100]),
    "a weighted loss of each": ("nll_loss_forward", [normal(3, 5), *CLASSES, normal(5), 0, -100]),
    "a loss of one": ("nll_loss_forward", [normal(5), lambda d: torch.tensor(1).to(d), None, 1, -100]),
    "its gradient": ("nll_loss_backward", [normal(), normal(3, 5), *CLASSES, None, 1, -100, normal()]),
    "that of columns": (
        "nll_loss_backward", [normal(), lambda d: normal(5, 3)(d).t(), *CLASSES, None, 1, -100, normal()],
    ),
    "that of each": ("nll_loss_backward", [normal(3), normal(3, 5), *CLASSES, None, 0, -100, normal()]),
}  # fmt: skip


@pytest.mark.parametrize("name", INFERRED)
def test_what_is_inferred_is_what_the_cpu_gives(device, agrees, name):
    op, made = INFERRED[name]

    def program(where):
        return getattr(torch.ops.aten, op)(*(a(where) if callable(a) else a for a in made))

    def described(results):
        results = results if isinstance(results, tuple) else (results,)
        return [None if t is None else (t.shape, t.dtype, t.stride()) for t in results]

    assert described(program(device)) == described(program("cpu"))
    agrees(program)


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norms_and_products_of_a_list_have_each_tensor_s_dtype(agrees, order):
    def program(device):
        several = [normal(2, 3)(device), normal(4)(device).double(), normal(5)(device).bfloat16()]
        torch._foreach_mul_(several, torch.tensor(0.5, dtype=torch.double, device=device))
        return torch._foreach_norm(several, order)

    agrees(program)
