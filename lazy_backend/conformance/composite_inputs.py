"""Arguments for the composite overloads that no database entry fits; in-place and ``out=`` faces follow from these.

Left out: ``pin_memory`` and ``_pin_memory`` (of CPU tensors), ``smm`` (sparse), ``get_gradients`` (of a distributed
autograd context), ``_wrapped_linear_prepack`` (FBGEMM's format).
"""

from functools import partial
from typing import Any

import torch

from .group_inputs import Call, Draw, Inputs


def _int(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _convolution(d: Draw) -> tuple[Any, ...]:
    return d.f(2, 3, 6, 6), d.f(4, 3, 3, 3), d.f(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1


def _convolution_backward(d: Draw) -> tuple[Any, ...]:
    x, w, _, *how = _convolution(d)
    return d.f(2, 4, 6, 6), x, w, *how, [True, True, True]


def _double_backward(d: Draw) -> tuple[Any, ...]:
    x, w, b, *how = _convolution(d)
    return x, w, b, d.f(2, 4, 6, 6), d.f(4, 3, 3, 3), d.f(2, 3, 6, 6), *how, [True, True, True]


def _batch_norm(d: Draw) -> tuple[Any, ...]:
    return d.f(4, 3, 5), d.f(3), d.f(3), d.f(3), d.u(3)


def _batch_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, w, b, mean, variance = _batch_norm(d)
    made = torch.ops.aten._batch_norm_impl_index.default(
        x, w, b, mean.clone(), variance.clone(), True, 0.1, 1e-5, False
    )
    return made[4], x, d.f(4, 3, 5), w, mean, variance, made[1], made[2], True, 1e-5, [True] * 3, made[3]


def _grid(d: Draw) -> tuple[Any, ...]:
    return d.f(2, 3, 5, 5), d.u(2, 4, 4, 2) * 2 - 1, 0, 0, False


def _packed(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return d.f(9, 4), _int(4, 3, 2)


def _weights(d: Draw, gates: int) -> list[torch.Tensor]:
    return [d.f(gates * 3, 4), d.f(gates * 3, 3), d.f(gates * 3), d.f(gates * 3)]


def _whole(d: Draw, gates: int) -> tuple[Any, ...]:
    state = [d.f(1, 4, 3), d.f(1, 4, 3)] if gates == 4 else d.f(1, 4, 3)
    return d.f(5, 4, 4), state, _weights(d, gates), True, 1, 0.0, False, False, False


def _ragged(d: Draw, gates: int) -> tuple[Any, ...]:
    _, state, *rest = _whole(d, gates)
    return *_packed(d), state, *rest[:-1]


def _cell(d: Draw, gates: int) -> tuple[Any, ...]:
    return d.f(2, 4), [d.f(2, 3), d.f(2, 3)] if gates == 4 else d.f(2, 3), *_weights(d, gates)


def _attention(d: Draw) -> tuple[torch.Tensor, ...]:
    return d.f(2, 2, 5, 4), d.f(2, 2, 5, 4), d.f(2, 2, 5, 4)


def _bits(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return d.i(99, 4), d.i(99, 4)


def _bits_of(d: Draw, kind: str) -> tuple[Any, ...]:
    return (d.i(99, 4), 7) if kind == "Scalar" else _bits(d)


def _window(d: Draw, face: str) -> tuple[Any, ...]:
    return (9,) if face == "default" else (9, False)


def _interpolation(d: Draw, rank: int, corners: bool) -> tuple[Any, ...]:
    return d.f(1, 2, *[4] * rank), [6] * rank, *([False] if corners else []), None


def _differentiable_cell(d: Draw, gates: int) -> tuple[Any, ...]:
    width = 3 * gates
    return d.f(2, width), d.f(2, width), d.f(width), d.f(width)


def _quantised(d: Draw) -> tuple[Any, ...]:
    return d.f(4, 5), torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32), 0, 10


def _moving_average(d: Draw) -> tuple[Any, ...]:
    on = torch.ones(1, dtype=torch.long)
    zero = torch.zeros(1, dtype=torch.int32)
    return d.f(4, 4), on, on.clone(), torch.zeros(1), torch.ones(1), torch.ones(1), zero, 0.01, -128, 127, -1


def _norm_backward(d: Draw) -> tuple[Any, ...]:
    v = d.f(4, 3)
    return d.f(4, 3), v, d.f(4, 1), v.norm(dim=1, keepdim=True), 0


def _out_parts(d: Draw) -> Call:
    return Call(d.f(6, 2), 2, out=[torch.zeros(2, 2) for _ in range(3)])


def _sobol_state() -> torch.Tensor:
    return torch.ops.aten._sobol_engine_initialize_state_(torch.zeros(3, 30, dtype=torch.int64), 3)


def _square(d: Draw) -> torch.Tensor:
    return d.f(3, 3) + 3 * torch.eye(3)


def _space_out(d: Draw, face: str) -> Call:
    return Call(*_ends(face), 5, out=torch.zeros(5))


def _ends(face: str) -> list[Any]:
    return [torch.tensor(v) if kind == "Tensor" else v for kind, v in zip(face.split("_"), (0.5, 3.0), strict=True)]


ONE_TENSOR = (
    "_conj", "_conj_copy", "_conj_physical", "_neg_view", "_neg_view_copy", "_is_all_true", "_shape_as_tensor",
    "_to_copy", "alias", "data", "dense_dim", "detach", "detach_", "detach_copy", "_fw_primal_copy", "lift",
    "lift_fresh", "lift_fresh_copy", "get_device", "nonzero_numpy", "nuclear_norm", "numpy_T", "retains_grad",
    "norm_except_dim", "view_as_real_copy", "matrix_H", "normal_functional", "_choose_qparams_per_tensor",
)  # fmt: skip
CASTS = ("Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
WINDOWS = ("bartlett", "blackman", "hamming", "hann", "kaiser")
INTERPOLATIONS = {
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_bicubic2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "_upsample_bicubic2d_aa": (2, True),
    "_upsample_lanczos2d_aa": (2, True),
    **{
        f"{kind}{rank}d": (rank, False)
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
    },
}

COMPOSITES: dict[str, Inputs] = {
    **{
        f"aten.__{inplace}{name}__.{kind}": partial(_bits_of, kind=kind)
        for name in ("and", "or", "xor")
        for inplace in ("", "i")
        for kind in ("Scalar", "Tensor")
    },
    **{f"aten._cast_{name}.default": lambda d: (d.f(3, 4) * 5 + 20,) for name in CASTS},
    **{
        f"aten.{name}_window.{face}": partial(_window, face=face)
        for name in WINDOWS
        for face in ("default", "periodic")
    },
    "aten.hamming_window.periodic_alpha": lambda d: (9, True, 0.4),
    "aten.hamming_window.periodic_alpha_beta": lambda d: (9, True, 0.4, 0.6),
    "aten.kaiser_window.beta": lambda d: (9, True, 8.0),
    **{
        f"aten.{name}.vec": partial(_interpolation, rank=rank, corners=corners)
        for name, (rank, corners) in INTERPOLATIONS.items()
    },
    **{
        f"aten.{name}.input": partial(_whole, gates=gates)
        for name, gates in (("gru", 3), ("lstm", 4), ("rnn_relu", 1), ("rnn_tanh", 1))
    },
    **{
        f"aten.{name}.data": partial(_ragged, gates=gates)
        for name, gates in (("gru", 3), ("lstm", 4), ("rnn_relu", 1), ("rnn_tanh", 1))
    },
    **{
        f"aten.{name}_cell.default": partial(_cell, gates=gates)
        for name, gates in (("gru", 3), ("lstm", 4), ("rnn_relu", 1), ("rnn_tanh", 1))
    },
    **{f"aten.{name}.default": lambda d: (d.f(3, 4),) for name in ONE_TENSOR},
    "aten._conj_copy.default": lambda d: (torch.complex(d.f(3, 4), d.f(3, 4)),),
    "aten._fw_primal_copy.default": lambda d: (d.f(3, 4), 0),
    "aten._is_all_true.default": lambda d: (d.b(3, 4),),
    "aten._is_any_true.default": lambda d: (d.b(3, 4),),
    "aten.view_as_real_copy.default": lambda d: (torch.complex(d.f(3, 4), d.f(3, 4)),),
    "aten.view_as_complex_copy.default": lambda d: (d.f(3, 4, 2),),
    "aten._add_batch_dim.default": lambda d: (d.f(3, 4), 0, 1),
    "aten._remove_batch_dim.default": lambda d: (d.f(3, 4), 1, 2, 0),
    "aten._autocast_to_full_precision.default": lambda d: (d.f(3, 4), True, True),
    "aten._autocast_to_reduced_precision.default": lambda d: (d.f(3, 4), False, False, torch.half, torch.bfloat16),
    "aten._batch_norm_impl_index.default": lambda d: (*_batch_norm(d), True, 0.1, 1e-5, False),
    "aten._batch_norm_impl_index_backward.default": _batch_norm_backward,
    "aten._batch_norm_no_update.default": lambda d: (*_batch_norm(d), 0.1, 1e-5),
    "aten._native_batch_norm_legit_no_training.default": lambda d: (*_batch_norm(d), 0.1, 1e-5),
    "aten._convolution.default": lambda d: (*_convolution(d), False, False, False, False),
    "aten._convolution.deprecated": lambda d: (*_convolution(d), False, False, False),
    "aten._convolution_double_backward.default": _double_backward,
    "aten._grouped_mm.default": lambda d: (d.f(8, 16), d.f(3, 16, 12), _int(2, 5, 8).to(torch.int32)),
    "aten._convolution_mode.default": lambda d: (*_convolution(d)[:4], "same", [1, 1], 1),
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": lambda d: (*_convolution_backward(d)[:3], [4], *_convolution_backward(d)[3:]),
    "aten.conv_tbc.default": lambda d: (d.f(5, 2, 3), d.f(3, 3, 4), d.f(4), 1),
    "aten.conv_tbc_backward.default": lambda d: (d.f(5, 2, 4), d.f(5, 2, 3), d.f(3, 3, 4), d.f(4), 1),
    "aten.slow_conv3d.default": lambda d: (d.f(1, 2, 4, 4, 4), d.f(3, 2, 3, 3, 3), [3, 3, 3], d.f(3)),
    "aten.thnn_conv2d.default": lambda d: (d.f(1, 2, 5, 5), d.f(3, 2, 3, 3), [3, 3], d.f(3)),
    "aten._dim_arange.default": lambda d: (d.f(3, 4), 1),
    "aten._euclidean_dist.default": lambda d: (d.f(3, 4), d.f(5, 4)),
    "aten._foreach_powsum.Scalar": lambda d: (d.lists(1, 3)[0], 2),
    "aten._fused_rms_norm.default": lambda d: (d.f(3, 4), [4], d.f(4), 1e-5),
    "aten.grid_sampler.default": _grid,
    "aten._linalg_check_errors.default": lambda d: Call(torch.zeros(3, dtype=torch.int32), "said", is_matrix=False),
    "aten._lu_with_info.default": lambda d: (d.f(2, 3, 3),),
    "aten._make_dual_copy.default": lambda d: (d.f(3), d.f(3), 0),
    "aten._unpack_dual.default": lambda d: (d.f(3), 0),
    "aten._new_zeros_with_same_feature_meta.default": lambda d: (d.f(3), d.f(4)),
    "aten._pack_padded_sequence.default": lambda d: (d.f(4, 3, 2), _int(4, 3, 2), False),
    "aten._pack_padded_sequence_backward.default": lambda d: (d.f(9, 4), [3, 4, 4], _int(4, 3, 2), False),
    "aten._pad_packed_sequence.default": lambda d: (*_packed(d), False, 0.5, 5),
    "aten._pad_circular.default": lambda d: (d.f(2, 3, 4), [1, 2]),
    "aten._pad_enum.default": lambda d: (d.f(2, 3, 4), [1, 2], 1),
    "aten._reshape_alias_copy.default": lambda d: (d.f(3, 4), [4, 3], [3, 1]),
    "aten._reshape_copy.default": lambda d: (d.f(3, 4), [4, 3]),
    "aten._safe_softmax.default": lambda d: (d.f(3, 4), 1),
    "aten._scaled_dot_product_attention_math.default": _attention,
    "aten._thnn_differentiable_gru_cell_backward.default": lambda d: (
        d.f(2, 3),
        *_differentiable_cell(d, 3)[:2],
        d.f(2, 3),
        *_differentiable_cell(d, 3)[2:],
    ),
    "aten._thnn_differentiable_lstm_cell_backward.default": lambda d: (
        d.f(2, 3),
        d.f(2, 3),
        *_differentiable_cell(d, 4),
        d.f(2, 3),
        d.f(2, 3),
    ),
    "aten._to_cpu.default": lambda d: ([d.f(3), d.f(4)],),
    "aten._trilinear.default": lambda d: (d.f(3, 4), d.f(3, 4), d.f(3, 4), [], [], [], [1]),
    "aten._unsafe_index.Tensor": lambda d: (d.f(4, 3), [_int(0, 2, 2)]),
    "aten._unsafe_index_put.default": lambda d: (d.f(4, 3), [_int(0, 2, 2)], d.f(3, 3), True),
    "aten._weight_norm.default": lambda d: (d.f(4, 3), d.f(4, 1)),
    "aten._weight_norm_differentiable_backward.default": _norm_backward,
    "aten.affine_grid_generator.default": lambda d: (d.f(2, 2, 3), [2, 1, 4, 5], False),
    "aten.affine_grid_generator_backward.default": lambda d: (d.f(2, 4, 5, 2), [2, 1, 4, 5], False),
    "aten.chain_matmul.default": lambda d: ([d.f(3, 4), d.f(4, 5), d.f(5, 2)],),
    "aten.copy.default": lambda d: (d.f(3, 4), d.f(4)),
    "aten.copy_.default": lambda d: (d.f(3, 4), d.f(4)),
    "aten.cross_entropy_loss.default": lambda d: (d.f(3, 4), _int(0, 2, 1)),
    "aten.cummaxmin_backward.default": lambda d: (d.f(3, 4), d.f(3, 4), d.f(3, 4).cummax(1)[1], 1),
    "aten.cumprod_backward.default": lambda d: (d.f(3, 4), d.u(3, 4), 1, d.u(3, 4)),
    "aten.diagonal_backward.default": lambda d: (d.f(3), [3, 4], 0, 0, 1),
    "aten.embedding_backward.default": lambda d: (d.f(3, 4), _int(0, 2, 2), 5, -1, False, False),
    "aten.fake_quantize_per_channel_affine.default": lambda d: (
        d.f(4, 5),
        d.u(5),
        d.i(5, 5, dtype=torch.int32),
        1,
        0,
        10,
    ),
    "aten.fake_quantize_per_channel_affine_cachemask_backward.default": lambda d: (d.f(4, 5), d.b(4, 5)),
    "aten.fake_quantize_per_tensor_affine.default": lambda d: (d.f(4, 5), 0.1, 3, 0, 10),
    "aten.fake_quantize_per_tensor_affine.tensor_qparams": _quantised,
    "aten.fake_quantize_per_tensor_affine_cachemask_backward.default": lambda d: (d.f(4, 5), d.b(4, 5)),
    "aten.fused_moving_avg_obs_fake_quant.default": _moving_average,
    "aten.fft_fftfreq.default": lambda d: (9, 0.5),
    "aten.fft_rfftfreq.default": lambda d: (9, 0.5),
    "aten.fill_diagonal_.default": lambda d: (d.f(7, 3), 2.0, True),
    "aten.flatten_dense_tensors.default": lambda d: ([d.f(3), d.f(2, 2)],),
    "aten.unflatten_dense_tensors.default": lambda d: (d.f(7), [d.f(3), d.f(2, 2)]),
    "aten.frobenius_norm.dim": lambda d: (d.f(3, 4), [0, 1]),
    "aten.nuclear_norm.dim": lambda d: (d.f(3, 4), [0, 1]),
    "aten.gather_backward.default": lambda d: (d.f(2, 4), d.f(3, 4), 0, d.i(3, 2, 4), False),
    "aten.huber_loss_backward.default": lambda d: (d.f(4), d.f(4), d.f(4), 0, 0.5),
    "aten.smooth_l1_loss_backward.default": lambda d: (d.f(4), d.f(4), d.f(4), 0, 0.5),
    "aten.soft_margin_loss_backward.default": lambda d: (d.f(4), d.f(4), d.f(4).sign(), 0),
    "aten.index_select_backward.default": lambda d: (d.f(2, 4), [3, 4], 0, _int(2, 0)),
    "aten.infinitely_differentiable_gelu_backward.default": lambda d: (d.f(3, 4), d.f(3, 4)),
    "aten.masked_scatter_backward.default": lambda d: (d.f(3, 4), d.b(3, 4), [12]),
    "aten.masked_select_backward.default": lambda d: (d.f(2), d.f(4), torch.tensor([True, False, True, False])),
    "aten.matrix_exp_backward.default": lambda d: (d.u(3, 3), d.f(3, 3)),
    "aten.nll_loss2d.default": lambda d: (d.f(2, 3, 4, 4), d.i(3, 2, 4, 4)),
    "aten.nll_loss_nd.default": lambda d: (d.f(2, 3, 4, 4), d.i(3, 2, 4, 4)),
    "aten.pad_sequence.default": lambda d: ([d.f(3, 2), d.f(5, 2), d.f(1, 2)], True, 0.5),
    "aten.rand.default": lambda d: ([3, 4],),
    "aten.rand.generator": lambda d: Call([3, 4], generator=None),
    "aten.rand.out": lambda d: Call([3, 4], out=torch.zeros(3, 4)),
    "aten.rand.generator_out": lambda d: Call([3, 4], generator=None, out=torch.zeros(3, 4)),
    "aten.randperm.default": lambda d: (9,),
    "aten.randperm.generator": lambda d: Call(9, generator=None),
    "aten.randperm.out": lambda d: Call(9, out=_int(*range(9))),
    "aten.range.default": lambda d: (0, 5),
    "aten.range.step": lambda d: (0, 5, 2),
    "aten.range.out_": lambda d: Call(0, 5, out=torch.zeros(6)),
    "aten.resize_as_.default": lambda d: (d.f(3, 4), d.f(2, 3)),
    "aten.rrelu_with_noise_backward.default": lambda d: (d.f(4), d.f(4), d.u(4), 0.1, 0.3, True, False),
    "aten.select_backward.default": lambda d: (d.f(4), [3, 4], 0, 1),
    "aten.select_copy.int": lambda d: (d.f(3, 4), 0, 1),
    "aten.set_.source_Tensor_storage_offset": lambda d: (d.f(4), d.f(12), 2, [2, 3], [4, 1]),
    "aten.slice_backward.default": lambda d: (d.f(2, 4), [5, 4], 0, 1, 5, 2),
    "aten.slice_copy.Tensor": lambda d: (d.f(5, 4), 0, 1, 5, 2),
    "aten.slice_inverse.default": lambda d: (d.f(2, 4), d.f(5, 4), 0, 1, 5, 2),
    "aten.slogdet.default": lambda d: (d.f(3, 3),),
    "aten._sobol_engine_initialize_state_.default": lambda d: (torch.zeros(3, 30, dtype=torch.int64), 3),
    "aten._sobol_engine_scramble_.default": lambda d: (_sobol_state(), d.i(2, 3, 30, 30).tril(), 3),
    "aten._sobol_engine_ff_.default": lambda d: (_int(0, 0, 0), 5, _sobol_state(), 3, 0),
    "aten._sobol_engine_draw.default": lambda d: (_int(0, 0, 0), 5, _sobol_state(), 3, 0, torch.float32),
    "aten._grid_sampler_2d_cpu_fallback.default": _grid,
    "aten._grid_sampler_2d_cpu_fallback_backward.default": lambda d: (d.f(2, 3, 4, 4), *_grid(d)),
    "aten._reshape_from_tensor.default": lambda d: (d.f(3, 4), _int(4, 3)),
    "aten._rowwise_prune.default": lambda d: (d.f(4, 3), torch.tensor([True, False, True, True]), torch.int64),
    "aten.choose_qparams_optimized.default": lambda d: (d.f(16), 16, 20, 0.16, 8),
    "aten.special_gammainc.default": lambda d: (d.u(4) * 5, d.u(4) * 5),
    "aten.special_gammaincc.default": lambda d: (d.u(4) * 5, d.u(4) * 5),
    "aten.split_copy.Tensor": lambda d: (d.f(6, 2), 2),
    "aten.split_copy.Tensor_out": _out_parts,
    "aten.trace_backward.default": lambda d: (torch.tensor(2.0), [3, 4]),
    "aten.type_as.default": lambda d: (d.f(3), d.i(3, 4)),
    "aten.unsafe_split_with_sizes.default": lambda d: (d.f(6, 2), [1, 2, 3]),
    "aten.value_selecting_reduction_backward.default": lambda d: (d.f(3), 1, d.i(4, 3), [3, 4], False),
    "aten.vander.default": lambda d: (d.f(4), 3),
    **{
        f"aten._foreach_{name}{face}.Tensor": lambda d: (*d.lists(3, 4), torch.tensor([0.1, 0.2, 0.3]))
        for name in ("addcdiv", "addcmul")
        for face in ("", "_")
    },
    "aten._foreach_pow.ScalarAndTensor": lambda d: (2.5, d.lists(1, 4)[0]),
    **{
        f"aten.{name}{face}.default": lambda d: (d.f(2, 3, 4), 0.5, False)
        for name in ("dropout", "alpha_dropout", "feature_alpha_dropout", "feature_dropout")
        for face in ("", "_")
    },
    "aten.adaptive_max_pool1d.default": lambda d: (d.f(2, 3, 8), [3]),
    "aten.batch_norm.default": lambda d: (*_batch_norm(d), True, 0.1, 1e-5, False),
    "aten.instance_norm.default": lambda d: (*_batch_norm(d), True, 0.1, 1e-5, False),
    "aten.bernoulli.p": lambda d: (d.u(64), 0.3),
    "aten.block_diag.default": lambda d: ([d.f(2, 3), d.f(4)],),
    "aten.broadcast_tensors.default": lambda d: ([d.f(2, 3), d.f(3)],),
    "aten.cartesian_prod.default": lambda d: ([d.f(2), d.f(3)],),
    "aten.meshgrid.default": lambda d: ([d.f(2), d.f(3)],),
    "aten.meshgrid.indexing": lambda d: Call([d.f(2), d.f(3)], indexing="xy"),
    "aten.cdist.default": lambda d: (d.f(3, 4), d.f(5, 4)),
    "aten.cosine_embedding_loss.default": lambda d: (d.f(3, 4), d.f(3, 4), d.f(3).sign()),
    "aten.margin_ranking_loss.default": lambda d: (d.f(3), d.f(3), d.f(3).sign(), 0.5),
    "aten.poisson_nll_loss.default": lambda d: (d.f(3), d.u(3), True, False, 1e-8, 1),
    "aten.kl_div.default": lambda d: (d.f(3), d.u(3)),
    "aten.nll_loss.default": lambda d: (d.f(3, 4), _int(0, 2, 1)),
    "aten.ctc_loss.IntList": lambda d: (d.f(6, 2, 5).log_softmax(-1), d.i(4, 2, 3) + 1, [6, 5], [3, 2]),
    "aten.ctc_loss.Tensor": lambda d: (d.f(6, 2, 5).log_softmax(-1), d.i(4, 2, 3) + 1, _int(6, 5), _int(3, 2)),
    "aten.einsum.default": lambda d: ("ij,jk->ik", [d.f(2, 3), d.f(3, 4)]),
    "aten.embedding_bag.default": lambda d: (d.f(6, 4), _int(0, 2, 5, 1), _int(0, 2)),
    "aten.embedding_bag.padding_idx": lambda d: (
        d.f(6, 4),
        _int(0, 2, 5, 1),
        _int(0, 2),
        False,
        0,
        False,
        None,
        False,
        2,
    ),
    "aten.empty.out": lambda d: Call([0], out=torch.zeros(0)),
    "aten.empty_permuted.default": lambda d: ([0, 2], [1, 0]),
    "aten.eye.default": lambda d: (3,),
    "aten.eye.m": lambda d: (3, 4),
    "aten.float_power_.Scalar": lambda d: (d.u(3).double(), 2.5),
    "aten.float_power_.Tensor": lambda d: (d.u(3).double(), d.f(3)),
    "aten.full.out": lambda d: Call([3], 2.5, out=torch.zeros(3)),
    **{f"aten.{name}.out": lambda d: Call([3], out=torch.zeros(3)) for name in ("ones", "zeros", "randn")},
    "aten.gradient.array": lambda d: Call(d.f(5, 6), dim=[0, 1]),
    "aten.gradient.scalararray": lambda d: Call(d.f(5, 6), spacing=2.0, dim=[0, 1]),
    "aten.gradient.tensorarrayint": lambda d: Call(d.f(5, 6), spacing=[torch.arange(5.0) ** 2], dim=0),
    "aten.histogramdd.int_bins": lambda d: (d.u(20, 2), 4),
    "aten.linalg_cond.p_str": lambda d: (_square(d), "fro"),
    "aten.linalg_matrix_rank.default": lambda d: (_square(d), 0.1),
    "aten.linalg_matrix_rank.tol_tensor": lambda d: (_square(d), torch.tensor(0.1)),
    "aten.linalg_matrix_rank.out_tol_tensor": lambda d: Call(_square(d), torch.tensor(0.1), out=_int(0).view(())),
    "aten.linalg_pinv.default": lambda d: (_square(d), 0.01),
    "aten.linalg_pinv.rcond_tensor": lambda d: (_square(d), torch.tensor(0.01)),
    "aten.linalg_pinv.out_rcond_tensor": lambda d: Call(_square(d), torch.tensor(0.01), out=torch.zeros(3, 3)),
    **{
        f"aten.{name}.{face}_out": partial(_space_out, face=face)
        for name in ("linspace", "logspace")
        for face in ("Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor")
    },
    "aten.max_pool1d.default": lambda d: (d.f(2, 3, 8), [2]),
    "aten.max_pool2d.default": lambda d: (d.f(2, 3, 8, 8), [2, 3]),
    "aten.max_pool3d.default": lambda d: (d.f(1, 2, 4, 4, 4), [2, 2, 3]),
    "aten.moveaxis.int": lambda d: (d.f(2, 3, 4), 0, 2),
    "aten.movedim.int": lambda d: (d.f(2, 3, 4), 0, 2),
    "aten.norm.ScalarOpt_dtype": lambda d: Call(d.f(3, 4), 2, dtype=torch.float64),
    "aten.normal.float_float": lambda d: (1.0, 0.5, [64]),
    "aten.normal.float_float_out": lambda d: Call(1.0, 0.5, [64], out=torch.zeros(64)),
    "aten.randint.out": lambda d: Call(9, [64], out=_int(*[0] * 64)),
    "aten.randint.generator_out": lambda d: Call(9, [64], generator=None, out=_int(*[0] * 64)),
    "aten.randint.low_out": lambda d: Call(3, 9, [64], out=_int(*[0] * 64)),
    "aten.randint.low_generator_out": lambda d: Call(3, 9, [64], generator=None, out=_int(*[0] * 64)),
    "aten.randn.default": lambda d: ([3, 4],),
    "aten.randn.generator": lambda d: Call([3, 4], generator=None),
    "aten.randn.generator_out": lambda d: Call([3, 4], generator=None, out=torch.zeros(3, 4)),
    "aten.scalar_tensor.default": lambda d: (2.5,),
    "aten.special_polygamma.default": lambda d: (2, d.u(4) * 5),
    "aten.split.sizes": lambda d: (d.f(6, 2), [1, 2, 3]),
    "aten.split_with_sizes_copy.out": lambda d: Call(d.f(6, 2), [2, 4], out=[torch.zeros(2, 2), torch.zeros(4, 2)]),
    "aten.unbind_copy.int_out": lambda d: Call(d.f(2, 3), out=[torch.zeros(3), torch.zeros(3)]),
    **{f"aten.{name}.dims": lambda d: (d.f(1, 3, 1), [0, 2]) for name in ("squeeze", "squeeze_", "squeeze_copy")},
    "aten.tensordot.default": lambda d: (d.f(2, 3, 4), d.f(3, 4, 5), [1, 2], [0, 1]),
    "aten.to.dtype_layout": lambda d: Call(d.f(3), dtype=torch.float64),
    "aten._unsafe_view.default": lambda d: (d.f(3, 4), [4, 3]),
    "aten.imag.default": lambda d: (torch.complex(d.f(3, 4), d.f(3, 4)),),
    "aten.istft.default": lambda d: (torch.complex(d.f(5, 6), d.f(5, 6)), 8),
    "aten.view.dtype": lambda d: (d.f(3), torch.int32),
    "aten.view_copy.dtype": lambda d: (d.f(3), torch.int32),
    "aten.where.default": lambda d: (d.b(3, 4),),
    "aten.where.Scalar": lambda d: (d.b(3, 4), 1.5, 2.5),
    "aten.where.ScalarOther": lambda d: (d.b(3, 4), d.f(3, 4), 2.5),
    "aten.where.ScalarSelf": lambda d: (d.b(3, 4), 1.5, d.f(3, 4)),
}
# The tensors that the op itself wants on the CPU, on every device.
ON_CPU = {
    "aten._pack_padded_sequence.default": "lengths",
    "aten._pack_padded_sequence_backward.default": "batch_sizes",
    "aten._pad_packed_sequence.default": "batch_sizes",
    "aten.randint_like.Tensor": "high",
    "aten.randint_like.Tensor_generator": "high",
    "aten.tensor_split.tensor_indices_or_sections": "tensor_indices_or_sections",
    **{f"aten.{name}.data": "batch_sizes" for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")},
}
# Their first result is judged: the others serve their own backward, and differ between PyTorch's devices too.
FIRST_RESULT = {"aten.embedding_bag.default", "aten.embedding_bag.padding_idx"}
# What they answer is the device's own business: only its type is judged.
ABOUT_THE_DEVICE = {"aten.get_device.default"}
