"""Arguments for the kernel groups that no database entry reaches, one overload each.

Every entry maps an overload to a function of a ``Draw`` that returns the positional arguments, or a ``Call`` where
keyword arguments are needed. All tensors are made on the CPU; the case places them.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .case import SEED


class Draw:
    """Tensors from a seed: ``f`` normal, ``u`` uniform in (0.1, 0.9), ``i`` integers below a bound, ``b`` bools."""

    def __init__(self, seed: int = SEED) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def f(self, *shape: int) -> torch.Tensor:
        """Return float32 normal values."""
        return torch.randn(shape, generator=self.generator)

    def u(self, *shape: int) -> torch.Tensor:
        """Return float32 values in (0.1, 0.9)."""
        return torch.rand(shape, generator=self.generator) * 0.8 + 0.1

    def i(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Return integers in [0, high)."""
        return torch.randint(high, shape, generator=self.generator).to(dtype)

    def b(self, *shape: int) -> torch.Tensor:
        """Return bools."""
        return torch.rand(shape, generator=self.generator) < 0.5

    def lists(self, count: int, *shape: int) -> tuple[list[torch.Tensor], ...]:
        """Return ``count`` lists of three tensors with values in (0.1, 0.9)."""
        return tuple([self.u(*shape) for _ in range(3)] for _ in range(count))


class Call(tuple):
    """Positional arguments with keyword arguments beside them."""

    kwargs: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Call":
        """Make the tuple of ``args``, with ``kwargs`` as its attribute."""
        made = super().__new__(cls, args)
        made.kwargs = kwargs
        return made


Inputs = Callable[[Draw], tuple[Any, ...]]


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _steps() -> list[torch.Tensor]:
    return [torch.tensor(1.0) for _ in range(3)]


def _adam(d: Draw) -> Call:
    hyper = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": True, "maximize": False}
    return Call(*d.lists(5, 4, 3), _steps(), lr=torch.tensor(0.1), **hyper)


def _sgd(d: Draw) -> Call:
    flags = {"weight_decay": 0.01, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "maximize": False}
    return Call(*d.lists(3, 4, 3), lr=torch.tensor(0.1), is_first_step=False, **flags)


def _file(d: Draw) -> tuple[Any, ...]:
    path = Path(tempfile.gettempdir()) / "lazy-backend-from-file.bin"
    path.write_bytes(bytes(range(16)))
    return str(path), False, 4


def _heads(d: Draw) -> tuple[Any, ...]:
    x = d.f(2, 3, 8)
    return x, x, x, 8, 2, d.f(24, 8), d.f(24), d.f(8, 8), d.f(8)


def _encoder(d: Draw) -> tuple[Any, ...]:
    attention = (d.f(24, 8), d.f(24), d.f(8, 8), d.f(8))
    norms = (d.u(8), d.f(8), d.u(8), d.f(8))
    return d.f(2, 3, 8), 8, 2, *attention, True, False, 1e-5, *norms, d.f(16, 8), d.f(16), d.f(8, 16), d.f(8)


def _observer(d: Draw) -> tuple[Any, ...]:
    on = torch.ones(1, dtype=torch.long)
    scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    return d.f(4, 4), on, on.clone(), torch.zeros(1), torch.ones(1), scale, zero, 0.01, -128, 127, -1


def _embedding_bag(d: Draw) -> tuple[Any, ...]:
    bags, sizes = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([2, 3])
    return d.f(2, 4), d.i(6, 5), bags, sizes, sizes, 6, False, 0, None


