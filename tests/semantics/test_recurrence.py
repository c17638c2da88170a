"""Recurrent layers: eager's numbers in every variant, and launches that do not grow with the sequence."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lazy_backend

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
VARIANTS = {
    "plain": {},
    "stacked": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
}


def gradients(device, kind, steps=5, batch=4, width=7, size=12, dtype=torch.float32, given=True, **options):
    """Output, last states and all gradients of one layer stack on a device, in `dtype`, from the same numbers."""
    torch.manual_seed(0)
    layer = KINDS[kind](width, size, **options).to(dtype).to(device)
    shape = (batch, steps, width) if options.get("batch_first") else (steps, batch, width)
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    leaves = [torch.randn(shape), torch.randn(count, batch, options.get("proj_size") or size)]
    leaves += [torch.randn(count, batch, size)] if kind == "lstm" else []
    leaves = [t.to(dtype).to(device).requires_grad_() for t in leaves[: None if given else 1]]
    states = tuple(leaves[1:]) if kind == "lstm" else leaves[-1]
    out, last = layer(leaves[0], states) if given else layer(leaves[0])
    results = [out, *(last if kind == "lstm" else (last,))]
    weights = [torch.randn(t.shape).to(dtype).to(device) for t in results]
    loss = sum((a * b).sum() for a, b in zip(results, weights, strict=True))
    found = torch.autograd.grad(loss, [*leaves, *layer.parameters()])
    return [t.detach().cpu() for t in (*results, *found)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(device, kind, variant):
    """Outputs, last states and gradients of all inputs and parameters, as on the CPU."""
    found = gradients(device, kind, **VARIANTS[variant])
    expected = gradients("cpu", kind, **VARIANTS[variant])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(("batch", "size"), [(1, 1), (8, 37), (21, 16), (2, 130)])
def test_sizes_that_tiles_do_not_divide(device, kind, batch, size):
    """Rows and columns are moved back at the end, and then computed twice: a state must not be taken for the next."""
    options = {"batch": batch, "size": size, "given": False, "bidirectional": True}
    found, expected = gradients(device, kind, **options), gradients("cpu", kind, **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.004), (torch.float64, 1e-12)]
)
def test_dtypes(device, kind, dtype, tolerance):
    """States are rounded as they are stored; sums are not: relative to the largest element of each result."""
    found = gradients(device, kind, dtype=dtype)
    for ours, exact in zip(found, gradients("cpu", kind, dtype=torch.float64), strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - exact).abs().max() <= tolerance * exact.abs().max()


def test_projections(device):
    """An LSTM with projections is torch's composite."""
    found, expected = (gradients(d, "lstm", proj_size=5) for d in (device, "cpu"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def packed_program(kind, second=False, **options):
    """Sequences of several lengths from given states: outputs, last states and gradients, or the gradients of these."""

    def program(device):
        layer = KINDS[kind](3, 4, bidirectional=True, num_layers=2, **options).double().to(device)
        x = torch.randn(4, 6, 3).double().to(device).requires_grad_()
        states = [torch.randn(4, 4, 4).double().to(device).requires_grad_() for _ in range(2 if kind == "lstm" else 1)]
        sequences = pack_padded_sequence(x, torch.tensor([3, 5, 1, 3]), batch_first=True, enforce_sorted=False)
        out, last = layer(sequences, tuple(states) if kind == "lstm" else states[0])
        padded, lengths = pad_packed_sequence(out, padding_value=0.5, total_length=7)
        loss = padded.sin().sum() + sum((n + 2) * t.cos().sum() for n, t in enumerate(last))
        inputs = [x, *states, *layer.parameters()]
        found = torch.autograd.grad(loss, inputs, create_graph=second)
        if second:
            return torch.autograd.grad(sum(t.square().sum() for t in found), inputs)
        return padded, lengths, last, out.data, out.batch_sizes, found

    return program


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(agrees, kind, bias):
    """Each sequence's states are those of its own last step, and each is turned round by itself."""
    agrees(packed_program(kind, bias=bias), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_of_gradients_of_packed_sequences(agrees, kind):
    agrees(packed_program(kind, second=True), rtol=1e-8, atol=1e-10)


def test_what_is_no_sequence_to_pack(device):
    with pytest.raises(RuntimeError, match="greater than 0"):
        pack_padded_sequence(torch.ones(3, 2, 4).to(device), torch.tensor([3, 0]))
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        pack_padded_sequence(torch.ones(3, 2, 4).to(device), torch.tensor([2, 3]))


def test_packed_batches_of_other_lengths_are_the_same_window():
    """Lengths do not change what is compiled, once some batches were seen."""
    if not torch.lazy.get_device_properties().capabilities["is_cpu"]:
        pytest.skip("the walk over a sequence is a CPU's")
    layer = nn.LSTM(16, 16, bidirectional=True).to("lazy")
    generator = torch.Generator().manual_seed(0)

    def step():
        lengths = torch.cat([torch.tensor([11]), torch.randint(2, 12, (7,), generator=generator)])
        x = torch.randn(11, 8, 16, generator=generator).to("lazy")
        padded, _ = pad_packed_sequence(layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])
        padded.square().sum().backward()
        return [p.grad.sum().item() for p in layer.parameters()]

    with torch.lazy.window(512):
        for _ in range(4):
            step()
        before = torch.lazy.stats()
        for _ in range(5):
            step()
        after = torch.lazy.stats()
    assert after["plans_compiled"] == before["plans_compiled"]
    assert after["kernels_built"] == before["kernels_built"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(agrees, kind):
    """A gradient penalty, where an input of the layer is made of another of its inputs."""

    def program(device):
        layer = KINDS[kind](4, 4, bidirectional=True).to(device)
        h = torch.randn(2, 3, 4).to(device).requires_grad_()
        x = torch.cat([h * 2, torch.randn(3, 3, 4).to(device)]).tanh()
        states = (h, h.cos()) if kind == "lstm" else h
        out, _ = layer(x, states)
        (first,) = torch.autograd.grad(out.square().sum(), h, create_graph=True)
        first.square().sum().backward()
        return first, h.grad, [p.grad for p in layer.parameters()]

    agrees(program, rtol=1e-3, atol=1e-4)


def test_frozen_parameters_and_inference(agrees):
    """Only what is asked for gets a gradient; none does in inference mode, with the same output."""

    def program(device):
        layer = nn.LSTM(4, 5, num_layers=2).to(device)
        x = torch.randn(3, 2, 4).to(device)
        for parameter in list(layer.parameters())[:4]:
            parameter.requires_grad_(False)
        out, (_, cell) = layer(x)
        cell.sum().backward()
        with torch.inference_mode():
            again, _ = layer(x)
        return out, again, [p.grad for p in layer.parameters()]

    agrees(program, rtol=1e-4, atol=1e-5)


def test_dropout_between_layers(device):
    """Some units of all layers but the last are dropped in training; the numbers depend on the seed only."""
    layer = nn.GRU(8, 32, num_layers=2, dropout=0.5).to(device)
    x = torch.randn(6, 4, 8).to(device)
    torch.manual_seed(1)
    first = layer(x)[0].cpu()
    torch.manual_seed(1)
    torch.testing.assert_close(layer(x)[0].cpu(), first, rtol=0, atol=0)
    assert not torch.equal(layer(x)[0].cpu(), first)
    assert not torch.equal(layer.eval()(x)[0].cpu(), first)


def test_what_torch_refuses(device):
    """Sizes that do not fit are eager's errors."""
    layer = nn.LSTM(4, 5).to(device)
    x = torch.randn(3, 2, 4).to(device)
    with pytest.raises(RuntimeError, match="Expected hidden"):
        layer(x, (torch.zeros(1, 3, 5).to(device), torch.zeros(1, 2, 5).to(device)))
    with pytest.raises(RuntimeError, match=r"input\.size"):
        layer(torch.randn(3, 2, 6).to(device))


def launches(kind, steps):
    """Ops, launches and distinct kernels of a training step of one layer."""
    layer = KINDS[kind](16, 16).to("lazy")
    x = torch.randn(steps, 4, 16).to("lazy").requires_grad_()
    weight = torch.randn(steps, 4, 16).to("lazy")

    def step():
        loss = (layer(x)[0] * weight).sum()
        return torch.autograd.grad(loss, [x, *layer.parameters()])

    windows = lazy_backend.explain(step).windows
    kernels = [k for window in windows for k in window.kernels]
    return sum(len(w.ops) for w in windows), len(kernels), len({k.source for k in kernels})


@pytest.mark.parametrize("kind", KINDS)
def test_launches_do_not_grow_with_the_sequence(kind):
    """A training step: forward the input's product and two launches for all steps (the weight packed, the walk),
    backward at most as many and three products, the biases' sums and the loss."""
    capabilities = torch.lazy.get_device_properties().capabilities
    if not capabilities["is_cpu"] and capabilities["local_memory_bytes"] < 24 << 10:
        pytest.skip("the walk over a sequence is a CPU's, or its state is in local memory")
    with torch.lazy.window(512):
        short, long = launches(kind, 4), launches(kind, 19)
    assert short == long
    assert long[1] <= 13
