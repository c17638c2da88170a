"""The thirteen traps of a renamed PrivateUse1 device, each of which a throwaway device fell into."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


# 1. module.to(device) must move parameters, not replace them.


def test_tied_weights_stay_tied_when_a_module_moves(device):
    model = Tied().to(device)
    assert model.head.weight is model.embed.weight
    assert model.head.weight.device.type == device


def test_an_optimizer_made_before_the_move_trains_the_moved_parameters(device):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(device)
    before = model.weight.detach().cpu().clone()
    model(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.cpu(), before - 0.1)


def test_data_of_a_parameter_can_be_moved(device):
    parameter = nn.Parameter(torch.arange(3.0))
    parameter.data = parameter.data.to(device)
    assert parameter.device.type == device and parameter.cpu().tolist() == [0, 1, 2]


# 2. Conjugate and negative views are resolved by a copy that must not call itself.


def test_conj_and_neg_views_reach_the_cpu(agrees):
    def program(device):
        x = torch.tensor([1 + 2j, 3 - 4j], device=device)
        return x.conj(), x.conj().imag, (x.conj() * x).real, x.conj().clone(), x.conj().resolve_conj()

    agrees(program)


PRODUCTS = {
    "mm": lambda a, b, v: a.mH @ b,
    "bmm": lambda a, b, v: torch.bmm(a.mH[None], b[None]),
    "addmm": lambda a, b, v: torch.addmm(b[:2].conj(), a[:, :2].mH, b.conj()),
    "addmm_": lambda a, b, v: b.clone().conj().addmm_(a[:, :3].mT, b),
    "dot": lambda a, b, v: torch.dot(v.conj(), v),
    "vdot": lambda a, b, v: torch.vdot(v.conj(), v),
    "a negative view": lambda a, b, v: a.conj().imag.T @ b.real,
    "solve_triangular": lambda a, b, v: torch.linalg.solve_triangular(a[:, :3].mH, b.conj(), upper=True),
    "eigenvectors' gradient": lambda a, b, v: torch.linalg.solve(a[:, :3].mH, a[:, :3].mH @ b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_solves_take_conj_and_neg_views(agrees, name):
    def program(device):
        generator = torch.Generator().manual_seed(3)
        a, b = (torch.randn(3, n, dtype=torch.complex64, generator=generator).to(device) for n in (4, 3))
        return PRODUCTS[name](a, b, a[0])

    agrees(program)


def test_a_conj_view_is_copied_into(agrees):
    def program(device):
        x = torch.zeros(2, dtype=torch.complex64, device=device)
        x.conj().copy_(torch.tensor([1 + 2j, 3 - 4j], device=device))
        return x

    agrees(program)


# 3. Convolutions raise until the overrideable entry points are there.


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolution_forward_and_backward(agrees, dimensions, transposed):
    kind = f"Conv{'Transpose' if transposed else ''}{dimensions}d"

    def program(device):
        layer = getattr(nn, kind)(4, 6, 3, stride=2, padding=1, groups=2).to(device)
        x = torch.randn(2, 4, *[6] * dimensions).to(device).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        return y, x.grad, layer.weight.grad, layer.bias.grad

    agrees(program, rtol=1e-4, atol=1e-4)


# 4. Recurrent layers take the fused cells, which have no CPU kernel to fall back to.


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_forward_and_backward(agrees, kind):
    def program(device):
        layer = getattr(nn, kind)(4, 3, num_layers=2, bidirectional=True).to(device)
        x = torch.randn(5, 2, 4).to(device).requires_grad_()
        y, state = layer(x)
        y.square().sum().backward()
        return y, state, x.grad, [p.grad for p in layer.parameters()]

    agrees(program, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_recurrent_cells_without_bias(agrees, kind):
    def program(device):
        cell = getattr(nn, kind)(4, 3, bias=False).to(device)
        x = torch.randn(2, 4).to(device).requires_grad_()
        y = cell(x)
        (y[0] if isinstance(y, tuple) else y).sum().backward()
        return y, x.grad

    agrees(program)


# 5. Encoders and attention in evaluation take the fast path on the name privateuse1.


def test_transformer_encoder_in_evaluation(agrees):
    def program(device):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval().to(device)
        with torch.no_grad():
            return model(torch.randn(2, 5, 8).to(device))

    agrees(program, rtol=1e-4, atol=1e-5)


def test_multihead_attention_in_evaluation(agrees):
    def program(device):
        model = nn.MultiheadAttention(8, 2, batch_first=True).eval().to(device)
        x = torch.randn(2, 5, 8).to(device)
        with torch.inference_mode():
            return model(x, x, x)

    agrees(program, rtol=1e-4, atol=1e-5)


# 6. Batch norm writes running statistics that its schema does not show.


def test_batch_norm_updates_its_statistics(agrees):
    def program(device):
        layer = nn.BatchNorm2d(3).to(device)
        for _ in range(3):
            layer(torch.randn(4, 3, 5, 5).to(device))
        return dict(layer.named_buffers()), layer.eval()(torch.randn(4, 3, 5, 5).to(device))

    agrees(program, rtol=1e-4, atol=1e-5)


def test_batch_norm_update_stats_writes_its_arguments(agrees):
    def program(device):
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        return torch.batch_norm_update_stats(torch.randn(4, 3, 5).to(device), mean, var, 0.1), mean, var

    agrees(program, rtol=1e-4, atol=1e-5)


# 7. Layer norm, attention, dropout and every optimizer implementation are reachable.


def test_layer_norm_returns_its_statistics(agrees):
    def program(device):
        x, weight, bias = (torch.randn(*shape).to(device) for shape in ((2, 3, 4), (4,), (4,)))
        return torch.native_layer_norm(x, [4], weight, bias, 1e-5)

    agrees(program)


def _batch_norm(x, weight, bias):
    return torch._native_batch_norm_legit(x, weight, bias, True, 0.1, 1e-5)


def _batch_norm_with_running_statistics(x, weight, bias):
    mean, var = (f(4, device=x.device) for f in (torch.zeros, torch.ones))
    return torch._native_batch_norm_legit(x, weight, bias, mean, var, True, 0.1, 1e-5)


NORMS = {
    "layer norm": lambda x, weight, bias: torch.native_layer_norm(x, [4], weight, bias, 1e-5),
    "group norm": lambda x, weight, bias: torch.native_group_norm(x, weight, bias, 3, 4, 4, 2, 1e-5),
    "batch norm": _batch_norm,
    "batch norm with running statistics": _batch_norm_with_running_statistics,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameters", [None, torch.float32, "halves"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_statistics_of_halves_have_the_dtype_of_the_parameters(agrees, norm, parameters, dtype):
    if norm == "batch norm with running statistics" and parameters == "halves":
        pytest.skip("the CPU refuses running statistics of another dtype")

    def program(device):
        made = dtype if parameters == "halves" else parameters
        weight, bias = (None, None) if made is None else (torch.randn(4).to(made).to(device) for _ in range(2))
        return NORMS[norm](torch.randn(3, 4, 4).to(dtype).to(device), weight, bias)

    agrees(program, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention_forward_and_backward(agrees, causal):
    def program(device):
        qkv = [torch.randn(2, 2, 6, 8).to(device).requires_grad_() for _ in range(3)]
        y = F.scaled_dot_product_attention(*qkv, is_causal=causal)
        y.square().sum().backward()
        return y, [t.grad for t in qkv]

    agrees(program, rtol=1e-4, atol=1e-5)


def test_dropout_scales_what_it_keeps(device):
    x = torch.ones(10_000, device=device, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().cpu()
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs((kept > 0).float().mean() - 0.75) < 0.03
    torch.testing.assert_close(x.grad.cpu(), kept)


@pytest.mark.parametrize("how", ["foreach", "fused", "capturable", "default"])
def test_adamw_by_every_implementation(device, how):
    def train(where, flags):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(where)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **flags)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device=where)).square().sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    flags = {} if how == "default" or device == "cpu" else {how: True}
    torch.testing.assert_close(train(device, flags), train("cpu", {"foreach": False}), rtol=1e-4, atol=1e-5)


# 8. Autocast needs kernels or a fallthrough, and the supported dtypes.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_matmuls_and_keeps_losses_in_float32(device, dtype):
    model = nn.Linear(4, 3).to(device)
    with torch.autocast(device, dtype=dtype):
        y = model(torch.ones(2, 4, device=device))
        loss = F.mse_loss(y, torch.zeros(2, 3, device=device))
    loss.backward()
    assert (y.dtype, loss.dtype, model.weight.grad.dtype) == (dtype, torch.float32, torch.float32)


# 9. Generators of the device.


def test_a_generator_of_the_device_repeats_its_stream(device):
    generator = torch.Generator(device).manual_seed(5)
    first = torch.randn(8, device=device, generator=generator)
    state = generator.get_state()
    second = torch.rand(8, device=device, generator=generator)
    generator.manual_seed(5)
    assert torch.equal(first.cpu(), torch.randn(8, device=device, generator=generator).cpu())
    generator.set_state(state)
    assert torch.equal(second.cpu(), torch.rand(8, device=device, generator=generator).cpu())
    assert not torch.equal(first.cpu(), second.cpu())


# 10. The name.


def test_the_device_goes_by_its_name(device):
    x = torch.zeros(2, device=device)
    assert x.device.type == device and torch.device(device).type == device
    assert copy.deepcopy(x).device == x.device
    assert f"device='{device}" in repr(x) or device == "cpu"


def test_device_generic_tests_are_made_for_the_device(device):
    from torch.testing._internal.common_device_type import instantiate_device_type_tests
    from torch.testing._internal.common_utils import TestCase

    class Generic(TestCase):
        def test_device(self, device):
            self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

    made: dict[str, type] = {"Generic": Generic}
    instantiate_device_type_tests(Generic, made, only_for=("cpu" if device == "cpu" else "privateuse1",))
    suites = [cls for name, cls in made.items() if name != "Generic"]
    assert suites, "common_device_type saw no device: torch.<name>.is_available() was false at its import"
    test = f"test_device_{device}"
    assert hasattr(suites[0], test)
    suites[0].setUpClass()
    getattr(suites[0](test), test)()


def test_torch_testing_takes_the_device_for_the_dormant_one_of_that_name(device):
    from torch.testing._utils import wrapper_set_seed

    first, again = (wrapper_set_seed(torch.rand, 4, device=device) for _ in range(2))
    assert torch.equal(first.cpu(), again.cpu())


# 11. A dense device says so when it is given a sparse tensor.


def test_a_sparse_tensor_is_refused_with_an_error(device):
    if device == "cpu":
        pytest.skip("the cpu has sparse tensors")
    with pytest.raises((RuntimeError, NotImplementedError), match=r"[Ss]parse"):
        torch.eye(2).to_sparse().to(device)
    assert torch.ones(2, device=device).sum().item() == 2


# 12. Clients branch on the name cpu: mixtures of experts call histc on int32 elsewhere.


def test_histc_of_integers(device):
    if device == "cpu":
        pytest.skip("the cpu has no histc of integers")
    counts = torch.histc(torch.tensor([0, 1, 1, 3], dtype=torch.int32, device=device), bins=4, min=0, max=3)
    assert counts.tolist() == [1, 2, 0, 1]


# 13. Norms where the variance is zero: x * 316 - mean * 316 rounds, in composites of PyTorch and on the CPU alike.


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_norms_of_constant_rows(agrees, scale):
    def program(device):
        x = torch.full((2, 4, 3, 3), scale, device=device, requires_grad=True)
        y = F.group_norm(x, 2), F.layer_norm(x, [3, 3]), F.instance_norm(x)
        sum(t.square().sum() for t in y).backward()
        return y, x.grad

    agrees(program, rtol=1e-4, atol=2e-4 * scale)
