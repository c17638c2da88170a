"""Decides whether the device's outcome is right, given the CPU's."""

import re
from typing import Any

import torch
from torch.testing import assert_close
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_flatten, tree_map

from .case import HALVES, Case, Outcome, Tolerance, outcome

# PyTorch's test_compare_cpu holds every accelerator's float32 to these.
ACCELERATOR = Tolerance(atol=1e-3, rtol=1e-3)
# One number that is dropped or kept is the same under half of all seeds.
OTHER_SEEDS = range(4321, 4329)
# A result may be this many times as far from the float64 result as the CPU's own (torch._dynamo.utils.same takes 2
# to 3).
ERROR_RATIO = 3.0
# Composites and CPU kernels round differently where a variance is 0, so a gradient or norm of halves needs this much.
FLOOR = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}


def judge(case: Case, dtype: torch.dtype, expected: Outcome, actual: Outcome) -> tuple[str, str]:
    """Return status and message.

    The status is ``pass``, ``loose`` (right by the wider of PyTorch's tolerances), ``differ``, ``raise`` or ``skip``.
    """
    if case.raises:
        return _judge_error(case.raises, expected.error, actual.error)
    if expected.error is not None:
        if actual.error is not None:
            return "pass", ""
        return "skip", f"the CPU raises: {_brief(expected.error)}"
    if actual.error is not None:
        return "raise", _brief(actual.error)
    return _judge_values(case, dtype, case.settle(expected.value), case.settle(actual.value))


def _judge_error(
    raises: tuple[type[BaseException], str], expected: BaseException | None, actual: BaseException | None
) -> tuple[str, str]:
    kind, pattern = raises
    if not isinstance(expected, kind) or not re.search(pattern, str(expected)):
        return "skip", f"the CPU does not raise {kind.__name__}({pattern!r})"
    if actual is None:
        return "differ", f"no {kind.__name__}({pattern!r}) raised"
    if not isinstance(actual, kind) or not re.search(pattern, str(actual)):
        return "differ", f"raised {_brief(actual)} for {_brief(expected)}"
    return "pass", ""


def _judge_values(case: Case, dtype: torch.dtype, expected: Any, actual: Any) -> tuple[str, str]:
    message = compare(actual, expected, dtype, case.tolerance)
    if message is None:
        return "pass", ""
    if dtype not in HALVES and compare(actual, expected, dtype, ACCELERATOR) is None:
        return "loose", message
    if _is_random(case, dtype, expected):
        mismatch = compare(_shape(actual), _shape(expected), dtype)
        return ("pass", "") if mismatch is None else ("differ", mismatch)
    if dtype in FLOOR:
        reference = outcome(case, "cpu", wide=True)
        if reference.error is None and _as_close(actual, expected, case.settle(reference.value), dtype):
            return "loose", message
    return "differ", message


def _is_random(case: Case, dtype: torch.dtype, expected: Any) -> bool:
    """Say whether another seed gives the CPU another result."""
    for seed in OTHER_SEEDS:
        again = outcome(Case(case.variant, case.index, _reseeded(case.run, seed)), "cpu")
        if again.error is None and compare(case.settle(again.value), expected, dtype, ACCELERATOR) is not None:
            return True
    return False


def _reseeded(run: Any, seed: int) -> Any:
    def rerun(device: str, wide: bool = False) -> Any:
        torch.manual_seed(seed)
        return run(device, wide)

    return rerun


def compare(actual: Any, expected: Any, dtype: torch.dtype, tolerance: Tolerance | None = None) -> str | None:
    """Return what differs, or None. Float results of a half entry are held to the half's tolerance."""
    actual_leaves, actual_spec = tree_flatten(actual)
    expected_leaves, expected_spec = tree_flatten(expected)
    if len(actual_leaves) != len(expected_leaves):
        return f"structure {actual_spec} for {expected_spec}"
    for got, want in zip(actual_leaves, expected_leaves, strict=True):
        if not isinstance(want, torch.Tensor | int | float | complex):
            if got != want:
                return f"{got!r} for {want!r}"
            continue
        try:
            rtol, atol = _slack(want, dtype, tolerance)
            assert_close(_comparable(got), _comparable(want), equal_nan=True, rtol=rtol, atol=atol)
        except (AssertionError, TypeError, RuntimeError) as error:
            return _brief(error)
    return None


def _comparable(value: Any) -> Any:
    """Widen the 8-bit floats, which are compared bit by bit otherwise."""
    narrow = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize == 1
    return value.float() if narrow else value


def _slack(value: Any, dtype: torch.dtype, tolerance: Tolerance | None) -> tuple[float | None, float | None]:
    """Return rtol and atol; None leaves them to assert_close."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None, None
    rtol, atol = default_tolerances(_comparable(value), torch.empty(0, dtype=dtype))
    if tolerance is not None:
        rtol, atol = max(rtol, tolerance.rtol), max(atol, tolerance.atol)
    return rtol, atol


def _shape(tree: Any) -> Any:
    """Replace values by zeros: what is left of a random result that two runs must agree on."""
    return tree_map(lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else str(type(leaf)), tree)


def _as_close(actual: Any, expected: Any, reference: Any, dtype: torch.dtype) -> bool:
    """Say whether each result is about as close to the float64 reference as the CPU's is."""
    leaves = [tree_flatten(tree)[0] for tree in (actual, expected, reference)]
    if len({len(group) for group in leaves}) != 1:
        return False
    for got, want, true in zip(*leaves, strict=True):
        if not isinstance(got, torch.Tensor):
            continue
        if got.shape != want.shape or got.dtype != want.dtype or got.shape != true.shape:
            return False
        if not got.is_floating_point():
            if not torch.equal(got, want):
                return False
            continue
        finite = true.isfinite() & want.isfinite()
        if not torch.equal(got.isfinite() & finite, finite):
            return False
        ours, theirs = ((side.double() - true)[finite].abs() for side in (got, want))
        allowed = ERROR_RATIO * (theirs.max() if theirs.numel() else 0.0)
        if (ours > allowed + FLOOR[dtype] * (1 + true[finite].abs())).any():
            return False
        # One bad number of the CPU's must not excuse many: all float32 errors together are held to the ratio as well.
        if dtype is torch.float32 and ours.norm() > ERROR_RATIO * theirs.norm() + (FLOOR[dtype] * true[finite]).norm():
            return False
    return True


def _brief(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:4])}"[:400]
