"""Direct calls of composites: every one has arguments but five, and what once failed agrees."""

import pytest
import torch

from lazy_backend.conformance.composites import CLASSES, units
from lazy_backend.conformance.results import BAD
from lazy_backend.conformance.worker import run_case
from ops_core import routes

UNITS = {unit.name.split("/")[1].split(":")[0]: unit for unit in units()}
# Each was a crash, an error or a wrong shape: PyTorch's composite or its Meta kernel knows the CPU and CUDA only.
ONCE_FAILED = (
    "kaiser_window.beta",
    "kaiser_window.periodic",
    "_convolution.default",
    "_convolution_double_backward.default",
    "convolution_overrideable.default",
    "range.out_",
    "_batch_norm_no_update.default",
    "_native_batch_norm_legit_no_training.default",
)
# An alias, a number for a tensor, a tensor that stays on the CPU, an in-place and an out= face.
ADAPTED = (
    "special_erf.out",
    "xlogy.Scalar_Self",
    "_pack_padded_sequence.default",
    "arctan2_.default",
    "clip.Tensor_out",
)


# They are about pinned CPU memory, sparse, a format of FBGEMM's, or a distributed autograd context.
WITHOUT = {
    "_pin_memory.default",
    "_wrapped_linear_prepack.default",
    "get_gradients.default",
    "pin_memory.default",
    "smm.default",
}


def test_every_other_composite_has_arguments():
    composites = {op.name.removeprefix("aten.") for op in routes.overloads() if routes.class_of(op) in CLASSES}
    assert composites - {name.removeprefix("aten.") for name in UNITS} == WITHOUT


@pytest.mark.parametrize("name", (*ONCE_FAILED, *ADAPTED))
def test_a_composite_agrees_with_the_cpu(device, name):
    unit = UNITS[f"aten.{name}"]
    for case in unit.cases(1, frozenset({"forward"})):
        result = run_case(unit, case, device)
        assert result.status not in BAD, f"{result.message} (blame: {result.blame})"


@pytest.mark.parametrize("length", (0, 1, 2, 9))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_a_kaiser_window_of_any_length(agrees, length, dtype):
    agrees(lambda where: torch.kaiser_window(length, False, 8.5, device=where, dtype=dtype), rtol=1e-5, atol=1e-6)
