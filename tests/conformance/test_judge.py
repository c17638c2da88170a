"""What counts as right: PyTorch's tolerances, ties by the values picked, random results by shape and dtype."""

import pytest
import torch

from lazy_backend.conformance.case import Case, Outcome, outcome, spread
from lazy_backend.conformance.judge import judge
from lazy_backend.conformance.operators import _picked
from lazy_backend.conformance.place import place
from lazy_backend.conformance.worker import all_units


def verdict(actual, expected, dtype=torch.float32, run=None):
    case = Case("forward", 0, run or (lambda device, wide=False: expected))
    return judge(case, dtype, Outcome(expected), Outcome(actual))[0]


@pytest.mark.parametrize(
    ("error", "expected"), [(0, "pass"), (1e-6, "pass"), (5e-4, "loose"), (1e-2, "differ"), (float("nan"), "differ")]
)
def test_float32_values(error, expected):
    x = torch.linspace(1, 2, 5)
    assert verdict(x + error, x) == expected


def test_shape_dtype_structure_and_integers_are_exact():
    x = torch.arange(4)
    assert verdict(x, x) == "pass"
    assert verdict(x + 1, x) == "differ"
    assert verdict(x.int(), x) == "differ"
    assert verdict(x[:3], x) == "differ"
    assert verdict((x,), (x, x)) == "differ"


def test_a_half_result_may_be_as_far_from_the_truth_as_the_cpus():
    true = torch.full((4,), 100.0, dtype=torch.float64)
    cpu, device = (true - 4).bfloat16(), (true + 4).bfloat16()

    def run(device, wide=False):
        return true if wide else cpu

    assert verdict(device, cpu, torch.bfloat16, run) == "loose"
    assert verdict(device * 2, cpu, torch.bfloat16, run) == "differ"


def test_one_bad_number_of_the_cpus_excuses_one_but_not_many():
    true = torch.ones(100, dtype=torch.float64)
    cpu, one = true.float(), true.float()
    cpu[0] += 0.1
    one[1] += 0.2

    def run(device, wide=False):
        return true if wide else cpu

    assert verdict(one, cpu, run=run) == "loose"
    assert verdict(true.float() + 0.2, cpu, run=run) == "differ"


def test_random_results_are_judged_by_shape_and_dtype():
    def run(device, wide=False):
        return torch.rand(4)

    assert verdict(torch.full((4,), 9.0), outcome(Case("forward", 0, run), "cpu").value, run=run) == "pass"
    assert verdict(torch.rand(5), torch.rand(4), run=run) == "differ"


def test_ties_are_judged_by_the_values_picked():
    source = torch.tensor([[1.0, 2.0, 2.0]])
    left = source.sort(dim=1)
    swapped = torch.return_types.sort((left.values, torch.tensor([[0, 2, 1]])))
    wrong = torch.return_types.sort((left.values, torch.tensor([[1, 0, 2]])))
    assert verdict(_picked(source, 1, tuple(swapped)), _picked(source, 1, tuple(left))) == "pass"
    assert verdict(_picked(source, 1, tuple(wrong)), _picked(source, 1, tuple(left))) == "differ"


def test_placed_inputs_keep_layout_and_sharing():
    base = torch.arange(12.0).reshape(3, 4)
    inputs = [base.t(), base[1:, ::2], base.expand(2, 3, 4)]
    placed = place(inputs, "cpu")
    for one, other in zip(placed, inputs, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
        assert one.untyped_storage().data_ptr() == placed[0].untyped_storage().data_ptr()
    placed[0].zero_()
    assert base.sum() == 66 and placed[1].sum() == 0


def test_spread_takes_the_ends_and_what_lies_between():
    assert [index for index, _ in spread(list(range(10)), 3)] == [0, 4, 9]
    assert len(spread(list(range(10)), 0)) == 10
    assert [index for index, _ in spread([7], 3)] == [0]


def test_unit_names_are_unique_and_cover_every_database():
    names = [unit.name for unit in all_units()]
    assert len(names) == len(set(names)) > 3000
    assert {name.split("/")[0] for name in names} == {"ops", "foreach", "modules", "optimizers", "groups", "composites"}
