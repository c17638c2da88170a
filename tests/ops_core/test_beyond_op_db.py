"""Kernel groups that op_db never dispatches: fused optimizers, AMP, the transformer's fast path, fused RNN cells,
fake quantisation, antialiased upsampling, slow convolutions, forward-mode helpers."""

import math

import pytest
import torch

from ops_core.lowering.schema import op_named

from .checker import check

torch.manual_seed(0)
r = torch.randn
X = r(2, 5, 8)
QKV = (r(24, 8), r(24), r(8, 8), r(8))
IMAGE = r(2, 3, 7, 7)
SCALE, ZERO = torch.rand(5) + 0.1, torch.randint(0, 5, (5,), dtype=torch.int32)
MASK = torch.rand(2, 2, 5, 5) > 0.7
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8, "maximize": False}
SGD = {"weight_decay": 0.1, "lr": 0.1, "dampening": 0.1, "nesterov": False, "is_first_step": False}


def one(value, dtype=torch.float32):
    return torch.tensor([value], dtype=dtype)


def tensors(positive=False, dtype=torch.float32):
    made = [r(3, 4).to(dtype), r(5).to(dtype)]
    return [t.abs() for t in made] if positive else made


def adam_state(amsgrad, dtype=torch.float32):
    moments = [tensors(dtype=dtype) for _ in range(3)] + [tensors(True, dtype)]
    return (*moments, tensors(True, dtype) if amsgrad else [], [torch.tensor(3.0), torch.tensor(3.0)])


