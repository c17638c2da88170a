"""Random programs over shapes give what eager CPU gives at every window, with every value kept."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.properties.shapes import Step, Value, expected, programs, run, shapes

WINDOWS = (1, 8, 512)
FIXED = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(autouse=True)
def windowed(device):
    if device == "cpu":
        pytest.skip("the cpu is what is compared with")


def check(device: str, shape: list[int], program: list[Step]) -> None:
    steps, values = expected(program, shape)
    for window in WINDOWS:
        with torch.lazy.window(window):
            for step, got, want in zip(steps, run(steps, shape, device), values, strict=True):
                where = f"window {window}, {step} of {[s.name for s in steps]} over {shape}"
                _compare(got, want, where)


def _compare(got: torch.Tensor, want: Value, where: str) -> None:
    # Ten roundings' worth for each of up to ten ops, of the largest number in sight.
    tolerance = 0 if want.exact else 1e-4 * max(1.0, want.value.abs().amax().item())
    torch.testing.assert_close(got, want.value, rtol=0, atol=tolerance, msg=lambda text: f"{where}:\n{text}")


@settings(FIXED, max_examples=12, phases=[Phase.generate])
@given(shape=shapes(), program=programs())
def test_some_programs_give_what_eager_gives(device, shape, program):
    check(device, shape, program)


@pytest.mark.slow
@settings(FIXED, max_examples=600)
@given(shape=shapes(), program=programs())
def test_many_programs_give_what_eager_gives(device, shape, program):
    check(device, shape, program)


@pytest.mark.parametrize(
    "name", ["scatter", "index_put", "index_add", "index_fill", "masked_put", "sort", "cumsum", "product"]
)
@pytest.mark.parametrize("before", ["softmax", "kept sum", "mean", "logsumexp"])
def test_what_a_reduction_over_one_row_gives_is_kept_beside_what_reads_it(device, before, name):
    for shape in ([1, 9], [9, 1], [1]):
        check(device, shape, [Step(before, -1, 0, 0, 0), Step(name, -1, 0, 1, 1), Step("roll", -2, 0, 1, 1)])


@pytest.mark.parametrize("shape", [[2], [40], [3, 40]])
def test_a_row_of_equal_elements_whose_value_needs_another_sum(device, shape):
    """Each element twice, of what is divided by the norm of all: the mean's distances are sums over rows of two."""
    check(device, shape, [Step("norm", -1, -1, 0, 1), Step("repeat", -1, -1, 1, 0), Step("var", -1, -1, 5, 0)])
