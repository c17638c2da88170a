"""Rows that vectors do not divide: the last elements are computed one by one, and the vectors stay vectors."""

import pytest
import torch

import lazy_backend


@pytest.mark.parametrize(("width", "tail"), [(766, True), (768, False)])
def test_a_kernel_with_a_tail_is_marked(device, width, tail):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    rows = torch.arange(9.0 * width, device=device).reshape(9, width)
    view = torch.nn.functional.pad(rows, (1, 1))[:, 1:-1]
    torch.lazy.synchronize()
    (window,) = lazy_backend.explain(lambda: view * 2 + rows).windows
    (kernel,) = window.kernels
    if "vload" not in kernel.source:
        pytest.skip("this device uses no vectors")
    assert ("WHOLE\n__kernel" in kernel.source) == tail


@pytest.mark.parametrize(("rows", "guarded"), [(1021, True), (1024, False)])
def test_a_kernel_whose_last_items_have_no_row_is_marked(device, rows, guarded):
    """as every kernel over rows whose number varies: softmax of 416 rows of 13, 81 us without and 12 with"""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    x = torch.linspace(-1, 1, rows * 256).reshape(rows, 256)
    y = x.to(device)
    torch.lazy.synchronize()
    explained = lazy_backend.explain(lambda: y.log_softmax(-1))
    torch.testing.assert_close(explained.result.cpu(), x.log_softmax(-1))
    (kernel,) = explained.windows[0].kernels
    if "vload" not in kernel.source:
        pytest.skip("this device uses no vectors")
    assert ("WHOLE\n__kernel" in kernel.source) == guarded
