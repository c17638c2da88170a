"""Products of groups, as experts have them: eager's results, gradients, strides and words, and no size that is data."""

import pytest
import torch
from torch.nn.functional import grouped_mm

ENDS = [(2, 5, 8), (0, 8, 8), (3, 3, 3), (8, 8, 8)]


def ends_at(device, *ends):
    return torch.tensor(ends, dtype=torch.int32).to(device)


def operands(form, dtype, ends):
    """The two matrices, as a call takes them, on the CPU: f. e. rows of groups times a matrix each."""
    m, k, n, groups = 8, 16, 24, len(ends)
    shapes = {
        "rows": ((m, k), (groups, k, n)),
        "rows, matrices transposed": ((m, k), (groups, n, k)),
        "columns": ((groups, n, k), (k, m)),
        "terms": ((k, m), (m, n)),
        "terms, rows transposed": ((m, k), (m, n)),
        "neither": ((groups, m, k), (groups, k, n)),
    }
    a, b = (torch.randn(s).to(dtype) for s in shapes[form])
    return (a.t() if form == "terms, rows transposed" else a), (
        b.transpose(1, 2) if form == "rows, matrices transposed" else b
    )


FORMS = ["rows", "rows, matrices transposed", "columns", "terms", "terms, rows transposed", "neither"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_products_and_gradients(agrees, form, ends, dtype):
    """What no group has is not compared: in eager's results it is what was in memory before."""
    has = slice(None, ends[-1])
    of_a, of_b, of_y = {
        "rows": (has, slice(None), has),
        "columns": (slice(None), (slice(None), has), (slice(None), has)),
        "terms": ((slice(None), has), has, slice(None)),
        "neither": (slice(None), slice(None), slice(None)),
    }[form.partition(",")[0]]

    def program(device):
        a, b = (x.to(device).requires_grad_() for x in operands(form, dtype, ends))
        y = grouped_mm(a, b, offs=None if form == "neither" else ends_at(device, *ends))[of_y]
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape).to(device, dtype)).sum().backward()
        return y, a.grad[of_a], b.grad[of_b]

    agrees(program, **({"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}))


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_any_rows(agrees, rows):
    """Experts that nobody asks have gradients of 0."""

    def program(device):
        a, b = (torch.ones(s, device=device, requires_grad=True) for s in ((rows, 16), (3, 16, 256)))
        y = grouped_mm(a, b, offs=ends_at(device, 0, 0, rows))
        y.backward(torch.ones(rows, 256, device=device))
        return y, a.grad, b.grad

    agrees(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_begin_at_multiples_of_16_bytes(device, dtype):
    def strides(device):
        a, b = torch.ones(8, 16, dtype=dtype, device=device), torch.ones(3, 13, 16, dtype=dtype, device=device)
        y = grouped_mm(a, b.transpose(1, 2), offs=ends_at(device, 2, 5, 8))
        return y.stride(), y.sum().item()

    assert strides(device) == strides("cpu")


WRONG = {
    "ends that are int64": lambda a, b, ends: grouped_mm(a, b, offs=ends.long()),
    "no ends": lambda a, b, ends: grouped_mm(a, b),
    "ends of batches": lambda a, b, ends: grouped_mm(b, b.transpose(1, 2), offs=ends),
    "more ends than matrices": lambda a, b, ends: grouped_mm(a, b[:2], offs=ends),
    "two dtypes": lambda a, b, ends: grouped_mm(a, b.bfloat16(), offs=ends),
    "doubles": lambda a, b, ends: grouped_mm(a.double(), b.double(), offs=ends),
    "other sizes": lambda a, b, ends: grouped_mm(a, b[:, :15], offs=ends),
    "rows at odd places": lambda a, b, ends: grouped_mm(a, b[:, :, :13].contiguous(), offs=ends),
    "a bias": lambda a, b, ends: grouped_mm(a, b, offs=ends, bias=a[0]),
    "another dtype of the result": lambda a, b, ends: grouped_mm(a, b, offs=ends, out_dtype=torch.bfloat16),
    "a vector": lambda a, b, ends: grouped_mm(a[0], b, offs=ends),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls_are_refused_in_eagers_words(device, wrong):
    words = []
    for where in ("cpu", device):
        a, b = torch.ones(8, 16, device=where), torch.ones(3, 16, 24, device=where)
        with pytest.raises(RuntimeError) as error:
            WRONG[wrong](a, b, ends_at(where, 2, 5, 8))
        words.append(str(error.value).splitlines()[0])
    assert words[0] == words[1]


def test_other_groups_are_the_same_window():
    """Where groups end is data: other ends, also of empty groups, compile nothing and are not read by the host."""
    weight = torch.randn(4, 16, 32).to("lazy").requires_grad_()
    x = torch.randn(40, 16).to("lazy")

    def step(*ends):
        weight.grad = None
        y = grouped_mm(x, weight, offs=ends_at("lazy", *ends))
        y.square().sum().backward()
        torch.lazy.synchronize()

    with torch.lazy.window(512):
        step(10, 20, 30, 40)
        step(10, 20, 30, 40)
        before = torch.lazy.stats()
        for ends in ((0, 0, 0, 40), (1, 2, 39, 40), (40, 40, 40, 40), (7, 7, 33, 40)):
            step(*ends)
        after = torch.lazy.stats()
    assert after["plans_compiled"] == before["plans_compiled"]
    assert after["host_ops"] == before["host_ops"]
    assert after["windows"] - before["windows"] == 4