def _float8(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return d.f(16, 32).to(torch.float8_e4m3fn), d.f(16, 32).to(torch.float8_e4m3fn).t()


def _scaled_mm_v2(d: Draw) -> Call:
    one = [torch.tensor(1.0)]
    return Call(*_float8(d), one, [0], [0], one, [0], [0], None, torch.bfloat16)


def _int4(d: Draw) -> torch.Tensor:
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(d.i(16, 64, 64, dtype=torch.int32), 2)


def _pack_4bit(d: Draw) -> tuple[Any, ...]:
    return d.i(255, 32, 32, dtype=torch.uint8), d.u(64), None, 32, 64, 32


def _matmul_4bit(d: Draw) -> tuple[Any, ...]:
    return d.f(4, 64), torch.ops.aten._dyn_quant_pack_4bit_weight(*_pack_4bit(d)), 32, 64, 32


def _posdef(d: Draw, n: int) -> torch.Tensor:
    a = d.f(n, n)
    return a @ a.T + n * torch.eye(n)


def _backward_aa(d: Draw) -> tuple[Any, ...]:
    return d.f(1, 2, 3, 3), [3, 3], [1, 2, 6, 6], False


def _weight_norm_backward(d: Draw) -> tuple[Any, ...]:
    v, g = d.f(4, 3), d.f(4, 1)
    return d.f(4, 3), v, g, v.norm(dim=1, keepdim=True), 0


def _masked_softmax_backward(d: Draw) -> tuple[Any, ...]:
    mask = torch.tensor([[False, True, False, False]]).expand(3, 4)
    return d.f(3, 4), d.f(3, 4).masked_fill(mask, -torch.inf).softmax(-1), mask.clone(), 1


def _ctc(d: Draw) -> tuple[Any, ...]:
    lengths = torch.tensor([6, 5]), torch.tensor([3, 2])
    return d.f(6, 2, 5).log_softmax(-1), d.i(4, 2, 3) + 1, *lengths, 0, True


def _ctc_backward(d: Draw) -> tuple[Any, ...]:
    *arguments, blank, zero_infinity = _ctc(d)
    return d.u(2), *arguments, *torch.ops.aten._ctc_loss.Tensor(*arguments, blank, zero_infinity), blank, zero_infinity


def _per_tensor(d: Draw) -> tuple[Any, ...]:
    return d.f(4, 5), torch.tensor([0.1]), torch.tensor([3.2]), 0, 10, 0.5


def _per_channel(d: Draw) -> tuple[Any, ...]:
    return d.f(4, 5), d.u(5), d.u(5) * 4, 1, 0, 10, 0.5


def _adagrad(d: Draw) -> Call:
    hyper = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    return Call(*d.lists(3, 4, 3), _steps(), **hyper)


def _nearest(d: Draw, rank: int) -> tuple[Any, ...]:
    return d.f(1, 2, *[3] * rank), [7] * rank


def _nearest_backward(d: Draw, rank: int) -> tuple[Any, ...]:
    return d.f(1, 2, *[7] * rank), [7] * rank, [1, 2, *[3] * rank]


def _pad(d: Draw, rank: int) -> tuple[Any, ...]:
    return d.f(1, 2, *[4] * rank), [1, 2] * rank


def _pad_backward(d: Draw, rank: int) -> tuple[Any, ...]:
    return d.f(1, 2, *[7] * rank), d.f(1, 2, *[4] * rank), [1, 2] * rank


INPUTS: dict[str, Inputs] = {
    "aten.__lshift__.Scalar": lambda d: (d.i(9, 4), 2),
    "aten.__lshift__.Tensor": lambda d: (d.i(9, 4), d.i(3, 4)),
    "aten.__rshift__.Scalar": lambda d: (d.i(99, 4), 2),
    "aten.__rshift__.Tensor": lambda d: (d.i(99, 4), d.i(3, 4)),
    "aten._add_relu.Scalar": lambda d: (d.f(3, 4), 0.5),
    "aten._add_relu.Tensor": lambda d: (d.f(3, 4), d.f(3, 4)),
    "aten._addmm_activation.default": lambda d: Call(d.f(5), d.f(3, 4), d.f(4, 5), use_gelu=True),
    "aten._aminmax.default": lambda d: (d.f(3, 4),),
    "aten._aminmax.dim": lambda d: (d.f(3, 4), 1),
    "aten._amp_foreach_non_finite_check_and_unscale_.default": lambda d: (
        [d.f(3), torch.tensor([1.0, torch.inf])],
        torch.zeros(1),
        torch.tensor([0.5]),
    ),
    "aten._amp_update_scale_.default": lambda d: (
        torch.tensor([8.0]),
        torch.tensor([1], dtype=torch.int32),
        torch.zeros(1),
        2.0,
        0.5,
        2,
    ),
    "aten._assert_async.default": lambda d: (torch.tensor(True),),
    "aten._assert_async.msg": lambda d: (torch.tensor(True), "said"),
    "aten._functional_assert_async.msg": lambda d: (torch.tensor(True), "said", torch.zeros(1)),
    "aten._cholesky_solve_helper.default": lambda d: (d.f(3, 2), torch.linalg.cholesky(_posdef(d, 3)), False),
    "aten._compute_linear_combination.default": lambda d: (d.f(3, 4), d.f(2, 3)),
    "aten._cummax_helper.default": lambda d: (d.f(3, 4), _empty(3, 4), _empty(3, 4, dtype=torch.int64), 1),
    "aten._cummin_helper.default": lambda d: (d.f(3, 4), _empty(3, 4), _empty(3, 4, dtype=torch.int64), 1),
    "aten._convert_weight_to_int4pack_for_cpu.default": lambda d: (d.i(16, 64, 64, dtype=torch.int32), 2),
    "aten._dyn_quant_matmul_4bit.default": _matmul_4bit,
    "aten._dyn_quant_pack_4bit_weight.default": _pack_4bit,
    "aten._dirichlet_grad.default": lambda d: (d.u(4), d.u(4), d.u(4) + 1),
    "aten._embedding_bag_dense_backward.default": _embedding_bag,
    "aten._foobar.default": lambda d: (d.f(3),),
    "aten._fused_adam_.tensor_lr": _adam,
    "aten._fused_adamw_.tensor_lr": _adam,
    "aten._fused_sgd_.tensor_lr": _sgd,
    "aten._fused_moving_avg_obs_fq_helper.default": _observer,
    "aten._fused_sdp_choice.default": lambda d: (d.f(2, 2, 4, 8), d.f(2, 2, 4, 8), d.f(2, 2, 4, 8)),
    "aten._index_put_impl_.default": lambda d: (d.f(5, 3), [torch.tensor([0, 2, 2])], d.f(3, 3), True),
    "aten._int_mm.default": lambda d: (d.i(9, 4, 5, dtype=torch.int8), d.i(9, 5, 6, dtype=torch.int8)),
    "aten._linalg_eigvals.default": lambda d: (_posdef(d, 3),),
    "aten._logcumsumexp.default": lambda d: (d.f(3, 4), 1),
    "aten._masked_softmax.default": lambda d: (d.f(2, 2, 3, 3), torch.eye(3, dtype=torch.bool), 3, 0),
    "aten._masked_softmax_backward.default": _masked_softmax_backward,
    "aten._native_multi_head_attention.default": _heads,
    "aten._reshape_alias.default": lambda d: (d.f(3, 4), [4, 3], [3, 1]),
    "aten._sample_dirichlet.default": lambda d: (d.u(3, 4) + 1,),
    "aten._scaled_mm.default": lambda d: Call(
        *_float8(d), torch.tensor(1.0), torch.tensor(1.0), out_dtype=torch.bfloat16
    ),
    "aten._scaled_mm_v2.default": _scaled_mm_v2,
    "aten._slow_conv2d_forward.default": lambda d: (
        d.f(1, 2, 5, 5),
        d.f(3, 2, 3, 3),
        [3, 3],
        d.f(3),
        [1, 1],
        [1, 1],
    ),
    "aten._slow_conv2d_backward.output_mask": lambda d: (
        d.f(1, 3, 5, 5),
        d.f(1, 2, 5, 5),
        d.f(3, 2, 3, 3),
        [3, 3],
        [1, 1],
        [1, 1],
        [True, True, True],
    ),
    "aten._slow_conv2d_backward.grad_input": lambda d: Call(
        d.f(1, 3, 5, 5),
        d.f(1, 2, 5, 5),
        d.f(3, 2, 3, 3),
        [3, 3],
        [1, 1],
        [1, 1],
        grad_input=_empty(1, 2, 5, 5),
        grad_weight=_empty(3, 2, 3, 3),
        grad_bias=_empty(3),
    ),
    "aten.slow_conv3d_forward.default": lambda d: (
        d.f(1, 2, 4, 4, 4),
        d.f(3, 2, 3, 3, 3),
        [3, 3, 3],
        d.f(3),
        [1, 1, 1],
        [1, 1, 1],
    ),
    "aten.slow_conv_dilated2d.default": lambda d: (
        d.f(1, 2, 7, 7),
        d.f(3, 2, 3, 3),
        [3, 3],
        d.f(3),
        [1, 1],
        [0, 0],
        [2, 2],
    ),
    "aten.slow_conv_dilated3d.default": lambda d: (
        d.f(1, 2, 6, 6, 6),
        d.f(3, 2, 3, 3, 3),
        [3, 3, 3],
        d.f(3),
        [1, 1, 1],
        [0, 0, 0],
        [2, 2, 2],
    ),
    "aten.slow_conv_transpose2d.default": lambda d: (d.f(1, 2, 4, 4), d.f(2, 3, 3, 3), [3, 3], d.f(3), [2, 2]),
    "aten.slow_conv_transpose3d.default": lambda d: (
        d.f(1, 2, 3, 3, 3),
        d.f(2, 3, 3, 3, 3),
        [3, 3, 3],
        d.f(3),
        [2, 2, 2],
    ),
    "aten._stack.default": lambda d: ([d.f(3), d.f(3)], 1),
    "aten._standard_gamma.default": lambda d: (d.u(3, 4) + 1,),
    "aten._standard_gamma_grad.default": lambda d: (d.u(4) + 1, d.u(4)),
    "aten._transform_bias_rescale_qkv.default": lambda d: (d.f(2, 3, 24), d.f(24), 2),
    "aten._transformer_encoder_layer_fwd.default": _encoder,
    "aten._upsample_bicubic2d_aa.default": lambda d: (d.f(1, 2, 6, 6), [3, 4], False),
    "aten._upsample_bicubic2d_aa_backward.default": _backward_aa,
    "aten._upsample_lanczos2d_aa.default": lambda d: (d.f(1, 2, 6, 6), [3, 4], False),
    "aten._upsample_lanczos2d_aa_backward.default": _backward_aa,
    "aten._weight_int4pack_mm_for_cpu.default": lambda d: (
        d.f(4, 64).bfloat16(),
        _int4(d),
        32,
        d.u(2, 64, 2).bfloat16(),
    ),
    "aten._weight_int8pack_mm.default": lambda d: (d.f(4, 32), d.i(9, 8, 32, dtype=torch.int8), d.u(8)),
    "aten._weight_norm_interface.default": lambda d: (d.f(4, 3), d.f(4, 1)),
    "aten._weight_norm_interface_backward.default": _weight_norm_backward,
    "aten.adaptive_avg_pool2d.out": lambda d: Call(d.f(2, 6, 6), [2, 3], out=_empty(2, 2, 3)),
    "aten.adaptive_avg_pool3d.out": lambda d: Call(d.f(2, 6, 6, 4), [2, 3, 2], out=_empty(2, 2, 3, 2)),
    "aten.adaptive_avg_pool3d_backward.grad_input": lambda d: Call(
        d.f(2, 2, 3, 2), d.f(2, 6, 6, 4), grad_input=_empty(2, 6, 6, 4)
    ),
    "aten.batch_norm_update_stats.default": lambda d: (d.f(4, 3, 5), d.f(3), d.u(3), 0.1),
    "aten.bernoulli_.Tensor": lambda d: (d.f(64), d.u(64)),
    "aten.binomial.default": lambda d: (d.i(9, 64).float() + 1, d.u(64)),
    "aten.bucketize.Scalar": lambda d: (0.3, torch.tensor([0.0, 0.2, 0.4])),
    "aten.clamp_max.default": lambda d: (d.f(4), 0.1),
    "aten.fill_.Tensor": lambda d: (d.f(4), torch.tensor(2.0)),
    "aten.from_file.default": _file,
    "aten.glu_jvp.default": lambda d: (d.f(3, 2), d.f(3, 4), d.f(3, 4), 1),
    "aten.glu_backward_jvp.default": lambda d: (d.f(3, 4), d.f(3, 2), d.f(3, 4), d.f(3, 2), d.f(3, 4), 1),
    "aten.huber_loss_backward.out": lambda d: Call(d.f(4), d.f(4), d.f(4), 0, 0.5, grad_input=_empty(4)),
    "aten.is_set_to.default": lambda d: (d.f(4), d.f(4)),
    "aten.isin.Scalar_Tensor": lambda d: (2, d.i(4, 5)),
    "aten.isin.Tensor_Scalar": lambda d: (d.i(4, 5), 2),
    "aten.linalg__powsum.default": lambda d: (d.f(3, 4), 3, [1]),
    "aten.median.dim_values": lambda d: Call(d.f(3, 5), 1, values=_empty(3), indices=_empty(3, dtype=torch.int64)),
    "aten.nanmedian.dim_values": lambda d: Call(d.f(3, 5), 1, values=_empty(3), indices=_empty(3, dtype=torch.int64)),
    "aten.native_dropout.default": lambda d: (d.f(64), 0.5, True),
    "aten.norm.dtype_out": lambda d: Call(d.f(3, 4), 2, [1], False, dtype=torch.float32, out=_empty(3)),
    "aten.normal.float_Tensor": lambda d: (1.0, d.u(64)),
    "aten.poisson.default": lambda d: (d.u(64) * 5,),
    "aten.random_.default": lambda d: (d.f(64),),
    "aten.random_.from": lambda d: (d.i(9, 64), 3, 1000),
    "aten.random_.to": lambda d: (d.i(9, 64), 1000),
    "aten.randperm.generator": lambda d: Call(32, generator=None),
    "aten.randperm.generator_out": lambda d: Call(32, generator=None, out=_empty(32, dtype=torch.int64)),
    "aten.randperm.out": lambda d: Call(32, out=_empty(32, dtype=torch.int64)),
    "aten.range.out": lambda d: Call(0, 5, 2, out=_empty(3)),
    "aten.remainder.Scalar_Tensor": lambda d: (7.5, d.u(4)),
    "aten.set_.default": lambda d: (d.f(4),),
    "aten.set_.source_Tensor": lambda d: (d.f(4), d.f(2, 3)),
    "aten.silu_backward.grad_input": lambda d: Call(d.f(4), d.f(4), grad_input=_empty(4)),
    "aten.smooth_l1_loss_backward.grad_input": lambda d: Call(d.f(4), d.f(4), d.f(4), 0, 0.5, grad_input=_empty(4)),
    "aten.unique_dim_consecutive.default": lambda d: (torch.tensor([[1, 2], [1, 2], [3, 4]]), 0, True, True),
    "aten._ctc_loss.Tensor": _ctc,
    "aten._ctc_loss_backward.Tensor": _ctc_backward,
    "aten._fake_quantize_learnable_per_channel_affine.default": _per_channel,
    "aten._fake_quantize_learnable_per_channel_affine_backward.default": lambda d: (d.f(4, 5), *_per_channel(d)),
    "aten._fake_quantize_learnable_per_tensor_affine.default": _per_tensor,
    "aten._fake_quantize_learnable_per_tensor_affine_backward.default": lambda d: (d.f(4, 5), *_per_tensor(d)),
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": lambda d: (
        d.f(4, 5),
        torch.tensor([0.1]),
        torch.tensor([3], dtype=torch.int32),
        torch.tensor([1]),
        0,
        10,
    ),
    "aten._fused_adagrad_.default": _adagrad,
    "aten._histogramdd_from_bin_tensors.default": lambda d: (
        d.f(20, 2),
        [torch.linspace(-2, 2, 4), torch.linspace(-1, 1, 3)],
    ),
    "aten._native_batch_norm_legit.no_stats": lambda d: (d.f(4, 3, 5), d.f(3), d.f(3), True, 0.1, 1e-5),
    "aten._unique.default": lambda d: (d.i(5, 20), True, True),
    **{
        f"aten.{kind}{rank}d.default": partial(_nearest, rank=rank)
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (2, 3)
    },
    **{
        f"aten.{kind}{rank}d_backward.default": partial(_nearest_backward, rank=rank)
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (2, 3)
    },
    **{
        f"aten.{kind}_pad{rank}d.default": partial(_pad, rank=rank)
        for kind in ("reflection", "replication")
        for rank in (2, 3)
    },
    **{
        f"aten.{kind}_pad{rank}d_backward.default": partial(_pad_backward, rank=rank)
        for kind in ("reflection", "replication")
        for rank in (2, 3)
    },
    "aten.all.dim": lambda d: (d.b(3, 4), 1, True),
    "aten.all.dims": lambda d: (d.b(3, 4, 2), [0, 2]),
    "aten.any.dims": lambda d: (d.b(3, 4, 2), [0, 2]),
    "aten.bernoulli_.float": lambda d: (d.f(64), 0.3),
    "aten.count_nonzero.dim_IntList": lambda d: (d.b(3, 4, 2), [0, 2]),
    "aten.embedding_renorm_.default": lambda d: (d.f(4, 5), torch.tensor([1, 2]), 1.0, 2.0),
    "aten.eye.m_out": lambda d: Call(3, 4, out=_empty(3, 4)),
    "aten.fake_quantize_per_channel_affine_cachemask.default": lambda d: (
        d.f(4, 5),
        d.u(5),
        d.i(5, 5, dtype=torch.int32),
        1,
        0,
        10,
    ),
    "aten.fake_quantize_per_tensor_affine_cachemask.default": lambda d: (d.f(4, 5), 0.1, 3, 0, 10),
    "aten.histogram.bins_tensor": lambda d: (d.f(20), torch.linspace(-2, 2, 5)),
    "aten.index_fill_.int_Tensor": lambda d: (d.f(4, 5), 0, torch.tensor([1, 3]), torch.tensor(3.0)),
    "aten.masked_fill_.Tensor": lambda d: (d.f(5), d.b(5), torch.tensor(2.0)),
    "aten.mish_backward.default": lambda d: (d.f(3, 4), d.f(3, 4)),
    "aten.native_channel_shuffle.default": lambda d: (d.f(2, 6, 3, 3), 2),
    "aten.normal.Tensor_Tensor": lambda d: (d.f(64), d.u(64)),
    "aten.normal.Tensor_float": lambda d: (d.f(64), 0.5),
    "aten.prod.dim_int": lambda d: (d.f(3, 4), 1),
    "aten.repeat_interleave.Tensor": lambda d: (d.i(4, 5),),
    "aten.scatter.reduce": lambda d: Call(d.f(4, 5), 0, torch.tensor([[0, 1, 1]]), d.f(1, 3), reduce="multiply"),
    "aten.scatter.value_reduce": lambda d: Call(d.f(4, 5), 0, torch.tensor([[0, 1, 1]]), 2.0, reduce="add"),
    "aten.searchsorted.Scalar": lambda d: (torch.arange(5.0), 2.5),
    "aten.sort.stable": lambda d: Call(d.i(4, 3, 8), stable=True, dim=1),
    "aten.unique_dim.default": lambda d: (d.i(2, 6, 2), 0, True, True, True),
}
