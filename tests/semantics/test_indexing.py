"""Advanced indexing with integers and masks: on the device, reading at most the count of a mask."""

import math

import pytest
import torch

import lazy_backend

X = torch.arange(60.0).reshape(3, 4, 5)
MASK = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0]], dtype=torch.bool)
INDICES = {
    "integers": lambda m: ([0, 2],),
    "two integers": lambda m: ([0, 2], [1, 3]),
    "integers around a slice": lambda m: ([0, 2], slice(None), [1, 3]),
    "mask": lambda m: (m,),
    "mask behind": lambda m: (slice(None), m[0]),
    "mask and integer": lambda m: (m[:, 0], 1),
    "mask and integers": lambda m: (m[:, 0], [1, 3]),
    "two masks": lambda m: (m[:, 0], slice(None), torch.tensor([1, 0, 0, 0, 1], dtype=torch.bool, device=m.device)),
    "empty mask": lambda m: (m & ~m,),
    "bytes": lambda m: (m.to(torch.uint8),),
}


@pytest.fixture(autouse=True)
def on_the_device(device):
    """Nothing here may run on the CPU."""
    if device == "cpu":
        yield
        return
    torch.lazy.reset_stats()
    yield
    assert torch.lazy.stats()["host_ops_by_name"] == {}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", INDICES)
def test_read(agrees, name):
    agrees(lambda d: X.clone().to(d)[INDICES[name](MASK.to(d))])


@pytest.mark.parametrize("name", sorted(set(INDICES) - {"bytes"}))  # torch fills at bool masks only
def test_write_of_one_value_and_of_many(agrees, name):
    def program(d):
        x, at = X.clone().to(d), INDICES[name](MASK.to(d))
        x[at] = -1.0
        y = X.clone().to(d)
        y[at] = torch.arange(1.0, X[INDICES[name](MASK)].numel() + 1).reshape(X[INDICES[name](MASK)].shape).to(d)
        return x, y

    agrees(program)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", INDICES)
def test_gradient(agrees, name):
    def program(d):
        x = X.clone().to(d).requires_grad_()
        y = x[INDICES[name](MASK.to(d))]
        (y * torch.arange(1.0, y.numel() + 1).reshape(y.shape).to(d)).sum().backward()
        return x.grad

    agrees(program)


def test_accumulating_writes_add_where_indices_meet(agrees):
    def program(d):
        x, at = X.clone().to(d), torch.tensor([0, 0, 2], device=d)
        x.index_put_((at, MASK.to(d)[0]), torch.tensor(1.0, device=d), accumulate=True)
        return x

    agrees(program)


PLACES = {
    "a number alone": (lambda i: (i[1], i[2]), (5,)),
    "rows and columns": (lambda i: (i[:3, None], i[:2]), (3, 2, 5)),
    "around a slice": (lambda i: (i[:2], slice(None), i[:2]), (2, 4)),
    "behind a slice": (lambda i: (slice(None), i[:2], i[1:3]), (3, 2)),
    "of int32": (lambda i: (i[:3].int(),), (3, 4, 5)),
    "none": (lambda i: (i[:0],), (0, 4, 5)),
}


@pytest.mark.parametrize("places", PLACES)
def test_values_of_every_shape_that_fits(agrees, places):
    where, shape = PLACES[places]

    def program(d):
        results = []
        for values in (shape, (1,), (), shape[1:], (1, *shape[1:]), tuple(1 for _ in shape)):
            x = X.clone().to(d)
            x[where(torch.tensor([2, 0, 1]).to(d))] = torch.arange(math.prod(values)).view(values).float().to(d)
            results.append(x)
        return results

    agrees(program)


def test_what_does_not_fit_raises_at_the_call(device):
    x = X.clone().to(device)
    with pytest.raises(IndexError, match="The shape of the mask"):
        x[MASK[:2].to(device)]
    with pytest.raises(IndexError, match="The shape of the mask"):
        x[MASK[:2].to(device)] = 1.0
    with pytest.raises(RuntimeError, match=r"shape mismatch|cannot be broadcast"):
        x[MASK.to(device)] = torch.ones(2, 5).to(device)


@pytest.mark.parametrize("indices", [torch.tril_indices, torch.triu_indices])
@pytest.mark.parametrize("rows, columns", [(0, 3), (1, 1), (1, 6), (7, 0), (5, 5), (16, 3), (3, 17)])
def test_indices_of_a_triangle(agrees, indices, rows, columns):
    agrees(lambda d: [indices(rows, columns, k, device=d) for k in (-30, -4, -1, 0, 1, 2, 30)])


ROWS_OF_ONE = {
    "softmax": lambda x: x.softmax(0),
    "mean": lambda x: x.mean(-1, keepdim=True) * 1.5,
    "all": lambda x: (x - x.amax(0, keepdim=True)).exp(),
}
WRITES = {
    "scatter": lambda s, at: s.scatter(0, at[:, None], s * 3),
    "index_put": lambda s, at: s.index_put((at,), s[:1] * 2),
    "index_add": lambda s, at: s.index_add(0, at, s[:1]),
    "index_fill": lambda s, at: s.clone().index_fill_(0, at, 2.0),
    "nonzero": lambda s, at: s.nonzero(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("rows", ROWS_OF_ONE)
def test_what_is_written_into_a_copy_of_is_itself_kept(device, rows, write):
    """sums over dims of one sum nothing, so they looked like elementwise work that the write could take in"""
    for shape in ((1, 1), (4, 1), (1, 7)):
        x, at = torch.linspace(-1, 1, shape[0] * shape[1]).reshape(shape), torch.zeros(1, dtype=torch.long)

        def run(x, at):
            s = ROWS_OF_ONE[rows](x)
            return s, WRITES[write](s[:, :1], at), s + 1

        for got, expected in zip(run(x.to(device), at.to(device)), run(x, at), strict=True):
            torch.testing.assert_close(got.cpu(), expected)


def test_deterministic_sums_are_the_same_in_every_run(device):
    """Of a window that has been run without torch.use_deterministic_algorithms before, too: a GPU adds as it comes."""
    index, values = torch.randint(0, 7, (20_000,), device=device), torch.randn(20_000, device=device)

    def sums():
        return torch.zeros(7, device=device).index_add_(0, index, values).cpu()

    def in_any_order():
        windows = lazy_backend.explain(sums).windows
        return any("atomic_addf" in kernel.source for window in windows for kernel in window.kernels)

    torch.testing.assert_close(sums(), torch.zeros(7).index_add_(0, index.cpu(), values.cpu()), rtol=1e-4, atol=1e-3)
    assert in_any_order() == (not torch.lazy.get_device_properties().capabilities["is_cpu"])
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = [sums() for _ in range(4)]
        assert not in_any_order()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, other) for other in others)
