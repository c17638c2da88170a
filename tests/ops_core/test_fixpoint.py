"""The fixpoint over op_db: what its samples dispatch, forward and backward, ends in core ops and agrees with eager.

The default run takes a few samples of every OpInfo; `-m slow` takes many more in more dtypes.
"""

import re
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from ops_core.lowering.schema import op_named
from ops_core.routes import route_of

from .checker import Recorder, Tally, is_view_or_query, spread, tensors_of

# differences that are eager's: index positions or roundings that no other kernel can reproduce
KNOWN = {
    "aten.native_layer_norm_backward.default": "eager's rounding residue where the normalised shape is one element",
    "aten.addbmm_.default": "eager resizes self",
    "aten.grid_sampler_2d.default": "eager rounds half coordinates",
    "aten.grid_sampler_2d_backward.default": "eager rounds half coordinates",
    "aten.grid_sampler_3d_backward.default": "eager accumulates in the half type",
    "aten.soft_margin_loss.default": "eager overflows in float16",
    "aten.soft_margin_loss_backward.default": "eager overflows in float16",
}
# eager overflows in the half types, where ours is right: tests/semantics/test_numbers.py compares it with float64
KNOWN_NAN = {"aten.linalg_matrix_exp.default": "expected nan"}

# reasons for which an op that is lowered in general leaves a call to the host
LIMITS = re.compile(
    r"factorisation|mask (index|whose)|sparse|data-dependent|lengths on the device|complex|transform of|matrix_exp|u8"
)

# For several processes; how many overloads each part saw, less a few that another torch might not have.
PARTS = (140, 150, 132, 157, 143, 135, 112, 131)


def run(dtypes, samples, infos=op_db):
    tally = Tally()
    recorder = Recorder(tally, is_view_or_query)
    for info in infos:
        for dtype in dtypes:
            if not info.supports_dtype(dtype, "cpu") or info.name.startswith("jiterator"):
                continue
            grad = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for sample in spread(list(info.sample_inputs("cpu", dtype, requires_grad=grad)), samples):
                    recorder.label = f"{info.name} {dtype}"
                    forward_backward(recorder, info, sample, grad)
    return tally


def forward_backward(recorder, info, sample, grad):
    """Run one sample under the recorder; samples that eager itself refuses are none of our business."""
    try:
        with recorder:
            out = info.op(sample.input, *sample.args, **sample.kwargs)
            outs = [t for t in tensors_of(list(out) if isinstance(out, tuple) else out) if isinstance(t, torch.Tensor)]
            outs = [t for t in outs if t.requires_grad]
            leaves = [
                t for t in tensors_of([sample.input, *sample.args]) if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            if grad and outs and leaves:
                torch.autograd.grad(outs, leaves, [torch.ones_like(t) for t in outs], allow_unused=True)
    except RuntimeError:
        pass


def judge(tally):
    wrong = {name: why for name, why in tally.failed.items() if name not in KNOWN}
    wrong = {name: why for name, why in wrong.items() if name not in KNOWN_NAN or KNOWN_NAN[name] not in why}
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    # what is not lowered has a route that says so
    unexplained = {
        n: why for n, why in tally.unlowered.items() if route_of(op_named(n)) == "core" and not LIMITS.search(why)
    }
    assert not unexplained, "\n".join(f"{name}: {why}" for name, why in unexplained.items())


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_sampled(part):
    tally = run([torch.float32], 1, op_db[part :: len(PARTS)])
    judge(tally)
    assert len(tally.passed) >= PARTS[part]


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.float16]
)
def test_many_samples(dtype):
    judge(run([dtype], 12))
