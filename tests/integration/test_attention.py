"""Long attention runs in kernels that keep none of them in memory."""

import pytest
import torch
import torch.nn.functional as F

BATCH, HEADS, LENGTH, DEPTH = 2, 4, 320, 32
MASKS = {
    "none": lambda: {},
    "causal": lambda: {"is_causal": True},
    "boolean": lambda: {"attn_mask": torch.rand(LENGTH, LENGTH) > 0.3},
    "float": lambda: {"attn_mask": torch.randn(BATCH, 1, LENGTH, LENGTH)},
    "scale": lambda: {"scale": 0.5},
    "fewer keys and values": lambda: {"enable_gqa": True},
}


def attend(device: str, name: str) -> list[torch.Tensor]:
    """The result and the gradients of q, k and v."""
    torch.manual_seed(0)
    heads = HEADS // 2 if name == "fewer keys and values" else HEADS
    q, k, v = (torch.randn(BATCH, LENGTH, h, DEPTH).transpose(1, 2) for h in (HEADS, heads, heads))
    gradient = torch.randn(BATCH, HEADS, LENGTH, DEPTH).to(device)
    given = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in MASKS[name]().items()}
    q, k, v = (x.to(device).requires_grad_() for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, **given)
    out.backward(gradient)
    return [x.detach().cpu() for x in (out, q.grad, k.grad, v.grad)]


@pytest.mark.parametrize("name", MASKS)
def test_results_and_gradients_are_those_of_eager(device, name):
    """scaled_dot_product_attention of long sequences with every kind of mask, forward and backward"""
    before = torch.lazy.stats()["host_ops"]
    for got, want in zip(attend(device, name), attend("cpu", name), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * want.abs().max().item())
    assert torch.lazy.stats()["host_ops"] == before


def test_the_scores_are_never_in_memory(device):
    """Long attention in few launches, with less memory than its scores would take"""
    length, depth = 2048, 64  # for less, products are faster on an H200 by more than the memory is worth
    q, k, v = (torch.randn(1, HEADS, length, depth).to(device).requires_grad_() for _ in range(3))
    gradient = torch.randn(1, HEADS, length, depth).to(device)
    torch.lazy.synchronize()
    torch.lazy.reset_peak_memory_stats()
    held, before = torch.lazy.memory_allocated(), torch.lazy.stats()
    out = F.scaled_dot_product_attention(q, k, v)
    torch.lazy.synchronize()
    forward = torch.lazy.stats()
    assert forward["kernels_launched"] - before["kernels_launched"] == 2, (
        "the kernel; one that fills dropout's seed and offset"
    )
    out.backward(gradient)
    torch.lazy.synchronize()
    assert torch.lazy.stats()["kernels_launched"] - forward["kernels_launched"] == 2
    assert torch.lazy.max_memory_allocated() - held < 4 * HEADS * length * length / 2


def test_the_gradient_of_a_mask_is_computed_from_the_scores(device):
    """A learned attention bias gets its gradient"""

    def program(device):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 2, 256, 16).to(device) for _ in range(3))
        bias = torch.randn(256, 256).to(device).requires_grad_()
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias).square().sum().backward()
        return bias.grad.cpu()

    torch.testing.assert_close(program(device), program("cpu"), rtol=1e-4, atol=1e-5)


def test_a_row_too_long_for_private_memory_goes_the_other_way(device):
    """Attention with heads of more than 512 numbers: two products and a softmax"""

    def program(device):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 1, 256, depth).to(device) for depth in (8, 8, 520))
        return F.scaled_dot_product_attention(q, k, v).cpu()

    torch.testing.assert_close(program(device), program("cpu"), rtol=1e-4, atol=1e-5)
