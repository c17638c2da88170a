"""What kind of op an overload is, by how its output's shape follows from its inputs."""

import re
from itertools import chain

import torch

Op = torch._ops.OpOverload

# In order: the first that holds. Tags are PyTorch's; names decide where it has no tag.
_NAMES = (
    ("backward", r"backward|_grad$|_jvp$"),
    ("optimizer", r"^_fused_|^_amp_"),
    ("foreach", r"^_foreach_"),
    (
        "linalg",
        r"^_?linalg|cholesky|^lu_|qr$|lstsq|triangular|det$|ormqr|householder|eig|svd|pinverse|matrix_exp|inverse",
    ),
    ("fft", r"fft|stft"),
    ("quantize", r"fake_quant|int_?mm|int[48]pack|dyn_quant|scaled_mm|obs_fq"),
    (
        "contraction",
        r"mm$|mm_|^mv|^dot|vdot|bmm|conv|linear|matmul|einsum|attention|bilinear|transformer|ger$|addr|tensordot",
    ),
    ("recurrent", r"lstm|gru|rnn"),
    ("window", r"pool|im2col|col2im|unfold|fold"),
    ("resample", r"upsample|grid_sampler|interpolate|affine_grid"),
    ("pad", r"pad"),
    ("norm", r"norm|softmax|softmin"),
    ("scan", r"^_?(log)?cum"),
    ("sort", r"sort|topk|kthvalue|median|mode$|unique|searchsorted|bucketize|quantile|isin"),
    ("scatter", r"scatter|index_(add|put|copy|fill|reduce)|put_?$|masked_fill|masked_scatter|bincount|hist"),
    ("gather", r"gather|index|take|embedding|masked_select|nonzero|where"),
    ("loss", r"loss|entropy|nll|kl_div"),
    ("special", r"^special_|gamma|polygamma|bessel|zeta|airy|erf"),
    ("movement", r"cat$|stack|roll|flip|repeat|tile|tri[lu]|diag|rot90|kron|split|chunk|copy|clone"),
    (
        "factory",
        r"^(zeros|ones|empty|full|arange|linspace|logspace|eye|rand|new_|scalar_tensor|range|from_file|.*window)",
    ),
    ("distance", r"dist|cosine_similarity"),
)
_TAGS = (
    ("random", torch.Tag.nondeterministic_seeded),
    ("data-dependent", torch.Tag.dynamic_output_shape),
    ("data-dependent", torch.Tag.data_dependent_output),
)
_LATE_TAGS = (("elementwise", torch.Tag.pointwise), ("reduction", torch.Tag.reduction))
_REDUCTION = re.compile(r"^(sum|prod|mean|var|std|amax|amin|aminmax|max|min|any|all|arg|norm|logsumexp|count_nonzero)")


def kind_of(op: Op) -> str:
    """Return the kind of ``op``; ``other`` where neither a tag nor the name tells."""
    base = op._schema.name.split("::")[1].rstrip("_") or op._schema.name
    if op.is_view:
        return "view"
    kinds = chain(
        (kind for kind, tag in _TAGS if tag in op.tags),
        (kind for kind, pattern in _NAMES[:1] if re.search(pattern, base)),
        (kind for kind, tag in _LATE_TAGS if tag in op.tags),
        ["reduction"] if _REDUCTION.match(base) else [],
        (kind for kind, pattern in _NAMES[1:] if re.search(pattern, base)),
    )
    return next(kinds, "other")
