"""Stage 5: PyTorch's own samples of a choice of operators, forward, in the main dtypes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from lazy_backend.porting import torch_run
from lazy_backend.porting.bench import Bench, CheckFailed

from . import Check

# One family a check: the operators that training uses most, each the first of its kind to fail when something is wrong.
FAMILIES = {
    "arithmetic": "add mul div.no_rounding_mode neg abs sqrt exp log tanh sigmoid clamp where pow",
    "reductions": "sum mean var amax argmax logsumexp norm cumsum",
    "products": "mm bmm matmul addmm einsum linalg.vector_norm",
    "shapes": "cat stack permute reshape expand flip roll tril narrow",
    "indexing": "gather index_select index_add scatter_add masked_fill take_along_dim",
    "ordering": "sort topk searchsorted",
    "networks": "nn.functional.conv2d nn.functional.linear nn.functional.layer_norm nn.functional.batch_norm softmax "
    "nn.functional.gelu nn.functional.cross_entropy nn.functional.embedding nn.functional.max_pool2d",
}
SECONDS = 900.0


def more_checks() -> list[Check]:
    """A check for each family."""
    return [
        Check(name, f"operator samples: {name}", partial(samples, operators=operators.split()), SECONDS)
        for name, operators in FAMILIES.items()
    ]


def pattern(operators: Sequence[str]) -> str:
    """What the names of the operators' units match."""
    return f"ops/({'|'.join(map(re.escape, operators))}):(float32|int64|bfloat16)$"


def samples(b: Bench, operators: Sequence[str]) -> str:
    """Samples of each operator in each dtype, through torch, compared with the CPU."""
    found = torch_run.result(b.name, "lazy_backend.porting.samples", pattern(operators), seconds=SECONDS - 30)
    if found["bad"]:
        raise CheckFailed("; ".join(found["bad"][:5]))
    return f"{found['good']} cases of {found['units']} operators x dtypes, {found['host']} through the host"
