"""Stage 5: PyTorch's own samples of a choice of operators, forward, in the main dtypes."""

from __future__ import annotations

from functools import partial

from lazy_backend.porting import torch_run
from lazy_backend.porting.bench import Bench, CheckFailed

from . import Check

# One family a check: the operators that training uses most, each the first of its kind to fail when something is wrong.
FAMILIES = {
    "arithmetic": "add|mul|div|neg|abs|sqrt|exp|log|tanh|sigmoid|clamp|where|pow",
    "reductions": "sum|mean|var|amax|argmax|logsumexp|norm|cumsum",
    "products": "mm|bmm|matmul|addmm|einsum|linalg_vector_norm",
    "shapes": "cat|stack|permute|reshape|expand|flip|roll|tril|narrow",
    "indexing": "gather|index_select|index_add|scatter_add|masked_fill|take_along_dim",
    "ordering": "sort|topk|searchsorted",
    "networks": "nn_functional_(conv2d|linear|layer_norm|batch_norm|softmax|gelu|cross_entropy|embedding|max_pool2d)",
}
SECONDS = 900.0


def more_checks() -> list[Check]:
    """A check for each family."""
    return [
        Check(name, f"operator samples: {name}", partial(samples, pattern=pattern), SECONDS)
        for name, pattern in FAMILIES.items()
    ]


def samples(b: Bench, pattern: str) -> str:
    """Samples of each operator in each dtype, through torch, compared with the CPU."""
    units = f"ops/({pattern}):(float32|int64|bfloat16)$"
    found = torch_run.result(b.name, "lazy_backend.porting.samples", units, seconds=SECONDS - 30)
    if found["bad"]:
        raise CheckFailed("; ".join(found["bad"][:5]))
    return f"{found['good']} cases of {found['units']} operators x dtypes, {found['host']} through the host"
