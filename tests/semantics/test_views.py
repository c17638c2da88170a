"""Views share memory, in both directions, whatever made them."""

import pytest
import torch

VIEWS = {
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x[2],
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "view": lambda x: x.view(6, 4),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "as_strided": lambda x: x.as_strided((3, 2), (7, 2), 1),
    "split": lambda x: x.split(2, dim=1)[1],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "movedim": lambda x: x.movedim(0, 1),
    "dtype": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "flatten": lambda x: x.flatten(),
    "view_as": lambda x: x.view_as(torch.empty(2, 12)),
}


def matrix(device: str) -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6).to(device)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_layout_of_eager_and_the_same_storage(device, name):
    base = matrix(device)
    view, expected = VIEWS[name](base), VIEWS[name](matrix("cpu"))
    assert (view.shape, view.stride(), view.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert view.is_contiguous() == expected.is_contiguous()
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_a_view_is_seen_by_its_base(agrees, name):
    def program(device):
        base = matrix(device)
        view = VIEWS[name](base)
        view.add_(100)
        view.mul_(view)
        return base, view

    agrees(program)


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_the_base_is_seen_by_its_views(agrees, name):
    def program(device):
        base = matrix(device)
        view = VIEWS[name](base)
        before = view.clone()
        base.mul_(-2)
        return before, view

    agrees(program)


def test_views_of_views_and_overlapping_views(agrees):
    def program(device):
        base = matrix(device)
        left, right = base[:, :4], base[:, 2:]
        left.add_(right)
        right[1].zero_()
        base.t()[2:4].neg_()
        return base, left, right

    agrees(program)


def test_a_copy_between_overlapping_parts_of_one_storage(agrees):
    def program(device):
        base = torch.arange(8.0).to(device)
        base[2:].copy_(base[:-2].clone())
        base[:4] = base[4:]
        return base

    agrees(program)


def test_complex_and_real_views_share_memory(agrees):
    def program(device):
        x = torch.tensor([1 + 2j, 3 - 4j], device=device)
        torch.view_as_real(x)[0, 1] = 9.0
        x.real.add_(1)
        return x, torch.view_as_complex(torch.tensor([[1.0, 2.0]], device=device))

    agrees(program)


def test_a_window_full_of_views_of_one_base(agrees):
    def program(device):
        base = torch.zeros(64, device=device)
        for i in range(64):
            base[i : i + 1].add_(base[max(i - 1, 0) : max(i, 1)] + i)
        return base

    agrees(program)


def test_a_view_keeps_its_base_alive(agrees):
    def program(device):
        view = matrix(device)[1]
        for _ in range(4):
            torch.full((4, 6), 7.0, device=device)
        return view

    agrees(program)


def test_an_expanded_tensor_is_read_and_not_written(device):
    x = torch.ones(3, 1, device=device)
    assert x.expand(3, 4).sum().item() == 12
    with pytest.raises(RuntimeError, match="single memory location"):
        x.expand(3, 4).add_(1)


def test_reshape_copies_where_a_view_cannot_be(agrees):
    def program(device):
        x = matrix(device)
        flat = x.t().reshape(-1)
        flat.zero_()
        return x, flat

    agrees(program)


def test_view_of_an_impossible_layout_raises_as_eager_does(device):
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        matrix(device).t().view(-1)


@pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format, torch.preserve_format])
def test_memory_formats_are_kept_as_in_eager(device, format):
    def strides(where):
        x = torch.randn(2, 3, 4, 5).to(where).contiguous(memory_format=torch.channels_last)
        y = x.clone(memory_format=format)
        return y.stride(), torch.relu(x).stride(), (x + 1).stride(), torch.empty_like(x.permute(1, 0, 3, 2)).stride()

    assert strides(device) == strides("cpu")


# Results of kernels of every kind that nothing reads but in another order of their dims.
READ_ACROSS = {
    "nonzero": lambda x: (x > 5).nonzero().t() * 2,
    "sorted values": lambda x: x.sort(dim=1).values.t() + 1,
    "sorted places": lambda x: x.sort(dim=0).indices.t() * 2,
    "topk": lambda x: x.topk(3, dim=1).values.t() * 2,
    "cumsum": lambda x: x.cumsum(0).t() + 1,
    "cummax": lambda x: x.cummax(1).indices.t() * 3,
    "index_put": lambda x: torch.zeros_like(x).index_put((x[:2, 0].long() % 4,), x[:2]).t() * 2,
    "scatter": lambda x: torch.zeros_like(x).scatter(0, (x[:1] % 4).long(), 1.0).t() + 1,
    "searchsorted": lambda x: torch.searchsorted(x, x + 1.5).t() * 2,
    "product": lambda x: (x @ x.t()[:, :3]).t() + 1,
    "convolution": lambda x: torch.conv1d(x[None], torch.ones(5, 4, 3).to(x.device)).transpose(0, 1) * 2,
    "softmax": lambda x: x.softmax(1).t().contiguous(),
}


@pytest.mark.parametrize("name", READ_ACROSS)
def test_a_result_that_is_only_read_across(agrees, name):
    agrees(lambda device: READ_ACROSS[name](matrix(device)))
