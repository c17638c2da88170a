"""Wrong calls raise at the call, with the message of eager, and leave the device usable."""

import re

import pytest
import torch

WRONG = {
    "shapes that do not broadcast": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "matmul of wrong sizes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "cat of wrong sizes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(3, 2, device=d)]),
    "a dimension out of range": lambda d: torch.ones(2, device=d).sum(3),
    "a view that does not fit": lambda d: torch.ones(6, device=d).view(4),
    "a negative step": lambda d: torch.ones(6, device=d)[::-1],
    "an index out of range": lambda d: torch.ones(6, device=d)[7],
    "a boolean mask of another shape": lambda d: torch.ones(6, device=d)[torch.ones(5, dtype=torch.bool, device=d)],
    "two dtypes in matmul": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "an item of many": lambda d: torch.ones(2, device=d).item(),
    "the truth of many": lambda d: bool(torch.ones(2, device=d)),
    "a loss of wrong classes": lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.zeros(3, dtype=torch.long, device=d)
    ),
    "layer norm of wrong sizes": lambda d: torch.nn.functional.layer_norm(torch.ones(2, 3, device=d), [4]),
    "a float to a bit op": lambda d: torch.ones(2, device=d) & 1,
    "stack of unequal": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "expand of a size": lambda d: torch.ones(2, device=d).expand(3),
    "gather of a float index": lambda d: torch.ones(2, device=d).gather(0, torch.zeros(2, device=d)),
    "convolution of wrong channels": lambda d: torch.nn.functional.conv2d(
        torch.ones(1, 2, 4, 4, device=d), torch.ones(1, 3, 3, 3, device=d)
    ),
    "a softmax over a dimension that is not there": lambda d: torch.ones(4, device=d).softmax(2),
    "the maximum of nothing": lambda d: torch.empty(0, device=d).max(),
    "an empty range of random integers": lambda d: torch.randint(5, 3, (2,), device=d),
    "a float as an index": lambda d: torch.ones(3, device=d)[torch.tensor([0.5], device=d)],
    "topk beyond the size": lambda d: torch.ones(3, device=d).topk(5),
    "a multinomial of zeros": lambda d: torch.multinomial(torch.zeros(0, device=d), 1),
    "a uniform range the wrong way round": lambda d: torch.ones(3, device=d).uniform_(3.0, -1.0),
    "an exponential distribution of a negative rate": lambda d: torch.ones(3, device=d).exponential_(-0.5),
    "a cauchy distribution of a negative width": lambda d: torch.ones(3, device=d).cauchy_(0.0, -0.5),
    "a geometric distribution of an impossible chance": lambda d: torch.ones(3, device=d).geometric_(1.5),
    "a log normal distribution of a negative width": lambda d: torch.ones(3, device=d).log_normal_(0.0, -0.5),
    "a mask of numbers": lambda d: torch.ones(3, device=d).masked_scatter_(
        torch.ones(3, device=d), torch.ones(3, device=d)
    ),
    "a narrow copy of a negative length": lambda d: torch.narrow_copy(torch.ones(3, device=d), 0, 1, -2),
    "a histogram of too few dimensions": lambda d: torch.histogramdd(torch.ones(4, 2, device=d), [3]),
    "a gather into its operand": lambda d: into_itself(torch.gather, d, 0, torch.zeros(3, dtype=torch.long, device=d)),
    "a take into its operand": lambda d: into_itself(torch.take, d, torch.zeros(3, dtype=torch.long, device=d)),
    "selected elements into their operand": lambda d: into_itself(
        torch.masked_select, d, torch.ones(3, dtype=torch.bool, device=d)
    ),
}


def into_itself(function, device, *args):
    x = torch.ones(3, device=device)
    return function(x, *args, out=x)


def test_a_distribution_is_checked_at_each_call(device):
    x = torch.ones(3, device=device)
    x.uniform_(0.0, 1.0)
    with pytest.raises(RuntimeError, match="uniform_ expects"):
        x.uniform_(1.0, 0.0)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_what_eager_raises(device, name):
    with pytest.raises(Exception) as expected:  # the CPU says which
        WRONG[name]("cpu")
    with pytest.raises(expected.type) as raised:
        WRONG[name](device)
    # A device that is named is the tensor's; a kernel's name ("bitwise_and_cpu") stays eager's own.
    assert first_line(raised) == re.sub(r"\bcpu\b", device, first_line(expected))
    assert torch.ones(2, device=device).sum().item() == 2


def first_line(raised: pytest.ExceptionInfo) -> str:
    return str(raised.value).splitlines()[0]


def test_tensors_of_two_devices_do_not_mix(device):
    if device == "cpu":
        pytest.skip("needs two devices")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=device) + torch.ones(2)
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, 2, device=device) @ torch.ones(2, 2)


def test_a_zero_dimensional_cpu_tensor_mixes(agrees):
    agrees(lambda device: torch.ones(2, device=device) * torch.tensor(3.0))


def test_an_error_in_the_middle_leaves_earlier_work_intact(device):
    x = torch.ones(3, device=device) * 2
    with pytest.raises(RuntimeError):
        x + torch.ones(4, device=device)
    assert (x + 1).tolist() == [3, 3, 3]


def test_numpy_needs_a_cpu_tensor(device):
    if device == "cpu":
        pytest.skip("the cpu has numpy")
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(2, device=device).numpy()