CALLS = [
    *[(f"{op}.default", adam_state(amsgrad, dtype), ADAM | {"amsgrad": amsgrad})
      for op in ("_fused_adam_", "_fused_adamw_") for amsgrad in (False, True)
      for dtype in (torch.float32, torch.bfloat16, torch.float16)],
    ("_fused_adam_.tensor_lr", adam_state(False),
     ADAM | {"lr": torch.tensor(0.1), "amsgrad": False, "grad_scale": torch.tensor(2.0),
             "found_inf": torch.tensor(0.0)}),
    ("_fused_adamw_.default", adam_state(False), ADAM | {"amsgrad": False, "found_inf": torch.tensor(1.0)}),
    ("_fused_sgd_.default", (tensors(), tensors(), tensors()), SGD | {"momentum": 0.9, "maximize": False}),
    ("_fused_sgd_.default", (tensors(), tensors(), []), SGD | {"momentum": 0.0, "maximize": True}),
    ("_fused_adagrad_.default", (tensors(), tensors(), tensors(True), [torch.tensor(3.0), torch.tensor(3.0)]),
     {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}),
    ("_amp_foreach_non_finite_check_and_unscale_.default", ([r(3), r(4)], one(0.0), one(0.5)), {}),
    ("_amp_foreach_non_finite_check_and_unscale_.default", ([r(3), one(math.inf)], one(0.0), one(0.5)), {}),
    *[("_amp_update_scale_.default", (one(1024.0), one(grown, torch.int32), one(found), 2.0, 0.5, 5), {})
      for grown, found in ((1, 0.0), (1, 1.0), (4, 0.0))],
    ("_transform_bias_rescale_qkv.default", (r(2, 5, 24), r(24), 2), {}),
    ("_native_multi_head_attention.default", (X, X, X, 8, 2, *QKV), {}),
    ("_native_multi_head_attention.default", (X, X, X, 8, 2, *QKV, torch.rand(2, 5) > 0.7, True, False, 1), {}),
    *[("_transformer_encoder_layer_fwd.default",
       (X, 8, 2, *QKV, flag, flag, 1e-5, r(8), r(8), r(8), r(8), r(16, 8), r(16), r(8, 16), r(8)), {})
      for flag in (False, True)],
    ("_masked_softmax.default", (r(2, 2, 5, 5), MASK[0, 0], None, 0), {}),
    ("_masked_softmax.default", (r(2, 2, 5, 5), MASK, None, 2), {}),
    ("_masked_softmax_backward.default", (r(2, 2, 5, 5), r(2, 2, 5, 5).softmax(-1).masked_fill(MASK, 0), MASK), {}),
    ("fake_quantize_per_tensor_affine_cachemask.default", (r(4, 5), 0.1, 3, 0, 10), {}),
    ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
     (r(4, 5), one(0.1), one(3, torch.int32), one(1, torch.int64), 0, 10), {}),
    ("fake_quantize_per_channel_affine_cachemask.default", (r(4, 5), SCALE, ZERO, 1, 0, 10), {}),
    ("_fake_quantize_learnable_per_tensor_affine.default", (r(4, 5), one(0.1), one(3.2), 0, 10, 0.5), {}),
    ("_fake_quantize_learnable_per_channel_affine.default", (r(4, 5), SCALE, SCALE * 4, 1, 0, 10, 0.5), {}),
    ("_fake_quantize_learnable_per_tensor_affine_backward.default",
     (r(4, 5), r(4, 5), one(0.1), one(3.2), 0, 10, 0.5), {}),
    ("_fake_quantize_learnable_per_channel_affine_backward.default",
     (r(4, 5), r(4, 5), SCALE, SCALE * 4, 1, 0, 10, 0.5), {}),
    ("_fused_moving_avg_obs_fq_helper.default",
     (r(4, 5), one(1, torch.int64), one(1, torch.int64), torch.tensor(-1.0), torch.tensor(1.0), one(0.1),
      one(0, torch.int32), 0.01, 0, 255, 0), {}),
    *[(f"_upsample_{kind}2d_aa.default", (IMAGE, [4, 9], False), {}) for kind in ("bilinear", "bicubic", "lanczos")],
    *[(f"_upsample_{kind}2d_aa_backward.default", (r(2, 3, 4, 9), [4, 9], [2, 3, 7, 7], False), {})
      for kind in ("bilinear", "bicubic", "lanczos")],
    ("_slow_conv2d_forward.default", (IMAGE, r(4, 3, 3, 3), [3, 3], r(4), [1, 1], [1, 1]), {}),
    ("_slow_conv2d_backward.output_mask",
     (r(2, 4, 7, 7), IMAGE, r(4, 3, 3, 3), [3, 3], [1, 1], [1, 1], [True, True, True]), {}),
    ("slow_conv3d_forward.default", (r(2, 3, 5, 5, 5), r(4, 3, 3, 3, 3), [3, 3, 3], r(4), [1, 1, 1], [1, 1, 1]), {}),
    ("slow_conv_dilated2d.default", (IMAGE, r(4, 3, 3, 3), [3, 3], r(4), [1, 1], [2, 2], [2, 2]), {}),
    ("slow_conv_transpose2d.default", (IMAGE, r(3, 4, 3, 3), [3, 3], r(4), [2, 2], [1, 1], [1, 1], [1, 1]), {}),
    ("_weight_norm_interface.default", (r(4, 5), r(4, 1), 0), {}),
    ("_int_mm.default", (torch.randint(-9, 9, (4, 5)).to(torch.int8), torch.randint(-9, 9, (5, 6)).to(torch.int8)), {}),
    ("embedding_renorm_.default", (r(4, 5), torch.tensor([1, 2]), 1.0, 2.0), {}),
    ("_embedding_bag_dense_backward.default",
     (r(2, 3), torch.tensor([1, 2, 0]), torch.tensor([0, 0, 1]), torch.tensor([2, 1]), torch.tensor([0, 0]),
      5, False, 0, None), {}),
    ("_cummax_helper.default", (r(4, 5), torch.zeros(4, 5), torch.zeros(4, 5, dtype=torch.int64), 1), {}),
    ("glu_jvp.default", (r(4, 3), r(4, 6), r(4, 6), 1), {}),
    ("glu_backward_jvp.default", (r(4, 6), r(4, 3), r(4, 6), r(4, 3), r(4, 6), 1), {}),
    ("_compute_linear_combination.default", (r(4, 6), r(3, 4)), {}),
    ("_dirichlet_grad.default", (torch.rand(50), torch.rand(50) * 12 + 0.05, torch.rand(50) * 10 + 13), {}),
    ("_standard_gamma_grad.default", (torch.rand(50) * 12 + 0.05, torch.rand(50) * 10 + 0.01), {}),
    *[(f"__{side}shift__.{kind}", (torch.arange(5), 2 if kind == "Scalar" else torch.arange(5)), {})
      for side in "lr" for kind in ("Scalar", "Tensor")],
    ("_addmm_activation.default", (r(4), r(3, 5), r(5, 4)), {"use_gelu": False}),
    ("_addmm_activation.default", (r(4), r(3, 5), r(5, 4)), {"use_gelu": True}),
    ("_aminmax.default", (r(4, 5),), {}),
    ("_aminmax.dim", (r(4, 5), 1, True), {}),
    ("_cholesky_solve_helper.default", (r(3, 2), r(3, 3).tril() + 3 * torch.eye(3), False), {}),
    ("_cummin_helper.default", (r(4, 5), torch.zeros(4, 5), torch.zeros(4, 5, dtype=torch.int64), 1), {}),
    ("_embedding_bag_forward_only.default", (r(5, 3), torch.tensor([1, 2, 0]), torch.tensor([0, 2])), {}),
    ("_fused_adagrad_.tensor_lr", (tensors(), tensors(), tensors(True), [torch.tensor(3.0), torch.tensor(3.0)]),
     {"lr": torch.tensor(0.1), "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}),
    ("_fused_adamw_.tensor_lr", adam_state(True), ADAM | {"lr": torch.tensor(0.1), "amsgrad": True}),
    ("_fused_sgd_.tensor_lr", (tensors(), tensors(), tensors()),
     SGD | {"lr": torch.tensor(0.1), "momentum": 0.9, "maximize": False}),
    ("_histogramdd_from_bin_tensors.default", (r(20, 2), [torch.linspace(-2, 2, 4), torch.linspace(-1, 1, 3)]), {}),
    ("_index_put_impl_.default", (r(4, 5), [torch.tensor([1, -1])], r(2, 5), True), {}),
    ("_logcumsumexp.default", (r(4, 5), 1), {}),
    ("_native_batch_norm_legit.no_stats", (r(4, 3, 5), r(3), r(3), True, 0.1, 1e-5), {}),
    ("_weight_norm_interface_backward.default", (r(4, 5), r(4, 5), r(4, 1), r(4, 1).abs() + 1, 0), {}),
    ("batch_norm_update_stats.default", (r(4, 3, 5), torch.zeros(3), torch.ones(3), 0.1), {}),
    ("adaptive_avg_pool2d.out", (IMAGE, [3, 2]), {"out": torch.zeros(2, 3, 3, 2)}),
    ("adaptive_avg_pool3d.out", (r(2, 3, 5, 6, 7), [2, 3, 4]), {"out": torch.zeros(2, 3, 2, 3, 4)}),
    ("adaptive_avg_pool3d_backward.grad_input", (r(2, 3, 2, 3, 4), r(2, 3, 5, 6, 7)),
     {"grad_input": torch.zeros(2, 3, 5, 6, 7)}),
    ("all.dims", (MASK, [1, 2]), {}),
    ("any.dims", (MASK, [1, 2]), {}),
    ("clamp_max.default", (r(5), 0.1), {}),
    ("count_nonzero.dim_IntList", (MASK, [0, 3]), {}),
    ("eye.m_out", (3, 4), {"out": torch.zeros(0)}),
    ("fill_.Tensor", (r(3), torch.tensor(2.0)), {}),
    ("frexp.Tensor_out", (r(5),), {"mantissa": torch.zeros(0), "exponent": torch.zeros(0, dtype=torch.int32)}),
    ("histogram.bins_tensor", (r(20), torch.linspace(-2, 2, 5)), {}),
    ("huber_loss_backward.out", (torch.tensor(1.0), r(4), r(4), 1, 0.7), {"grad_input": torch.zeros(4)}),
    ("smooth_l1_loss_backward.grad_input", (torch.tensor(1.0), r(4), r(4), 1, 0.7), {"grad_input": torch.zeros(4)}),
    ("index_fill_.int_Tensor", (r(4, 5), 0, torch.tensor([1]), torch.tensor(3.0)), {}),
    *[(f"{name}", (r(4, 5), *rank, 1), {"values": torch.zeros(0), "indices": torch.zeros(0, dtype=torch.int64)})
      for name, rank in (("kthvalue.values", (2,)), ("median.dim_values", ()), ("nanmedian.dim_values", ()))],
    ("masked_fill_.Tensor", (r(5), torch.rand(5) > 0.5, torch.tensor(2.0)), {}),
    ("norm.ScalarOpt_dim_dtype", (r(4, 5), 2, [1], False), {"dtype": torch.float64}),
    ("range.out", (0, 4), {"out": torch.zeros(0)}),
    ("remainder.Scalar_Tensor", (7, torch.tensor([2, -3, 4])), {}),
    ("scatter.reduce", (r(4, 5), 0, torch.tensor([[0, 1, 1]]), r(1, 3)), {"reduce": "multiply"}),
    ("scatter.value_reduce", (r(4, 5), 0, torch.tensor([[0, 1, 1]]), 2.0), {"reduce": "add"}),
    ("searchsorted.Scalar", (torch.arange(5.0), 2.5), {}),
    ("slow_conv_dilated3d.default",
     (r(2, 3, 6, 6, 6), r(4, 3, 2, 2, 2), [2, 2, 2], r(4), [1, 1, 1], [1, 1, 1], [2, 2, 2]), {}),
    ("slow_conv_transpose3d.default", (r(2, 3, 4, 4, 4), r(3, 4, 2, 2, 2), [2, 2, 2], r(4), [2, 2, 2]), {}),
    ("_slow_conv2d_backward.grad_input", (r(2, 4, 7, 7), IMAGE, r(4, 3, 3, 3), [3, 3], [1, 1], [1, 1]),
     {"grad_input": torch.zeros(2, 3, 7, 7), "grad_weight": torch.zeros(4, 3, 3, 3), "grad_bias": torch.zeros(4)}),
    ("linalg__powsum.default", (r(4, 5), 3, [1]), {}),
    ("native_channel_shuffle.default", (r(2, 4, 3, 3), 2), {}),
    *[(f"{mode}_pad3d.default", (r(2, 4, 4, 4), [1, 2, 0, 1, 2, 1]), {}) for mode in ("reflection", "replication")],
    *[(f"{mode}_pad3d_backward.default", (r(2, 7, 5, 7), r(2, 4, 4, 4), [1, 2, 0, 1, 2, 1]), {})
      for mode in ("reflection", "replication")],
    ("_stack.default", ([r(3), r(3)], 1), {}),
    *[(f"_add_relu.{kind}", (r(5), 0.5 if kind == "Scalar" else r(5)), {}) for kind in ("Scalar", "Tensor")],
    ("bucketize.Scalar", (0.5, torch.arange(5.0)), {}),
    ("isin.Scalar_Tensor", (1, torch.arange(5)), {}),
    ("isin.Tensor_Scalar", (torch.arange(5), 1), {}),
    ("_cdist_backward.default",
     (r(2, 1, 1, 2), r(1, 1, 2), r(2, 1, 2, 2), 2.0, torch.cdist(r(1, 1, 2), r(2, 1, 2, 2)) + 1), {}),
    *[("multilabel_margin_loss_forward.default", (x, t, reduction), {}) for reduction in (0, 1, 2)
      for x, t in ((r(5), torch.tensor([1, 3, -1, 0, 0])),
                   (r(2, 5), torch.tensor([[1, 3, -1, 0, 0], [0, 1, 2, 3, 4]])))],
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS, ids=[f"{i}-{c[0]}" for i, c in enumerate(CALLS)])
def test_agrees_with_eager(name, args, kwargs):
    assert check(op_named(f"aten.{name}"), args, kwargs) is None


def test_a_fused_lstm_cell_and_its_backward_are_the_written_out_cell():
    gates, hidden, cx, biases = r(3, 16), r(3, 16), r(3, 4), (r(16), r(16))
    leaves = [t.requires_grad_() for t in (gates, hidden, cx, *biases)]
    i, f, g, o = (gates + biases[0] + hidden + biases[1]).chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    hy = o.sigmoid() * cy.tanh()
    workspace = torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1)
    agrees("_thnn_fused_lstm_cell.default", (gates, hidden, cx, *biases), (hy, cy, workspace))
    gh, gc = r(3, 4), r(3, 4)
    grads = torch.autograd.grad((hy, cy), [leaves[0], leaves[2], leaves[3]], (gh, gc))
    agrees("_thnn_fused_lstm_cell_backward_impl.default", (gh, gc, cx, cy, workspace, True), grads)


def test_a_fused_gru_cell_and_its_backward_are_the_written_out_cell():
    gates, hidden, hx, biases = r(3, 12), r(3, 12), r(3, 4), (r(12), r(12))
    leaves = [t.requires_grad_() for t in (gates, hidden, hx, *biases)]
    x, h = (gates + biases[0]).chunk(3, 1), (hidden + biases[1]).chunk(3, 1)
    reset, update = (x[0] + h[0]).sigmoid(), (x[1] + h[1]).sigmoid()
    new = (x[2] + reset * h[2]).tanh()
    hy = new + update * (hx - new)
    workspace = torch.cat([reset, update, new, hx, h[2]], 1)
    agrees("_thnn_fused_gru_cell.default", (gates, hidden, hx, *biases), (hy, workspace))
    grads = torch.autograd.grad(hy, leaves, torch.ones_like(hy))
    agrees("_thnn_fused_gru_cell_backward.default", (torch.ones_like(hy), workspace, True), grads)


def agrees(name, args, expected):
    """Ops that no CPU kernel implements, against results computed otherwise."""
    from .checker import lower_call

    with torch.no_grad():
        call = lower_call(op_named(f"aten.{name}"), args, {})
    values = call.run()
    for got, want in zip(call.lowered.outputs, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(values[got].copy()), want.detach(), rtol=1e-4, atol=1e-5)
